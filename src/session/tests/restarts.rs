//! What a refused connection makes of the index.

use super::learning::Told;
use super::*;
use crate::health::Signal;

const LATENCY: &str = r#", "policy": {"name": "expected_latency"}, "explain": {"log_field": true}"#;
const REFUSED: &str = "upstream_reset_before_response_started{remote_connection_failure|\
                       delayed_connect_error:_Connection_refused}";

/// One endpoint, which is picked whatever it holds.
fn one() -> Bench {
    Bench::new(&format!(
        r#"{{"endpoints": [{{"address": "10.0.0.1:80"}}]{LATENCY}}}"#
    ))
}

/// A chat of about 4,600 tokens.
fn body() -> Vec<u8> {
    let text = "the same words again and again ".repeat(600);
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#).into_bytes()
}

/// The endpoint of a pick, and the tokens that it is believed to hold.
fn pick(bench: &mut Bench, session: &mut Session, view: &Stub) -> (String, u64) {
    bench.handle(session, view, Input::RequestHeaders(Rest::Open));
    let told = Told::by(&bench.handle(session, view, Input::RequestBody(&body(), Rest::End)));
    (told.endpoint, told.matched_tokens)
}

/// One request that ends so.
fn served(bench: &mut Bench, status: u16, details: &str) -> (String, u64) {
    let view = chat();
    let mut session = Session::default();
    let picked = pick(bench, &mut session, &view);
    view.status.set(Some(status));
    *view.details.borrow_mut() = Some(details.into());
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    bench.handle(&mut session, &view, Input::ResponseBody(b"", Rest::End));
    bench.handle(&mut session, &view, Input::Closed);
    bench.now_us += 2_000_000;
    picked
}

#[test]
fn an_endpoint_that_refuses_a_connection_holds_nothing_any_more() {
    let mut bench = one();
    let (home, matched_tokens) = served(&mut bench, 200, "via_upstream");
    assert_eq!(matched_tokens, 0);
    let (again, matched_tokens) = served(&mut bench, 503, REFUSED);
    assert!(
        again == home && matched_tokens > 4_000,
        "{again} {matched_tokens}"
    );
    let (_, matched_tokens) = served(&mut bench, 200, "via_upstream");
    assert_eq!(matched_tokens, 0);
    // What came up in its place fills up again.
    assert!(served(&mut bench, 200, "via_upstream").1 > 4_000);
}

#[test]
fn neither_timeouts_nor_resets_nor_errors_are_a_restart() {
    for (status, details) in [
        (
            503,
            "upstream_reset_before_response_started{connection_termination}",
        ),
        (
            503,
            "upstream_reset_before_response_started{connection_timeout}",
        ),
        (503, "upstream_reset_before_response_started{overflow}"),
        (504, "response_timeout"),
        (503, "via_upstream"),
        (500, "via_upstream"),
        (503, "no_healthy_upstream"),
    ] {
        let mut bench = Bench::two(LATENCY);
        served(&mut bench, 200, "via_upstream");
        served(&mut bench, status, details);
        let (_, matched_tokens) = served(&mut bench, 200, "via_upstream");
        assert!(matched_tokens > 4_000, "{status} {details}");
    }
}

#[test]
fn requests_that_are_refused_together_leave_nothing_behind() {
    let mut bench = one();
    let view = chat();
    let mut sessions = [Session::default(), Session::default(), Session::default()];
    for session in &mut sessions {
        pick(&mut bench, session, &view);
    }
    view.status.set(Some(503));
    *view.details.borrow_mut() = Some(REFUSED.into());
    for session in &mut sessions {
        bench.handle(session, &view, Input::ResponseHeaders(Rest::End));
        // The client tries again at once, in vain.
        let mut again = Session::default();
        bench.handle(&mut again, &chat(), Input::RequestHeaders(Rest::Open));
        let effects = bench.handle(&mut again, &chat(), Input::RequestBody(&body(), Rest::End));
        assert_eq!(effects.reply.map(|reply| reply.status), Some(503));
        bench.now_us += 10_000;
    }
    bench.now_us += 1_000_000;
    bench.balancer.tick(&bench.store, bench.now_us / 1_000);
    let (_, matched_tokens) = pick(&mut bench, &mut Session::default(), &chat());
    assert_eq!(matched_tokens, 0);
}

/// An answer that comes after a restart speaks of the cache before it.
#[test]
fn a_restart_teaches_nothing_of_the_age_at_which_blocks_are_given_up() {
    let mut bench = Bench::two(LATENCY);
    let (home, _) = served(&mut bench, 200, "via_upstream");
    let view = chat();
    let mut late = Session::default();
    assert!(pick(&mut bench, &mut late, &view).1 > 4_000);
    let endpoint = crate::endpoint::Endpoint::new(home.parse().unwrap()).id();
    let now_ms = bench.now_us / 1_000;
    let refused = Signal::ScrapeRefused;
    bench
        .balancer
        .heard(&bench.store, now_ms, endpoint, refused);
    let back = Signal::Scraped {
        kv_permille: 0,
        awake: None,
    };
    bench.balancer.heard(&bench.store, now_ms, endpoint, back);
    view.status.set(Some(200));
    let missed = br#"{"usage":{"prompt_tokens":4650,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    bench.handle(&mut late, &view, Input::ResponseBody(missed, Rest::End));
    served(&mut bench, 200, "via_upstream");
    assert!(served(&mut bench, 200, "via_upstream").1 > 4_000);
}
