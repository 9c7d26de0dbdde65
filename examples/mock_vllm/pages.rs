//! The small endpoints: models, tokenizer.

use super::Shared;
use super::prompt::count_tokens;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn models(shared: &Shared) -> String {
    let limits = &shared.limits;
    let length = limits.max_model_len.to_string();
    let parent = Value::from(limits.model.as_str()).to_string();
    let mut data = vec![model_card(&limits.model, "null", &length)];
    data.extend(
        limits
            .adapters
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

/// The ids are the tokens' positions: nobody can read anything from them.
pub fn tokenize(shared: &Shared, body: &Value) -> String {
    let count = count_tokens(body);
    let tokens: Vec<String> = (0..count).map(|id| id.to_string()).collect();
    format!(
        r#"{{"count":{count},"max_model_len":{},"tokens":[{}],"token_strs":null}}"#,
        shared.limits.max_model_len,
        tokens.join(",")
    )
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
