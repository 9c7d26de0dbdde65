//! What tests ask about a request that went through: what the filter decided, what the replica got,
//! and whether Envoy is unharmed.

use super::client::Answer;
use super::fleet::Fleet;
use super::mock::Seen;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::time::Duration;

/// Long enough for a busy machine; it is only spent if something is wrong.
pub const SETTLE: Duration = Duration::from_secs(10);

/// Carried by a request so that it is found again at the replica.
pub const CASE_HEADER: &str = "x-case";

/// A field of the explanation header; empty if there is none.
pub fn decided(answer: &Answer, field: &str) -> String {
    let line = answer.header("x-warmroute-decision");
    let found = line
        .split(';')
        .find_map(|part| part.strip_prefix(field)?.strip_prefix('='));
    found.unwrap_or_default().to_owned()
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

/// Envoy runs, no VM was started anew, nothing panicked, and nothing is in flight.
///
/// # Panics
/// If not.
pub async fn unharmed(fleet: &mut Fleet) {
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    assert!(fleet.envoy.is_running());
    let stats = fleet.stats().await;
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
