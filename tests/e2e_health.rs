//! Endpoints that fail, are overloaded, sleep or die behind a real Envoy: who gets new requests, and when
//! again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::check::{SETTLE, at_rest, becomes, decided, unharmed, until_scraped_twice};
use support::client::{Answer, Call, HttpClient, Protocol};
use support::config::Mode;
use support::fleet::{Fleet, FleetOptions};
use support::mock::{Fault, Mock, MockOptions};
use tokio::task::JoinHandle;
use warmroute::sim::replica::Profile;

/// How long the other workers may not know yet what one of them has heard: a tick, on a busy machine.
const LAG: Duration = Duration::from_millis(300);
const EJECTIONS: &str = "warmroute_ejections_total";

fn options(mode: Mode, workers: u32) -> FleetOptions {
    FleetOptions::new(mode, workers, 3).plugin(json!({
        "explain": {"response_header": true},
        "policy": {"name": "round_robin"},
    }))
}

/// What engines say of themselves counts until they say something else, however busy the machine is; they are silent
/// after `timeout_ms`.
fn scrape(timeout_ms: u32) -> Value {
    json!({
        "cluster": "warmroute_scrape",
        "interval_ms": 200,
        "timeout_ms": timeout_ms,
        "stale_after_ms": 10_000,
    })
}

fn scraped(mode: Mode, workers: u32) -> FleetOptions {
    options(mode, workers).plugin(json!({ "scrape": scrape(2_000) }))
}

fn chat(stream: bool) -> Value {
    json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": "Are you well?"}],
        "max_tokens": 4,
        "stream": stream,
    })
}

fn set(mock: &Mock, faults: &str) {
    mock.set_faults(Fault::parse_list(faults).unwrap());
}

/// Clients with connections of their own, so that they come to all workers.
fn clients(fleet: &Fleet) -> Vec<HttpClient> {
    (0..8).map(|_| fleet.client(Protocol::Http1)).collect()
}

/// Inference requests that came to a replica.
fn served(mock: &Mock) -> usize {
    let requests = mock.seen().into_iter();
    requests.filter(|seen| seen.method == "POST").count()
}

async fn ask(client: &HttpClient) -> Answer {
    client.send(Call::chat(&chat(false))).await.unwrap()
}

/// Waits until more inference requests have come to a replica.
async fn until_served(mock: &Mock, most: usize) {
    let begun = Instant::now();
    while served(mock) <= most {
        assert!(begun.elapsed() < SETTLE, "it is not back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until Envoy's metrics say that the endpoint is in this state.
async fn is(fleet: &Fleet, endpoint: &str, state: &str) {
    let begun = Instant::now();
    let labels = [("endpoint", endpoint), ("state", state)];
    loop {
        let stats = fleet.stats_now().await;
        if stats.metric("warmroute_endpoint_state", &labels) == 1.0 {
            let all = stats.metric("warmroute_endpoint_state", &[("endpoint", endpoint)]);
            // Envoy may have been read in the middle of a tick.
            if all == 1.0 {
                return;
            }
        }
        if begun.elapsed() > SETTLE {
            let found: Vec<_> = stats.samples("warmroute_endpoint_state", &[]).collect();
            panic!(
                "{endpoint} is not {state}: {found:?}\n{}",
                fleet.envoy.log()
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One answer under load.
#[derive(Debug)]
struct Seen {
    sent: Instant,
    status: u16,
    endpoint: String,
}

/// Clients that ask all the time, each one thing after the other.
struct Traffic {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Vec<Seen>>>,
}

impl Traffic {
    fn begin(clients: &[HttpClient]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = clients.iter().cloned().map(|client| {
            let stop = stop.clone();
            tokio::spawn(async move {
                let mut all = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    let answer = ask(&client).await;
                    all.push(Seen {
                        sent,
                        status: answer.status,
                        endpoint: decided(&answer.headers, "endpoint"),
                    });
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                all
            })
        });
        let tasks = tasks.collect();
        Self { stop, tasks }
    }

    async fn end(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

/// F1: client errors are no endpoint's failure.
async fn client_400s_open_breaker(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(options(mode, workers)).await;
    let clients = clients(&fleet);
    for number in 0..100 {
        let bad = Call::chat(&chat(number % 2 == 0)).header("x-mock-fault", "status=400");
        let answer = clients[number % 8].send(bad).await.unwrap();
        assert_eq!(answer.status, 400);
    }
    for number in 0..200 {
        assert_eq!(ask(&clients[number % 8]).await.status, 200, "{number}");
    }
    assert_eq!(at_rest(&fleet).await.metric(EJECTIONS, &[]), 0.0);
    for endpoint in fleet.endpoints() {
        is(&fleet, &endpoint, "ready").await;
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f1_client_400s_open_no_breaker: client_400s_open_breaker, OriginalDst, OverrideHost
);

/// Longer than what a busy machine needs to see that it is so.
const SPARED: Duration = Duration::from_secs(3);

/// F5: who asks to be spared is spared for as long as it asks, not as long as a rest takes here.
async fn overloaded(mode: Mode, workers: u32) {
    // Where Envoy goes on to the next, nobody hears what was asked for.
    let rest_ms = match mode {
        Mode::OriginalDst => 200,
        _ => SPARED.as_millis() as u64,
    };
    let options = options(mode, workers).plugin(json!({ "health": {"rest_ms": rest_ms} }));
    let mut fleet = Fleet::start(options).await;
    for status in [429, 503] {
        spared(&fleet, mode, status).await;
    }
    let stats = at_rest(&fleet).await;
    assert_eq!(stats.metric(EJECTIONS, &[]), 0.0);
    unharmed(&mut fleet).await;
}

async fn spared(fleet: &Fleet, mode: Mode, status: u16) {
    let clients = clients(fleet);
    let busy = fleet.endpoints()[0].clone();
    let earlier = served(&fleet.mocks[0]);
    let refused_so_far = || served(&fleet.mocks[0]) - earlier;
    let seconds = SPARED.as_secs();
    set(
        &fleet.mocks[0],
        &format!("status={status},retry-after={seconds}"),
    );
    let traffic = Traffic::begin(&clients);
    tokio::time::sleep(LAG).await;
    // All workers know by now, and nobody goes there until so long has passed since the last refusal.
    let before = refused_so_far();
    assert!(before >= 1, "nobody was refused");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(refused_so_far(), before);
    set(&fleet.mocks[0], "");
    until_served(&fleet.mocks[0], earlier + before + 5).await;
    let all = traffic.end().await;
    let (refused, good): (Vec<_>, Vec<_>) = all.iter().partition(|seen| seen.status == status);
    assert!(good.iter().all(|seen| seen.status == 200), "{good:?}");
    if mode != Mode::OriginalDst {
        // Envoy went on to the next, and does not tell why.
        assert!(refused.is_empty(), "{refused:?}");
        return;
    }
    assert_eq!(refused.len(), before);
    // Never sooner after the last refusal.
    let last = refused.iter().map(|seen| seen.sent).max().unwrap();
    let back = good
        .iter()
        .filter(|seen| seen.endpoint == busy && seen.sent > last);
    let back = back.map(|seen| seen.sent).min().unwrap();
    assert!(
        back - last >= SPARED - Duration::from_millis(10),
        "{:?}",
        back - last
    );
}

with_one_and_four_workers!(
    f5_an_overloaded_endpoint_is_spared: overloaded, OriginalDst, OriginalDst
);
with_one_and_four_workers!(
    f5_an_overloaded_endpoint_is_spared_override_host: overloaded, OverrideHost, OverrideHost
);
with_one_and_four_workers!(
    f5_an_overloaded_endpoint_is_spared_composite: overloaded, Composite, Composite
);

/// Everybody is busy: the engines' own answers pass, and overload is not tried again into more of it.
async fn all_overloaded(mode: Mode, workers: u32) {
    // Whom Envoy tried first and went on from rests so long.
    let health = json!({"rest_ms": 30_000});
    let options = options(mode, workers).plugin(json!({ "health": health }));
    let mut fleet = Fleet::start(options).await;
    let clients = clients(&fleet);
    for mock in &fleet.mocks {
        set(mock, "status=429,retry-after=60");
    }
    let tries = || -> usize { fleet.mocks.iter().map(served).sum() };
    // Until all are known to be busy; Envoy may try others meanwhile.
    for client in &clients {
        assert_eq!(ask(client).await.status, 429);
    }
    for endpoint in fleet.endpoints() {
        is(&fleet, &endpoint, "resting").await;
    }
    tokio::time::sleep(LAG).await;
    let before = tries();
    for number in 0..40 {
        let answer = ask(&clients[number % 8]).await;
        assert_eq!(answer.status, 429);
        assert_eq!(answer.header("retry-after"), "60");
        assert!(answer.header("x-warmroute-reason").is_empty());
    }
    assert_eq!(tries() - before, 40, "overload was tried again");
    let stats = at_rest(&fleet).await;
    assert_eq!(stats.metric("warmroute_local_replies_total", &[]), 0.0);
    assert_eq!(stats.metric(EJECTIONS, &[]), 0.0);
    unharmed(&mut fleet).await;
}

in_every_mode!(overload_everywhere_passes_to_clients_and_is_not_tried_again: all_overloaded);

/// F8: a refusal inside a 200 makes the endpoint rest; F9: an error is a failure, and three are too many.
async fn errors_in_streams(mode: Mode, workers: u32) {
    // Longer than all requests take.
    let options = options(mode, workers).plugin(json!({ "health": {"rest_ms": 30_000} }));
    let mut fleet = Fleet::start(options).await;
    let client = fleet.client(Protocol::Http2);
    let endpoints = fleet.endpoints();
    set(&fleet.mocks[0], "error-in-stream=503");
    set(&fleet.mocks[1], "error-in-stream=500");
    let (mut refused, mut failed) = (0, 0);
    for _ in 0..24 {
        let answer = client.send(Call::chat(&chat(true))).await.unwrap();
        assert_eq!(answer.status, 200);
        let endpoint = decided(&answer.headers, "endpoint");
        refused += usize::from(endpoint == endpoints[0]);
        failed += usize::from(endpoint == endpoints[1]);
    }
    assert_eq!((refused, failed), (1, 3));
    let failures = [("endpoint", endpoints[1].as_str()), ("cause", "failures")];
    becomes(&fleet, EJECTIONS, &failures, 1.0).await;
    assert_eq!(at_rest(&fleet).await.metric(EJECTIONS, &[]), 1.0);
    let log = fleet.envoy.log();
    for turn in [
        format!("endpoint {}: ready -> resting (overloaded)", endpoints[0]),
        format!("endpoint {}: ready -> ejected (failures)", endpoints[1]),
    ] {
        assert_eq!(log.matches(&turn).count(), 1, "{turn}\n{log}");
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f8_f9_errors_inside_a_200_count: errors_in_streams, OriginalDst, FilterState
);

/// F6: streams that break off are failures too.
async fn broken_streams(mode: Mode, workers: u32) {
    // Longer than all requests take, and not so long that nobody waits for its end.
    let options = options(mode, workers).plugin(json!({ "health": {"rest_ms": 5_000} }));
    let mut fleet = Fleet::start(options).await;
    let client = fleet.client(Protocol::Http2);
    let breaking = fleet.endpoints()[1].clone();
    set(&fleet.mocks[1], "reset=after:2");
    let mut broken = 0;
    for _ in 0..24 {
        let stream = client.open(Call::chat(&chat(true))).await.unwrap();
        let endpoint = decided(&stream.headers, "endpoint");
        let whole = stream.finish().await;
        assert_eq!(whole.is_err(), endpoint == breaking);
        broken += usize::from(whole.is_err());
    }
    assert_eq!(broken, 3);
    is(&fleet, &breaking, "probing").await;
    // Left alone, it stays half open; one good answer is enough.
    set(&fleet.mocks[1], "");
    for _ in 0..6 {
        assert_eq!(ask(&client).await.status, 200);
    }
    is(&fleet, &breaking, "ready").await;
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f6_streams_that_break_off_open_the_breaker: broken_streams, FilterState, OriginalDst
);

/// The breaker opens, lets one request at a time through, and closes.
async fn breaker(mode: Mode, workers: u32) {
    const REST: Duration = Duration::from_secs(2);
    let health = json!({ "rest_ms": REST.as_millis() as u64 });
    let options = options(mode, workers).plugin(json!({ "health": health }));
    let mut fleet = Fleet::start(options).await;
    let clients = clients(&fleet);
    let failing = fleet.endpoints()[2].clone();
    set(&fleet.mocks[2], "status=500");
    let traffic = Traffic::begin(&clients);
    is(&fleet, &failing, "ejected").await;
    tokio::time::sleep(LAG).await;
    let before = served(&fleet.mocks[2]);
    assert!((3..=3 + 8).contains(&before), "{before}");
    // While one request is slow to show, all others stay away.
    set(&fleet.mocks[2], "delay-headers=1200,status=500");
    let begun = Instant::now();
    while served(&fleet.mocks[2]) == before {
        assert!(begun.elapsed() < SETTLE, "nobody probes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(served(&fleet.mocks[2]), before + 1);
    // It fails: twice as long until the next one, which finds it well.
    let failed = Instant::now();
    tokio::time::sleep(Duration::from_millis(400)).await;
    set(&fleet.mocks[2], "");
    while served(&fleet.mocks[2]) == before + 1 {
        assert!(failed.elapsed() < SETTLE, "nobody probes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(failed.elapsed() >= 2 * REST);
    is(&fleet, &failing, "ready").await;
    until_served(&fleet.mocks[2], before + 5).await;
    let all = traffic.end().await;
    let failures = all.iter().filter(|seen| seen.status == 500).count();
    assert_eq!(failures, before + 1);
    let others = all.iter().filter(|seen| seen.endpoint != failing);
    assert!(others.into_iter().all(|seen| seen.status == 200));
    let labels = [("endpoint", failing.as_str()), ("cause", "failures")];
    becomes(&fleet, EJECTIONS, &labels, 2.0).await;
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    the_breaker_opens_lets_one_at_a_time_through_and_closes: breaker, OriginalDst, OverrideHost
);

async fn restart(fleet: &mut Fleet, index: usize, listen: SocketAddr) {
    let options = MockOptions {
        listen,
        profile: Profile::fast(),
        ..MockOptions::default()
    };
    let mock = Mock::start(options).await.unwrap();
    fleet.mocks.insert(index, mock);
}

/// A process that dies under load is avoided within a second, and comes back when it does.
async fn dies(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(scraped(mode, workers)).await;
    let clients = clients(&fleet);
    let traffic = Traffic::begin(&clients);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let died = Instant::now();
    let address = fleet.stop(1).await;
    let name = address.to_string();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let returned = Instant::now();
    restart(&mut fleet, 1, address).await;
    is(&fleet, &name, "ready").await;
    tokio::time::sleep(LAG).await;
    let back = served(&fleet.mocks[1]);
    assert!(back > 0, "it gets nothing");
    let all = traffic.end().await;
    for seen in &all {
        let there = seen.endpoint == name;
        let since = seen.sent.saturating_duration_since(died);
        if there && seen.sent < returned {
            assert!(since < Duration::from_secs(1), "picked {since:?} after");
        }
        // What was under way when it died may fail, and where there is no second try, what was sent there.
        let excused = there && mode != Mode::OverrideHost && since < Duration::from_secs(1);
        let begun = seen.sent < died;
        assert!(seen.status == 200 || begun || excused, "{seen:?}");
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    an_endpoint_that_dies_is_avoided_and_comes_back_original_dst: dies, OriginalDst, OriginalDst
);
with_one_and_four_workers!(
    an_endpoint_that_dies_is_avoided_and_comes_back_override_host: dies, OverrideHost, OverrideHost
);

/// What engines say of themselves: unwell is the last resort, asleep is out.
async fn say_so(mode: Mode, workers: u32) {
    for sleep_path in ["", "/is_sleeping"] {
        let health = json!({ "sleep_path": sleep_path });
        let options = scraped(mode, workers).plugin(json!({ "health": health }));
        let mut fleet = Fleet::start(options).await;
        let clients = clients(&fleet);
        let endpoints = fleet.endpoints();
        for (fault, state) in [("health=503", "resting"), ("asleep", "ejected")] {
            set(&fleet.mocks[0], fault);
            is(&fleet, &endpoints[0], state).await;
            tokio::time::sleep(LAG).await;
            let before = served(&fleet.mocks[0]);
            for number in 0..24 {
                assert_eq!(ask(&clients[number % 8]).await.status, 200);
            }
            assert_eq!(served(&fleet.mocks[0]), before, "{fault}");
            for mock in &fleet.mocks {
                set(mock, fault);
            }
            for endpoint in &endpoints {
                is(&fleet, endpoint, state).await;
            }
            tokio::time::sleep(LAG).await;
            for number in 0..24 {
                let answer = ask(&clients[number % 8]).await;
                if fault == "asleep" {
                    assert_eq!(answer.status, 503);
                    assert_eq!(answer.header("x-warmroute-reason"), "no_endpoint");
                    assert_eq!(answer.header("retry-after"), "1");
                } else {
                    assert_eq!(answer.status, 200);
                }
            }
            for (mock, endpoint) in fleet.mocks.iter().zip(&endpoints) {
                set(mock, "");
                is(&fleet, endpoint, "ready").await;
            }
            tokio::time::sleep(LAG).await;
            assert_eq!(ask(&clients[0]).await.status, 200);
        }
        unharmed(&mut fleet).await;
    }
}

with_one_and_four_workers!(
    an_unwell_engine_is_the_last_resort_and_a_sleeping_one_is_out: say_so, OverrideHost, OriginalDst
);

/// A page of metrics that is slow everywhere takes nobody out, and a stalled one rests.
async fn silent(mode: Mode, workers: u32) {
    let options = options(mode, workers).plugin(json!({ "scrape": scrape(1_000) }));
    let mut fleet = Fleet::start(options).await;
    let clients = clients(&fleet);
    let endpoints = fleet.endpoints();
    set(&fleet.mocks[0], "delay-headers=60000");
    is(&fleet, &endpoints[0], "resting").await;
    tokio::time::sleep(LAG).await;
    for number in 0..24 {
        let answer = ask(&clients[number % 8]).await;
        assert_eq!(answer.status, 200);
        assert_ne!(decided(&answer.headers, "endpoint"), endpoints[0]);
    }
    for mock in &fleet.mocks {
        set(mock, "delay-headers=3000");
    }
    for endpoint in &endpoints {
        is(&fleet, endpoint, "resting").await;
    }
    for answer in futures_util::future::join_all(clients.iter().cycle().take(12).map(ask)).await {
        assert_eq!(answer.status, 200);
    }
    // Failed scrapes are counted on and on.
    let stats = fleet.stats().await;
    assert_eq!(stats.metric("warmroute_local_replies_total", &[]), 0.0);
    for (mock, endpoint) in fleet.mocks.iter().zip(&endpoints) {
        set(mock, "");
        is(&fleet, endpoint, "ready").await;
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    who_is_silent_rests_unless_everybody_is: silent, FilterState, OriginalDst
);

/// A KV cache that is full for long makes its engine rest, and one that is full for a moment does not.
async fn kv_full(mode: Mode, workers: u32) {
    const LONG: Duration = Duration::from_millis(1_500);
    let health = json!({"kv_full": 0.98, "kv_full_ms": 1_500});
    let options = scraped(mode, workers).plugin(json!({ "health": health }));
    let mut fleet = Fleet::start(options).await;
    let clients = clients(&fleet);
    let full = fleet.endpoints()[0].clone();
    let usage = |usage: &str| {
        let page = format!("vllm:num_requests_running 0\nvllm:kv_cache_usage_perc {usage}\n");
        fleet.mocks[0].set_metrics(Some(page));
    };
    let turn = format!("endpoint {full}: ready -> resting (kv_full)");
    let shows = async || {
        let before = served(&fleet.mocks[0]);
        for client in clients.iter().cycle().take(24) {
            assert_eq!(ask(client).await.status, 200);
        }
        served(&fleet.mocks[0]) - before
    };
    for (figure, long) in [("0.97", 2 * LONG), ("1.0", LONG / 2)] {
        usage(figure);
        tokio::time::sleep(long).await;
        usage("0.5");
        until_scraped_twice(&fleet.mocks[0]).await;
        tokio::time::sleep(LAG).await;
        assert!(shows().await > 0, "{figure}");
        assert!(!fleet.envoy.log().contains(&turn), "{figure} for {long:?}");
    }
    let begun = Instant::now();
    usage("1.0");
    is(&fleet, &full, "resting").await;
    assert!(begun.elapsed() >= LONG, "after {:?}", begun.elapsed());
    tokio::time::sleep(LAG).await;
    assert_eq!(shows().await, 0);
    usage("0.5");
    is(&fleet, &full, "ready").await;
    tokio::time::sleep(LAG).await;
    assert!(shows().await > 0, "it is not back");
    let log = fleet.envoy.log();
    assert_eq!(log.matches(&turn).count(), 1, "{log}");
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    whose_kv_cache_is_full_for_long_rests: kv_full, OverrideHost, OriginalDst
);
