//! tmp
#![allow(missing_docs)]
#[path = "../examples/proving/workload/mod.rs"]
mod proving;
