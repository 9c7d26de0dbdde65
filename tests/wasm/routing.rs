//! From bytes to a pick: scanner, routing key, ledger and session, with the same result on both targets.

use std::rc::Rc;

use warmroute::balancer::Balancer;
use warmroute::config::Config;
use warmroute::policy::Load;
use warmroute::prefix::routing_key;
use warmroute::request::{Api, RequestScanner, Scan, ScanOptions};
use warmroute::session::{Effects, Flow, Input, Moment, Rest, Session, StreamView};
use warmroute::state::memory::MemoryStore;
use warmroute::steer::Steer;
use wasm_bindgen_test::wasm_bindgen_test;

const BODY: &str = r#"{"model": "tiny", "messages": [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Why is the sky \u0062lue?"}], "max_tokens": 40}"#;

const CONFIG: &str = r#"{"policy": {"name": "prefix_hash"}, "explain": {"log_field": true},
    "endpoints": [{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80"},
    {"address": "10.0.0.3:80"}, {"address": "10.0.0.4:80"}]}"#;

/// A POST of a chat; nothing else is known of it.
struct Chat;

impl StreamView for Chat {
    fn now_us(&self) -> u64 {
        1_000_000
    }

    fn request_header(&self, name: &str) -> Option<Vec<u8>> {
        match name {
            ":method" => Some(b"POST".to_vec()),
            ":path" => Some(b"/v1/chat/completions?beta=true".to_vec()),
            _ => None,
        }
    }

    fn response_status(&self) -> Option<u16> {
        None
    }

    fn response_header(&self, _: &str) -> Option<Vec<u8>> {
        None
    }

    fn upstream_address(&self) -> Option<Vec<u8>> {
        None
    }

    fn attempts(&self) -> Option<u64> {
        None
    }

    fn response_details(&self) -> Option<Vec<u8>> {
        None
    }
}

fn options() -> ScanOptions {
    ScanOptions {
        prefix_bytes: 1_024,
        ..ScanOptions::default()
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn any_split_of_a_body_gives_the_same_key() {
    let whole = {
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &options());
        scanner.push(BODY.as_bytes());
        scanner.finish()
    };
    assert_eq!(whole.scan, Scan::Complete);
    let key = routing_key(whole.model.as_deref(), &whole.prompt);
    assert_eq!(key, Some(0xa422_d6e1_7ddb_5a6e));
    for step in [1, 7, 31] {
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &options());
        for piece in BODY.as_bytes().chunks(step) {
            scanner.push(piece);
        }
        assert_eq!(scanner.finish(), whole);
    }
}

struct Gateway {
    balancer: Balancer,
    store: MemoryStore,
}

impl Gateway {
    fn handle(&mut self, session: &mut Session, input: Input<'_>) -> Effects {
        let moment = Moment::new(&self.store, 42, &Chat);
        session.handle(&mut self.balancer, &moment, input)
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn a_session_decides_the_same_on_both_targets() {
    let config = Rc::new(Config::parse(CONFIG.as_bytes()).unwrap());
    let mut gateway = Gateway {
        balancer: Balancer::new(config, 1),
        store: MemoryStore::new(),
    };
    let mut sessions = Vec::new();
    let mut steered = Vec::new();
    for _ in 0..5 {
        let mut session = Session::default();
        let effects = gateway.handle(&mut session, Input::RequestHeaders(Rest::Open));
        assert_eq!(effects.flow, Flow::Hold);
        let effects = gateway.handle(&mut session, Input::RequestBody(BODY.as_bytes(), Rest::End));
        match effects.steer {
            Some(Steer::Header { value, .. }) => steered.push(value),
            other => steered.push(format!("{other:?}")),
        }
        sessions.push(session);
    }
    // One prefix five times at once: home, then clockwise as each reaches its bound, then home again
    // as soon as its bound has grown with the total.
    assert_eq!(
        steered,
        [
            "10.0.0.4:80",
            "10.0.0.3:80",
            "10.0.0.1:80",
            "10.0.0.4:80",
            "10.0.0.3:80"
        ]
    );
    for session in &mut sessions {
        gateway.handle(session, Input::Closed);
    }
    let totals = gateway.balancer.totals(&gateway.store);
    assert!(totals.values().all(Load::is_zero), "{totals:?}");
}
