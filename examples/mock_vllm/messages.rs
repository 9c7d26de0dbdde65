//! Answers of `/v1/messages`. The whole message is as vLLM 0.32 sends it; the events of a stream
//! follow Anthropic's API and vLLM's extra `[DONE]`, as none were recorded. As in Anthropic's
//! API `input_tokens` leaves out what was read from the cache.

use super::answer::{Answer, DONE, quoted};
use super::faults::UsageFault;

/// The whole answer, not streamed.
pub fn body(answer: &Answer, cached_tokens: u32) -> String {
    let content = format!(r#"{{"type":"text","text":{}}}"#, quoted(&answer.text(0)));
    let usage = usage(answer, cached_tokens, answer.output_tokens());
    message(answer, &content, r#""max_tokens""#, &usage)
}

fn message(answer: &Answer, content: &str, stop_reason: &str, usage: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-{}","type":"message","role":"assistant","content":[{content}],"model":{},"stop_reason":{stop_reason},"usage":{usage}}}"#,
        answer.id,
        quoted(&answer.call.model)
    )
}

fn usage(answer: &Answer, cached_tokens: u32, output_tokens: u64) -> String {
    let cached = match answer.usage {
        Some(UsageFault::None) => return "null".to_owned(),
        Some(UsageFault::NullCached) => "null".to_owned(),
        _ => cached_tokens.to_string(),
    };
    let input = answer.call.prompt_tokens.saturating_sub(cached_tokens);
    format!(
        r#"{{"input_tokens":{input},"output_tokens":{output_tokens},"cache_creation_input_tokens":0,"cache_read_input_tokens":{cached}}}"#
    )
}

/// One event; `fields` starts with a comma or is empty.
fn event(kind: &str, fields: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{fields}}}\n\n")
}

/// The events before the first token.
pub fn head(answer: &Answer, cached_tokens: u32) -> Vec<String> {
    let message = message(answer, "", "null", &usage(answer, cached_tokens, 0));
    let block = r#","index":0,"content_block":{"type":"text","text":""}"#;
    vec![
        event("message_start", &format!(r#","message":{message}"#)),
        event("content_block_start", block),
    ]
}

/// The event of a token.
pub fn delta(word: &str) -> String {
    let fields = format!(r#","index":0,"delta":{{"type":"text_delta","text":"{word}"}}"#);
    event("content_block_delta", &fields)
}

/// The events after the last token.
pub fn tail(answer: &Answer, cached_tokens: u32) -> Vec<String> {
    let usage = usage(answer, cached_tokens, answer.output_tokens());
    let delta = format!(r#","delta":{{"stop_reason":"max_tokens"}},"usage":{usage}"#);
    vec![
        event("content_block_stop", r#","index":0"#),
        event("message_delta", &delta),
        event("message_stop", ""),
        DONE.to_owned(),
    ]
}
