//! A replica that costs next to nothing: reads the body and answers a short chat completion.

use super::support::root;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpListener;

const ANSWER: &str = r#"{"id":"chatcmpl-8d5b7a","object":"chat.completion","created":1764500000,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Because of Rayleigh scattering: air scatters short waves more than long ones.","tool_calls":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":1030,"total_tokens":1046,"completion_tokens":16,"prompt_tokens_details":{"cached_tokens":1024}}}"#;

/// Listens on `endpoints` ports of its own, and serves until the runtime ends.
pub async fn start(endpoints: usize) -> Result<Vec<SocketAddr>, String> {
    let page = root().join("tests/data/vllm-0.32.0/metrics_idle.body");
    let metrics = std::fs::read(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let metrics = Bytes::from(metrics);
    let mut addresses = Vec::new();
    for _ in 0..endpoints {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.map_err(|e| format!("upstream: {e}"))?;
        addresses.push(listener.local_addr().map_err(|e| e.to_string())?);
        tokio::spawn(serve(listener, metrics.clone()));
    }
    Ok(addresses)
}

async fn serve(listener: TcpListener, metrics: Bytes) {
    while let Ok((stream, _)) = listener.accept().await {
        // Only latency is lost without it.
        let _ = stream.set_nodelay(true);
        let metrics = metrics.clone();
        let service = service_fn(move |request| answer(request, metrics.clone()));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}

async fn answer(
    request: Request<Incoming>,
    metrics: Bytes,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let is_scrape = request.method() == Method::GET;
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let (kind, body) = match is_scrape {
        true => ("text/plain; version=0.0.4", metrics),
        false => ("application/json", Bytes::from_static(ANSWER.as_bytes())),
    };
    let mut response = Response::new(Full::new(body));
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}
