//! A request body as the engine needs it: model, prompts, output length, what to report.

use super::adapters::Loaded;
use super::error::ApiError;
use super::prompt::{Prompt, chain_seed, chat_text, raw_prompts, tokens_of};
use serde_json::Value;

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
#[derive(Debug)]
pub struct Limits {
    pub model: String,
    pub adapters: Loaded,
    pub max_model_len: u32,
    pub block_tokens: u32,
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
    pub choices_per_prompt: usize,
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
            .find_map(|field| body.get(field).and_then(whole));
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
            choices_per_prompt: choices,
            output_tokens,
            prompt_tokens,
            instructions: body.get("instructions").cloned().unwrap_or(Value::Null),
        })
    }
}

/// A count; `5.0` is one too, as for pydantic.
fn whole(value: &Value) -> Option<u64> {
    let float = || {
        value
            .as_f64()
            .filter(|number| *number >= 0.0 && number.fract() == 0.0)
    };
    value
        .as_u64()
        .or_else(|| float().map(|number| number as u64))
}

fn served_model(body: &Value, limits: &Limits) -> Result<String, ApiError> {
    let Some(model) = body
        .get("model")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return Ok(limits.model.clone());
    };
    if model == limits.model || limits.adapters.serves(model) {
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
