//! Retries, which Envoy performs: who is tried, who is charged and blamed, and when there are none.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::check::{CASE_HEADER, at_rest, decided, second_choice, seen, unharmed};
use support::client::{Call, Protocol};
use support::config::{EnvoyConfig, Mode, set};
use support::fleet::{Fleet, FleetOptions, patient};
use support::mock::{Fault, Mock};

/// As `prefix_hash` has it a chat has one home, whatever happened before.
fn options(mode: Mode, workers: u32, replicas: usize) -> FleetOptions {
    let plugin = json!({
        "explain": {"response_header": true},
        "policy": {"name": "prefix_hash"},
    });
    FleetOptions::new(mode, workers, replicas).plugin(plugin)
}

async fn start(mode: Mode, workers: u32, replicas: usize) -> Fleet {
    Fleet::start(options(mode, workers, replicas)).await
}

fn chat(number: usize, stream: bool) -> Value {
    json!({
        "model": "tiny", "stream": stream, "max_tokens": 8,
        "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
        "messages": [{"role": "user", "content": format!("Question {number} of a chat of its own")}],
    })
}

fn spoil(fleet: &Fleet, endpoint: &str, faults: &str) {
    let mut mocks = fleet.mocks.iter();
    let mock = mocks.find(|mock| mock.addr().to_string() == endpoint);
    mock.unwrap().set_faults(Fault::parse_list(faults).unwrap());
}

fn tries(fleet: &Fleet, case: &str) -> Vec<String> {
    let endpoints = fleet.endpoints();
    let tries = seen(fleet, case).into_iter();
    tries.map(|(index, _)| endpoints[index].clone()).collect()
}

/// What fails before its answer has begun is answered by the next, who is charged for it.
async fn tried_elsewhere(mode: Mode, workers: u32) {
    for fault in ["status=503", "status=429,retry-after=1", "reset=headers"] {
        let mut fleet = start(mode, workers, 3).await;
        for protocol in Protocol::ALL {
            let client = fleet.client(protocol);
            let case = format!("{fault} {protocol:?}");
            let number = case.len();
            let first = client.send(Call::chat(&chat(number, true))).await.unwrap();
            let home = decided(&first.headers, "endpoint");
            let before = at_rest(&fleet).await;
            spoil(&fleet, &home, fault);
            let call = Call::chat(&chat(number, true)).header(CASE_HEADER, &case);
            let answer = client.send(call).await.unwrap();
            assert_eq!(answer.status, 200, "{case}: {}", answer.text());
            let next = second_choice(&answer.headers);
            let tried = tries(&fleet, &case);
            assert!(tried.contains(&next), "{case}: {tried:?}");
            let after = at_rest(&fleet).await;
            let added = |name: &str, labels: &[(&str, &str)]| {
                after.metric(name, labels) - before.metric(name, labels)
            };
            let replaced = [("endpoint", home.as_str()), ("kind", "replaced")];
            assert_eq!(added("warmroute_failures_total", &replaced), 1.0, "{case}");
            assert_eq!(added("warmroute_failures_total", &[]), 1.0, "{case}");
            let served = [("endpoint", next.as_str())];
            assert_eq!(added("warmroute_retries_total", &served), 1.0, "{case}");
            assert_eq!(
                added("warmroute_output_tokens_total", &served),
                8.0,
                "{case}"
            );
            spoil(&fleet, &home, "");
            // However long it rests.
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        }
        unharmed(&mut fleet).await;
    }
}

mod what_fails_before_its_answer_is_tried_elsewhere {
    with_one_and_four_workers!(override_host: run, OverrideHost, OverrideHost);
    with_one_and_four_workers!(composite: run, Composite, Composite);
    use super::tried_elsewhere as run;
}

/// An answer that has begun is never begun anew.
#[tokio::test]
async fn nothing_is_retried_after_the_first_byte() {
    for mode in [Mode::OverrideHost, Mode::Composite] {
        let mut fleet = start(mode, 1, 3).await;
        let client = fleet.client(Protocol::Http1);
        for fault in ["reset=after:0", "reset=after:3"] {
            let call = Call::chat(&chat(1, true)).header("x-mock-fault", fault);
            let mut answer = client.open(call.header(CASE_HEADER, fault)).await.unwrap();
            assert_eq!(answer.status, 200);
            while let Some(Ok(_)) = answer.next().await {}
            assert_eq!(tries(&fleet, fault).len(), 1, "{fault}");
        }
        let stats = at_rest(&fleet).await;
        assert_eq!(stats.metric("warmroute_retries_total", &[]), 0.0);
        unharmed(&mut fleet).await;
    }
}

/// Where no other endpoint is, nobody is asked twice: Envoy is told so in a header of its own, which does
/// not reach the engine.
#[tokio::test]
async fn one_endpoint_is_not_tried_again() {
    for mode in [Mode::OverrideHost, Mode::Composite] {
        let mut fleet = start(mode, 1, 1).await;
        let client = fleet.client(Protocol::Http1);
        let call = Call::chat(&chat(1, false)).header("x-mock-fault", "status=503,retry-after=7");
        let answer = client.send(call.header(CASE_HEADER, "once")).await.unwrap();
        assert_eq!(
            (answer.status, answer.header("retry-after").as_str()),
            (503, "7")
        );
        let requests = seen(&fleet, "once");
        assert_eq!(requests.len(), 1);
        let leaked = |name: &str| name == "x-envoy-max-retries" || name == "x-warmroute-next-dst";
        let headers = &requests[0].1.headers;
        assert!(!headers.iter().any(|(name, _)| leaked(name)), "{headers:?}");
        unharmed(&mut fleet).await;
    }
}

/// Tells who is refused from who gave up: that takes twice as long as any test may.
fn connects_patiently(config: &mut EnvoyConfig) {
    let clusters = config.0.pointer_mut("/static_resources/clusters");
    for cluster in clusters.and_then(Value::as_array_mut).unwrap() {
        set(cluster, "/connect_timeout", json!("60s")).unwrap();
    }
}

/// F2 for a composite cluster: the very first request to a dead endpoint succeeds elsewhere.
#[tokio::test]
async fn f2_a_dead_first_choice_is_replaced_composite() {
    let mut options = options(Mode::Composite, 4, 3);
    options.adjust = connects_patiently;
    let mut fleet = Fleet::start(options).await;
    let client = fleet.client(Protocol::Http1);
    let first = client.send(Call::chat(&chat(1, false))).await.unwrap();
    let home = decided(&first.headers, "endpoint");
    let index = fleet
        .endpoints()
        .iter()
        .position(|one| *one == home)
        .unwrap();
    fleet.stop(index).await;
    let begun = Instant::now();
    let answer = client.send(Call::chat(&chat(1, true))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(decided(&answer.headers, "endpoint"), home);
    unharmed(&mut fleet).await;
}

/// How Envoy limits retries under way, and how many of those that need one get one.
#[derive(Clone, Copy)]
enum Budget {
    Shipped,
    One,
    None,
}

impl Budget {
    fn apply(self) -> fn(&mut EnvoyConfig) {
        match self {
            Self::Shipped => |_| {},
            Self::One => |config| retries_at_once(config, 1),
            Self::None => |config| retries_at_once(config, 0),
        }
    }
}

/// However many requests are under way.
fn retries_at_once(config: &mut EnvoyConfig, retries: u32) {
    let budget = json!({"budget_percent": {"value": 0}, "min_retry_concurrency": retries});
    let place = "/circuit_breakers/thresholds/0/retry_budget";
    set(config.cluster("vllm").unwrap(), place, budget).unwrap();
}

/// One of two engines resets. Who chose it is tried elsewhere as far as the budget goes, and no further.
async fn budget(mode: Mode, workers: u32) {
    const COMING: usize = 16;
    for budget in [Budget::Shipped, Budget::One, Budget::None] {
        let plugin = json!({
            "explain": {"response_header": true},
            "policy": {"name": "round_robin"},
            "health": patient(),
        });
        let mut options = FleetOptions::new(mode, workers, 2).plugin(plugin);
        options.adjust = budget.apply();
        let mut fleet = Fleet::start(options).await;
        let bad = fleet.endpoints()[0].clone();
        spoil(&fleet, &bad, "reset=headers");
        // All are under way together, retries too.
        let good = fleet.endpoints()[1].clone();
        spoil(&fleet, &good, "delay-headers=6000");
        let mut coming = tokio::task::JoinSet::new();
        for number in 0..COMING {
            let client = fleet.client(Protocol::Http1);
            coming.spawn(async move { client.send(Call::chat(&chat(number, false))).await });
        }
        let answers: Vec<_> = coming
            .join_all()
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let first_on_bad = answers
            .iter()
            .filter(|answer| decided(&answer.headers, "endpoint") == bad)
            .count();
        assert!(first_on_bad >= 4, "{first_on_bad} of {COMING}");
        let allowed = match budget {
            Budget::Shipped => first_on_bad,
            Budget::One => 1,
            Budget::None => 0,
        };
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
        assert_eq!(count(503), first_on_bad - allowed, "{statuses:?}");
        assert_eq!(count(200), COMING - count(503), "{statuses:?}");
        let stats = at_rest(&fleet).await;
        let retried = stats.metric("warmroute_retries_total", &[]);
        assert_eq!(retried, allowed as f64);
        unharmed(&mut fleet).await;
    }
}

mod retries_end_with_the_budget {
    with_one_and_four_workers!(override_host: run, OverrideHost, OverrideHost);
    with_one_and_four_workers!(composite: run, Composite, Composite);
    use super::budget as run;
}

/// One of two engines dies with most of the load in its queue. All of it is tried elsewhere, at once.
async fn burst(mode: Mode, workers: u32) {
    const COMING: u64 = 800;
    let mut fleet = start(mode, workers, 2).await;
    let clients: Vec<_> = (0..8).map(|_| fleet.client(Protocol::Http2)).collect();
    for endpoint in fleet.endpoints() {
        spoil(&fleet, &endpoint, "delay-headers=6000");
    }
    let mut coming = tokio::task::JoinSet::new();
    for number in 0..COMING {
        let client = clients[number as usize % clients.len()].clone();
        coming.spawn(async move { client.send(Call::chat(&chat(1, false))).await });
    }
    let queued = |mock: &Mock| mock.totals().in_flight;
    let begun = Instant::now();
    while fleet.mocks.iter().map(queued).sum::<u64>() < COMING {
        assert!(begun.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let busiest = usize::from(queued(&fleet.mocks[1]) > queued(&fleet.mocks[0]));
    let lost = queued(&fleet.mocks[busiest]);
    // Its bound is five eighths.
    assert!(lost > COMING * 11 / 20, "{lost}");
    fleet.stop(busiest).await;
    let answers = coming.join_all().await;
    let failed: Vec<u16> = answers
        .into_iter()
        .map(|answer| answer.unwrap().status)
        .filter(|status| *status != 200)
        .collect();
    assert_eq!(failed, [0; 0], "of {lost}");
    let stats = at_rest(&fleet).await;
    assert_eq!(stats.metric("warmroute_retries_total", &[]), lost as f64);
    unharmed(&mut fleet).await;
}

mod an_engine_that_dies_with_most_of_the_load_loses_nothing {
    with_one_and_four_workers!(override_host: run, OverrideHost, OverrideHost);
    with_one_and_four_workers!(composite: run, Composite, Composite);
    use super::burst as run;
}
