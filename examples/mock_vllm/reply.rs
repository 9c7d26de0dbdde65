//! Replies with the headers that uvicorn and vLLM set.

use super::answer::error_body;
use super::conn::Resetter;
use super::error::ApiError;
use super::faults::Plan;
use super::stream::{Body, faulty, full};
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use hyper::{Method, Response, StatusCode};
use serde_json::Value;

pub const JSON: &str = "application/json";
pub const EVENTS: &str = "text/event-stream; charset=utf-8";
pub const TEXT: &str = "text/plain; charset=utf-8";
pub const METRICS: &str = "text/plain; version=1.0.0; charset=utf-8";

pub fn status_fault(status: u16, plan: Plan, resetter: Resetter) -> Response<Body> {
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

pub fn error_answer(error: &ApiError) -> Response<Body> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_answer(status, error_body(error))
}

pub fn detail(status: StatusCode, text: &str) -> Response<Body> {
    json_answer(status, format!(r#"{{"detail":{}}}"#, Value::from(text)))
}

pub fn method_not_allowed(allowed: Method) -> Response<Body> {
    let mut response = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    if let Ok(value) = HeaderValue::try_from(allowed.as_str()) {
        response.headers_mut().insert(ALLOW, value);
    }
    response
}

pub fn json_answer(status: StatusCode, text: String) -> Response<Body> {
    let mut response = bare(status, full(text));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    response
}

/// An answer that writes as the plan says.
pub fn answer_of(
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

pub fn bare(status: StatusCode, body: Body) -> Response<Body> {
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
