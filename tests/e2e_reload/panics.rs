//! A panic in one worker's VM: the streams of that VM fail, and nothing else does.

use super::load::{Outcome, carried, chat, failed, open_loop_until};
use crate::support::check::{SETTLE, at_rest, decided};
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::config::{EnvoyConfig, Mode, chaos_module, set};
use crate::support::fleet::{Fleet, FleetOptions};
use crate::support::stats::Stats;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Connections that stay at one worker each: enough for all of them.
const CONNECTIONS: usize = 16;
/// The shipped configurations start a VM anew at once if the last start is longer ago.
const BACKOFF: Duration = Duration::from_millis(150);
/// The stated time within which the load of a dead VM is gone.
const PINNED_AT_MOST: Duration = Duration::from_secs(10);

/// Chats in open loop until the test has seen enough.
struct Load {
    is_over: Arc<AtomicBool>,
    outcomes: JoinHandle<Vec<Outcome>>,
}

impl Load {
    fn begin(clients: Vec<HttpClient>, pause: Duration) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_over);
        let asked = move || asked.load(Ordering::Relaxed);
        let outcomes = tokio::spawn(open_loop_until(asked, clients, pause));
        Self { is_over, outcomes }
    }

    async fn end(self) -> Vec<Outcome> {
        self.is_over.store(true, Ordering::Relaxed);
        self.outcomes.await.unwrap()
    }
}

fn with_panics(config: &mut EnvoyConfig) {
    let module = chaos_module().unwrap();
    let place = "/vm_config/code/local/filename";
    set(
        config.wasm().unwrap(),
        place,
        json!(module.display().to_string()),
    )
    .unwrap();
}

fn with_panics_open(config: &mut EnvoyConfig) {
    with_panics(config);
    let wasm = config.wasm().unwrap().as_object_mut().unwrap();
    assert!(wasm.remove("failure_policy").is_some() && wasm.remove("reload_config").is_some());
    wasm.insert("fail_open".into(), json!(true));
}

async fn start(mode: Mode, adjust: fn(&mut EnvoyConfig)) -> Fleet {
    let mut options =
        FleetOptions::new(mode, 4, 4).plugin(json!({ "explain": {"response_header": true} }));
    options.adjust = adjust;
    let fleet = Fleet::start(options).await;
    tokio::time::sleep(BACKOFF).await;
    fleet
}

/// Clients with one connection each: HTTP/2, and opened.
async fn connections(fleet: &Fleet) -> Vec<HttpClient> {
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        let client = fleet.client(Protocol::Http2);
        assert_eq!(carried(&client, chat(number, false)).await.answer, Ok(()));
        clients.push(client);
    }
    clients
}

/// A request that makes the filter panic at this point.
fn poison(point: &str) -> Call {
    chat(0, false).header("x-warmroute-test-panic", point)
}

/// Requests that are under way on this connection when the panic comes: one that streams, one of
/// which the headers have come, and one that waits for them.
fn under_way(client: &HttpClient) -> Vec<JoinHandle<Outcome>> {
    let calls = [
        chat(1, true).header("x-mock-fault", "delay-first=5000"),
        chat(2, true).header("x-mock-fault", "delay-first=5000,chunk=64"),
        chat(3, false).header("x-mock-fault", "delay-headers=5000"),
    ];
    let sent = calls.map(|call| {
        let client = client.clone();
        tokio::spawn(async move { carried(&client, call).await })
    });
    sent.into()
}

/// Until so many requests have come to the replicas.
async fn until_arrived(fleet: &Fleet, wanted: usize) {
    let begun = Instant::now();
    let arrived = || -> usize { fleet.mocks.iter().map(|mock| mock.seen().len()).sum() };
    while arrived() < wanted {
        assert!(begun.elapsed() < SETTLE, "{} of {wanted}", arrived());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn reloads(stats: &Stats, what: &str) -> f64 {
    stats.metric(&format!("envoy_wasm_warmroute_vm_reload_{what}"), &[])
}

async fn one_panic(mode: Mode, point: &str) {
    let fleet = start(mode, with_panics).await;
    let clients = connections(&fleet).await;
    let sick = clients[0].clone();
    let streams: Vec<_> = clients.iter().map(under_way).collect();
    // The first chat of each connection, and what is under way on it.
    until_arrived(&fleet, CONNECTIONS * (1 + 3)).await;
    let load = Load::begin(clients.clone(), Duration::from_millis(4));
    tokio::time::sleep(Duration::from_millis(500)).await;

    let before = Instant::now();
    let answer = sick.send(poison(point)).await.unwrap();
    let panicked = Instant::now();
    assert_eq!((answer.status, answer.text().as_str()), (503, ""));
    // The very next request of the same worker is served, by the filter.
    let next = sick.send(chat(0, false)).await.unwrap();
    assert_eq!(next.status, 200);
    assert_ne!(decided(&next.headers, "endpoint"), "");
    println!(
        "{mode:?}, panic at {point}: back after {:?}",
        panicked.elapsed()
    );

    // A worker loses all of its streams, and no other loses any.
    let mut sick_connections = 0;
    for (number, streams) in streams.into_iter().enumerate() {
        let mut lost = 0;
        for stream in streams {
            lost += usize::from(stream.await.unwrap().answer.is_err());
        }
        assert!(
            [0, 3].contains(&lost),
            "connection {number} lost {lost} of 3"
        );
        assert!(
            number > 0 || lost == 3,
            "the streams of the dead VM went on"
        );
        sick_connections += usize::from(lost > 0);
    }
    assert!(sick_connections < CONNECTIONS, "all workers died");
    let outcomes = load.end().await;
    let lost = failed(&outcomes);
    for outcome in &lost {
        assert!(
            outcome.begun <= panicked && before <= outcome.ended,
            "begun {:?} after the panic: {:?}",
            outcome.begun.saturating_duration_since(panicked),
            outcome.answer
        );
    }
    let under_way = outcomes.iter().filter(|o| o.spans(panicked)).count();
    println!(
        "lost {} of {under_way} under way, of {} in all; {sick_connections} of {CONNECTIONS} \
         connections at that worker",
        lost.len(),
        outcomes.len()
    );
    assert!(lost.len() <= under_way);

    let left = PINNED_AT_MOST.saturating_sub(panicked.elapsed());
    fleet.inflight_is_zero_within(left).await.unwrap();
    println!("nothing pinned after {:?}", panicked.elapsed());
    let stats = at_rest(&fleet).await;
    assert_eq!(reloads(&stats, "success"), 1.0);
    assert_eq!(reloads(&stats, "failure") + reloads(&stats, "backoff"), 0.0);
    assert_eq!(fleet.envoy.log().matches("panicked").count(), 1);
}

#[tokio::test]
async fn a_panic_costs_the_streams_of_one_worker_original_dst() {
    one_panic(Mode::OriginalDst, "headers").await;
}

#[tokio::test]
async fn a_panic_costs_the_streams_of_one_worker_filter_state() {
    one_panic(Mode::FilterState, "body").await;
}

#[tokio::test]
async fn a_panic_costs_the_streams_of_one_worker_override_host() {
    one_panic(Mode::OverrideHost, "body").await;
}

/// One panic after another at the same worker: it serves all the same, in between.
#[tokio::test]
async fn a_worker_that_panics_again_and_again_serves_in_between() {
    let fleet = start(Mode::OverrideHost, with_panics).await;
    let client = fleet.client(Protocol::Http2);
    assert_eq!(carried(&client, chat(0, false)).await.answer, Ok(()));
    let load = Load::begin(vec![client.clone()], Duration::from_millis(5));
    let mut panics = Vec::new();
    while panics.len() < 10 {
        tokio::time::sleep(2 * BACKOFF).await;
        let sent = Instant::now();
        assert_eq!(client.send(poison("headers")).await.unwrap().status, 503);
        panics.push((sent, Instant::now()));
        // A VM is started by a request. Were that the next panic's, the one after it would come too soon.
        assert_eq!(carried(&client, chat(0, false)).await.answer, Ok(()));
    }
    let outcomes = load.end().await;
    let lost = failed(&outcomes);
    for outcome in &lost {
        let met = |(sent, answered): &(Instant, Instant)| {
            outcome.begun <= *answered && *sent <= outcome.ended
        };
        assert!(panics.iter().any(met), "{outcome:?}");
    }
    println!(
        "{} panics: lost {} of {}",
        panics.len(),
        lost.len(),
        outcomes.len()
    );
    let stats = at_rest(&fleet).await;
    assert_eq!(reloads(&stats, "success"), 10.0);
    assert_eq!(reloads(&stats, "failure") + reloads(&stats, "backoff"), 0.0);
    fleet.inflight_is_zero_within(PINNED_AT_MOST).await.unwrap();
}

/// What envoy/override_host.yaml says of `fail_open`: no request fails, not even the one that brought the
/// filter down, and the fallback policy serves from then on.
#[tokio::test]
async fn a_filter_that_fails_open_leaves_requests_to_the_fallback_policy() {
    let fleet = start(Mode::OverrideHost, with_panics_open).await;
    let client = fleet.client(Protocol::Http2);
    assert_eq!(carried(&client, chat(0, false)).await.answer, Ok(()));
    let streams = under_way(&client);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let answer = client.send(poison("body")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    for stream in streams {
        assert_eq!(stream.await.unwrap().answer, Ok(()));
    }
    for number in 0..20 {
        let answer = client.send(chat(number, false)).await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(decided(&answer.headers, "endpoint"), "", "who decided?");
    }
    assert_eq!(reloads(&at_rest(&fleet).await, "success"), 0.0);
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}
