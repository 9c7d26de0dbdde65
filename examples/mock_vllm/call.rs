//! A request body as the engine needs it: model, prompts, output length, what to report.
//!
//! Prompts are counted at four bytes of text a token. Everything that a chat template would put
//! into the prompt (tools, roles, texts, calls) is written into one text, whose 16-token blocks
//! make the chain; model name and `cache_salt` seed it. An image counts 1,024 tokens.

use serde_json::Value;
use xxhash_rust::xxh64::xxh64;

const BYTES_PER_TOKEN: usize = 4;
const IMAGE_TOKENS: usize = 1_024;
const DEFAULT_OUTPUT_TOKENS: u64 = 16;

/// The API a request speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// What the served models allow.
#[derive(Debug, Clone)]
pub struct Limits {
    pub model: String,
    pub adapters: Vec<String>,
    pub max_model_len: u32,
    pub block_tokens: u32,
}

/// An error answer in vLLM's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub kind: &'static str,
    pub param: Option<String>,
    pub message: String,
}

impl ApiError {
    fn validation(param: Option<&str>, detail: &str) -> Self {
        Self {
            status: 400,
            kind: "Bad Request",
            param: param.map(str::to_owned),
            message: format!("1 validation error:\n  {detail}"),
        }
    }

    fn missing(field: &str, items: usize) -> Self {
        let param = format!("body.{field}");
        let detail = format!(
            "{{'type': 'missing', 'loc': '{param}', 'msg': 'Field required', \
             'input': '<dict of {items} items>'}}"
        );
        Self::validation(Some(&param), &detail)
    }

    fn too_long(param: &str, value: u64, text: &str) -> Self {
        Self {
            status: 400,
            kind: "BadRequestError",
            param: Some(param.to_owned()),
            message: format!("{text} (parameter={param}, value={value})"),
        }
    }

    /// The wrong `content-type`.
    pub fn content_type() -> Self {
        Self::validation(
            None,
            "Unsupported Media Type: Only 'application/json' is allowed",
        )
    }

    /// The engine is dead.
    pub fn engine_dead(status: u16) -> Self {
        let message =
            "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        Self {
            status,
            kind: "InternalServerError",
            param: None,
            message: message.to_owned(),
        }
    }

    /// A prompt that does not even fit alone.
    pub fn prompt_too_long(max_model_len: u32) -> Self {
        let least = u64::from(max_model_len) + 1;
        Self::too_long(
            "input_tokens",
            least,
            &format!(
                "This model's maximum context length is {max_model_len} tokens. However, your \
                 prompt contains at least {least} input tokens, which exceeds this limit even \
                 without any output tokens. Please reduce the length of the input prompt."
            ),
        )
    }
}

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub tokens: u32,
    pub chain: Vec<u64>,
}

/// One inference request.
#[derive(Debug, Clone)]
pub struct Call {
    pub api: Api,
    pub model: String,
    pub stream: bool,
    pub include_usage: bool,
    pub continuous_usage: bool,
    /// One for each choice.
    pub prompts: Vec<Prompt>,
    pub output_tokens: u32,
    /// Prompts counted once each, however many choices.
    pub prompt_tokens: u32,
    /// As given; `/v1/responses` repeats it.
    pub instructions: Value,
}

/// Parses JSON, with vLLM's error if it is none.
pub fn parse_json(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        let line = error.line().saturating_sub(1);
        let before: usize = body
            .split_inclusive(|byte| *byte == b'\n')
            .take(line)
            .map(<[u8]>::len)
            .sum();
        let column = if error.is_eof() {
            error.column()
        } else {
            error.column().saturating_sub(1)
        };
        let param = format!("body.{}", before.saturating_add(column));
        let detail = format!(
            "{{'type': 'json_invalid', 'loc': '{param}', 'msg': 'JSON decode error', \
             'input': '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
        );
        ApiError::validation(Some(&param), &detail)
    })
}

impl Call {
    /// Reads a request body.
    pub fn parse(api: Api, body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let body = parse_json(body)?;
        let Value::Object(fields) = &body else {
            return Err(ApiError::validation(
                Some("body"),
                "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid \
                 dictionary or object to extract fields from'}",
            ));
        };
        let required = match api {
            Api::Chat | Api::Messages => Some("messages"),
            Api::Responses => Some("input"),
            Api::Completions => None,
        };
        if let Some(field) = required.filter(|field| !fields.contains_key(*field)) {
            return Err(ApiError::missing(field, fields.len()));
        }
        let model = served_model(&body, limits)?;
        let output = ["max_completion_tokens", "max_tokens", "max_output_tokens"]
            .iter()
            .find_map(|field| body.get(field).and_then(Value::as_u64));
        let seed = chain_seed(&model, body.get("cache_salt").and_then(Value::as_str));
        let texts = match api {
            Api::Completions => raw_prompts(&body),
            _ => vec![chat_text(api, &body)],
        };
        let output_tokens = output_tokens(&texts, output, limits)?;
        let choices = body
            .get("n")
            .and_then(Value::as_u64)
            .unwrap_or(1)
            .clamp(1, 128) as usize;
        let once: Vec<Prompt> = texts
            .iter()
            .map(|text| Prompt::new(seed, text, limits.block_tokens))
            .collect();
        let prompt_tokens = once.iter().map(|prompt| prompt.tokens).sum();
        let prompts = once
            .into_iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, choices))
            .collect();
        let options = body.get("stream_options");
        let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
        Ok(Self {
            api,
            model,
            stream: flag(body.get("stream")),
            include_usage: flag(options.and_then(|options| options.get("include_usage"))),
            continuous_usage: flag(
                options.and_then(|options| options.get("continuous_usage_stats")),
            ),
            prompts,
            output_tokens,
            prompt_tokens,
            instructions: body.get("instructions").cloned().unwrap_or(Value::Null),
        })
    }
}

/// The tokens of a `/tokenize` body.
pub fn count_tokens(body: &Value) -> u32 {
    let text = match body.get("messages") {
        Some(_) => chat_text(Api::Chat, body),
        None => raw_prompts(body).into_iter().next().unwrap_or_default(),
    };
    tokens_of(&text)
}

fn tokens_of(text: &[u8]) -> u32 {
    u32::try_from(text.len().div_ceil(BYTES_PER_TOKEN))
        .unwrap_or(u32::MAX)
        .max(1)
}

impl Prompt {
    fn new(seed: u64, text: &[u8], block_tokens: u32) -> Self {
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

fn chain_seed(model: &str, salt: Option<&str>) -> u64 {
    xxh64(
        salt.unwrap_or_default().as_bytes(),
        xxh64(model.as_bytes(), 0),
    )
}

fn served_model(body: &Value, limits: &Limits) -> Result<String, ApiError> {
    let Some(model) = body
        .get("model")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return Ok(limits.model.clone());
    };
    if model == limits.model || limits.adapters.iter().any(|adapter| adapter == model) {
        return Ok(model.to_owned());
    }
    Err(ApiError {
        status: 404,
        kind: "NotFoundError",
        param: Some("model".to_owned()),
        message: format!(
            "The model `{model}` does not exist. Valid aliases: {}.",
            limits.model
        ),
    })
}

fn output_tokens(texts: &[Vec<u8>], asked: Option<u64>, limits: &Limits) -> Result<u32, ApiError> {
    let most = limits.max_model_len;
    if let Some(asked) = asked.filter(|asked| *asked > u64::from(most)) {
        let text = format!(
            "max_tokens={asked} cannot be greater than max_model_len={most}. Please request fewer \
             output tokens."
        );
        return Err(ApiError::too_long("max_tokens", asked, &text));
    }
    let prompt = texts.iter().map(|text| tokens_of(text)).max().unwrap_or(1);
    let Some(room) = most.checked_sub(prompt) else {
        return Err(ApiError::prompt_too_long(most));
    };
    let Some(asked) = asked else {
        return Ok((DEFAULT_OUTPUT_TOKENS as u32).min(room).max(1));
    };
    if asked > u64::from(room) {
        let text = format!(
            "This model's maximum context length is {most} tokens. However, you requested {asked} \
             output tokens and your prompt contains at least {prompt} input tokens, for a total of \
             at least {} tokens. Please reduce the length of the input prompt or the number of \
             requested output tokens.",
            asked + u64::from(prompt)
        );
        return Err(ApiError::too_long("input_tokens", u64::from(prompt), &text));
    }
    Ok(u32::try_from(asked).unwrap_or(most).max(1))
}

/// The prompts of `/v1/completions`: a string, ids, or an array of either.
fn raw_prompts(body: &Value) -> Vec<Vec<u8>> {
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
fn chat_text(api: Api, body: &Value) -> Vec<u8> {
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
