//! What is recorded of requests: times, endpoints, tokens.

use super::{request, workload};
use crate::play::client::Client;
use crate::play::engines::Replicas;
use crate::play::names;
use crate::play::router;
use crate::play::run::{Setting, Through, run};
use crate::play::send::{Order, Sent, send};
use crate::support::mock::{Fault, Mock, MockOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use warmroute::sim::record::{Run, Served};
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::{Start, Workload};

const SILENCE: Duration = Duration::from_secs(60);

async fn mock(change: impl Fn(&mut MockOptions)) -> Mock {
    let mut options = MockOptions {
        tells_endpoint: true,
        ..MockOptions::default()
    };
    change(&mut options);
    Mock::start(options).await.unwrap()
}

/// Sends straight to `mock`, without a router.
async fn send_to(mock: &Mock, workload: Workload) -> Sent {
    let (_keep, stop) = watch::channel(false);
    stopped_by(mock, workload, stop).await
}

/// The same, until it is stopped.
async fn stopped_by(mock: &Mock, workload: Workload, stop: watch::Receiver<bool>) -> Sent {
    let order = Order {
        workload: Arc::new(workload),
        client: Client::new(&format!("http://{}", mock.addr()), SILENCE).unwrap(),
        model: "tiny".to_owned(),
        speed: 1.0,
        endpoints: vec![mock.addr().to_string()],
    };
    send(&order, stop, &|| {}).await
}

fn ttft_ms(served: &Served) -> u64 {
    (served.first_us.unwrap() - served.due_us) / 1_000
}

#[tokio::test]
async fn a_replica_that_stalls_makes_later_requests_wait_and_delays_none() {
    // One request at a time, four steps of 50 ms each.
    let slow = Profile {
        max_running: 1,
        step_base_us: 50_000,
        ..Profile::fast()
    };
    let mock = mock(|mock| mock.profile = slow.clone()).await;
    let requests = (0..6).map(|at| request(at * 10, at, 20, 4)).collect();
    let sent = send_to(&mock, workload(requests)).await;
    assert_eq!(sent.unsent, 0);
    for (at, served) in (0..).zip(&sent.served) {
        assert_eq!(served.error, None);
        assert_eq!(served.due_us / 1_000, at * 10, "due when it was to be");
        // Three and more steps before each of them, and one of its own; it was due 10 ms later.
        let least = at * 200 + 50 - at * 10 - 5;
        assert!(ttft_ms(served) >= least, "{at}: {} ms", ttft_ms(served));
    }
}

#[tokio::test]
async fn latencies_count_from_the_due_time_however_late_the_sender_was() {
    let mock = mock(|_| {}).await;
    // On this runtime's only thread: nothing is sent meanwhile.
    tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        std::thread::sleep(Duration::from_millis(450));
    });
    // The first is due 300 ms after the beginning, and is sent at 700 ms.
    let requests = (0..5).map(|at| request(at * 50, at, 20, 2)).collect();
    let sent = send_to(&mock, workload(requests)).await;
    let ttfts: Vec<u64> = sent.served.iter().map(ttft_ms).collect();
    for (at, ttft) in (0..).zip(&ttfts) {
        assert!(*ttft >= 390 - at * 50, "{at}: {ttfts:?}");
    }
    let latest_us = *sent.late_us.last().unwrap();
    assert!(
        latest_us >= 390_000,
        "the sender was late by {latest_us} µs"
    );
}

#[tokio::test]
async fn a_closed_loop_waits_for_the_answer_and_then_for_the_pause() {
    let slow = Profile {
        step_base_us: 30_000,
        ..Profile::fast()
    };
    let mock = mock(|mock| mock.profile = slow.clone()).await;
    let mut requests = vec![request(0, 0, 20, 3), request(0, 1, 20, 1)];
    for before in 0..4 {
        let mut next = request(0, u64::from(before), 20, 3);
        next.start = Start::After {
            request: before,
            pause_us: 20_000,
        };
        requests.push(next);
    }
    let sent = send_to(&mock, workload(requests)).await;
    assert_eq!(sent.served.len(), 6);
    for (at, served) in sent.served.iter().enumerate().skip(2) {
        let before = &sent.served[at - 2];
        let pause = served.due_us - before.end_us.unwrap();
        assert!(pause >= 20_000, "{at}: {pause} µs after the end");
    }
}

#[tokio::test]
async fn a_request_that_fails_lets_the_next_turn_go_on() {
    let mock = mock(|_| {}).await;
    mock.set_faults(Fault::parse_list("status=500").unwrap());
    let mut requests = vec![request(0, 0, 20, 3); 2];
    requests[1].start = Start::After {
        request: 0,
        pause_us: 0,
    };
    let sent = send_to(&mock, workload(requests)).await;
    let errors: Vec<&str> = sent
        .served
        .iter()
        .filter_map(|s| s.error.as_deref())
        .collect();
    assert_eq!(errors.len(), 2);
    assert!(
        errors[0].starts_with("status 500: {\"error\""),
        "{errors:?}"
    );
}

/// Requests that are due after the stop, and before the sender gets to see it, are not sent.
#[tokio::test]
async fn what_is_due_while_the_run_is_being_stopped_is_sent_or_counted_as_unsent() {
    let mock = mock(|_| {}).await;
    let (stopping, stop) = watch::channel(false);
    // On this runtime's only thread: their tasks see the stop before it blocks, and the sender does after.
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(700)).await;
        stopping.send_replace(true);
        tokio::spawn(async { std::thread::sleep(Duration::from_millis(200)) });
        stopping.closed().await;
    });
    // The first is due 300 ms after the beginning; the others at 800 ms, and are taken up at 650 ms.
    let mut requests = vec![request(0, 0, 20, 2)];
    requests.extend((1..6).map(|at| request(500, at, 20, 2)));
    let sent = stopped_by(&mock, workload(requests), stop).await;
    assert_eq!(sent.served.len() as u64, mock.totals().requests);
    assert_eq!(sent.served.len() + sent.unsent as usize, 6);
}

#[tokio::test]
async fn bad_answers_are_errors_whatever_their_status() {
    for (fault, why) in [
        ("error-in-stream=503", "error 503 in the stream: "),
        ("json-error", "no event: {\"error\":"),
        ("reset=after:3", "the stream broke: "),
    ] {
        let mock = mock(|_| {}).await;
        mock.set_faults(Fault::parse_list(fault).unwrap());
        let sent = send_to(&mock, workload(vec![request(0, 0, 20, 8)])).await;
        let error = sent.served[0].error.clone().unwrap_or_default();
        assert!(error.starts_with(why), "{fault}: {error:?}");
    }
}

/// Six chats of four turns each, every turn with what was said before.
fn chats() -> Workload {
    let turn =
        |turn: u64, chat: u64| request(turn * 150 + chat * 20, chat, 100 * (turn as u32 + 1), 3);
    let turns = (0..4).flat_map(|at| (0..6).map(move |chat| turn(at, chat)));
    workload(turns.collect())
}

/// A router started in front of `mocks`, and the record of the chats through it.
async fn through(router: &str, mocks: &[Mock]) -> Run {
    let (_keep, stop) = watch::channel(false);
    let setting = Setting {
        replicas: Replicas::There(mocks.iter().map(Mock::addr).collect()),
        model: "tiny".to_owned(),
        speed: 1.0,
        start: router::Start {
            workers: 2,
            port: 0,
            envoy_tells_endpoint: true,
        },
        silence: SILENCE,
    };
    let through = Through::Started(names::parse(router).unwrap()[0]);
    let run = run(&setting, &through, &Arc::new(chats()), 1, stop, &|| {}).await;
    assert_eq!(run.failed, None, "{router}");
    assert_eq!(run.served.len(), 24, "{router}");
    for served in &run.served {
        assert_eq!(served.error, None, "{router}");
    }
    run
}

/// The record's sums over one endpoint: requests, prompt, cached and output tokens.
fn sums(run: &Run, endpoint: u32) -> [u64; 4] {
    let mut sums = [0; 4];
    for served in run.served.iter().filter(|s| s.endpoint == Some(endpoint)) {
        let tokens = [
            served.prompt_tokens,
            served.cached_tokens,
            served.output_tokens,
        ];
        sums[0] += 1;
        for (sum, tokens) in sums[1..].iter_mut().zip(tokens) {
            *sum += u64::from(tokens);
        }
    }
    sums
}

fn counted_by(mock: &Mock) -> [u64; 4] {
    let totals = mock.totals();
    let tokens = [
        totals.prompt_tokens,
        totals.cached_tokens,
        totals.output_tokens,
    ];
    [totals.requests, tokens[0], tokens[1], tokens[2]]
}

/// Whoever names the endpoint: the replica, or Envoy in its stead.
async fn the_record_says_what_the_replicas_counted(routers: &[&str], tells_endpoint: bool) {
    for router in routers {
        let mocks = [
            mock(|mock| mock.tells_endpoint = tells_endpoint).await,
            mock(|mock| mock.tells_endpoint = tells_endpoint).await,
        ];
        let run = through(router, &mocks).await;
        for (at, mock) in (0..).zip(&mocks) {
            assert_eq!(sums(&run, at), counted_by(mock), "{router}, endpoint {at}");
        }
        let cached: u32 = run.served.iter().map(|served| served.cached_tokens).sum();
        assert!(cached > 0, "{router}: turns share their beginnings");
    }
}

#[tokio::test]
async fn endpoints_and_tokens_are_the_replicas_own_through_envoy() {
    let routers = [
        "envoy/round_robin",
        "envoy/least_request",
        "envoy/ring_hash",
        "warmroute/prefix_hash",
        "warmroute/consistent_hash",
    ];
    the_record_says_what_the_replicas_counted(&routers, true).await;
}

#[tokio::test]
async fn envoy_names_endpoints_that_do_not_name_themselves() {
    let routers = ["envoy/round_robin", "warmroute/prefix_hash"];
    the_record_says_what_the_replicas_counted(&routers, false).await;
}

#[tokio::test]
async fn endpoints_and_tokens_are_the_replicas_own_through_the_peers() {
    let routers = ["vllm-router/cache_aware", "sglang-router/cache_aware"];
    the_record_says_what_the_replicas_counted(&routers, true).await;
}

#[tokio::test]
async fn every_turn_of_a_session_meets_its_endpoint_where_the_session_is_hashed() {
    for router in ["warmroute/consistent_hash", "vllm-router/consistent_hash"] {
        let mocks = [mock(|_| {}).await, mock(|_| {}).await];
        let run = through(router, &mocks).await;
        let of_chat = |chat: usize| run.served.iter().skip(chat).step_by(6).map(|s| s.endpoint);
        for chat in 0..6 {
            let endpoints: Vec<_> = of_chat(chat).collect();
            assert!(
                endpoints.iter().all(|e| *e == endpoints[0]),
                "{router}: {endpoints:?}"
            );
        }
    }
}

#[tokio::test]
async fn engines_that_do_not_say_what_was_cached_are_asked_for_their_counters() {
    let mocks = [mock(|_| {}).await, mock(|_| {}).await];
    for mock in &mocks {
        mock.set_faults(Fault::parse_list("usage=null-cached").unwrap());
    }
    let run = through("warmroute/prefix_hash", &mocks).await;
    let cached: u64 = run.served.iter().map(|s| u64::from(s.cached_tokens)).sum();
    let counted: u64 = mocks.iter().map(|mock| mock.totals().cached_tokens).sum();
    assert!(counted > 0);
    // Each request's share is rounded.
    assert!(cached.abs_diff(counted) <= 24, "{cached} of {counted}");
    assert!(
        run.notes.iter().any(|note| note.contains("own counters")),
        "{:?}",
        run.notes
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_router_costs_time_and_memory() {
    let mocks = [mock(|_| {}).await];
    let run = through("envoy/round_robin", &mocks).await;
    let cost = run.cost.unwrap();
    assert!(cost.peak_rss_bytes > 10 << 20, "{cost:?}");
    assert!(cost.cpu_us < 60_000_000, "{cost:?}");
}
