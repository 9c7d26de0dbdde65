//! The bodies and events that vLLM 0.32 answers with, field for field and in its order.

use super::call::{Api, ApiError, Call};
use super::faults::UsageFault;
use serde_json::{Value, json};
use std::fmt::Write as _;

const FINGERPRINT: &str = "vllm-0.32.0-ae9ced08";

/// Tokens of generated text; none needs escaping in JSON.
const WORDS: [&str; 16] = [
    " warm", " route", " cache", " token", " block", " prefix", " ring", " point", " load",
    " step", " batch", " chunk", " stream", " queue", " model", " layer",
];

/// What an answer needs to know of its request.
#[derive(Debug, Clone)]
pub struct Answer {
    pub call: Call,
    /// Without the API's prefix.
    pub id: String,
    pub created: u64,
    pub block_tokens: u32,
    pub usage: Option<UsageFault>,
}

/// A JSON string literal.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// vLLM's error object.
pub fn error_body(error: &ApiError) -> String {
    let param = error
        .param
        .as_deref()
        .map_or_else(|| "null".to_owned(), quoted);
    format!(
        r#"{{"error":{{"message":{},"type":{},"param":{param},"code":{}}}}}"#,
        quoted(&error.message),
        quoted(error.kind),
        error.status
    )
}

/// The error as an event inside a stream, spaced as Python's `json.dumps` does.
pub fn error_event(error: &ApiError) -> String {
    format!(
        "data: {{\"error\": {{\"message\": {}, \"type\": {}, \"param\": null, \"code\": {}}}}}\n\n",
        quoted(&error.message),
        quoted(error.kind),
        error.status
    )
}

/// The end of a stream.
pub const DONE: &str = "data: [DONE]\n\n";

impl Answer {
    /// The token at `at` of choice `choice`.
    fn word(&self, choice: usize, at: u32) -> &'static str {
        let prompt = self.call.prompts.get(choice);
        let seed = prompt
            .and_then(|prompt| prompt.chain.last().copied())
            .unwrap_or(7);
        let mixed = seed.wrapping_add(u64::from(at).wrapping_mul(0x9E37_79B9_7F4A_7C15)) >> 32;
        WORDS
            .get(mixed as usize % WORDS.len())
            .copied()
            .unwrap_or(" warm")
    }

    fn text(&self, choice: usize) -> String {
        (0..self.call.output_tokens)
            .map(|at| self.word(choice, at))
            .collect()
    }

    fn choices(&self) -> usize {
        self.call.prompts.len()
    }

    fn output_tokens(&self) -> u64 {
        u64::from(self.call.output_tokens) * self.choices() as u64
    }

    /// Full blocks of the prompt that were not cached before.
    fn created_tokens(&self, cached_tokens: u32) -> u32 {
        let block = self.block_tokens.max(1);
        let full = self.call.prompt_tokens / block * block;
        full.saturating_sub(cached_tokens)
    }

    /// The value of `usage` in a body; streamed usage has fewer fields.
    fn usage_json(&self, cached_tokens: u32, streamed: bool) -> String {
        let prompt = u64::from(self.call.prompt_tokens);
        let output = self.output_tokens();
        let chat = self.call.api == Api::Chat;
        let created = self.created_tokens(cached_tokens);
        let mut details = format!(r#"{{"cached_tokens":{cached_tokens}"#);
        // Writing into a String cannot fail.
        let _ = match (chat, streamed) {
            (true, _) => write!(details, r#","created_cache_tokens":{created}"#),
            (false, true) => Ok(()),
            (false, false) => write!(details, r#","created_cache_tokens":null"#),
        };
        details.push_str(if streamed {
            "}"
        } else {
            r#","multimodal_tokens":null}"#
        });
        if self.usage == Some(UsageFault::NullCached) {
            details = "null".to_owned();
        }
        let end = if streamed {
            ""
        } else {
            r#","completion_tokens_details":null"#
        };
        format!(
            r#"{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{output},"prompt_tokens_details":{details}{end}}}"#,
            prompt + output
        )
    }

    /// The whole answer, not streamed.
    pub fn body(&self, cached_tokens: u32) -> String {
        let usage = match self.usage {
            Some(UsageFault::None) => "null".to_owned(),
            _ => self.usage_json(cached_tokens, false),
        };
        match self.call.api {
            Api::Chat => self.chat_body(&usage),
            Api::Completions => self.completion_body(&usage),
            Api::Responses => self
                .response_object(cached_tokens, "incomplete")
                .to_string(),
            Api::Messages => self.message_object(cached_tokens).to_string(),
        }
    }

    fn chat_body(&self, usage: &str) -> String {
        let mut choices = String::new();
        for index in 0..self.choices() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(
                choices,
                r#"{comma}{{"index":{index},"message":{{"role":"assistant","content":{},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}}"#,
                quoted(&self.text(index))
            );
        }
        format!(
            r#"{{"id":"chatcmpl-{}","object":"chat.completion","created":{},"model":{},"choices":[{choices}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{usage},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#,
            self.id,
            self.created,
            quoted(&self.call.model)
        )
    }

    fn completion_body(&self, usage: &str) -> String {
        let mut choices = String::new();
        for index in 0..self.choices() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(
                choices,
                r#"{comma}{{"index":{index},"text":{},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}}"#,
                quoted(&self.text(index))
            );
        }
        format!(
            r#"{{"id":"cmpl-{}","object":"text_completion","created":{},"model":{},"choices":[{choices}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{usage},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}}"#,
            self.id,
            self.created,
            quoted(&self.call.model)
        )
    }

    fn response_object(&self, cached_tokens: u32, status: &str) -> Value {
        let done = status == "incomplete";
        let output = if done {
            json!([self.response_item("completed")])
        } else {
            json!([])
        };
        let details = match self.usage {
            Some(UsageFault::NullCached) => Value::Null,
            _ => json!({"cached_tokens": cached_tokens, "cache_write_tokens": 0,
                "input_tokens_per_turn": [], "cached_tokens_per_turn": []}),
        };
        let usage = if done && self.usage != Some(UsageFault::None) {
            json!({
                "input_tokens": self.call.prompt_tokens,
                "input_tokens_details": details,
                "output_tokens": self.output_tokens(),
                "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0,
                    "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
                "total_tokens": u64::from(self.call.prompt_tokens) + self.output_tokens(),
            })
        } else {
            Value::Null
        };
        let reason = if done {
            json!({"reason": "max_output_tokens"})
        } else {
            Value::Null
        };
        json!({
            "id": format!("resp_{}", self.id), "created_at": self.created,
            "incomplete_details": reason, "instructions": self.call.instructions,
            "metadata": null, "model": self.call.model, "object": "response", "output": output,
            "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "none", "tools": [],
            "top_p": 1.0, "background": false, "max_output_tokens": self.call.output_tokens,
            "max_tool_calls": null, "previous_response_id": null, "prompt": null,
            "reasoning": null, "service_tier": "auto", "status": status, "text": null,
            "top_logprobs": null, "truncation": "disabled", "usage": usage, "user": null,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": null,
            "ec_transfer_params": null, "input_messages": null, "output_messages": null,
        })
    }

    fn response_item(&self, status: &str) -> Value {
        let content = match status {
            "completed" => json!([{"annotations": [], "text": self.text(0), "type": "output_text",
                "logprobs": null}]),
            _ => json!([]),
        };
        json!({"id": format!("msg_{}", self.id), "content": content, "role": "assistant",
            "status": status, "type": "message", "phase": null})
    }

    fn message_object(&self, cached_tokens: u32) -> Value {
        let mut message = json!({
            "id": format!("chatcmpl-{}", self.id), "type": "message", "role": "assistant",
            "content": [{"type": "text", "text": self.text(0)}], "model": self.call.model,
            "stop_reason": "max_tokens", "usage": self.message_usage(cached_tokens),
        });
        if self.usage == Some(UsageFault::None) {
            message["usage"] = Value::Null;
        }
        message
    }

    fn message_usage(&self, cached_tokens: u32) -> Value {
        let cached = match self.usage {
            Some(UsageFault::NullCached) => Value::Null,
            _ => json!(cached_tokens),
        };
        json!({"input_tokens": self.call.prompt_tokens.saturating_sub(cached_tokens),
            "output_tokens": self.output_tokens(), "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached})
    }

    /// The events before the first token, one string each.
    pub fn head_events(&self, cached_tokens: u32) -> Vec<String> {
        match self.call.api {
            Api::Chat => (0..self.choices())
                .map(|choice| self.role_event(choice))
                .collect(),
            Api::Completions => Vec::new(),
            Api::Responses => {
                let response = self.response_object(0, "in_progress");
                let item = self.response_item("in_progress");
                let part =
                    json!({"annotations": [], "text": "", "type": "output_text", "logprobs": []});
                vec![
                    event("response.created", 0, json!({"response": response})),
                    event("response.in_progress", 1, json!({"response": response})),
                    event(
                        "response.output_item.added",
                        2,
                        json!({"output_index": 0, "item": item}),
                    ),
                    event(
                        "response.content_part.added",
                        3,
                        json!({"item_id": item["id"],
                        "output_index": 0, "content_index": 0, "part": part}),
                    ),
                ]
            }
            Api::Messages => {
                let mut message = self.message_object(cached_tokens);
                message["content"] = json!([]);
                message["stop_reason"] = Value::Null;
                if let Some(tokens) = message.pointer_mut("/usage/output_tokens") {
                    *tokens = json!(0);
                }
                vec![
                    named("message_start", json!({"message": message})),
                    named(
                        "content_block_start",
                        json!({"index": 0,
                        "content_block": {"type": "text", "text": ""}}),
                    ),
                ]
            }
        }
    }

    fn role_event(&self, choice: usize) -> String {
        format!(
            r#"data: {{"id":"chatcmpl-{}","object":"chat.completion.chunk","created":{},"model":{},"choices":[{{"index":{choice},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]{},"prompt_token_ids":null,"prompt_text":null}}"#,
            self.id,
            self.created,
            quoted(&self.call.model),
            self.continuous(0)
        ) + "\n\n"
    }

    /// `usage` in each event, if asked for.
    fn continuous(&self, tokens: u32) -> String {
        if !self.call.continuous_usage || self.usage == Some(UsageFault::None) {
            return String::new();
        }
        let prompt = self.call.prompt_tokens;
        format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{tokens},"completion_tokens_details":null}}"#,
            u64::from(prompt) + u64::from(tokens)
        )
    }

    /// The event of token `at` (from 0) of a choice.
    pub fn token_event(&self, choice: usize, at: u32) -> String {
        let word = self.word(choice, at);
        let last = at + 1 >= self.call.output_tokens;
        let reason = if last { r#""length""# } else { "null" };
        let (id, created) = (&self.id, self.created);
        let model = quoted(&self.call.model);
        let usage = self.continuous(at + 1);
        // Without a usage event the last event carries the fingerprint.
        let very_last = last && choice + 1 == self.choices() && !self.sends_usage();
        let print = if very_last {
            format!(r#","system_fingerprint":"{FINGERPRINT}""#)
        } else {
            String::new()
        };
        let mut text = match self.call.api {
            Api::Chat => {
                let stop = if last { r#""stop_reason":null,"# } else { "" };
                format!(
                    r#"data: {{"id":"chatcmpl-{id}","object":"chat.completion.chunk","created":{created},"model":{model},"choices":[{{"index":{choice},"delta":{{"content":"{word}"}},"logprobs":null,"finish_reason":{reason},{stop}"token_ids":null}}]{usage}{print}}}"#
                )
            }
            Api::Completions => format!(
                r#"data: {{"id":"cmpl-{id}","object":"text_completion","created":{created},"model":{model},"choices":[{{"index":{choice},"text":"{word}","logprobs":null,"finish_reason":{reason},"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}]{usage}{print}}}"#
            ),
            Api::Responses => {
                let item = format!("msg_{id}");
                return event(
                    "response.output_text.delta",
                    u64::from(at) + 4,
                    json!({
                    "item_id": item, "output_index": 0, "content_index": 0, "delta": word,
                    "logprobs": []}),
                );
            }
            Api::Messages => {
                return named(
                    "content_block_delta",
                    json!({"index": 0,
                    "delta": {"type": "text_delta", "text": word}}),
                );
            }
        };
        text.push_str("\n\n");
        text
    }

    fn sends_usage(&self) -> bool {
        self.call.include_usage && self.usage != Some(UsageFault::None)
    }

    /// The events after the last token.
    pub fn tail_events(&self, cached_tokens: u32) -> Vec<String> {
        match self.call.api {
            Api::Chat | Api::Completions => {
                let mut events = Vec::new();
                if self.sends_usage() {
                    let (prefix, object) = match self.call.api {
                        Api::Chat => ("chatcmpl", "chat.completion.chunk"),
                        _ => ("cmpl", "text_completion"),
                    };
                    events.push(format!(
                        "data: {{\"id\":\"{prefix}-{}\",\"object\":\"{object}\",\"created\":{},\"model\":{},\"choices\":[],\"usage\":{},\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n",
                        self.id,
                        self.created,
                        quoted(&self.call.model),
                        self.usage_json(cached_tokens, true)
                    ));
                }
                events.push(DONE.to_owned());
                events
            }
            Api::Responses => self.response_tail(cached_tokens),
            Api::Messages => vec![
                named("content_block_stop", json!({"index": 0})),
                named(
                    "message_delta",
                    json!({"delta": {"stop_reason": "max_tokens"},
                    "usage": self.message_object(cached_tokens)["usage"]}),
                ),
                named("message_stop", json!({})),
                DONE.to_owned(),
            ],
        }
    }

    fn response_tail(&self, cached_tokens: u32) -> Vec<String> {
        let item = self.response_item("completed");
        let part = item["content"][0].clone();
        let next = u64::from(self.call.output_tokens) + 4;
        let place = |extra: Value| {
            let mut data = json!({"item_id": item["id"], "output_index": 0, "content_index": 0});
            if let (Value::Object(data), Value::Object(extra)) = (&mut data, extra) {
                data.extend(extra);
            }
            data
        };
        vec![
            event(
                "response.output_text.done",
                next,
                place(json!({"text": part["text"], "logprobs": []})),
            ),
            event(
                "response.content_part.done",
                next + 1,
                place(json!({"part": part})),
            ),
            event(
                "response.output_item.done",
                next + 2,
                json!({"output_index": 0, "item": item}),
            ),
            event(
                "response.completed",
                next + 3,
                json!({"response": self.response_object(cached_tokens, "incomplete")}),
            ),
        ]
    }
}

/// An event of the Responses API.
fn event(kind: &str, sequence: u64, mut data: Value) -> String {
    data["sequence_number"] = json!(sequence);
    named(kind, data)
}

/// An event with a name, whose data repeats it as `type`.
fn named(kind: &str, mut data: Value) -> String {
    data["type"] = json!(kind);
    format!("event: {kind}\ndata: {data}\n\n")
}
