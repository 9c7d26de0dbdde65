//! What the end-to-end tests and the demo share: mock replicas and a real Envoy with the shipped
//! configuration, started on free ports and ended with the value that holds them.
//!
//! Nothing here skips: if Envoy or the module is missing, starting fails with a line that says what
//! to run.

// Each test crate uses a part of this one.
#![allow(dead_code, unused_macros)]
// The way of a test to fail is to panic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

/// `name: function, mode with one worker, mode with four`, or without modes `name: function`.
macro_rules! with_one_and_four_workers {
    ($name:ident: $run:ident) => {
        mod $name {
            #[tokio::test]
            async fn with_one_worker() {
                super::$run(1).await;
            }

            #[tokio::test]
            async fn with_four_workers() {
                super::$run(4).await;
            }
        }
    };
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

/// `name: function`, in every steering mode, with one worker and with four.
macro_rules! in_every_mode {
    ($name:ident: $run:ident) => {
        mod $name {
            with_one_and_four_workers!(original_dst: run, OriginalDst, OriginalDst);
            with_one_and_four_workers!(filter_state: run, FilterState, FilterState);
            with_one_and_four_workers!(override_host: run, OverrideHost, OverrideHost);
            with_one_and_four_workers!(composite: run, Composite, Composite);
            use super::$run as run;
        }
    };
}

pub mod check;
pub mod client;
pub mod config;
pub mod eds;
pub mod envoy;
pub mod fleet;
#[path = "../../examples/mock_vllm/server.rs"]
pub mod mock;
pub mod program;
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
