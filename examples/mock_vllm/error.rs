//! Errors in vLLM's form and with its texts.

/// An error answer in vLLM's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub kind: &'static str,
    pub param: Option<String>,
    pub message: String,
}

impl ApiError {
    pub fn validation(param: Option<&str>, detail: &str) -> Self {
        Self {
            status: 400,
            kind: "Bad Request",
            param: param.map(str::to_owned),
            message: format!("1 validation error:\n  {detail}"),
        }
    }

    pub fn missing(field: &str, items: usize) -> Self {
        let param = format!("body.{field}");
        let detail = format!(
            "{{'type': 'missing', 'loc': '{param}', 'msg': 'Field required', \
             'input': '<dict of {items} items>'}}"
        );
        Self::validation(Some(&param), &detail)
    }

    pub fn too_long(param: &str, value: u64, text: &str) -> Self {
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

    /// The engine refuses (429, 503; the texts are ours, none were recorded) or is dead.
    pub fn failed(status: u16) -> Self {
        let (kind, message) = match status {
            429 => ("RateLimitError", "Too many requests. Please retry later."),
            503 => (
                "ServiceUnavailableError",
                "The request queue is full. Please retry later.",
            ),
            _ => (
                "InternalServerError",
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
            ),
        };
        Self {
            status,
            kind,
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
