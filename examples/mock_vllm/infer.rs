//! Inference: from a request body, through the engine, to the answer.

use super::Shared;
use super::answer::{Answer, error_body};
use super::call::{Api, Call};
use super::conn::Resetter;
use super::engine::{Order, Ticket};
use super::error::ApiError;
use super::faults::{ErrorInStream, Plan};
use super::metrics::Done;
use super::pages::unix_s;
use super::reply::{EVENTS, JSON, answer_of, bare};
use super::stream::{Body, Streamed, cached_tokens, faulty};
use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use warmroute::sim::replica::{Detail, SubmitError};

/// Counts a request as in flight until it is dropped.
pub struct InFlight(Arc<AtomicU64>);

impl InFlight {
    pub fn new(shared: &Shared) -> Self {
        shared.requests.fetch_add(1, Ordering::Relaxed);
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&shared.in_flight))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one inference request.
///
/// # Errors
/// What the client gets as an error body.
pub async fn infer(
    shared: &Arc<Shared>,
    api: Api,
    parts: &Parts,
    body: &Bytes,
    plan: Plan,
    resetter: Resetter,
    in_flight: Option<InFlight>,
) -> Result<Response<Body>, ApiError> {
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let media_type = content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    if !media_type.trim().eq_ignore_ascii_case(JSON) {
        return Err(ApiError::content_type());
    }
    let call = Call::parse(api, body, &shared.limits);
    if call.as_ref().is_err_and(|error| error.status == 404) {
        shared.unknown_models.fetch_add(1, Ordering::Relaxed);
    }
    let call = call?;
    let in_flight = in_flight.unwrap_or_else(|| InFlight::new(shared));
    let is_stream = call.stream && !plan.json_error;
    if let Some(error) = plan.error_in_stream.filter(|_| !is_stream) {
        return Err(ApiError::failed(error.status));
    }
    if plan.json_error {
        let text = error_body(&ApiError::failed(500));
        return Ok(answer_of(StatusCode::OK, JSON, text, plan, resetter));
    }
    let mut plan = plan;
    if !has_room(shared, &call) {
        shared.metrics.rejected();
        let refusal = ErrorInStream {
            status: 503,
            after_events: Some(0),
        };
        if !is_stream {
            return Err(ApiError::failed(refusal.status));
        }
        plan.error_in_stream = Some(refusal);
    }
    let is_refused = plan
        .error_in_stream
        .is_some_and(|error| error.after_events == Some(0));
    let tickets = if is_refused {
        Vec::new()
    } else {
        submit(shared, &call)?
    };
    let answer = Answer {
        id: request_id(shared, parts),
        created: unix_s(),
        block_tokens: shared.limits.block_tokens,
        usage: plan.usage,
        call,
    };
    if is_stream {
        return Ok(streamed(shared, answer, tickets, plan, resetter, in_flight));
    }
    for ticket in &tickets {
        ticket.finished().await;
    }
    finish(shared, &tickets, &answer);
    let text = answer.body(cached_tokens(&tickets, &answer.call));
    let length = text.len();
    let guard = Box::new(in_flight);
    let mut response = bare(StatusCode::OK, faulty(text, plan, resetter, guard));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    add_orca(shared, parts, &mut response);
    Ok(response)
}

/// Whether the queue limit lets the request in: it counts waiting and running ones.
fn has_room(shared: &Shared, call: &Call) -> bool {
    let Some(most) = shared.max_num_queued_reqs else {
        return true;
    };
    let gauges = shared.engine.gauges();
    let there = u64::from(gauges.waiting) + u64::from(gauges.running);
    there + call.prompts.len() as u64 <= u64::from(most)
}

fn submit(shared: &Shared, call: &Call) -> Result<Vec<Ticket>, ApiError> {
    let detail = if call.stream {
        Detail::Tokens
    } else {
        Detail::Ends
    };
    let adapter = (call.model != shared.limits.model).then_some(call.model.as_str());
    if adapter.is_some() {
        shared.metrics.adapter_used();
    }
    call.prompts
        .iter()
        .map(|prompt| {
            shared.engine.submit(Order {
                chain: prompt.chain.clone(),
                prompt_tokens: prompt.tokens,
                output_tokens: call.output_tokens,
                detail,
                adapter: adapter.map(str::to_owned),
            })
        })
        .collect::<Result<_, SubmitError>>()
        .map_err(|SubmitError::TooLarge| ApiError::prompt_too_long(shared.limits.max_model_len))
}

fn streamed(
    shared: &Arc<Shared>,
    answer: Answer,
    tickets: Vec<Ticket>,
    plan: Plan,
    resetter: Resetter,
    in_flight: InFlight,
) -> Response<Body> {
    let for_end = Arc::clone(shared);
    let on_end =
        Box::new(move |tickets: &[Ticket], answer: &Answer| finish(&for_end, tickets, answer));
    let guard = Box::new(in_flight);
    let body = Streamed::new(answer, tickets, plan, resetter, guard, on_end).into_body();
    let mut response = bare(StatusCode::OK, body);
    response.headers_mut().remove(CONTENT_LENGTH);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    response
}

/// Counts finished requests. Times are the model's, in real seconds of this run.
fn finish(shared: &Shared, tickets: &[Ticket], answer: &Answer) {
    for (ticket, prompt) in tickets.iter().zip(&answer.call.prompts) {
        let progress = ticket.progress();
        let since = |at_us: u64| {
            at_us.saturating_sub(progress.submitted_us) as f64 / 1e6 * shared.time_scale
        };
        shared.metrics.done(&Done {
            prompt_tokens: prompt.tokens,
            cached_tokens: progress.cached_tokens,
            output_tokens: answer.call.output_tokens,
            queue_s: since(progress.admitted_us),
            first_token_s: since(progress.first_us),
            total_s: since(progress.finished_us),
        });
    }
}

fn request_id(shared: &Shared, parts: &Parts) -> String {
    let given = parts
        .headers
        .get("x-request-id")
        .and_then(|value| value.to_str().ok());
    let plain = |id: &&str| {
        id.bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
    };
    given.filter(plain).map_or_else(
        || {
            let number = shared.next_id.fetch_add(1, Ordering::Relaxed);
            let seed = u64::from(shared.address.port());
            format!(
                "{:016x}",
                xxhash_rust::xxh64::xxh64(&number.to_le_bytes(), seed)
            )
        },
        str::to_owned,
    )
}

/// ORCA load report, as vLLM sends it: text or JSON, never with a stream.
fn add_orca(shared: &Shared, parts: &Parts, response: &mut Response<Body>) {
    let Some(format) = parts.headers.get("endpoint-load-metrics-format") else {
        return;
    };
    let gauges = shared.engine.gauges();
    let (waiting, usage) = (f64::from(gauges.waiting), gauges.kv_usage);
    let value = match format.as_bytes() {
        b"TEXT" => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        ),
        b"JSON" => format!(
            r#"JSON {{"named_metrics": {{"num_requests_waiting": {waiting:?}, "kv_cache_usage_perc": {usage:?}}}}}"#
        ),
        _ => return,
    };
    if let Ok(value) = HeaderValue::try_from(value) {
        response
            .headers_mut()
            .insert(HeaderName::from_static("endpoint-load-metrics"), value);
    }
}
