//! The program `replay`: what it records, and what it does when something goes wrong; on mock replicas,
//! a real Envoy, and the other routers.
#![cfg(not(target_arch = "wasm32"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../examples/replay/play/mod.rs"]
mod play;
#[macro_use]
mod support;
#[path = "support/example.rs"]
mod example;

#[path = "e2e_replay/program.rs"]
mod program;
#[path = "e2e_replay/records.rs"]
mod records;

use warmroute::sim::workload::{Request, Role, Segment, Start, Workload};

/// A request due at `at_ms` whose prompt is that of `session`, `tokens` long.
fn request(at_ms: u64, session: u64, tokens: u32, output_tokens: u32) -> Request {
    let segment = |id, tokens, role| Segment { id, tokens, role };
    Request {
        start: Start::At { us: at_ms * 1_000 },
        session,
        adapter: None,
        prompt: vec![
            segment(1, 8, Role::System),
            segment(100 + session, tokens, Role::User),
        ],
        output_tokens,
    }
}

fn workload(requests: Vec<Request>) -> Workload {
    Workload {
        name: "test".to_owned(),
        about: String::new(),
        requests,
    }
}
