//! One workload through one router, in real time: replicas, router, sender, and what was seen.
//!
//! Also included by the end-to-end tests with `#[path]`, beside `tests/support`.
#![allow(dead_code)] // Each includer uses a part of it.

pub mod client;
pub mod cost;
pub mod engines;
pub mod envoy;
pub mod event;
pub mod names;
pub mod peer;
pub mod router;
pub mod run;
pub mod send;
