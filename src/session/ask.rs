//! What a pick is asked for on behalf of a request: its cost, its routing key, and its part of the limits.

use super::StreamView;
use crate::balancer::Balancer;
use crate::config::{Config, KeySource, WHOLE_PERMILLE};
use crate::policy::{Load, PolicySpec};
use crate::prefix::routing_key;
use crate::request::{Api, InferenceRequest, Scan};
use crate::tokens::Lesson;

/// What the request is expected to cost; `api` is `None` for what is no inference call.
pub(super) fn cost(
    balancer: &Balancer,
    view: &dyn StreamView,
    api: Option<Api>,
    request: &InferenceRequest,
    lesson: &Lesson,
) -> Load {
    let length = content_length(view, request);
    let mut cost = balancer.estimator(lesson).estimate(request, length);
    if api.is_none() {
        // No model runs for it, as far as we know.
        cost.decode_tokens = 0;
        cost.context_tokens = cost.prefill_tokens;
    }
    cost
}

/// Length of the body, where its own bytes do not tell.
fn content_length(view: &dyn StreamView, request: &InferenceRequest) -> Option<u64> {
    if request.scan == Scan::Complete {
        return None;
    }
    let length = view.request_header("content-length")?;
    std::str::from_utf8(&length).ok()?.parse().ok()
}

/// How much of the limits the request's priority may use.
pub(super) fn share_permille(config: &Config, view: &dyn StreamView) -> u32 {
    let priority = config
        .saturation
        .as_ref()
        .and_then(|one| one.priority.as_ref());
    priority.map_or(WHOLE_PERMILLE, |priority| {
        priority.share_permille(view.request_header(&priority.header).as_deref())
    })
}

/// The routing key that the pool's policy asks for.
pub(super) fn key(
    balancer: &Balancer,
    pool: usize,
    view: &dyn StreamView,
    request: &InferenceRequest,
) -> Option<u64> {
    let config = balancer.pool(pool)?;
    let field = |field: &usize| request.fields.get(*field)?.clone().map(String::into_bytes);
    let mut sources = config.keys.iter().enumerate();
    match config.policy {
        PolicySpec::PrefixHash { .. } | PolicySpec::ExpectedLatency => {
            routing_key(request.model.as_deref(), &request.prompt)
        }
        PolicySpec::ConsistentHash { .. } => sources.find_map(|(index, source)| {
            let value = match source {
                KeySource::Header(name) => view.request_header(name),
                KeySource::Cookie(name) => cookie(&view.request_header("cookie")?, name.as_bytes()),
                KeySource::Body(index) => field(index),
            }?;
            // The source's number keeps a user and a session of one name apart.
            (!value.is_empty()).then(|| xxhash_rust::xxh64::xxh64(&value, index as u64))
        }),
        _ => None,
    }
}

fn cookie(header: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    header
        .split(|byte| *byte == b';')
        .filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.split_at_checked(equals)?;
            (key.trim_ascii() == name)
                .then(|| value.get(1..).unwrap_or_default().trim_ascii().to_vec())
        })
        .find(|value| !value.is_empty())
}
