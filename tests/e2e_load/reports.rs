//! Case A7 and cases M: what the engines say of themselves.

use crate::SETTLE;
use crate::decision::{Carried, Decision, chat, clients, explained, held, open};
use crate::support::check::until_scraped_twice;
use crate::support::client::HttpClient;
use crate::support::config::Mode;
use crate::support::fleet::{Fleet, FleetOptions};
use crate::support::mock::Fault;
use crate::support::root;
use crate::waves::counts;
use serde_json::json;
use std::time::{Duration, Instant};

const WAITING: &str = "vllm:num_requests_waiting{";
const BY_REASON: &str = "vllm:num_requests_waiting_by_reason{";
/// Longer than a busy machine keeps a page waiting: an endpoint that is silent rests, and is no candidate.
const TIMEOUT_MS: u32 = 2_000;

/// A real engine's page, with this value for every sample whose line begins so.
fn page(beginning: &str, value: &str) -> String {
    let file = root().join("tests/data/vllm-0.32.0/metrics_idle.body");
    let page = std::fs::read_to_string(file).unwrap();
    assert!(page.contains(beginning));
    let lines = page.lines().map(|line| match line.split_once("} ") {
        Some((series, _)) if line.starts_with(beginning) => format!("{series}}} {value}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

fn scraped(mode: Mode, workers: u32, replicas: usize, stale_after_ms: u32) -> FleetOptions {
    explained(mode, workers, replicas).plugin(json!({
        "policy": {"name": "least_request"},
        "scrape": {
            "cluster": "warmroute_scrape",
            "interval_ms": 100,
            "timeout_ms": TIMEOUT_MS,
            "stale_after_ms": stale_after_ms,
        },
    }))
}

/// A pick; its load is gone soon after. Works at a replica that never answers in full, too.
async fn glance(client: &HttpClient) -> Decision {
    open(client, held(chat("Only a glance"))).await.unwrap().0
}

/// Waits until the picks of all workers see these requests at the endpoints, of which none are ours.
async fn until_seen(fleet: &Fleet, clients: &[HttpClient], expected: &[u64]) {
    let endpoints = fleet.endpoints();
    // One that is no candidate at the moment is in no account.
    let expected: Vec<Option<u64>> = expected.iter().copied().map(Some).collect();
    let begun = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 3 * clients.len() {
        for client in clients {
            let seen = glance(client).await;
            let load = |endpoint| seen.loads.get(endpoint).map(|load| load.requests);
            let loads: Vec<Option<u64>> = endpoints.iter().map(load).collect();
            in_a_row = if loads == expected { in_a_row + 1 } else { 0 };
            assert!(begun.elapsed() < SETTLE, "{loads:?}, not {expected:?}");
            // The glance's own load goes meanwhile.
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
}

async fn busy_engine(mode: Mode, workers: u32) {
    let fleet = Fleet::start(scraped(mode, workers, 2, 60_000)).await;
    fleet.mocks[0].set_metrics(Some(page(WAITING, "12.0")));
    // Others' reasons for waiting are not others waiting: M1.
    fleet.mocks[1].set_metrics(Some(page(BY_REASON, "12.0")));
    let clients = clients(&fleet, 8);
    until_seen(&fleet, &clients, &[12, 0]).await;
    let mut picks = Vec::new();
    for client in clients.iter().cycle().take(40) {
        picks.push(glance(client).await);
    }
    let idle = fleet.mocks[1].addr().to_string();
    assert_eq!(counts(&picks).get(&idle), Some(&40));
}

with_one_and_four_workers!(
    a7_m1_an_engine_with_a_queue_gets_nothing_while_another_is_idle:
    busy_engine, FilterState, OriginalDst
);

async fn odd_metrics(mode: Mode, workers: u32) {
    let fleet = Fleet::start(scraped(mode, workers, 3, 60_000)).await;
    let clients = clients(&fleet, 4);
    let good = "vllm:num_requests_running{engine=\"0\"} 2.0\r\n\
                vllm:num_requests_running{engine=\"1\"} 1.0e0\r\n\
                vllm:num_requests_waiting{engine=\"0\"} 3 # {trace_id=\"x\"} 1.0 1764500000\r\n\
                vllm:gpu_cache_usage_perc{engine=\"0\"} 0.25\r\n";
    fleet.mocks[0].set_metrics(Some(good.to_owned()));
    fleet.mocks[1].set_metrics(Some(page(WAITING, "4")));
    for bad in [
        "",
        "<html>no metrics here</html>",
        "vllm:num_requests_waiting NaN\nvllm:num_requests_running +Inf\n",
        "vllm:num_requests_waiting{engine=\"0\",model=\"\u{fffd}\\",
        "\u{0}\u{1}\u{2}{}{}{}= = =\n# TYPE\n",
    ] {
        fleet.mocks[2].set_metrics(Some(bad.to_owned()));
        until_scraped_twice(&fleet.mocks[2]).await;
        until_seen(&fleet, &clients, &[6, 4, 0]).await;
        let pick = glance(&clients[0]).await;
        assert_eq!(pick.endpoint, fleet.endpoints()[2], "{bad:?}");
    }
}

with_one_and_four_workers!(
    m2_one_bad_page_of_metrics_disables_nothing_for_others:
    odd_metrics, OverrideHost, FilterState
);

async fn stalled_scrape(mode: Mode, workers: u32) {
    // Longer than three scrapes that fail, and than a busy machine keeps the pick below from being made.
    const STALE_AFTER_MS: u32 = 4 * TIMEOUT_MS;
    let fleet = Fleet::start(scraped(mode, workers, 2, STALE_AFTER_MS)).await;
    let clients = clients(&fleet, 8);
    fleet.mocks[0].set_metrics(Some(page(WAITING, "12.0")));
    fleet.mocks[1].set_metrics(Some(page(WAITING, "0.0")));
    until_seen(&fleet, &clients, &[12, 0]).await;
    let endpoint = fleet.endpoints()[0].clone();
    let labels = [("endpoint", endpoint.as_str())];
    let before = fleet.stats().await;
    let failures = |stats: &crate::support::stats::Stats| {
        stats.metric("warmroute_scrape_failures_total", &labels)
    };
    fleet.mocks[0].set_faults(vec![Fault::Stall(0)]);
    let stalled = Instant::now();
    // The ledger goes on: ours is counted on top of the last report, and alone when that is stale.
    let busy = open(&clients[0], held(chat("Stays"))).await.unwrap();
    assert_eq!(busy.0.endpoint, fleet.endpoints()[1]);
    let idle = fleet.mocks[1].addr().to_string();
    let seen = glance(&clients[1]).await;
    assert_eq!(seen.loads[&idle].requests, 1);

    until_seen(&fleet, &clients, &[0, 1]).await;
    assert!(stalled.elapsed() >= Duration::from_millis(u64::from(STALE_AFTER_MS) / 2));
    let stats = fleet.stats().await;
    assert!(failures(&stats) >= failures(&before) + 3.0);
    let age_ms = stats.metric("warmroute_scrape_age_ms", &labels);
    assert!(age_ms >= f64::from(STALE_AFTER_MS), "{age_ms}");
    let other = [("endpoint", idle.as_str())];
    assert!(stats.metric("warmroute_scrape_age_ms", &other) < age_ms);
    drop(busy);

    // And it comes back.
    fleet.mocks[0].set_faults(Vec::new());
    until_seen(&fleet, &clients, &[12, 0]).await;
    assert_eq!(glance(&clients[2]).await.loads[&idle], Carried::default());
}

with_one_and_four_workers!(
    m3_a_stalled_scrape_ages_out_while_the_ledger_goes_on:
    stalled_scrape, OriginalDst, OverrideHost
);
