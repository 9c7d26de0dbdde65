//! Answers whose headers are held until it is known how they begin.

use super::*;
use crate::reply::ReplyKind;
use crate::tokens::MAX_FIRST_EVENT_BYTES;

const REFUSAL: &[u8] = b"data: {\"error\":{\"message\":\"full\",\"code\":503}}\n\n";
const OUTPUT: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";

fn bench() -> Bench {
    Bench::two(r#", "responses": {"hold_headers": true}, "explain": {"response_header": true}"#)
}

/// A stream whose headers have come, with this content type.
fn answering(bench: &mut Bench, kind: &str) -> (Session, Stub, Effects) {
    let view = chat();
    let (mut session, _) = departed(bench, &view);
    view.status.set(Some(200));
    *view.details.borrow_mut() = Some("via_upstream".into());
    view.response
        .borrow_mut()
        .insert("content-type", kind.into());
    let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    (session, view, effects)
}

fn held(bench: &mut Bench) -> (Session, Stub) {
    let (session, view, effects) = answering(bench, "text/event-stream; charset=utf-8");
    assert_eq!(effects.flow, Flow::Hold);
    assert!(effects.response_header.is_some());
    (session, view)
}

fn failures(effects: &Effects) -> Vec<Failure> {
    let failure = |event: &Event| match event {
        Event::Failed { failure, .. } => Some(*failure),
        _ => None,
    };
    effects.events.iter().filter_map(failure).collect()
}

#[test]
fn f8_a_refusal_becomes_a_status_is_counted_once_and_gives_all_back() {
    let mut bench = bench();
    let (mut session, view) = held(&mut bench);
    let (begin, end) = REFUSAL.split_at(20);
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(begin, Rest::Open));
    assert!(effects.flow == Flow::Hold && effects.reply.is_none());
    assert_eq!(bench.in_flight().requests, 1);
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(end, Rest::Open));
    assert_eq!(effects.flow, Flow::Hold, "nothing else passes");
    assert!(
        effects.response_header.is_some(),
        "the answer in its place shows it too"
    );
    let reply = effects.reply.as_ref().unwrap();
    assert_eq!((reply.status, reply.retry_after_s), (503, Some(1)));
    assert_eq!(reply.body.as_bytes(), &REFUSAL[6..REFUSAL.len() - 2]);
    assert_eq!(failures(&effects), [Failure::Overloaded]);
    assert!(
        effects
            .events
            .contains(&Event::Replied(ReplyKind::StreamError))
    );
    let answer = effects.events.iter().find_map(|event| match event {
        Event::Answered(answer) => Some(*answer),
        _ => None,
    });
    let answer = answer.unwrap();
    assert_eq!((answer.ttft_us, answer.e2e_us), (None, None));
    assert!(bench.in_flight().is_zero());
    // Nothing that follows counts again.
    for input in [
        Input::ResponseBody(b"data: [DONE]\n\n", Rest::End),
        Input::Closed,
    ] {
        assert_eq!(bench.handle(&mut session, &view, input).events, []);
    }
}

#[test]
fn f8_what_is_no_refusal_goes_on_as_it_came() {
    let long = [b'x'; MAX_FIRST_EVENT_BYTES];
    for beginning in [OUTPUT, &long, b"{\"choices\":[]}", b"data: [DONE]\n\n"] {
        let mut bench = bench();
        let (mut session, view) = held(&mut bench);
        let effects = bench.handle(
            &mut session,
            &view,
            Input::ResponseBody(b": wait\n\n", Rest::Open),
        );
        assert_eq!(effects.flow, Flow::Hold);
        let end = if beginning.starts_with(b"{") {
            Rest::End
        } else {
            Rest::Open
        };
        let effects = bench.handle(&mut session, &view, Input::ResponseBody(beginning, end));
        assert!(effects.flow == Flow::Continue && effects.reply.is_none());
        // Later errors are too late.
        let effects = bench.handle(&mut session, &view, Input::ResponseBody(REFUSAL, Rest::End));
        assert!(effects.flow == Flow::Continue && effects.reply.is_none());
        assert!(bench.in_flight().is_zero());
    }
}

#[test]
fn f8_only_streams_of_inference_calls_are_held_and_only_if_asked_for() {
    let (_, _, effects) = answering(&mut bench(), "application/json");
    assert_eq!(effects.flow, Flow::Continue);
    let (_, _, effects) = answering(&mut bench(), "");
    assert_eq!(effects.flow, Flow::Continue);
    let (_, _, effects) = answering(&mut bench(), "Text/Event-Stream");
    assert_eq!(effects.flow, Flow::Hold);
    let (_, _, effects) = answering(&mut Bench::two(""), "text/event-stream");
    assert_eq!(effects.flow, Flow::Continue);
    let mut bench = bench();
    let view = post("/v1/models");
    view.status.set(Some(200));
    view.response
        .borrow_mut()
        .insert("content-type", "text/event-stream".into());
    let mut session = Session::default();
    bench.handle(&mut session, &view, Input::RequestHeaders(Rest::End));
    let effects = bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    assert_eq!(effects.flow, Flow::Continue);
}

#[test]
fn f8_every_end_lets_a_held_answer_go() {
    for (input, reply) in [
        (Input::ResponseBody(b"", Rest::End), false),
        (Input::ResponseBody(b": only a comment", Rest::End), false),
        (Input::ResponseTrailers, false),
        (Input::Closed, false),
        (
            Input::ResponseBody(REFUSAL.trim_ascii_end(), Rest::End),
            true,
        ),
    ] {
        let mut bench = bench();
        let (mut session, view) = held(&mut bench);
        let effects = bench.handle(&mut session, &view, input);
        assert_eq!(effects.reply.is_some(), reply);
        assert_eq!(effects.flow == Flow::Continue, !reply);
        assert!(bench.in_flight().is_zero());
    }
    let mut bench = bench();
    let (mut session, view) = held(&mut bench);
    let effects = bench.handle(&mut session, &view, Input::Watchdog);
    assert_eq!(effects.flow, Flow::Continue);
    let effects = bench.handle(&mut session, &view, Input::ResponseBody(REFUSAL, Rest::End));
    assert!(effects.flow == Flow::Continue && effects.reply.is_none());
    assert_eq!(
        failures(&effects),
        [Failure::Overloaded],
        "it counts all the same"
    );
}

/// Where no policy needs the body, requests are held all the same: that is how it shows whether headers
/// may be held.
#[test]
fn who_holds_answers_reads_requests() {
    let config = r#", "policy": {"name": "round_robin"}, "responses": {"hold_headers": "#;
    for (on, flow) in [("true}", Flow::Hold), ("false}", Flow::Continue)] {
        let mut bench = Bench::two(&format!("{config}{on}"));
        let effects = bench.handle(
            &mut Session::default(),
            &chat(),
            Input::RequestHeaders(Rest::Open),
        );
        assert_eq!(effects.flow, flow);
    }
}
