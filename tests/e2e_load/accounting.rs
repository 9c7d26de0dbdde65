//! Cases A: what is under way is known, at once and exactly.

use crate::decision::{
    Carried, ask, chat, clients, explained, held, open, pools, until_idle, with,
};
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::{Fleet, INFLIGHT};
use crate::waves::{counts, distinct, open_all};
use crate::{SETTLE, mixed};
use serde_json::json;
use std::time::{Duration, Instant};

const TIMELY: Duration = Duration::from_millis(100);
/// Other load on the machine can make any one attempt late, but not nearly all of them.
const ATTEMPTS: usize = 40;
const TIMELY_ATTEMPTS: usize = 5;

async fn load_leaves_with_the_client(mode: Mode, workers: u32) {
    let fleet = Fleet::start(explained(mode, workers, 2)).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for fault in ["stall=1", "delay-first=60000", "delay-headers=60000"] {
            let mut times = Vec::new();
            let mut timely = 0;
            while timely < TIMELY_ATTEMPTS && times.len() < ATTEMPTS {
                let time = release_time(&fleet, &client, fault).await;
                timely += usize::from(time <= TIMELY);
                times.push(time);
            }
            assert_eq!(timely, TIMELY_ATTEMPTS, "{protocol:?}, {fault}: {times:?}");
        }
    }
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}

/// From the client's leaving to the first pick that no longer sees its load.
async fn release_time(fleet: &Fleet, client: &HttpClient, fault: &str) -> Duration {
    let prober = fleet.client(Protocol::Http1);
    let body = with(chat("Tell me a long story."), json!({ "stream": true }));
    let call = Call::chat(&body).header("x-mock-fault", fault);
    let mut leaving = Box::pin(async {
        let mut stream = client.open(call).await.unwrap();
        stream.next().await.unwrap().unwrap();
        // Quiet from here on.
        std::future::pending::<()>().await;
        drop(stream);
    });
    let begun = Instant::now();
    loop {
        let under_way = async {
            let seen = ask(&prober, Call::chat(&chat("probe"))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            seen.total()
        };
        let seen = tokio::select! {
            () = &mut leaving => Carried::default(),
            seen = under_way => seen,
        };
        // The first chunk, if there is one, ends the prefill.
        if seen.requests == 1 && (fault != "stall=1" || seen.prefill_tokens == 0) {
            break;
        }
        assert!(
            begun.elapsed() < SETTLE,
            "{fault}: the request is never seen"
        );
    }
    let left = Instant::now();
    drop(leaving);
    loop {
        let seen = ask(&prober, Call::chat(&chat("probe"))).await.unwrap();
        if seen.total() == Carried::default() {
            return left.elapsed();
        }
        assert!(left.elapsed() < SETTLE, "{fault}: still {:?}", seen.loads);
    }
}

with_one_and_four_workers!(
    a1_load_is_released_when_the_client_leaves_a_quiet_stream:
    load_leaves_with_the_client, OriginalDst, OverrideHost
);

fn load_policies(config: &mut EnvoyConfig) {
    pools(
        config,
        &[
            ("least_request", json!({"name": "least_request"})),
            (
                "least_outstanding_tokens",
                json!({"name": "least_outstanding_tokens"}),
            ),
            (
                "prefix_hash",
                json!({"name": "prefix_hash", "load_factor": 1.0}),
            ),
        ],
    );
}

/// Endpoints that share their models among all pools.
async fn fleet_of_load_policies(mode: Mode, workers: u32, replicas: usize) -> Fleet {
    let mut options = explained(mode, workers, replicas).each_mock(|mock| {
        let names = ["least_request", "least_outstanding_tokens", "prefix_hash"];
        mock.adapters = names.map(str::to_owned).to_vec();
    });
    options.adjust = load_policies;
    Fleet::start(options).await
}

async fn eight_at_once(mode: Mode, workers: u32) {
    let fleet = fleet_of_load_policies(mode, workers, 8).await;
    let clients = clients(&fleet, 16);
    let prober = fleet.client(Protocol::Http2);
    for policy in ["least_request", "least_outstanding_tokens", "prefix_hash"] {
        for trial in 0..8 {
            // One prompt for all, and one for each.
            let text = |number: usize| match trial % 2 {
                0 => format!("Trial {trial}"),
                _ => format!("Trial {trial}, request {number}"),
            };
            let calls =
                (0..8).map(|number| held(with(chat(&text(number)), json!({"model": policy}))));
            let opened = open_all(&clients, calls.collect()).await.unwrap();
            assert!(opened.iter().all(|(pick, _)| pick.policy == policy));
            assert_eq!(distinct(&opened), 8, "{policy}, trial {trial}");
            drop(opened);
            let probe = with(chat("probe"), json!({ "model": policy }));
            until_idle(&prober, &probe, SETTLE).await.unwrap();
        }
    }
}

with_one_and_four_workers!(
    a2_eight_simultaneous_requests_land_on_eight_endpoints:
    eight_at_once, FilterState, OriginalDst
);

async fn every_ending(mode: Mode, workers: u32) {
    // More where workers can race.
    let requests = if workers == 1 { 2_080 } else { 10_400 };
    let fleet = mixed::start(mode, workers).await.unwrap();
    let clients = clients(&fleet, 16);
    let tally = mixed::run(&fleet, &clients, requests).await.unwrap();
    assert_eq!(tally.requests, requests);
    // One in 26, where the client speaks HTTP/1.1, as every second does.
    assert_eq!(tally.too_large, requests / 52, "{tally:?}");
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    // Also what a pick sees, which no gauge stands between.
    let (pick, _) = open(&clients[0], Call::chat(&chat("probe"))).await.unwrap();
    assert_eq!(pick.total(), Carried::default());
    let stats = fleet.stats().await;
    for name in INFLIGHT {
        // Four replicas, and the endpoint that refuses connections.
        assert_eq!(stats.samples(name, &[]).count(), 5, "{name}");
        assert_eq!(stats.metric(name, &[]), 0.0, "{name}");
    }
    let picks = stats.metric("warmroute_picks_total", &[]) as u64;
    let most = tally.requests - tally.without_pick;
    assert!(
        picks >= most - tally.perhaps_without_pick,
        "{picks}: {tally:?}"
    );
    let retries = stats.metric("warmroute_retries_total", &[]);
    if mode == Mode::OverrideHost {
        assert_eq!(tally.refused, 0, "a retry elsewhere should have answered");
        // Two for each 502, one in 26, and one for each that hit the refusing endpoint first.
        assert!(retries > (requests / 13) as f64, "{retries}");
    } else {
        assert!(tally.refused > 0);
        assert_eq!(retries, 0.0);
    }
}

with_one_and_four_workers!(
    a3_nothing_is_in_flight_after_every_ending: every_ending, OriginalDst, OverrideHost
);

async fn decode_is_not_prefill(mode: Mode, workers: u32) {
    let fleet = Fleet::start(explained(mode, workers, 2)).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        // Of its own, so that nothing of it is cached.
        let text = format!("A prompt over {protocol:?}. ").repeat(40);
        let body = with(chat(&text), json!({"stream": true, "max_tokens": 100}));
        let call = Call::chat(&body).header("x-mock-fault", "stall=1");
        let (pick, mut stream) = open(&client, call).await.unwrap();
        assert!(pick.cost.prefill_tokens >= 200, "{:?}", pick.cost);
        stream.next().await.unwrap().unwrap();
        let seen = ask(&client, Call::chat(&chat("probe"))).await.unwrap();
        let expected = Carried {
            requests: 1,
            prefill_tokens: 0,
            decode_tokens: 100,
        };
        assert_eq!(seen.loads[&pick.endpoint], expected);
        drop(stream);
        until_idle(&client, &chat("probe"), SETTLE).await.unwrap();
    }
}

with_one_and_four_workers!(
    a5_a_long_decode_is_no_pending_prefill: decode_is_not_prefill, OverrideHost, FilterState
);

async fn burst(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 8)
        // One scrape before the burst, none during it.
        .plugin(json!({"scrape": {"cluster": "warmroute_scrape", "interval_ms": 60000, "stale_after_ms": 60000}}))
        .each_mock(|mock| {
            let names = ["least_request", "least_outstanding_tokens", "prefix_hash"];
            mock.adapters = names.map(str::to_owned).to_vec();
        });
    options.adjust = load_policies;
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 24);
    for policy in ["least_request", "least_outstanding_tokens"] {
        let body = with(chat("The same for all"), json!({ "model": policy }));
        let calls = (0..200).map(|_| held(body.clone())).collect();
        let opened = open_all(&clients, calls).await.unwrap();
        let counts = counts(opened.iter().map(|(pick, _)| pick));
        let most = counts.values().max().copied().unwrap();
        assert!(most <= 26, "{policy}: {counts:?}");
        drop(opened);
        until_idle(&clients[1], &body, SETTLE).await.unwrap();
    }
}

with_one_and_four_workers!(
    a6_a_burst_within_one_scrape_interval_does_not_herd: burst, OverrideHost, OriginalDst
);

async fn first_chunk_is_the_first_token(mode: Mode, workers: u32) {
    const DELAY: Duration = Duration::from_millis(1_500);
    let fleet = Fleet::start(explained(mode, workers, 1)).await;
    let client = fleet.client(Protocol::Http2);
    let body = with(chat("A slow one"), json!({ "stream": true }));
    let call = Call::chat(&body).header("x-mock-fault", "delay-first=1500");
    let begun = Instant::now();
    let (pick, mut stream) = open(&client, call).await.unwrap();
    // The prefill is pending as long as nothing but headers came.
    let mut pending = 0;
    loop {
        let seen = ask(&client, Call::chat(&chat("probe"))).await.unwrap();
        let first = tokio::time::timeout(Duration::from_millis(100), stream.next()).await;
        if let Ok(first) = first {
            first.unwrap().unwrap();
            break;
        }
        let load = seen.loads[&pick.endpoint];
        assert_eq!(load.prefill_tokens, pick.cost.prefill_tokens);
        pending += 1;
    }
    assert!(pending >= 1 && begun.elapsed() >= DELAY);
    stream.finish().await.unwrap();
    let seen = ask(&client, Call::chat(&chat("probe"))).await.unwrap();
    assert_eq!(seen.total(), Carried::default());
    let (count, sum_ms) = ttft(&fleet, &pick.endpoint).await;
    assert_eq!(count, 1.0, "only the stream has a time to first token");
    // Envoy's histograms keep two digits.
    assert!(sum_ms >= 1_400.0, "{sum_ms}");
    assert!(
        sum_ms <= begun.elapsed().as_secs_f64() * 1_100.0,
        "{sum_ms}"
    );
}

/// Count and sum of the histogram, once Envoy has merged its workers'.
async fn ttft(fleet: &Fleet, endpoint: &str) -> (f64, f64) {
    let begun = Instant::now();
    loop {
        let stats = fleet.stats().await;
        let labels = [("endpoint", endpoint)];
        let count = stats.metric("warmroute_ttft_ms_count", &labels);
        if count > 0.0 {
            return (count, stats.metric("warmroute_ttft_ms_sum", &labels));
        }
        assert!(begun.elapsed() < SETTLE, "no warmroute_ttft_ms");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

with_one_and_four_workers!(
    a8_the_first_chunk_ends_the_prefill_and_not_the_headers:
    first_chunk_is_the_first_token, OriginalDst, FilterState
);

/// The gauges follow what is under way, so that their zeros elsewhere mean something.
async fn gauges_follow(mode: Mode, workers: u32) {
    let fleet = Fleet::start(explained(mode, workers, 2)).await;
    let clients = clients(&fleet, 4);
    let calls = (0..6).map(|n| held(chat(&format!("Number {n}")))).collect();
    let opened = open_all(&clients, calls).await.unwrap();
    let cost = |of: fn(&Carried) -> u64| -> f64 {
        opened.iter().map(|(pick, _)| of(&pick.cost) as f64).sum()
    };
    let expected = [
        cost(|cost| cost.requests),
        cost(|cost| cost.prefill_tokens),
        cost(|cost| cost.decode_tokens),
    ];
    let begun = Instant::now();
    loop {
        let stats = fleet.stats().await;
        let shown = INFLIGHT.map(|name| stats.metric(name, &[]));
        if shown == expected {
            break;
        }
        assert!(begun.elapsed() < SETTLE, "{shown:?}, not {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(opened);
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}

with_one_and_four_workers!(
    the_gauges_follow_what_is_under_way: gauges_follow, FilterState, OverrideHost
);
