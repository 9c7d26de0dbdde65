//! Field cases through a real Envoy: accounting of load, affinity, engines' reports, set-ups.
//!
//! Each case runs with one worker and with four; over the cases, all steering modes and both
//! protocols occur. Tests are named by their case.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

/// `name: function, mode with one worker, mode with four`.
macro_rules! with_one_and_four_workers {
    ($name:ident: $run:ident, $one:ident, $four:ident) => {
        mod $name {
            use crate::support::config::Mode;

            #[tokio::test]
            async fn with_one_worker() {
                super::$run(Mode::$one, 1).await;
            }

            #[tokio::test]
            async fn with_four_workers() {
                super::$run(Mode::$four, 4).await;
            }
        }
    };
}

#[path = "e2e_load/accounting.rs"]
mod accounting;
#[path = "e2e_load/affinity.rs"]
mod affinity;
#[path = "e2e_load/decision.rs"]
mod decision;
#[path = "e2e_load/mixed.rs"]
mod mixed;
#[path = "e2e_load/reports.rs"]
mod reports;
#[path = "e2e_load/setups.rs"]
mod setups;
mod support;
#[path = "e2e_load/waves.rs"]
mod waves;

use std::time::{Duration, Instant};
use support::fleet::Fleet;

/// Long enough for a busy machine; it is only spent if something is wrong.
const SETTLE: Duration = Duration::from_secs(20);

/// Waits until the counter is `expected`, and asserts that it does not go beyond: each worker hands
/// its counts over with its next tick.
async fn counted(fleet: &Fleet, name: &str, labels: &[(&str, &str)], expected: u32) {
    let begun = Instant::now();
    loop {
        let value = fleet.stats().await.metric(name, labels);
        if value == f64::from(expected) {
            return;
        }
        let hopeless = value > f64::from(expected) || begun.elapsed() > SETTLE;
        assert!(!hopeless, "{name}{labels:?} is {value}, not {expected}");
    }
}
