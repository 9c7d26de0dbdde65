//! The filter goes and comes back while requests are under way: after a panic, and when its
//! configuration changes. What that costs, measured and bounded on a real Envoy.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

#[path = "e2e_reload/load.rs"]
mod load;
#[path = "e2e_reload/panics.rs"]
mod panics;
#[path = "e2e_reload/updates.rs"]
mod updates;
