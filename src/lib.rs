//! Warmroute picks the model server for every LLM request, inside the Envoy that already carries it.
//!
//! This crate is a pure core (this documentation) and, behind the feature `filter`, the thin
//! proxy-wasm shell that Envoy loads. The core takes time and randomness as arguments and never
//! names the host, so that the filter, the simulator and the tests drive the same code.
#![deny(unsafe_code)]

pub mod balancer;
pub mod config;
pub mod endpoint;
pub mod policy;
pub mod poller;
pub mod prefix;
pub mod request;
pub mod scrape;
pub mod session;
#[cfg(not(target_arch = "wasm32"))]
pub mod sim;
pub mod state;
pub mod steer;
pub mod tokens;

#[cfg(feature = "filter")]
mod filter;
