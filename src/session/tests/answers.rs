//! What good answers release, and the times and usage that they report.

use super::*;

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
