//! Limits: who is turned away, with which words, and that no limit is passed however many race.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

use serde_json::{Value, json};
use std::time::Duration;
use support::check::{becomes, inflight_becomes, unharmed, until_scraped_twice};
use support::client::{Answer, Call, HttpClient, Protocol, Streaming};
use support::config::Mode;
use support::fleet::{Fleet, FleetOptions};
use support::mock::{Fault, Mock};

const LIMIT: usize = 2;
const REPLICAS: usize = 2;

async fn start(mode: Mode, workers: u32, saturation: Value) -> Fleet {
    let plugin = json!({
        "policy": {"name": "least_request"},
        "saturation": saturation,
    });
    Fleet::start(FleetOptions::new(mode, workers, REPLICAS).plugin(plugin)).await
}

fn chat(stream: bool) -> Value {
    json!({
        "model": "tiny", "stream": stream, "max_tokens": 8,
        "messages": [{"role": "user", "content": "How full is it?"}],
    })
}

/// A stream that stays open.
fn stalled() -> Call {
    Call::chat(&chat(true)).header("x-mock-fault", "stall=1")
}

async fn fill(client: &HttpClient, streams: usize) -> Vec<Streaming> {
    let mut open = Vec::new();
    for _ in 0..streams {
        let mut stream = client.open(stalled()).await.unwrap();
        assert_eq!(stream.status, 200);
        stream.next().await.unwrap().unwrap();
        open.push(stream);
    }
    open
}

fn is_turned_away(answer: &Answer) {
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(answer.header("retry-after"), "3");
    assert_eq!(answer.header("x-warmroute-reason"), "saturated");
    assert_eq!(answer.header("content-type"), "application/json");
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("RateLimitError"), &json!(429))
    );
}

async fn full_fleet(mode: Mode, workers: u32) {
    let limits = json!({"max_requests": LIMIT, "retry_after_s": 3});
    let mut fleet = start(mode, workers, limits).await;
    let client = fleet.client(Protocol::Http1);
    let open = fill(&client, LIMIT * REPLICAS).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        is_turned_away(&client.send(Call::chat(&chat(false))).await.unwrap());
        // Refused while most of its body is still to come.
        let mut large = chat(false);
        large["user"] = "u".repeat(3_000_000).into();
        let answer = client.send(Call::chat(&large)).await;
        // A client may notice that nobody reads on before it reads the answer.
        if let Ok(answer) = answer {
            is_turned_away(&answer);
        }
        let messages = Call::post("/v1/messages", chat(false).to_string());
        let answer = client.send(messages).await.unwrap();
        assert_eq!(answer.status, 429);
        assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    }
    drop(open);
    inflight_becomes(&fleet, &[], 0.0).await;
    let answer = client.send(Call::chat(&chat(false))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    unharmed(&mut fleet).await;
}

in_every_mode!(a_full_fleet_answers_at_once_and_serves_again: full_fleet);

/// As many as fit get through, exactly, however many come at once.
async fn race(mode: Mode, workers: u32) {
    const COMING: usize = 60;
    let mut fleet = start(mode, workers, json!({"max_requests": LIMIT})).await;
    let mut coming = tokio::task::JoinSet::new();
    for _ in 0..COMING {
        // A connection each, so that all workers have some.
        let client = fleet.client(Protocol::Http1);
        let call = Call::chat(&chat(true)).header("x-mock-fault", "stall=0");
        coming.spawn(async move { client.open(call).await.unwrap() });
    }
    // Who got through stays until all have come.
    let open = coming.join_all().await;
    let statuses: Vec<u16> = open.iter().map(|stream| stream.status).collect();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(count(200), LIMIT * REPLICAS, "{statuses:?}");
    assert_eq!(count(429), COMING - LIMIT * REPLICAS, "{statuses:?}");
    drop(open);
    let labels = [("kind", "saturated")];
    let turned_away = (COMING - LIMIT * REPLICAS) as f64;
    becomes(
        &fleet,
        "warmroute_local_replies_total",
        &labels,
        turned_away,
    )
    .await;
    unharmed(&mut fleet).await;
}

mod no_limit_is_passed_however_many_race {
    with_one_and_four_workers!(original_dst: run, OriginalDst, OriginalDst);
    use super::race as run;
}

/// Who may use half of the limits is turned away first; the others are served meanwhile.
#[tokio::test]
async fn the_lowest_priority_is_shed_first() {
    let limits = json!({
        "max_requests": LIMIT,
        "priority": {"header": "X-Priority", "shares": {"batch": 0.5, "never": 0}},
    });
    let mut fleet = start(Mode::OriginalDst, 4, limits).await;
    let client = fleet.client(Protocol::Http1);
    let send = |priority: Option<&'static str>| {
        let mut call = Call::chat(&chat(false));
        if let Some(priority) = priority {
            call = call.header("x-priority", priority);
        }
        let client = &client;
        async move { client.send(call).await.unwrap().status }
    };
    assert_eq!(send(Some("batch")).await, 200);
    assert_eq!(send(Some("never")).await, 429);
    let half = fill(&client, REPLICAS).await;
    assert_eq!(send(Some("batch")).await, 429);
    assert_eq!(send(Some("of another name")).await, 200);
    assert_eq!(send(None).await, 200);
    let rest = fill(&client, REPLICAS).await;
    assert_eq!(send(None).await, 429);
    drop((half, rest));
    inflight_becomes(&fleet, &[], 0.0).await;
    assert_eq!(send(Some("batch")).await, 200);
    unharmed(&mut fleet).await;
}

/// Limits in tokens and waiting requests; what is larger than a limit in tokens goes to an idle endpoint.
#[tokio::test]
async fn other_limits_hold_too() {
    for limits in [json!({"max_tokens": 1}), json!({"max_waiting": 1})] {
        let mut fleet = start(Mode::OverrideHost, 1, limits.clone()).await;
        let client = fleet.client(Protocol::Http1);
        for mock in &fleet.mocks {
            mock.set_faults(Fault::parse_list("delay-first=60000").unwrap());
        }
        let mut open = Vec::new();
        for _ in 0..REPLICAS {
            open.push(client.open(Call::chat(&chat(true))).await.unwrap());
        }
        let answer = client.send(Call::chat(&chat(true))).await.unwrap();
        assert_eq!(answer.status, 429, "{limits}: {}", answer.text());
        drop(open);
        unharmed(&mut fleet).await;
    }
}

/// A KV cache as full as the limit is like any other limit: others are preferred, and if there are none, the
/// request is turned away.
async fn full_kv(mode: Mode, workers: u32) {
    let plugin = json!({
        "policy": {"name": "round_robin"},
        "scrape": {
            "cluster": "warmroute_scrape",
            "interval_ms": 200,
            "timeout_ms": 2_000,
            "stale_after_ms": 10_000,
        },
        "saturation": {"max_kv": 0.9, "retry_after_s": 3},
    });
    let mut fleet = Fleet::start(FleetOptions::new(mode, workers, REPLICAS).plugin(plugin)).await;
    // Connections of their own, so that they come to all workers.
    let clients: Vec<_> = (0..8).map(|_| fleet.client(Protocol::Http1)).collect();
    let usage = |mock: &Mock, usage: &str| {
        let page = format!("vllm:num_requests_running 0\nvllm:kv_cache_usage_perc {usage}\n");
        mock.set_metrics(Some(page));
    };
    let served = || {
        let requests = fleet.mocks[0].seen().into_iter();
        requests.filter(|seen| seen.method == "POST").count()
    };
    for (figures, turned_away, first_serves) in [
        (["0.89", "0.9"], false, true),
        (["1.0", "0.5"], false, false),
        (["0.9", "0.91"], true, false),
        (["0.2", "1.0"], false, true),
    ] {
        for (mock, figure) in fleet.mocks.iter().zip(figures) {
            usage(mock, figure);
        }
        for mock in &fleet.mocks {
            until_scraped_twice(mock).await;
        }
        // The other workers know a tick later.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = served();
        for client in &clients {
            let answer = client.send(Call::chat(&chat(false))).await.unwrap();
            match turned_away {
                true => is_turned_away(&answer),
                false => assert_eq!(answer.status, 200, "{figures:?}: {}", answer.text()),
            }
        }
        assert_eq!(served() > before, first_serves, "{figures:?}");
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    full_kv_caches_turn_requests_away: full_kv, OriginalDst, OverrideHost
);
