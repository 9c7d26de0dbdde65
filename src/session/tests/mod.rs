//! Streams through one gateway, input by input.

mod answers;
mod failures;
mod health;
mod holding;
mod learning;
mod opening;
mod picks;
mod restarts;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::config::Config;
use crate::policy::Load;
use crate::state::memory::MemoryStore;

/// A stream whose headers and properties a test sets.
#[derive(Default)]
struct Stub {
    now_us: Cell<u64>,
    request: BTreeMap<&'static str, Vec<u8>>,
    response: RefCell<BTreeMap<&'static str, Vec<u8>>>,
    status: Cell<Option<u16>>,
    upstream: RefCell<Option<Vec<u8>>>,
    attempts: RefCell<Option<u64>>,
    details: RefCell<Option<Vec<u8>>>,
}

impl StreamView for Stub {
    fn now_us(&self) -> u64 {
        self.now_us.get()
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        self.request.get(name).cloned()
    }

    fn response_status(&self) -> Option<u16> {
        self.status.get()
    }

    fn response_header(&self, name: &str) -> Option<Vec<u8>> {
        self.response.borrow().get(name).cloned()
    }

    fn upstream_address(&self) -> Option<Vec<u8>> {
        self.upstream.borrow().clone()
    }

    fn attempts(&self) -> Option<u64> {
        *self.attempts.borrow()
    }

    fn response_details(&self) -> Option<Vec<u8>> {
        self.details.borrow().clone()
    }
}

/// One gateway with one VM, and a clock.
struct Bench {
    balancer: Balancer,
    store: MemoryStore,
    now_us: u64,
}

impl Bench {
    fn new(config: &str) -> Self {
        let config = Config::parse(config.as_bytes()).unwrap();
        Self {
            balancer: Balancer::new(Rc::new(config), 1),
            store: MemoryStore::new(),
            now_us: 1_000_000,
        }
    }

    fn two(rest: &str) -> Self {
        let endpoints = r#"[{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80"}]"#;
        Self::new(&format!(r#"{{"endpoints": {endpoints}{rest}}}"#))
    }

    fn handle(&mut self, session: &mut Session, view: &Stub, input: Input<'_>) -> Effects {
        view.now_us.set(self.now_us);
        let moment = Moment::new(&self.store, 7, view);
        session.handle(&mut self.balancer, &moment, input)
    }

    fn in_flight(&self) -> Load {
        let totals = self.balancer.totals(&self.store);
        totals
            .values()
            .fold(Load::default(), |sum, load| sum.plus(*load))
    }
}

fn post(path: &str) -> Stub {
    let request = [
        (":method", b"POST".to_vec()),
        (":path", path.as_bytes().to_vec()),
    ];
    Stub {
        request: request.into_iter().collect(),
        ..Stub::default()
    }
}

fn chat() -> Stub {
    post("/v1/chat/completions")
}

const BODY: &[u8] =
    br#"{"model":"m","messages":[{"role":"user","content":"twelve bytes"}],"max_tokens":9}"#;

fn events(effects: &Effects) -> Vec<Event> {
    effects.events.clone()
}

/// A held chat whose whole body has been given.
fn departed(bench: &mut Bench, view: &Stub) -> (Session, Effects) {
    let mut session = Session::default();
    let effects = bench.handle(&mut session, view, Input::RequestHeaders(Rest::Open));
    assert_eq!(effects.flow, Flow::Hold);
    let effects = bench.handle(&mut session, view, Input::RequestBody(BODY, Rest::End));
    (session, effects)
}
