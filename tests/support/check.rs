//! What tests ask about a request that went through: what the filter decided, what the replica got,
//! and whether Envoy is unharmed.

use super::client::header;
use super::fleet::{Fleet, inflight_is_zero};
use super::mock::{Mock, Seen};
use super::stats::Stats;
use hyper::HeaderMap;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; it is only spent if something is wrong.
pub const SETTLE: Duration = Duration::from_secs(10);

/// Carried by a request so that it is found again at the replica.
pub const CASE_HEADER: &str = "x-case";

/// A field of the explanation among an answer's headers; empty if there is none.
pub fn decided(headers: &HeaderMap, field: &str) -> String {
    let line = header(headers, "x-warmroute-decision");
    let found = line
        .split(';')
        .find_map(|part| part.strip_prefix(field)?.strip_prefix('='));
    found.unwrap_or_default().to_owned()
}

/// Who the filter says is tried next.
///
/// # Panics
/// If there is nobody.
pub fn second_choice(headers: &HeaderMap) -> String {
    let ranked = decided(headers, "ranked");
    let second = ranked.split('|').nth(1);
    second.expect("a second choice").to_owned()
}

/// The replicas that got the request of this case, and what they got.
pub fn seen(fleet: &Fleet, case: &str) -> Vec<(usize, Seen)> {
    let mut found = Vec::new();
    for (index, mock) in fleet.mocks.iter().enumerate() {
        for seen in mock.seen() {
            let named =
                |(name, value): &(String, Vec<u8>)| name == CASE_HEADER && value == case.as_bytes();
            if seen.headers.iter().any(named) {
                found.push((index, seen));
            }
        }
    }
    found
}

/// SHA-256 in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Waits until the counter has this value, and returns the metrics that say so: each worker hands
/// over what it counted ten times a second.
///
/// # Panics
/// If it does not, or goes past it.
pub async fn becomes(fleet: &Fleet, name: &str, labels: &[(&str, &str)], wanted: f64) -> Stats {
    let begun = Instant::now();
    loop {
        let stats = fleet.stats_now().await;
        let now = stats.metric(name, labels);
        if now == wanted {
            return stats;
        }
        if now > wanted || begun.elapsed() > SETTLE {
            let found: Vec<_> = stats.samples(name, &[]).collect();
            panic!("{name}{labels:?} is {now}, not {wanted}: {found:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until so many requests are under way.
///
/// # Panics
/// If it takes too long.
pub async fn inflight_becomes(fleet: &Fleet, labels: &[(&str, &str)], wanted: f64) {
    let begun = Instant::now();
    loop {
        let stats = fleet.stats_now().await;
        let now = stats.metric("warmroute_inflight_requests", labels);
        if now == wanted {
            return;
        }
        assert!(
            begun.elapsed() < SETTLE,
            "{now} in flight {labels:?}, not {wanted}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns when a page of metrics that was asked for from now on has been read: that of the first of two scrapes.
/// The workers that do not scrape know of it a tick later.
///
/// # Panics
/// If the replica is not scraped.
pub async fn until_scraped_twice(mock: &Mock) {
    let scrapes = || mock.other_calls().get("/metrics").copied().unwrap_or(0);
    let (before, begun) = (scrapes(), Instant::now());
    while scrapes() < before + 2 {
        assert!(begun.elapsed() < SETTLE, "{} is not scraped", mock.addr());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The metrics when the counters have come to rest, for what must not have been counted.
///
/// # Panics
/// If they do not.
pub async fn at_rest(fleet: &Fleet) -> Stats {
    let sum = |stats: &Stats| -> f64 {
        let counters = stats.0.iter();
        counters
            .filter(|s| s.name.starts_with("warmroute_") && s.name.ends_with("_total"))
            .map(|s| s.value)
            .sum()
    };
    let begun = Instant::now();
    let mut last = fleet.stats().await;
    loop {
        let next = fleet.stats().await;
        if sum(&next) == sum(&last) {
            return next;
        }
        assert!(begun.elapsed() < SETTLE, "the counters do not rest");
        last = next;
    }
}

/// Envoy runs, no VM was started anew, nothing panicked, and nothing is in flight.
///
/// # Panics
/// If not.
pub async fn unharmed(fleet: &mut Fleet) {
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    assert!(fleet.envoy.is_running());
    let stats = fleet.stats().await;
    // The gauges may have been old at first.
    inflight_is_zero(&stats).unwrap();
    let reloads = stats.0.iter().filter(|s| s.name.contains("vm_reload"));
    let reloads: Vec<_> = reloads.collect();
    assert!(!reloads.is_empty(), "Envoy does not count reloads");
    for reload in reloads {
        assert_eq!(reload.value, 0.0, "{}", reload.name);
    }
    let log = fleet.envoy.log();
    for word in ["panicked", "Proxy-Wasm failed", "wasm trap", "critical"] {
        let line = log.lines().find(|line| line.contains(word));
        assert_eq!(line, None, "in Envoy's log");
    }
    assert_eq!(stats.metric("warmroute_watchdog_total", &[]), 0.0);
}
