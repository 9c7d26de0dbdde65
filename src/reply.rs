//! Answers that the filter gives in the endpoints' place, in the words of the API that was called.

use crate::balancer::Refusal;
use crate::quote::quote;
use crate::request::Api;

/// Response header that says why a request was not sent on: a value of [`ReplyKind::name`].
pub const REASON_HEADER: &str = "x-warmroute-reason";

/// Longest model name that an answer repeats, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// What an answer is about; the label of `warmroute_local_replies_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// No endpoint may be used now.
    NoEndpoint,
    /// All endpoints are at their limits.
    Saturated,
    /// No endpoint serves the model.
    UnknownModel,
    /// What the gateway serves: `/v1/models`.
    Models,
    /// The engine refused a streamed request inside a 200.
    StreamError,
}

impl ReplyKind {
    /// In metrics, headers and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoEndpoint => "no_endpoint",
            Self::Saturated => "saturated",
            Self::UnknownModel => "unknown_model",
            Self::Models => "models",
            Self::StreamError => "stream_error",
        }
    }
}

/// A whole answer. Its body is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What it is about.
    pub kind: ReplyKind,
    /// HTTP status.
    pub status: u16,
    /// When to try again, in whole seconds: the header `retry-after`.
    pub retry_after_s: Option<u64>,
    /// The body.
    pub body: String,
}

impl Reply {
    /// Says that a request could not be sent on, and why.
    pub fn refusal(refusal: Refusal, api: Option<Api>, model: Option<&str>) -> Self {
        let (kind, status, retry_after_ms) = match refusal {
            Refusal::NoEndpoint { retry_after_ms } => {
                (ReplyKind::NoEndpoint, 503, Some(retry_after_ms))
            }
            Refusal::Saturated { retry_after_ms } => {
                (ReplyKind::Saturated, 429, Some(retry_after_ms))
            }
            Refusal::UnknownModel => (ReplyKind::UnknownModel, 404, None),
        };
        let message = match refusal {
            Refusal::NoEndpoint { .. } => "No endpoint is available. Try again later.".to_owned(),
            Refusal::Saturated { .. } => {
                "All endpoints are at their limits. Try again later.".to_owned()
            }
            Refusal::UnknownModel => {
                let name = shortened(model.unwrap_or_default());
                format!("The model `{name}` does not exist.")
            }
        };
        Self {
            kind,
            status,
            // A client that tried again at once would find nothing new.
            retry_after_s: retry_after_ms.map(|ms| ms.div_ceil(1_000).max(1)),
            body: error_body(api, kind, status, &message),
        }
    }
}

impl Reply {
    /// Says with a status what an engine said inside a 200: `body`, an error of this code.
    ///
    /// A refusal is a 503: a 429 would be about the client, which has done nothing wrong.
    pub fn stream_error(code: u32, body: String) -> Self {
        let refused = matches!(code, 429 | 503);
        let status = match u16::try_from(code) {
            Ok(429) => 503,
            Ok(status @ 400..600) => status,
            _ => 500,
        };
        Self {
            kind: ReplyKind::StreamError,
            status,
            retry_after_s: refused.then_some(1),
            body,
        }
    }
}

/// As much of a name as is repeated.
fn shortened(name: &str) -> &str {
    let end = (0..=name.len().min(MAX_NAME_BYTES)).rev();
    let end = end.into_iter().find(|end| name.is_char_boundary(*end));
    name.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// An error as vLLM has it, or as Anthropic has it under its own API.
fn error_body(api: Option<Api>, kind: ReplyKind, status: u16, message: &str) -> String {
    let mut body = String::with_capacity(160);
    if api == Some(Api::Messages) {
        body.push_str("{\"type\":\"error\",\"error\":{\"type\":");
        quote(
            &mut body,
            match kind {
                ReplyKind::NoEndpoint | ReplyKind::StreamError => "overloaded_error",
                ReplyKind::Saturated => "rate_limit_error",
                ReplyKind::UnknownModel | ReplyKind::Models => "not_found_error",
            },
        );
        body.push_str(",\"message\":");
        quote(&mut body, message);
        body.push_str("}}");
        return body;
    }
    let (name, param) = match kind {
        ReplyKind::NoEndpoint | ReplyKind::StreamError => ("ServiceUnavailableError", "null"),
        ReplyKind::Saturated => ("RateLimitError", "null"),
        ReplyKind::UnknownModel | ReplyKind::Models => ("NotFoundError", "\"model\""),
    };
    body.push_str("{\"error\":{\"message\":");
    quote(&mut body, message);
    body.push_str(",\"type\":");
    quote(&mut body, name);
    body.push_str(",\"param\":");
    body.push_str(param);
    body.push_str(",\"code\":");
    body.push_str(&status.to_string());
    body.push_str("}}");
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn body(refusal: Refusal, api: Api, model: &str) -> Value {
        let reply = Reply::refusal(refusal, Some(api), Some(model));
        serde_json::from_str(&reply.body).unwrap()
    }

    #[test]
    fn h2_an_unknown_model_is_named_as_the_engine_names_it() {
        let chat = body(Refusal::UnknownModel, Api::ChatCompletions, "sql-\"x\"");
        let error = json!({"message": "The model `sql-\"x\"` does not exist.",
            "type": "NotFoundError", "param": "model", "code": 404});
        assert_eq!(chat, json!({ "error": error }));
        let messages = body(Refusal::UnknownModel, Api::Messages, "sql");
        let error =
            json!({"type": "not_found_error", "message": "The model `sql` does not exist."});
        assert_eq!(messages, json!({"type": "error", "error": error}));
    }

    #[test]
    fn who_may_come_again_is_told_when_in_whole_seconds() {
        let reply = |refusal| Reply::refusal(refusal, None, None);
        let nobody = reply(Refusal::NoEndpoint {
            retry_after_ms: 1_001,
        });
        assert_eq!((nobody.status, nobody.retry_after_s), (503, Some(2)));
        let saturated = reply(Refusal::Saturated { retry_after_ms: 0 });
        assert_eq!((saturated.status, saturated.retry_after_s), (429, Some(1)));
        assert_eq!(reply(Refusal::UnknownModel).retry_after_s, None);
    }

    #[test]
    fn an_error_inside_a_200_becomes_a_status() {
        let reply = |code| Reply::stream_error(code, "{}".into());
        for (code, status, retry_after_s) in [
            (503, 503, Some(1)),
            (429, 503, Some(1)),
            (500, 500, None),
            (502, 502, None),
            (400, 400, None),
            (404, 404, None),
            (200, 500, None),
            (0, 500, None),
            (600, 500, None),
            (u32::MAX, 500, None),
        ] {
            let reply = reply(code);
            assert_eq!(
                (reply.status, reply.retry_after_s),
                (status, retry_after_s),
                "{code}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_name_gives_a_short_body_of_valid_json(name: String) {
            let reply = Reply::refusal(Refusal::UnknownModel, None, Some(&name));
            let value: Value = serde_json::from_str(&reply.body).unwrap();
            prop_assert!(value["error"]["message"].as_str().unwrap().len() < 300);
            prop_assert!(reply.body.is_ascii());
        }
    }
}
