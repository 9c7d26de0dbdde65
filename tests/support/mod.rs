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

use std::path::{Path, PathBuf};

/// The top of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Python that has the `openai` client: `$WARMROUTE_PYTHON`, else the one of `make tools`.
///
/// # Errors
/// It is not there.
pub fn python() -> Result<PathBuf, String> {
    let of_tools = || {
        let cache = std::env::var_os("WARMROUTE_CACHE").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/warmroute"));
        Some(cache.or_else(home)?.join("python/bin/python"))
    };
    let given = std::env::var_os("WARMROUTE_PYTHON").map(PathBuf::from);
    let file = given
        .or_else(of_tools)
        .unwrap_or_else(|| PathBuf::from("python"));
    if file.is_file() {
        Ok(file)
    } else {
        Err(format!("{} is missing: run `make tools`", file.display()))
    }
}
