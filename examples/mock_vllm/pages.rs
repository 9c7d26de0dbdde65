//! The small endpoints: models, tokenizer, rendering of prompts.

use super::Shared;
use super::prompt::{text_of, token_ids};
use serde_json::Value;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn models(shared: &Shared) -> String {
    let limits = &shared.limits;
    let length = limits.max_model_len.to_string();
    let parent = Value::from(limits.model.as_str()).to_string();
    let mut data = vec![model_card(&limits.model, "null", &length)];
    data.extend(
        limits
            .adapters
            .names()
            .iter()
            .map(|name| model_card(name, &parent, "null")),
    );
    format!(r#"{{"object":"list","data":[{}]}}"#, data.join(","))
}

fn model_card(name: &str, parent: &str, max_model_len: &str) -> String {
    let quoted = |text: String| Value::from(text).to_string();
    let (root, permission) = (
        quoted(format!("models/{name}")),
        quoted(format!("modelperm-{name}")),
    );
    let id = quoted(name.to_owned());
    let created = unix_s();
    format!(
        r#"{{"id":{id},"object":"model","created":{created},"owned_by":"vllm","root":{root},"parent":{parent},"max_model_len":{max_model_len},"permission":[{{"id":{permission},"object":"model_permission","created":{created},"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}}]}}"#
    )
}

/// Nobody can read the text from the ids, but equal beginnings have equal ones.
pub fn tokenize(shared: &Shared, body: &Value) -> String {
    let (count, tokens) = tokens(body);
    format!(
        r#"{{"count":{count},"max_model_len":{},"tokens":[{tokens}],"token_strs":null}}"#,
        shared.limits.max_model_len,
    )
}

/// `/v1/chat/completions/render`: the prompt as tokens, in vLLM's form of a request to generate from
/// them (its `GenerateRequest`), without the features of images.
pub fn render(shared: &Shared, body: &Value) -> String {
    let (_, tokens) = tokens(body);
    let number = shared.next_id.fetch_add(1, Ordering::Relaxed);
    let field = |name: &str| body.get(name).cloned().unwrap_or_default();
    let model = match field("model") {
        Value::Null => Value::from(shared.limits.model.as_str()),
        named => named,
    };
    let most = match field("max_completion_tokens") {
        Value::Null => field("max_tokens"),
        most => most,
    };
    format!(
        r#"{{"request_id":"chatcmpl-{number:016x}","token_ids":[{tokens}],"features":null,"sampling_params":{{"max_tokens":{most}}},"model":{model},"stream":{},"stream_options":{},"cache_salt":{},"priority":0,"kv_transfer_params":null}}"#,
        field("stream").as_bool().unwrap_or(false),
        field("stream_options"),
        field("cache_salt"),
    )
}

/// How many tokens the prompt has, and their ids with commas between.
fn tokens(body: &Value) -> (usize, String) {
    let ids = token_ids(&text_of(body));
    let mut text = String::with_capacity(ids.len() * 7);
    for (at, id) in ids.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        // Writing into a String cannot fail.
        let _ = write!(text, "{comma}{id}");
    }
    (ids.len(), text)
}

pub fn detokenize(body: &Value) -> String {
    let count = body
        .get("tokens")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    format!(r#"{{"prompt":"{}"}}"#, " tok".repeat(count))
}

pub fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
