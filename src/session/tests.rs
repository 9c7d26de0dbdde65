mod learning;
mod restarts;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::account::{Account, decide_again};
use crate::config::Config;
use crate::policy::{Load, Reason};
use crate::request::Scan;
use crate::state::memory::MemoryStore;
use crate::steer::Steer;

/// A stream whose headers and properties a test sets.
#[derive(Default)]
struct Stub {
    now_us: Cell<u64>,
    request: BTreeMap<&'static str, Vec<u8>>,
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

#[test]
fn a_chat_is_held_until_its_object_is_closed_and_then_steered() {
    let mut bench = Bench::two("");
    let view = chat();
    let mut session = Session::default();
    let effects = bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    assert_eq!((effects.flow, effects.steer), (Flow::Hold, None));
    assert!(session.is_holding());
    let (start, end) = BODY.split_at(20);
    let effects = bench.handle(&mut session, &view, Input::RequestBody(start, Rest::Open));
    assert_eq!((effects.flow, effects.steer), (Flow::Hold, None));
    let effects = bench.handle(&mut session, &view, Input::RequestBody(end, Rest::Open));
    assert_eq!(effects.flow, Flow::Continue);
    let Some(Steer::Header { name, value }) = effects.steer else {
        panic!("{effects:?}")
    };
    assert_eq!(name, "x-envoy-original-dst-host");
    assert!(["10.0.0.1:80", "10.0.0.2:80"].contains(&value.as_str()));
    assert_eq!(effects.events[0], Event::Parsed(Scan::Complete));
    assert!(matches!(
        effects.events[1],
        Event::Picked {
            policy: "expected_latency",
            reason: Reason::NearTie,
            ..
        }
    ));
    let held = bench.in_flight();
    assert_eq!(
        (held.requests, held.prefill_tokens, held.decode_tokens),
        (1, 3, 9)
    );
    // What follows of the body passes.
    let effects = bench.handle(&mut session, &view, Input::RequestBody(b"  ", Rest::End));
    assert_eq!((effects.flow, effects.steer), (Flow::Continue, None));
    bench.handle(&mut session, &view, Input::Closed);
    assert!(bench.in_flight().is_zero());
}

#[test]
fn a_body_past_the_limit_is_decided_on_what_was_seen() {
    let mut bench = Bench::two(r#", "hold": {"max_bytes": 40}"#);
    let mut view = chat();
    view.request.insert("content-length", b"4000".to_vec());
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    let effects = bench.handle(
        &mut session,
        &view,
        Input::RequestBody(&BODY[..50], Rest::Open),
    );
    assert_eq!(effects.flow, Flow::Continue);
    assert!(effects.steer.is_some());
    assert_eq!(effects.events[0], Event::Parsed(Scan::Partial));
}

#[test]
fn h4_and_b7_what_cannot_be_read_goes_by_load() {
    for (body, scan) in [
        (&b"not json"[..], Scan::Malformed),
        (b"{\"messages\":[{", Scan::Malformed),
        (b"{\"messages\":[]}", Scan::Complete),
        (b"{}", Scan::Complete),
        (b"", Scan::Malformed),
    ] {
        let mut bench = Bench::two("");
        let view = chat();
        let mut session = Session::default();
        bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
        let effects = bench.handle(&mut session, &view, Input::RequestBody(body, Rest::End));
        assert!(effects.steer.is_some());
        assert_eq!(effects.events[0], Event::Parsed(scan), "{body:?}");
        assert!(matches!(
            effects.events[1],
            Event::Picked {
                reason: Reason::NoKey,
                ..
            }
        ));
    }
}

#[test]
fn what_needs_no_body_is_never_held() {
    let other = post("/v1/embeddings");
    for (config, view, scan) in [
        ("", &other, None),
        (
            r#", "policy": {"name": "round_robin"}"#,
            &chat(),
            Some(Scan::Unread),
        ),
        (
            r#", "policy": {"name": "consistent_hash", "keys": [{"header": "x-session-id"}]}"#,
            &chat(),
            Some(Scan::Unread),
        ),
    ] {
        let mut bench = Bench::two(config);
        let mut session = Session::default();
        let effects = bench.handle(&mut session, view, Input::RequestHeaders(Rest::Open));
        assert_eq!(effects.flow, Flow::Continue);
        assert!(effects.steer.is_some());
        let parsed = events(&effects).into_iter().find_map(|event| match event {
            Event::Parsed(scan) => Some(scan),
            _ => None,
        });
        assert_eq!(parsed, scan);
    }
}

#[test]
fn b7_a_compressed_body_is_let_go_at_its_first_byte() {
    let mut bench = Bench::two("");
    let mut view = chat();
    view.request.insert("content-encoding", b"gzip".to_vec());
    view.request.insert("content-length", b"4000".to_vec());
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    let gzip = b"\x1f\x8b\x08\0\0";
    let effects = bench.handle(&mut session, &view, Input::RequestBody(gzip, Rest::Open));
    assert_eq!(effects.flow, Flow::Continue);
    assert!(effects.steer.is_some());
    assert_eq!(effects.events[0], Event::Parsed(Scan::Encoded));
    assert_eq!(bench.in_flight().prefill_tokens, 1_000);
}

#[test]
fn other_paths_pass_only_if_told_and_carry_no_client_header() {
    let mut bench = Bench::two(r#", "other_paths": "pass""#);
    let view = post("/healthz");
    let mut session = Session::default();
    let effects = bench.handle(&mut session, &view, Input::RequestHeaders(Rest::End));
    assert_eq!(
        effects.remove_request_header,
        Some("x-envoy-original-dst-host")
    );
    assert_eq!((effects.flow, effects.steer), (Flow::Continue, None));
    assert!(bench.in_flight().is_zero());
}

#[test]
fn the_watchdog_decides_by_load() {
    let mut bench = Bench::two("");
    let view = chat();
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    let effects = bench.handle(&mut session, &view, Input::Watchdog);
    assert!(effects.steer.is_some());
    assert_eq!(effects.events[0], Event::Parsed(Scan::Unread));
    assert_eq!(effects.events.last(), Some(&Event::WatchdogFired));
    // Too late for a second time.
    let effects = bench.handle(&mut session, &view, Input::Watchdog);
    assert_eq!((effects.steer, effects.events), (None, Vec::new()));
}

#[test]
fn trailers_end_the_body() {
    let mut bench = Bench::two("");
    let view = chat();
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    bench.handle(
        &mut session,
        &view,
        Input::RequestBody(&BODY[..30], Rest::Open),
    );
    let effects = bench.handle(&mut session, &view, Input::RequestTrailers);
    assert!(effects.steer.is_some());
    assert_eq!(effects.events[0], Event::Parsed(Scan::Malformed));
}

#[test]
fn a8_the_first_chunk_ends_the_prefill_not_the_headers() {
    let mut bench = Bench::two("");
    let view = chat();
    let (mut session, _) = departed(&mut bench, &view);
    view.status.set(Some(200));
    bench.now_us += 20_000;
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    assert_eq!(bench.in_flight().prefill_tokens, 3);
    bench.now_us += 2_980_000;
    let first = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    bench.handle(&mut session, &view, Input::ResponseBody(first, Rest::Open));
    let held = bench.in_flight();
    assert_eq!(
        (held.requests, held.prefill_tokens, held.decode_tokens),
        (1, 0, 9)
    );
    bench.now_us += 80_000;
    let last = b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\ndata: [DONE]\n\n";
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(last, Rest::End));
    assert!(bench.in_flight().is_zero());
    let [Event::Answered(answer)] = effects.events[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(answer.ttft_us, Some(3_000_000));
    assert_eq!(answer.e2e_us, Some(3_080_000));
    assert_eq!(answer.tpot_us, Some(10_000));
    let usage = answer.usage.unwrap();
    assert_eq!(
        (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens
        ),
        (4, 9, Some(2))
    );
    // Nothing is given back twice.
    bench.handle(&mut session, &view, Input::Closed);
    assert!(bench.in_flight().is_zero());
}

#[test]
fn a_whole_document_ends_the_request_before_envoy_says_so() {
    let mut bench = Bench::two("");
    let view = chat();
    let (mut session, _) = departed(&mut bench, &view);
    view.status.set(Some(200));
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    let (start, end) =
        br#"{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":9}}"#.split_at(30);
    bench.handle(&mut session, &view, Input::ResponseBody(start, Rest::Open));
    let held = bench.in_flight();
    assert_eq!(
        (held.requests, held.prefill_tokens, held.decode_tokens),
        (1, 0, 9)
    );
    bench.now_us += 5_000;
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(end, Rest::Open));
    assert!(bench.in_flight().is_zero());
    let [Event::Answered(answer)] = effects.events[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (answer.ttft_us, answer.e2e_us, answer.tpot_us),
        (None, Some(5_000), None)
    );
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(b"", Rest::End));
    assert_eq!(effects.events, []);
}

#[test]
fn f8_f9_an_error_inside_a_200_is_a_failure_and_teaches_no_times() {
    for (code, failure) in [("503", Failure::Overloaded), ("500", Failure::StreamError)] {
        let mut bench = Bench::two("");
        let view = chat();
        let (mut session, _) = departed(&mut bench, &view);
        view.status.set(Some(200));
        bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
        let body = format!(
            "data: {{\"error\":{{\"message\":\"m\",\"code\":{code}}}}}\n\ndata: [DONE]\n\n"
        );
        let effects = bench.handle(
            &mut session,
            &view,
            Input::ResponseBody(body.as_bytes(), Rest::End),
        );
        let [Event::Failed { failure: seen, .. }, Event::Answered(answer)] = effects.events[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!(seen, failure);
        assert_eq!(
            (answer.ttft_us, answer.e2e_us, answer.tpot_us),
            (None, None, None)
        );
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn statuses_are_blamed_on_whom_they_belong_to() {
    for (status, details, expected) in [
        (200, "via_upstream", None),
        (400, "via_upstream", None),
        (404, "via_upstream", None),
        (413, "request_payload_too_large", None),
        (429, "via_upstream", Some(Failure::Overloaded)),
        (500, "via_upstream", Some(Failure::ServerError)),
        (503, "via_upstream", Some(Failure::Overloaded)),
        (
            503,
            "upstream_reset_before_response_started{connection_failure}",
            Some(Failure::Unreachable),
        ),
        (503, "no_healthy_upstream", None),
        (504, "response_timeout", Some(Failure::Unreachable)),
        (504, "upstream_per_try_timeout", Some(Failure::Unreachable)),
        (
            503,
            "upstream_reset_before_response_started{overflow}",
            None,
        ),
    ] {
        let mut bench = Bench::two("");
        let view = chat();
        let (mut session, _) = departed(&mut bench, &view);
        view.status.set(Some(status));
        *view.details.borrow_mut() = Some(details.into());
        let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::End));
        let seen = effects.events.iter().find_map(|event| match event {
            Event::Failed { failure, .. } => Some(*failure),
            _ => None,
        });
        assert_eq!(seen, expected, "{status} {details}");
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn f6_a_stream_that_breaks_off_is_the_endpoints_failure_and_one_that_is_left_is_not() {
    for (details, broken) in [
        ("upstream_reset_after_response_started{remote_reset}", true),
        ("downstream_remote_disconnect", false),
    ] {
        let mut bench = Bench::two("");
        let view = chat();
        let (mut session, _) = departed(&mut bench, &view);
        view.status.set(Some(200));
        bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
        bench.handle(
            &mut session,
            &view,
            Input::ResponseBody(b"data: {}\n\n", Rest::Open),
        );
        *view.details.borrow_mut() = Some(details.into());
        let effects = bench.handle(&mut session, &view, Input::Closed);
        let failed = effects.events.iter().any(|event| {
            matches!(
                event,
                Event::Failed {
                    failure: Failure::BrokenStream,
                    ..
                }
            )
        });
        assert_eq!(failed, broken, "{details}");
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn the_load_moves_to_the_endpoint_that_served() {
    let mut bench =
        Bench::two(r#", "steering": "override_host", "policy": {"name": "round_robin"}"#);
    let view = chat();
    let mut session = Session::default();
    let effects = bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    let steer = Steer::Header {
        name: "x-gateway-destination-endpoint",
        value: "10.0.0.1:80,10.0.0.2:80".into(),
    };
    assert_eq!(effects.steer, Some(steer));
    view.status.set(Some(200));
    *view.upstream.borrow_mut() = Some(b"10.0.0.2:80".to_vec());
    *view.attempts.borrow_mut() = Some(2);
    let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    let served = crate::endpoint::Endpoint::new("10.0.0.2:80".parse().unwrap()).id();
    assert_eq!(
        effects.events,
        [Event::Retried {
            endpoint: served,
            retries: 1
        }]
    );
    assert_eq!(bench.balancer.totals(&bench.store)[&served].requests, 1);
    bench.handle(&mut session, &view, Input::Closed);
    assert!(bench.in_flight().is_zero());
}

#[test]
fn the_explanation_says_what_the_pick_saw() {
    let mut bench = Bench::two(
        r#", "policy": {"name": "least_request"}, "explain": {"response_header": true, "log_field": true}"#,
    );
    let view = chat();
    let mut first = Session::default();
    bench.handle(&mut first, &view, Input::RequestHeaders(Rest::End));
    let mut session = Session::default();
    let effects = bench.handle(&mut session, &view, Input::RequestHeaders(Rest::End));
    let account = effects.log_field.unwrap();
    view.status.set(Some(200));
    let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    let line = effects.response_header.unwrap();
    let busy = if line.contains("endpoint=10.0.0.1:80;") {
        "10.0.0.2:80"
    } else {
        "10.0.0.1:80"
    };
    assert!(
        line.starts_with("policy=least_request;reason=least_loaded;pool=default;endpoint="),
        "{line}"
    );
    assert!(line.contains(&format!("{busy} 1/1/256")), "{line}");
    assert!(line.contains(";sequence=1;cost=1+256;"), "{line}");
    let again = Account::parse(&account).unwrap();
    assert!(line.contains(&format!(";ranked={};", again.ranked.join("|"))));
    assert_eq!((again.sequence, again.random), (1, 7));
    let ranking = decide_again(bench.balancer.config(), &account).unwrap();
    assert_eq!(ranking.reason, Reason::LeastLoaded);
    assert_eq!(ranking.endpoints.len(), 2);
}

#[test]
fn h7_h8_h9_keys_come_from_the_configured_places_in_order() {
    let policy = r#", "policy": {"name": "consistent_hash", "keys":
        [{"header": "X-Session-Id"}, {"cookie": "sid"}, {"body": "user"}]}, "explain": {"log_field": true}"#;
    let key = |headers: &[(&'static str, &str)], body: &str| {
        let mut bench = Bench::two(policy);
        let mut view = chat();
        view.request.extend(
            headers
                .iter()
                .map(|(name, value)| (*name, value.as_bytes().to_vec())),
        );
        let mut session = Session::default();
        bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
        let effects = bench.handle(
            &mut session,
            &view,
            Input::RequestBody(body.as_bytes(), Rest::End),
        );
        Account::parse(&effects.log_field.unwrap()).unwrap().key
    };
    let bob = r#"{"user": "bob", "messages": []}"#;
    assert_eq!(
        key(
            &[],
            r#"{"messages": [{"role": "user", "content": "{\"user\": \"bob\"}"}]}"#
        ),
        None
    );
    let by_user = key(&[], bob);
    assert!(by_user.is_some());
    assert_eq!(by_user, key(&[("x-request-id", "1")], bob));
    assert_eq!(
        by_user,
        key(&[("x-request-id", "2"), ("cookie", "other=1; sidx=2")], bob)
    );
    let by_cookie = key(&[("cookie", "a=b; sid=s1; c=d")], bob);
    assert_ne!(by_cookie, by_user);
    assert_eq!(by_cookie, key(&[("cookie", "sid=s1")], "{}"));
    let by_header = key(&[("x-session-id", "s1"), ("cookie", "sid=s1")], bob);
    assert_ne!(by_header, by_cookie);
    assert_eq!(by_header, key(&[("x-session-id", "s1")], "{}"));
}

#[test]
fn a8_a_responses_stream_announces_itself_before_its_prefill() {
    let mut bench = Bench::two("");
    let view = post("/v1/responses");
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    let body = br#"{"model":"m","input":"twelve bytes","stream":true,"max_output_tokens":9}"#;
    bench.handle(&mut session, &view, Input::RequestBody(body, Rest::End));
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    bench.now_us += 20_000;
    let announced = b"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\"}}\n\n";
    bench.handle(
        &mut session,
        &view,
        Input::ResponseBody(announced, Rest::Open),
    );
    assert_eq!(bench.in_flight().prefill_tokens, 3);
    bench.now_us += 2_980_000;
    let delta = b"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    bench.handle(&mut session, &view, Input::ResponseBody(delta, Rest::Open));
    assert_eq!(bench.in_flight().prefill_tokens, 0);
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(b"", Rest::End));
    let [Event::Answered(answer)] = effects.events[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(answer.ttft_us, Some(3_000_000));
}

#[test]
fn other_paths_cost_no_output_and_teach_nothing() {
    let mut bench = Bench::two("");
    let view = post("/generate");
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::Open));
    let held = bench.in_flight();
    assert_eq!(
        (held.requests, held.prefill_tokens, held.decode_tokens),
        (1, 1, 0)
    );
    view.status.set(Some(200));
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    // A document a line: the first is not the end.
    for line in [&b"{\"text\":\"a\"}\n"[..], b"{\"text\":\"ab\"}\n"] {
        let effects = bench.handle(&mut session, &view, Input::ResponseBody(line, Rest::Open));
        assert_eq!(effects.events, []);
        assert_eq!(bench.in_flight().requests, 1);
    }
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(b"", Rest::End));
    assert_eq!(effects.events, []);
    assert!(bench.in_flight().is_zero());
}

#[test]
fn a_429_of_envoys_own_is_nobodys_failure() {
    let mut bench = Bench::two("");
    let view = chat();
    let (mut session, _) = departed(&mut bench, &view);
    view.status.set(Some(429));
    *view.details.borrow_mut() = Some("request_rate_limited".into());
    let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::End));
    let failed = effects
        .events
        .iter()
        .any(|event| matches!(event, Event::Failed { .. }));
    assert!(!failed, "{effects:?}");
}

#[test]
fn a_client_that_leaves_after_the_end_of_the_stream_has_seen_all_of_it() {
    let mut bench = Bench::two("");
    let view = chat();
    let (mut session, _) = departed(&mut bench, &view);
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    bench.now_us += 1_000;
    let stream = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\ndata: [DONE]\n\n";
    bench.handle(&mut session, &view, Input::ResponseBody(stream, Rest::Open));
    bench.now_us += 1_000;
    let effects = bench.handle(&mut session, &view, Input::Closed);
    let [Event::Answered(answer)] = effects.events[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((answer.ttft_us, answer.e2e_us), (Some(1_000), Some(2_000)));
}

#[test]
fn filter_state_leaves_no_header_that_could_steer() {
    let mut bench = Bench::two(r#", "steering": "filter_state""#);
    let view = chat();
    let (_, effects) = departed(&mut bench, &view);
    assert!(matches!(effects.steer, Some(Steer::FilterState { .. })));
    assert_eq!(
        effects.remove_request_header,
        Some("x-envoy-original-dst-host")
    );
}

#[test]
fn a_model_that_was_half_read_is_no_model() {
    let mut bench = Bench::new(
        r#"{"hold": {"max_bytes": 60}, "explain": {"log_field": true}, "pools": [
            {"name": "named", "models": ["ll"], "endpoints": [{"address": "10.0.0.1:80"}]},
            {"name": "others", "endpoints": [{"address": "10.0.0.2:80"}]}]}"#,
    );
    let body = br#"{"messages":[{"role":"user","content":"hi hi hi"}],"model":"llama"}"#;
    let (start, rest) = body.split_at(body.len() - 5);
    assert!(start.ends_with(b"\"ll") && rest.starts_with(b"ama"));
    let mut session = Session::default();
    bench.handle(&mut session, &chat(), Input::RequestHeaders(Rest::Open));
    let effects = bench.handle(&mut session, &chat(), Input::RequestBody(start, Rest::Open));
    let account = Account::parse(&effects.log_field.unwrap()).unwrap();
    assert_eq!(account.pool, "others");
}
