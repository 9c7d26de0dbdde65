//! The bodies and events that vLLM 0.32 answers with, field for field and in its order.

use super::call::{Api, Call};
use super::error::ApiError;
use super::faults::UsageFault;
use super::{messages, responses};
use serde_json::Value;
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
pub fn quoted(text: &str) -> String {
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

    /// The whole text of a choice.
    pub fn text(&self, choice: usize) -> String {
        (0..self.call.output_tokens)
            .map(|at| self.word(choice, at))
            .collect()
    }

    fn choices(&self) -> usize {
        self.call.prompts.len()
    }

    /// Of all choices.
    pub fn output_tokens(&self) -> u64 {
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
            Api::Responses => responses::body(self, cached_tokens),
            Api::Messages => messages::body(self, cached_tokens),
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

    /// How many events come before the first token.
    pub fn head_len(&self) -> u32 {
        match self.call.api {
            Api::Chat => u32::try_from(self.choices()).unwrap_or(u32::MAX),
            Api::Completions => 0,
            Api::Responses => 4,
            Api::Messages => 2,
        }
    }

    /// The events before the first token, one string each.
    pub fn head_events(&self, cached_tokens: u32) -> Vec<String> {
        match self.call.api {
            Api::Chat => (0..self.choices())
                .map(|choice| self.role_event(choice))
                .collect(),
            Api::Completions => Vec::new(),
            Api::Responses => responses::head(self),
            Api::Messages => messages::head(self, cached_tokens),
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
            Api::Responses => return responses::delta(self, at, word),
            Api::Messages => return messages::delta(word),
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
            Api::Responses => responses::tail(self, cached_tokens),
            Api::Messages => messages::tail(self, cached_tokens),
        }
    }
}
