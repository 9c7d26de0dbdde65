//! What answers teach of requests to come: tokens in a text, and lengths of outputs.

use super::*;
use crate::account::Account;

const EXPLAINED: &str = r#", "explain": {"log_field": true}"#;

/// A chat with this much text, under a system prompt of its own for each `key`.
fn body(model: &str, key: u32, bytes: usize, limit: Option<u32>) -> Vec<u8> {
    let limit = limit.map_or(String::new(), |limit| format!(r#","max_tokens":{limit}"#));
    let text = "x".repeat(bytes - 20);
    format!(
        r#"{{"model":"{model}","messages":[{{"role":"system","content":"key {key:016}"}},{{"role":"user","content":"{text}"}}]{limit}}}"#
    )
    .into_bytes()
}

/// What the account of a pick tells of the first choice.
pub(super) struct Told {
    pub(super) endpoint: String,
    pub(super) prefill_tokens: u64,
    pub(super) decode_tokens: u64,
    pub(super) matched_tokens: u64,
}

impl Told {
    pub(super) fn by(effects: &Effects) -> Self {
        let told = Account::parse(effects.log_field.as_ref().unwrap()).unwrap();
        let endpoint = told.ranked[0].clone();
        let mut candidates = told.candidates.iter();
        let first = candidates.find(|(name, _)| *name == endpoint).unwrap();
        Self {
            prefill_tokens: told.cost.prefill_tokens,
            decode_tokens: told.cost.decode_tokens,
            matched_tokens: first.1.matched_tokens,
            endpoint,
        }
    }
}

/// Asks; what the pick tells.
fn told(bench: &mut Bench, session: &mut Session, body: &[u8]) -> Told {
    let view = chat();
    bench.handle(session, &view, Input::RequestHeaders(Rest::Open));
    Told::by(&bench.handle(session, &view, Input::RequestBody(body, Rest::End)))
}

/// Asks; the cost that was expected, prompt and output.
fn ask(bench: &mut Bench, session: &mut Session, body: &[u8]) -> (u64, u64) {
    let told = told(bench, session, body);
    (told.prefill_tokens, told.decode_tokens)
}

/// Asks and gets this answer; the cost that was expected.
fn answered(bench: &mut Bench, body: &[u8], status: u16, answer: &[u8]) -> (u64, u64) {
    let mut session = Session::default();
    let cost = ask(bench, &mut session, body);
    let view = chat();
    view.status.set(Some(status));
    *view.details.borrow_mut() = Some(b"via_upstream".to_vec());
    bench.handle(&mut session, &view, Input::ResponseHeaders(Rest::Open));
    bench.handle(&mut session, &view, Input::ResponseBody(answer, Rest::Open));
    bench.handle(&mut session, &view, Input::ResponseBody(b"", Rest::End));
    assert!(bench.in_flight().is_zero());
    cost
}

fn usage(prompt_tokens: u64, completion_tokens: u64) -> Vec<u8> {
    format!(
        r#"{{"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":{completion_tokens}}}}}"#
    )
    .into_bytes()
}

#[test]
fn estimates_approach_the_truth_under_every_policy() {
    for policy in ["prefix_hash", "least_outstanding_tokens", "round_robin"] {
        // The second policy is only there so that bodies are read under all of them.
        let mut bench = Bench::new(&format!(
            r#"{{"pools": [
                {{"name": "a", "models": ["m"], "policy": {{"name": "{policy}"}}, "endpoints": [{{"address": "10.0.0.1:80"}}]}},
                {{"name": "b", "endpoints": [{{"address": "10.0.0.2:80"}}]}}]{EXPLAINED}}}"#
        ));
        // 3.2 bytes a token.
        let request = body("m", 1, 16_000, None);
        let first = answered(&mut bench, &request, 200, &usage(5_000, 40));
        assert_eq!(first, (4_000, 256), "{policy}");
        for _ in 0..30 {
            answered(&mut bench, &request, 200, &usage(5_000, 40));
        }
        let (prefill, decode) = answered(&mut bench, &request, 200, &usage(5_000, 40));
        assert!((4_950..=5_050).contains(&prefill), "{policy}: {prefill}");
        assert!((40..=60).contains(&decode), "{policy}: {decode}");
        // Another prompt of this model is priced by what the model did, another model as configured.
        let (prefill, decode) = ask(
            &mut bench,
            &mut Session::default(),
            &body("m", 2, 3_200, None),
        );
        assert!(
            (950..=1_050).contains(&prefill) && decode < 60,
            "{prefill} {decode}"
        );
        let other = ask(
            &mut bench,
            &mut Session::default(),
            &body("n", 2, 3_200, None),
        );
        assert_eq!(other, (800, 256), "{policy}");
    }
}

#[test]
fn what_a_limit_allows_is_never_exceeded() {
    let mut bench = Bench::two(EXPLAINED);
    for _ in 0..20 {
        answered(
            &mut bench,
            &body("m", 1, 2_000, None),
            200,
            &usage(500, 900),
        );
    }
    for (limit, expected) in [(Some(7), 7), (Some(700), 700)] {
        let cost = ask(
            &mut bench,
            &mut Session::default(),
            &body("m", 1, 2_000, limit),
        );
        assert_eq!(cost.1, expected);
    }
    let (_, decode) = ask(
        &mut bench,
        &mut Session::default(),
        &body("m", 1, 2_000, Some(5_000)),
    );
    assert!((700..=900).contains(&decode), "{decode}");
}

#[test]
fn only_whole_and_good_answers_teach() {
    let request = body("m", 1, 8_000, None);
    let half = br#"{"usage":{"prompt_tokens":4000,"completion_tokens":9},"#;
    let failed = br#"{"error":{"code":500},"usage":{"prompt_tokens":4000,"completion_tokens":9}}"#;
    let unknown = br#"{"error":{"code":404},"usage":{"prompt_tokens":4000,"completion_tokens":9}}"#;
    for (status, answer) in [(200, failed), (500, failed), (404, unknown)] {
        // However often it fails.
        let patient = r#", "health": {"failures": 1000000}"#;
        let mut bench = Bench::two(&format!("{EXPLAINED}{patient}"));
        for _ in 0..20 {
            let cost = answered(&mut bench, &request, status, answer);
            assert_eq!(cost, (2_000, 256), "{status}");
        }
    }
    let mut bench = Bench::two(EXPLAINED);
    for _ in 0..20 {
        let mut session = Session::default();
        assert_eq!(ask(&mut bench, &mut session, &request), (2_000, 256));
        let view = chat();
        view.status.set(Some(200));
        bench.handle(&mut session, &view, Input::ResponseBody(half, Rest::Open));
        bench.handle(&mut session, &view, Input::Closed);
    }
}

#[test]
fn a_stream_without_usage_teaches_by_its_events() {
    let mut bench = Bench::two(EXPLAINED);
    let request = body("m", 1, 8_000, None);
    let mut stream = String::new();
    for _ in 0..30 {
        stream.push_str("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
    }
    stream.push_str("data: [DONE]\n\n");
    for _ in 0..60 {
        answered(&mut bench, &request, 200, stream.as_bytes());
    }
    let (prefill, decode) = ask(&mut bench, &mut Session::default(), &request);
    assert!(
        prefill == 2_000 && (30..=40).contains(&decode),
        "{prefill} {decode}"
    );
}

/// The matched tokens follow the model's tokenizer, as the prompt's do.
#[test]
fn what_is_cached_is_counted_in_tokens_of_the_model() {
    let mut bench =
        Bench::two(r#", "policy": {"name": "expected_latency"}, "explain": {"log_field": true}"#);
    let request = body("m", 1, 16_000, None);
    for _ in 0..60 {
        answered(&mut bench, &request, 200, &usage(8_000, 9));
    }
    let told = told(&mut bench, &mut Session::default(), &request);
    // 62 of 63 blocks of 256 bytes, at 2 bytes a token.
    let missing = told.prefill_tokens - told.matched_tokens;
    assert!(told.matched_tokens > 7_000 && missing < 200, "{missing}");
}

/// An engine's tokens of an image are no text: what it found of both says nothing of the text alone.
#[test]
fn a_prompt_with_images_teaches_nothing_of_what_is_cached() {
    let asked = |content: &str| {
        let mut bench = Bench::new(
            r#"{"endpoints": [{"address": "10.0.0.1:80"}], "explain": {"log_field": true}}"#,
        );
        let old = body("m", 1, 16_000, None);
        let missed = br#"{"usage":{"prompt_tokens":9000,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}"#;
        let asking =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#);
        answered(&mut bench, &old, 200, &usage(4_000, 9));
        answered(&mut bench, asking.as_bytes(), 200, &usage(9_000, 9));
        answered(&mut bench, asking.as_bytes(), 200, missed);
        told(&mut bench, &mut Session::default(), &old).matched_tokens
    };
    let text = "word ".repeat(3_000);
    let image = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}"#;
    assert!(asked(&format!(r#"[{{"type":"text","text":"{text}"}},{image}]"#)) > 3_000);
    // Of text alone, whatever was used before what is gone is gone.
    assert_eq!(asked(&format!(r#""{text}""#)), 0);
}
