//! Answers of `/v1/responses`. The whole object is as vLLM 0.32 sends it; the events of a stream
//! follow OpenAI's API, as none were recorded.

use super::answer::{Answer, quoted};
use super::faults::UsageFault;

/// Events before the first delta.
const HEAD_EVENTS: u64 = 4;

/// The whole answer, not streamed.
pub fn body(answer: &Answer, cached_tokens: u32) -> String {
    object(answer, &Output::Done { cached_tokens })
}

enum Output {
    InProgress,
    Done { cached_tokens: u32 },
}

fn object(answer: &Answer, output: &Output) -> String {
    let (items, status, details, usage) = match output {
        Output::InProgress => (String::new(), "in_progress", "null", "null".to_owned()),
        Output::Done { cached_tokens } => (
            item(answer, "completed"),
            "incomplete",
            r#"{"reason":"max_output_tokens"}"#,
            usage(answer, *cached_tokens),
        ),
    };
    format!(
        r#"{{"id":"resp_{}","created_at":{},"incomplete_details":{details},"instructions":{},"metadata":null,"model":{},"object":"response","output":[{items}],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":{},"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"{status}","text":null,"top_logprobs":null,"truncation":"disabled","usage":{usage},"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}}"#,
        answer.id,
        answer.created,
        answer.call.instructions,
        quoted(&answer.call.model),
        answer.call.output_tokens,
    )
}

fn usage(answer: &Answer, cached_tokens: u32) -> String {
    let details = match answer.usage {
        Some(UsageFault::None) => return "null".to_owned(),
        Some(UsageFault::NullCached) => "null".to_owned(),
        _ => format!(
            r#"{{"cached_tokens":{cached_tokens},"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]}}"#
        ),
    };
    let (input, output) = (u64::from(answer.call.prompt_tokens), answer.output_tokens());
    format!(
        r#"{{"input_tokens":{input},"input_tokens_details":{details},"output_tokens":{output},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}},"total_tokens":{}}}"#,
        input + output
    )
}

fn part(answer: &Answer) -> String {
    let text = quoted(&answer.text(0));
    format!(r#"{{"annotations":[],"text":{text},"type":"output_text","logprobs":null}}"#)
}

fn item(answer: &Answer, status: &str) -> String {
    let content = if status == "completed" {
        part(answer)
    } else {
        String::new()
    };
    format!(
        r#"{{"id":"msg_{}","content":[{content}],"role":"assistant","status":"{status}","type":"message","phase":null}}"#,
        answer.id
    )
}

/// One event; `fields` comes without braces.
fn event(kind: &str, sequence: u64, fields: &str) -> String {
    format!(
        "event: {kind}\ndata: {{{fields},\"sequence_number\":{sequence},\"type\":\"{kind}\"}}\n\n"
    )
}

fn place(answer: &Answer) -> String {
    format!(
        r#""content_index":0,"item_id":"msg_{}","output_index":0"#,
        answer.id
    )
}

/// The events before the first token.
pub fn head(answer: &Answer) -> Vec<String> {
    let response = format!(r#""response":{}"#, object(answer, &Output::InProgress));
    let item = format!(r#""item":{},"output_index":0"#, item(answer, "in_progress"));
    let part = r#""part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}"#;
    let part = format!("{},{part}", place(answer));
    vec![
        event("response.created", 0, &response),
        event("response.in_progress", 1, &response),
        event("response.output_item.added", 2, &item),
        event("response.content_part.added", 3, &part),
    ]
}

/// The event of token `at`.
pub fn delta(answer: &Answer, at: u32, word: &str) -> String {
    let fields = format!(r#"{},"delta":"{word}","logprobs":[]"#, place(answer));
    event(
        "response.output_text.delta",
        HEAD_EVENTS + u64::from(at),
        &fields,
    )
}

/// The events after the last token.
pub fn tail(answer: &Answer, cached_tokens: u32) -> Vec<String> {
    let next = HEAD_EVENTS + u64::from(answer.call.output_tokens);
    let place = place(answer);
    let text = format!(
        r#"{place},"logprobs":[],"text":{}"#,
        quoted(&answer.text(0))
    );
    let part = format!(r#"{place},"part":{}"#, part(answer));
    let item = format!(r#""item":{},"output_index":0"#, item(answer, "completed"));
    let response = format!(r#""response":{}"#, body(answer, cached_tokens));
    vec![
        event("response.output_text.done", next, &text),
        event("response.content_part.done", next + 1, &part),
        event("response.output_item.done", next + 2, &item),
        event("response.completed", next + 3, &response),
    ]
}
