//! What is answered on which path.

use super::answer::{Answer, error_body};
use super::call::{Api, ApiError, Call, count_tokens, parse_json};
use super::conn::Resetter;
use super::engine::{Ticket, lock};
use super::faults::{Fault, Plan};
use super::metrics::{Adapters, Done};
use super::stream::{Body, Streamed, cached_tokens, faulty, full};
use super::{SEEN_MOST, Seen, Shared};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::header::{SERVER, VARY};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use warmroute::sim::replica::{Detail, SubmitError};

const BODY_MOST_BYTES: usize = 64 << 20;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";

/// The paths there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Infer(Api),
    Models,
    Health,
    Version,
    Load,
    Metrics,
    Tokenize,
    Detokenize,
    MockFaults,
    MockMetrics,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Infer(Api::Chat),
            "/v1/completions" => Self::Infer(Api::Completions),
            "/v1/responses" => Self::Infer(Api::Responses),
            "/v1/messages" => Self::Infer(Api::Messages),
            "/v1/models" => Self::Models,
            "/health" | "/ping" => Self::Health,
            "/version" => Self::Version,
            "/load" => Self::Load,
            "/metrics" => Self::Metrics,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/mock/faults" => Self::MockFaults,
            "/mock/metrics" => Self::MockMetrics,
            _ => return None,
        })
    }

    fn method(self) -> Method {
        match self {
            Self::Models | Self::Health | Self::Version | Self::Load | Self::Metrics => Method::GET,
            _ => Method::POST,
        }
    }
}

/// Counts a request as in flight until it is dropped.
struct InFlight {
    total: Arc<AtomicU64>,
    adapters: Arc<std::sync::Mutex<std::collections::BTreeMap<String, u64>>>,
    adapter: Option<String>,
}

impl InFlight {
    fn new(shared: &Shared) -> Self {
        shared.requests.fetch_add(1, Ordering::Relaxed);
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let total = Arc::clone(&shared.in_flight);
        Self {
            total,
            adapters: Arc::clone(&shared.adapters_active),
            adapter: None,
        }
    }

    fn for_adapter(&mut self, model: &str, shared: &Shared) {
        if model != shared.limits.model {
            *lock(&self.adapters).entry(model.to_owned()).or_default() += 1;
            self.adapter = Some(model.to_owned());
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.total.fetch_sub(1, Ordering::Relaxed);
        if let Some(adapter) = &self.adapter {
            let mut adapters = lock(&self.adapters);
            let left = adapters
                .get(adapter)
                .copied()
                .unwrap_or(1)
                .saturating_sub(1);
            if left == 0 {
                adapters.remove(adapter);
            } else {
                adapters.insert(adapter.clone(), left);
            }
        }
    }
}

/// Answers one request.
pub async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    resetter: Resetter,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let route = Route::of(parts.uri.path());
    let inference = matches!(route, Some(Route::Infer(_))) && parts.method == Method::POST;
    let in_flight = inference.then(|| InFlight::new(&shared));
    let body = match Limited::new(body, BODY_MOST_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            return Ok(detail(
                StatusCode::PAYLOAD_TOO_LARGE,
                "Request Entity Too Large",
            ));
        }
    };
    if matches!(route, Some(Route::MockFaults | Route::MockMetrics)) {
        return Ok(control(&shared, route, &parts, &body));
    }
    let digest = record(&shared, &parts, &body);
    let plan = plan_of(&shared, &parts);
    if let Some(ms) = plan.delay_headers_ms {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    if plan.reset_headers {
        resetter.reset();
        return std::future::pending().await;
    }
    let mut response = match plan.status {
        Some(status) => status_fault(status, plan, resetter),
        None => route_answer(&shared, route, &parts, &body, plan, resetter, in_flight).await,
    };
    let headers = response.headers_mut();
    if let Some(seconds) = plan.retry_after_s {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    if parts
        .headers
        .get("x-mock-echo")
        .is_some_and(|value| value == "1")
    {
        for (name, value) in [
            ("x-mock-body-sha256", digest),
            ("x-mock-endpoint", shared.address.to_string()),
        ] {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
    let handler = if route.is_some() {
        parts.uri.path()
    } else {
        "none"
    };
    shared
        .metrics
        .http(handler, parts.method.as_str(), response.status().as_u16());
    Ok(response)
}

fn record(shared: &Shared, parts: &Parts, body: &[u8]) -> String {
    let mut digest = String::with_capacity(64);
    for byte in Sha256::digest(body) {
        // Writing into a String cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    let path = parts
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    let headers = parts.headers.iter();
    let seen = Seen {
        method: parts.method.to_string(),
        path,
        headers: headers
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
        body_len: body.len() as u64,
        body_sha256: digest.clone(),
    };
    let mut ring = lock(&shared.seen);
    if ring.len() >= SEEN_MOST {
        ring.pop_front();
    }
    ring.push_back(seen);
    digest
}

/// The faults in force. A header that is no fault list counts as none.
fn plan_of(shared: &Shared, parts: &Parts) -> Plan {
    let standing = lock(&shared.faults).clone();
    let own = parts
        .headers
        .get_all("x-mock-fault")
        .iter()
        .filter_map(|value| value.to_str().ok());
    let own = own
        .filter_map(|text| Fault::parse_list(text).ok())
        .flatten();
    Plan::new(standing.into_iter().chain(own))
}

/// Sets faults or metrics: the text is the body, an empty one clears.
fn control(shared: &Shared, route: Option<Route>, parts: &Parts, body: &Bytes) -> Response<Body> {
    if parts.method != Method::POST {
        return method_not_allowed(Method::POST);
    }
    let text = String::from_utf8_lossy(body);
    if route == Some(Route::MockMetrics) {
        *lock(&shared.metrics_override) = (!text.is_empty()).then(|| text.into_owned());
        return json_answer(StatusCode::OK, "{}".to_owned());
    }
    match Fault::parse_list(&text) {
        Ok(faults) => {
            *lock(&shared.faults) = faults;
            json_answer(StatusCode::OK, "{}".to_owned())
        }
        Err(error) => detail(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

async fn route_answer(
    shared: &Arc<Shared>,
    route: Option<Route>,
    parts: &Parts,
    body: &Bytes,
    plan: Plan,
    resetter: Resetter,
    in_flight: Option<InFlight>,
) -> Response<Body> {
    let Some(route) = route else {
        return detail(StatusCode::NOT_FOUND, "Not Found");
    };
    if parts.method != route.method() {
        return method_not_allowed(route.method());
    }
    let text = match route {
        Route::Infer(api) => {
            let answered = infer(shared, api, parts, body, plan, resetter, in_flight).await;
            return answered.unwrap_or_else(|error| error_answer(&error));
        }
        Route::Health => return bare(StatusCode::OK, full("")),
        Route::Metrics => {
            let page = lock(&shared.metrics_override)
                .clone()
                .unwrap_or_else(|| own_metrics(shared));
            return answer_of(StatusCode::OK, METRICS, page, plan, resetter);
        }
        Route::Version => r#"{"version":"0.32.0"}"#.to_owned(),
        Route::Load => {
            format!(
                r#"{{"server_load":{}}}"#,
                shared.in_flight.load(Ordering::Relaxed)
            )
        }
        Route::Models => models(shared),
        Route::Tokenize => match parse_json(body) {
            Ok(body) => tokenize(shared, &body),
            Err(error) => return error_answer(&error),
        },
        Route::Detokenize => match parse_json(body) {
            Ok(body) => detokenize(&body),
            Err(error) => return error_answer(&error),
        },
        Route::MockFaults | Route::MockMetrics => "{}".to_owned(),
    };
    answer_of(StatusCode::OK, JSON, text, plan, resetter)
}

async fn infer(
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
    let call = Call::parse(api, body, &shared.limits)?;
    let mut in_flight = in_flight.unwrap_or_else(|| InFlight::new(shared));
    in_flight.for_adapter(&call.model, shared);
    let detail = if call.stream {
        Detail::Tokens
    } else {
        Detail::Ends
    };
    let tickets = call
        .prompts
        .iter()
        .map(|prompt| {
            let chain = prompt.chain.clone();
            shared
                .engine
                .submit(chain, prompt.tokens, call.output_tokens, detail)
        })
        .collect::<Result<Vec<Ticket>, SubmitError>>()
        .map_err(|_| ApiError::prompt_too_long(shared.limits.max_model_len))?;
    let answer = Answer {
        id: request_id(shared, parts),
        created: unix_s(),
        block_tokens: shared.limits.block_tokens,
        usage: plan.usage,
        call,
    };
    if answer.call.stream && !plan.json_error {
        return Ok(streamed(shared, answer, tickets, plan, resetter, in_flight));
    }
    if let Some(status) = plan.error_in_stream {
        return Err(ApiError::engine_dead(status));
    }
    if plan.json_error {
        let text = error_body(&ApiError::engine_dead(500));
        return Ok(answer_of(StatusCode::OK, JSON, text, plan, resetter));
    }
    for ticket in &tickets {
        ticket.finished().await;
    }
    finish(shared, &tickets, &answer);
    let text = answer.body(cached_tokens(&tickets, tickets.len()));
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

fn own_metrics(shared: &Shared) -> String {
    let gauges = shared.engine.gauges();
    let mut adapters = Adapters::default();
    adapters
        .running
        .extend(lock(&shared.adapters_active).keys().cloned());
    shared
        .metrics
        .page(&gauges, &adapters, &shared.limits, &shared.profile)
}

fn models(shared: &Shared) -> String {
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
fn tokenize(shared: &Shared, body: &Value) -> String {
    let count = count_tokens(body);
    let tokens: Vec<String> = (0..count).map(|id| id.to_string()).collect();
    format!(
        r#"{{"count":{count},"max_model_len":{},"tokens":[{}],"token_strs":null}}"#,
        shared.limits.max_model_len,
        tokens.join(",")
    )
}

fn detokenize(body: &Value) -> String {
    let count = body
        .get("tokens")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    format!(r#"{{"prompt":"{}"}}"#, " tok".repeat(count))
}

fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn status_fault(status: u16, plan: Plan, resetter: Resetter) -> Response<Body> {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let error = ApiError {
        status,
        kind: if status < 500 {
            "BadRequestError"
        } else {
            "InternalServerError"
        },
        param: None,
        message: code.canonical_reason().unwrap_or("Error").to_owned(),
    };
    answer_of(code, JSON, error_body(&error), plan, resetter)
}

fn error_answer(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_answer(status, error_body(error))
}

fn detail(status: StatusCode, text: &str) -> Response<Body> {
    json_answer(status, format!(r#"{{"detail":{}}}"#, Value::from(text)))
}

fn method_not_allowed(allowed: Method) -> Response<Body> {
    let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Ok(value) = HeaderValue::try_from(allowed.as_str()) {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}

fn json_answer(status: StatusCode, text: String) -> Response<Body> {
    let mut response = bare(status, full(text));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// An answer that writes as the plan says.
fn answer_of(
    status: StatusCode,
    content_type: &'static str,
    text: String,
    plan: Plan,
    resetter: Resetter,
) -> Response<Body> {
    let length = text.len();
    let mut response = bare(status, faulty(text, plan, resetter, Box::new(())));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn bare(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(SERVER, HeaderValue::from_static("uvicorn"));
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("Origin"));
    response
}
