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

#[macro_use]
mod support;

#[path = "e2e_load/accounting.rs"]
mod accounting;
#[path = "e2e_load/affinity.rs"]
mod affinity;
#[path = "e2e_load/again.rs"]
mod again;
#[path = "e2e_load/aware.rs"]
mod aware;
#[path = "e2e_load/decision.rs"]
mod decision;
#[path = "e2e_load/mixed.rs"]
mod mixed;
#[path = "e2e_load/reports.rs"]
mod reports;
#[path = "e2e_load/setups.rs"]
mod setups;
#[path = "e2e_load/warmth.rs"]
mod warmth;
#[path = "e2e_load/waves.rs"]
mod waves;

use std::time::Duration;

/// Long enough for a busy machine; it is only spent if something is wrong.
const SETTLE: Duration = Duration::from_secs(20);
