//! What a chat template would make of a request, and its tokens and blocks.
//!
//! Prompts are counted at four bytes of text a token. Everything that a chat template would put
//! into the prompt (tools, roles, texts, calls) is written into one text, whose blocks make the
//! chain; model name and `cache_salt` seed it. An image counts 1,024 tokens.

use super::call::Api;
use serde_json::Value;
use xxhash_rust::xxh64::xxh64;

const BYTES_PER_TOKEN: usize = 4;
const IMAGE_TOKENS: usize = 1_024;
/// That of Llama 3.
const VOCABULARY: u64 = 128_000;

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub tokens: u32,
    pub chain: Vec<u64>,
}

/// The text of a `/tokenize` or `/render` body.
pub fn text_of(body: &Value) -> Vec<u8> {
    match body.get("messages") {
        Some(_) => chat_text(Api::Chat, body),
        None => raw_prompts(body).into_iter().next().unwrap_or_default(),
    }
}

/// Ids of the text's tokens, [`tokens_of`] many. Each follows from its own bytes alone, so that equal
/// beginnings have equal ids; ids are below [`VOCABULARY`], as a model's are.
pub fn token_ids(text: &[u8]) -> Vec<u64> {
    let id = |token: &[u8]| xxh64(token, 0) % VOCABULARY;
    match text.is_empty() {
        true => vec![id(&[])],
        false => text.chunks(BYTES_PER_TOKEN).map(id).collect(),
    }
}

pub fn tokens_of(text: &[u8]) -> u32 {
    u32::try_from(text.len().div_ceil(BYTES_PER_TOKEN))
        .unwrap_or(u32::MAX)
        .max(1)
}

impl Prompt {
    pub fn new(seed: u64, text: &[u8], block_tokens: u32) -> Self {
        let mut parent = seed;
        let chain = text
            .chunks_exact(BYTES_PER_TOKEN * block_tokens.max(1) as usize)
            .map(|block| {
                parent = xxh64(block, parent);
                parent
            })
            .collect();
        Self {
            tokens: tokens_of(text),
            chain,
        }
    }
}

pub fn chain_seed(model: &str, salt: Option<&str>) -> u64 {
    xxh64(
        salt.unwrap_or_default().as_bytes(),
        xxh64(model.as_bytes(), 0),
    )
}

/// The prompts of `/v1/completions`: a string, ids, or an array of either.
pub fn raw_prompts(body: &Value) -> Vec<Vec<u8>> {
    let ids = |ids: &[Value]| -> Vec<u8> {
        ids.iter()
            .flat_map(|id| (id.as_u64().unwrap_or(0) as u32).to_le_bytes())
            .collect()
    };
    let prompts = match body.get("prompt") {
        Some(Value::String(text)) => vec![text.clone().into_bytes()],
        Some(Value::Array(items)) if items.iter().all(Value::is_number) => vec![ids(items)],
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::Array(inner) => ids(inner),
                other => other.as_str().unwrap_or_default().as_bytes().to_vec(),
            })
            .collect(),
        _ => vec![Vec::new()],
    };
    if prompts.is_empty() {
        vec![Vec::new()]
    } else {
        prompts
    }
}

/// What the chat template makes of a request.
pub fn chat_text(api: Api, body: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    for field in ["tools", "functions"] {
        if let Some(tools) = body.get(field).filter(|tools| !tools.is_null()) {
            text.extend_from_slice(b"<|tools|>\n");
            text.extend_from_slice(tools.to_string().as_bytes());
        }
    }
    for field in ["system", "instructions"] {
        if let Some(content) = body.get(field).filter(|content| !content.is_null()) {
            text.extend_from_slice(b"<|system|>\n");
            add_content(&mut text, content);
        }
    }
    let messages = body.get(if api == Api::Responses {
        "input"
    } else {
        "messages"
    });
    match messages {
        Some(Value::Array(messages)) => {
            for message in messages {
                add_message(&mut text, message);
            }
        }
        Some(content) => add_user(&mut text, content),
        None => {}
    }
    text.extend_from_slice(b"<|assistant|>\n");
    text
}

fn add_user(text: &mut Vec<u8>, content: &Value) {
    text.extend_from_slice(b"<|user|>\n");
    add_content(text, content);
}

fn add_message(text: &mut Vec<u8>, message: &Value) {
    let role = message
        .get("role")
        .and_then(Value::as_str)
        .unwrap_or("user");
    text.extend_from_slice(b"<|");
    text.extend_from_slice(role.as_bytes());
    text.extend_from_slice(b"|>\n");
    match message.get("content") {
        Some(content) => add_content(text, content),
        None if message.get("tool_calls").is_none() => add_other(text, message),
        None => {}
    }
    for field in ["name", "tool_calls", "tool_call_id"] {
        if let Some(value) = message.get(field).filter(|value| !value.is_null()) {
            add_other(text, value);
        }
    }
}

fn add_other(text: &mut Vec<u8>, value: &Value) {
    text.extend_from_slice(value.to_string().as_bytes());
    text.push(b'\n');
}

fn add_content(text: &mut Vec<u8>, content: &Value) {
    match content {
        Value::String(content) => text.extend_from_slice(content.as_bytes()),
        Value::Array(parts) => {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    text.push(b'\n');
                }
                add_part(text, part);
            }
        }
        Value::Null => {}
        other => text.extend_from_slice(other.to_string().as_bytes()),
    }
    text.push(b'\n');
}

fn add_part(text: &mut Vec<u8>, part: &Value) {
    if let Some(content) = part.get("text").and_then(Value::as_str).or(part.as_str()) {
        text.extend_from_slice(content.as_bytes());
        return;
    }
    let rendered = part.to_string();
    let is_image = part
        .get("type")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.contains("image"));
    if is_image {
        let mark = xxh64(rendered.as_bytes(), 0).to_le_bytes();
        text.extend(
            mark.iter()
                .copied()
                .cycle()
                .take(IMAGE_TOKENS * BYTES_PER_TOKEN),
        );
    } else {
        text.extend_from_slice(rendered.as_bytes());
    }
}
