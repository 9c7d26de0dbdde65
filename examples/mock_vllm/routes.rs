//! What is answered on which path.

use super::call::{Api, parse_json};
use super::conn::Resetter;
use super::engine::lock;
use super::faults::{Fault, Plan};
use super::infer::{InFlight, infer};
use super::pages::{detokenize, models, render, tokenize};
use super::reply::{
    JSON, METRICS, TEXT, answer_of, bare, detail, error_answer, json_answer, method_not_allowed,
    status_fault,
};
use super::stream::{Body, full};
use super::{SEEN_MOST, Seen, Shared};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BODY_MOST_BYTES: usize = 64 << 20;

/// The paths there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Infer(Api),
    Models,
    LoadAdapter,
    UnloadAdapter,
    Health,
    Sleeping,
    Version,
    Load,
    Metrics,
    Tokenize,
    Detokenize,
    Render,
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
            "/v1/load_lora_adapter" => Self::LoadAdapter,
            "/v1/unload_lora_adapter" => Self::UnloadAdapter,
            "/health" | "/ping" => Self::Health,
            "/is_sleeping" => Self::Sleeping,
            "/version" => Self::Version,
            "/load" => Self::Load,
            "/metrics" => Self::Metrics,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/v1/chat/completions/render" => Self::Render,
            "/mock/faults" => Self::MockFaults,
            "/mock/metrics" => Self::MockMetrics,
            _ => return None,
        })
    }

    fn method(self) -> Method {
        match self {
            Self::Models
            | Self::Health
            | Self::Sleeping
            | Self::Version
            | Self::Load
            | Self::Metrics => Method::GET,
            _ => Method::POST,
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
    if !inference {
        count_other(&shared, route, &parts);
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
    let echo = parts.headers.get("x-mock-echo");
    let echo = echo.is_some_and(|value| value == "1");
    let digest = echo.then_some(("x-mock-body-sha256", digest));
    let endpoint =
        (echo || shared.tells_endpoint).then(|| ("x-mock-endpoint", shared.address.to_string()));
    for (name, value) in digest.into_iter().chain(endpoint) {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
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

/// Counts a call that is no inference, under its path if that is known: a client's own paths must not
/// fill the memory.
fn count_other(shared: &Shared, route: Option<Route>, parts: &Parts) {
    let path = if route.is_some() {
        parts.uri.path()
    } else {
        "others"
    };
    *lock(&shared.other_calls)
        .entry(path.to_owned())
        .or_default() += 1;
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
        Route::Health => {
            let status = plan.health.and_then(|code| StatusCode::from_u16(code).ok());
            return bare(status.unwrap_or(StatusCode::OK), full(""));
        }
        Route::Sleeping => format!(r#"{{"is_sleeping":{}}}"#, plan.asleep),
        Route::Metrics => {
            let page = lock(&shared.metrics_override)
                .clone()
                .unwrap_or_else(|| own_metrics(shared));
            let page = match plan.asleep {
                true => page.replace(r#"sleep_state="awake"} 1"#, r#"sleep_state="awake"} 0"#),
                false => page,
            };
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
        Route::LoadAdapter | Route::UnloadAdapter => {
            let adapters = &shared.limits.adapters;
            let answered = parse_json(body).and_then(|body| match route {
                Route::LoadAdapter => adapters.load(&body),
                _ => adapters.unload(&body),
            });
            match answered {
                Ok(text) => return answer_of(StatusCode::OK, TEXT, text, plan, resetter),
                Err(error) => return error_answer(&error),
            }
        }
        Route::Tokenize => match parse_json(body) {
            Ok(body) => tokenize(shared, &body),
            Err(error) => return error_answer(&error),
        },
        Route::Detokenize => match parse_json(body) {
            Ok(body) => detokenize(&body),
            Err(error) => return error_answer(&error),
        },
        Route::Render => match parse_json(body) {
            Ok(body) => render(shared, &body),
            Err(error) => return error_answer(&error),
        },
        Route::MockFaults | Route::MockMetrics => "{}".to_owned(),
    };
    answer_of(StatusCode::OK, JSON, text, plan, resetter)
}

fn own_metrics(shared: &Shared) -> String {
    let gauges = shared.engine.gauges();
    let adapters = shared.engine.adapters();
    shared
        .metrics
        .page(&gauges, &adapters, &shared.limits, &shared.profile)
}
