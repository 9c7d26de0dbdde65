//! Where a request goes: its key, how Envoy is told, who served it, and the explanation.

use super::*;
use crate::account::{Account, decide_again};
use crate::policy::Reason;
use crate::steer::Steer;

#[test]
fn other_paths_pass_only_if_told_and_carry_no_client_header() {
    let mut bench = Bench::two(r#", "other_paths": "pass""#);
    let view = post("/healthz");
    let mut session = Session::default();
    let effects = bench.handle(&mut session, &view, Input::RequestHeaders(Rest::End));
    assert_eq!(
        effects.remove_request_headers,
        ["x-envoy-original-dst-host"]
    );
    assert_eq!((effects.flow, effects.steer), (Flow::Continue, None));
    assert!(bench.in_flight().is_zero());
}

#[test]
fn filter_state_leaves_no_header_that_could_steer() {
    let mut bench = Bench::two(r#", "steering": "filter_state""#);
    let view = chat();
    let (_, effects) = departed(&mut bench, &view);
    assert!(matches!(effects.steer, Some(Steer::FilterState { .. })));
    assert_eq!(
        effects.remove_request_headers,
        ["x-envoy-original-dst-host"]
    );
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
    let first = crate::endpoint::Endpoint::new("10.0.0.1:80".parse().unwrap()).id();
    let given_up = Event::Failed {
        endpoint: first,
        failure: Failure::Replaced,
    };
    let retried = Event::Retried {
        endpoint: served,
        retries: 1,
    };
    assert_eq!(effects.events, [given_up, retried]);
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
