//! How long a request is held, and what it is then decided on.

use super::*;
use crate::account::Account;
use crate::policy::Reason;
use crate::request::Scan;
use crate::steer::Steer;

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
