//! Cases of estimates and of responses, the latter as a real vLLM 0.32.0 sent them.

use super::*;
use crate::request::{Api, RequestScanner, ScanOptions};

macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("../../tests/data/vllm-0.32.0/", $name)).as_slice()
    };
}

/// Reads `body` in pieces of every small size, and asserts that they all say the same.
fn read(body: &[u8]) -> ResponseReader {
    let whole = read_in_pieces(body, body.len().max(1));
    for size in [1, 2, 3, 7, 64, 1000] {
        let split = read_in_pieces(body, size);
        assert_eq!(split.usage(), whole.usage(), "{size}");
        assert_eq!(split.events(), whole.events(), "{size}");
        assert_eq!(split.error_code(), whole.error_code(), "{size}");
        assert_eq!(split.done(), whole.done(), "{size}");
    }
    whole
}

fn read_in_pieces(body: &[u8], size: usize) -> ResponseReader {
    let mut reader = ResponseReader::default();
    for piece in body.chunks(size) {
        reader.push(piece);
    }
    reader.finish();
    reader
}

fn json(body: &[u8]) -> ResponseReader {
    read(body)
}

fn events(body: &[u8]) -> ResponseReader {
    read(body)
}

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Option<Usage> {
    Some(Usage {
        prompt_tokens: prompt,
        completion_tokens: completion,
        cached_tokens: cached,
    })
}

#[test]
fn reads_the_usage_of_recorded_json() {
    for (body, expected) in [
        (recorded!("chat_1_cold.body"), usage(2043, 8, Some(0))),
        (recorded!("completion.body"), usage(5, 8, Some(0))),
        (recorded!("completion_batch.body"), usage(6, 8, Some(0))),
        (recorded!("completion_tokens.body"), usage(4, 4, Some(0))),
        (recorded!("responses.body"), usage(13, 8, Some(0))),
        (recorded!("anthropic_messages.body"), usage(13, 8, Some(0))),
    ] {
        let reader = json(body);
        assert_eq!(reader.usage(), expected);
        assert_eq!(reader.error_code(), None);
        assert_eq!(reader.events(), 0);
        assert!(!reader.done());
    }
    assert_eq!(
        json(recorded!("chat_2_warm.body"))
            .usage()
            .and_then(|usage| usage.cached_tokens),
        Some(1920)
    );
}

#[test]
fn reads_recorded_streams() {
    let stream = events(recorded!("chat_stream.body"));
    assert_eq!(stream.usage(), usage(2044, 8, Some(1920)));
    assert_eq!(stream.events(), 8);
    assert!(stream.done());
    assert_eq!(stream.error_code(), None);

    let continuous = events(recorded!("chat_stream_continuous.body"));
    assert_eq!(continuous.usage(), usage(15, 4, Some(0)));
    assert_eq!(continuous.events(), 4);

    let completion = events(recorded!("completion_stream.body"));
    assert_eq!(completion.usage(), usage(5, 4, Some(0)));
    assert_eq!(completion.events(), 4);
}

#[test]
fn b6_usage_may_be_absent_null_or_split_over_events() {
    let without = events(recorded!("chat_stream_nousage.body"));
    assert_eq!(without.usage(), None);
    assert_eq!(without.events(), 4);
    assert!(without.done());

    let null = json(br#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":null}}}"#);
    assert_eq!(null.usage(), usage(7, 2, None));
    let null = json(
        br#"{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":null}}"#,
    );
    assert_eq!(null.usage(), usage(7, 2, None));
    assert_eq!(json(br#"{"usage":null}"#).usage(), None);

    let split = events(
        b"data: {\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
          data: {\"choices\":[],\"usage\":{\"completion_tokens\":3,\"prompt_tokens_details\":null}}\n\ndata: [DONE]\n\n",
    );
    assert_eq!(split.usage(), usage(9, 3, Some(4)));
}

#[test]
fn reads_anthropic_and_responses_streams() {
    let anthropic = events(
        b"event: message_start\r\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"input_tokens\":25,\"output_tokens\":0,\"cache_read_input_tokens\":16}}}\r\n\r\n\
          event: content_block_delta\r\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\r\n\r\n\
          : a comment\r\n\r\n\
          event: message_delta\r\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":12}}\r\n\r\n\
          event: message_stop\r\ndata: {\"type\":\"message_stop\"}\r\n\r\n",
    );
    assert_eq!(anthropic.usage(), usage(25, 12, Some(16)));
    assert_eq!(anthropic.events(), 1);
    assert!(anthropic.done());
    assert_eq!(anthropic.error_code(), None);

    let responses = events(
        b"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null,\"error\":null}}\n\n\
          event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n\
          event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"error\":null,\"usage\":{\"input_tokens\":13,\"input_tokens_details\":{\"cached_tokens\":5},\"output_tokens\":8}}}\n\n",
    );
    assert_eq!(responses.usage(), usage(13, 8, Some(5)));
    assert_eq!(responses.events(), 1);
    assert!(responses.done());
    assert_eq!(responses.error_code(), None);
}

#[test]
fn finds_errors_inside_a_success() {
    let refused = events(b"data: {\"error\":{\"message\":\"full\",\"type\":\"ServiceUnavailable\",\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n");
    assert_eq!(refused.error_code(), Some(503));
    assert_eq!(refused.events(), 0);
    assert!(refused.done());

    let death = events(recorded!("failure/stream_enginedeath.txt"));
    assert_eq!(death.error_code(), Some(500));
    assert!(death.done());
    assert!(death.events() > 100);

    let left = events(recorded!("failure/aborted_stream.txt"));
    assert_eq!(left.error_code(), None);
    assert!(!left.done());

    for (body, code) in [
        (recorded!("failure/nonstream_enginedeath.body"), Some(500)),
        (recorded!("err_too_long.body"), Some(400)),
        (recorded!("err_unknown_model.body"), Some(404)),
        (recorded!("err_404.body"), None),
        (
            br#"{"object":"error","message":"x","code":400}"#.as_slice(),
            Some(400),
        ),
        (
            br#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#,
            Some(503),
        ),
        (br#"{"error":{"code":"429","message":"x"}}"#, Some(429)),
        (br#"{"error":"broken"}"#, Some(500)),
        (br#"{"error":null,"choices":[]}"#, None),
    ] {
        assert_eq!(
            json(body).error_code(),
            code,
            "{}",
            String::from_utf8_lossy(body)
        );
    }
}

#[test]
fn text_that_speaks_of_usage_is_text() {
    let text = json(br#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":99}","usage":{"prompt_tokens":98}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#);
    assert_eq!(text.usage(), usage(5, 1, None));
    let stream = events(b"data: {\"choices\":[{\"delta\":{\"content\":\"\\n\\ndata: {\\\"usage\\\":{\\\"prompt_tokens\\\":9}}\\n\\ndata: [DONE]\"}}]}\n\n");
    assert_eq!(stream.usage(), None);
    assert_eq!(stream.events(), 1);
    assert!(!stream.done());
}

#[test]
fn tool_calls_count_as_output_and_roles_do_not() {
    let stream = events(
        b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
          data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n\
          data: {\"choices\":[{\"delta\":{\"tool_calls\":[]}}]}\n\n\
          data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}}]}\n\n\
          data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    );
    assert_eq!(stream.events(), 2);
}

#[test]
fn lines_may_end_in_any_of_three_ways() {
    for end in ["\n", "\r\n", "\r"] {
        let body = [
            "data:{\"usage\":",
            "data: {\"prompt_tokens\":3}}",
            "",
            "event: x",
            "data: [DONE]",
            "",
            "",
        ]
        .join(end);
        let reader = events(body.as_bytes());
        assert_eq!(reader.usage(), usage(3, 0, None), "{end:?}");
        assert!(reader.done(), "{end:?}");
    }
}

#[test]
fn two_lines_of_data_are_not_one_number() {
    let reader = events(b"data: {\"usage\":{\"prompt_tokens\":1\ndata:2}}\n\n");
    assert_eq!(reader.usage(), usage(1, 0, None));
}

#[test]
fn events_without_a_blank_line_between_or_behind_still_count() {
    let reader = events(b"data: {\"choices\":[{\"text\":\"a\"}]}\ndata: {\"choices\":[{\"text\":\"b\"}]}\ndata: [DONE]");
    assert_eq!(reader.events(), 2);
    assert!(reader.done());
}

#[test]
fn the_first_byte_tells_what_a_body_is() {
    let usage_of = |body: &[u8]| read(body).usage();
    let known = usage(7, 2, None);
    let document = b" \r\n{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}";
    assert_eq!(usage_of(document), known);
    for begin in [
        "data:",
        ": comment\n\ndata:",
        "event: x\ndata: ",
        "id: 1\ndata:",
        "retry: 5\ndata:",
        "\n\ndata:",
    ] {
        let stream = [begin.as_bytes(), &document[3..], b"\n\n"].concat();
        let reader = read(&stream);
        assert_eq!(
            (reader.usage(), reader.is_stream()),
            (known, true),
            "{begin}"
        );
    }
    for begin in ["<html>", "[", "\u{1}", "Internal Server Error "] {
        let other = [begin.as_bytes(), &document[3..]].concat();
        assert_eq!(
            (usage_of(&other), read(&other).is_stream()),
            (None, false),
            "{begin}"
        );
    }
}

#[test]
fn nonsense_is_passed_over() {
    for body in [
        b"".as_slice(),
        b"{",
        b"[1,2",
        b"data",
        b"data: ",
        b"\xFF\xFE\x00",
        b"data: {\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":1e99}}\n\n",
        b"data: {\"usage\":[{\"prompt_tokens\":5}]}\n\n",
        b"data: {\"usage\":{\"prompt_tokens\":\"5\"}}\n\n",
    ] {
        assert_eq!(json(body).usage(), None);
        assert_eq!(events(body).usage(), None);
    }
    let broken = events(b"data: {\"usage\":{]\n\ndata: {\"usage\":{\"prompt_tokens\":5}}\n\n");
    assert_eq!(broken.usage(), usage(5, 0, None));
}

const ESTIMATOR: TokenEstimator = TokenEstimator {
    bytes_per_token_milli: 4000,
    output_tokens: 256,
    image_tokens: 1024,
};

fn scan(api: Api, body: &str) -> InferenceRequest {
    let mut scanner = RequestScanner::new(api, &ScanOptions::default());
    scanner.push(body.as_bytes());
    scanner.finish()
}

#[test]
fn estimates_what_was_read() {
    let request = scan(
        Api::ChatCompletions,
        r#"{"max_tokens": 10, "n": 3, "messages": [{"role":"user","content":[{"type":"text","text":"0123456789"},{"type":"image_url","image_url":{"url":"data:xyz"}}]}]}"#,
    );
    let load = ESTIMATOR.estimate(&request, Some(1_000_000));
    assert_eq!(
        (load.requests, load.prefill_tokens, load.decode_tokens),
        (1, 3 + 1024, 30)
    );

    let batch = scan(
        Api::Completions,
        r#"{"prompt": [[1,2,3],[4,5]], "max_tokens": 9999}"#,
    );
    let load = ESTIMATOR.estimate(&batch, None);
    assert_eq!((load.prefill_tokens, load.decode_tokens), (5, 512));
}

#[test]
fn estimates_by_length_what_was_not_read() {
    let claimed = |scan, length| {
        let request = InferenceRequest::unknown(Api::Responses, scan);
        ESTIMATOR.estimate(&request, Some(length)).prefill_tokens
    };
    assert_eq!(claimed(Scan::Malformed, 4001), 1, "it is refused at once");
    for scan in [Scan::Unread, Scan::Encoded] {
        let request = InferenceRequest::unknown(Api::Responses, scan);
        assert_eq!(claimed(scan, 4001), 1001);
        assert_eq!(claimed(scan, u64::MAX), MAX_TOKENS_BY_LENGTH);
        assert_eq!(ESTIMATOR.estimate(&request, None).prefill_tokens, 1);
        assert_eq!(ESTIMATOR.estimate(&request, None).decode_tokens, 256);
    }
}

#[test]
fn estimates_stay_within_their_bounds() {
    let wild = TokenEstimator {
        bytes_per_token_milli: 0,
        output_tokens: u32::MAX,
        image_tokens: u32::MAX,
    };
    let mut request = InferenceRequest::unknown(Api::Completions, Scan::Complete);
    request.n = u32::MAX;
    request.prompt.items = u32::MAX;
    request.prompt.images = u32::MAX;
    request.prompt.text_bytes = u64::MAX;
    request.prompt.token_ids = u64::MAX;
    let load = wild.estimate(&request, Some(u64::MAX));
    assert_eq!(
        (load.prefill_tokens, load.decode_tokens),
        (MAX_TOKENS, MAX_TOKENS)
    );

    request.max_output_tokens = Some(0);
    assert_eq!(ESTIMATOR.estimate(&request, None).decode_tokens, 0);
}
