//! What the end-to-end tests and the demo share: mock replicas and a real Envoy with the shipped
//! configuration, started on free ports and ended with the value that holds them.
//!
//! Nothing here skips: if Envoy or the module is missing, starting fails with a line that says what
//! to run.

// Each test crate uses a part of this one.
#![allow(dead_code)]
// The way of a test to fail is to panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod check;
pub mod client;
pub mod config;
pub mod envoy;
pub mod fleet;
#[path = "../../examples/mock_vllm/server.rs"]
pub mod mock;
pub mod stats;

use std::path::Path;

/// The top of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
