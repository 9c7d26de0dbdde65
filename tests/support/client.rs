//! An HTTP client for tests: raw bytes, HTTP/1.1 or HTTP/2 by prior knowledge, one frame at a time.

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

/// How long anything may be silent: a test that waits for nothing fails instead of hanging.
const DEADLINE: Duration = Duration::from_secs(120);

/// How the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS or upgrade.
    Http2,
}

impl Protocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Http1, Self::Http2];
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    chunks: Vec<Bytes>,
    pause: Duration,
    trailers: Option<HeaderMap>,
}

impl Call {
    /// A GET of `path`, which may have a query.
    pub fn get(path: &str) -> Self {
        Self::new(Method::GET, path, Vec::new())
    }

    /// A POST of JSON, or of whatever `body` is; the bytes go out as they are.
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self::new(Method::POST, path, vec![body.into()]).header("content-type", "application/json")
    }

    /// A chat completion with the given body.
    pub fn chat(body: &serde_json::Value) -> Self {
        Self::post("/v1/chat/completions", body.to_string())
    }

    /// A POST whose body comes in pieces, each but the first after `pause`, without a length.
    pub fn trickle(path: &str, chunks: Vec<Bytes>, pause: Duration) -> Self {
        let mut call =
            Self::new(Method::POST, path, chunks).header("content-type", "application/json");
        call.pause = pause;
        call
    }

    /// A request of another method, without a body.
    pub fn method(method: &str, path: &str) -> Self {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        Self::new(method, path, Vec::new())
    }

    fn new(method: Method, path: &str, chunks: Vec<Bytes>) -> Self {
        Self {
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            chunks,
            pause: Duration::ZERO,
            trailers: None,
        }
    }

    /// Adds a header; one that is there already stays.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header value");
        self.headers.append(name, value);
        self
    }

    /// Sends a trailer after the body (HTTP/2, or chunked HTTP/1.1).
    pub fn trailer(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers
            .append("trailer", HeaderValue::from_static(name));
        let trailers = self.trailers.get_or_insert_with(HeaderMap::new);
        trailers.append(name, HeaderValue::from_static(value));
        self
    }

    fn body(mut self) -> BoxBody<Bytes, Infallible> {
        if self.chunks.len() <= 1 && self.trailers.is_none() {
            return Full::new(self.chunks.pop().unwrap_or_default()).boxed();
        }
        let mut frames: Vec<_> = self.chunks.into_iter().map(Frame::data).collect();
        frames.extend(self.trailers.map(Frame::trailers));
        let pause = self.pause;
        let steps = frames.into_iter().enumerate();
        StreamBody::new(stream::unfold(steps, move |mut steps| async move {
            let (at, frame) = steps.next()?;
            if at > 0 && !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            Some((Ok(frame), steps))
        }))
        .boxed()
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Answer {
    /// The header's value, lossily; empty if it is not there.
    pub fn header(&self, name: &str) -> String {
        header(&self.headers, name)
    }

    /// The body as text, lossily.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// An answer of which the body is still to come. Dropping it aborts the request.
#[derive(Debug)]
pub struct Streaming {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    body: Incoming,
}

impl Streaming {
    /// The header's value, lossily; empty if it is not there.
    pub fn header(&self, name: &str) -> String {
        header(&self.headers, name)
    }

    /// The next piece of the body; `None` after a clean end, an error after a broken one or after
    /// a silence of two minutes.
    pub async fn next(&mut self) -> Option<Result<Bytes, String>> {
        loop {
            match in_time(self.body.frame()).await {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    Err(_) => continue, // Trailers.
                },
                Ok(Some(Err(error))) => return Some(Err(describe(&error))),
                Ok(None) => return None,
                Err(why) => return Some(Err(why)),
            }
        }
    }

    /// Reads to the end; an error if the stream breaks.
    pub async fn finish(mut self) -> Result<Answer, String> {
        let mut body = Vec::new();
        while let Some(piece) = self.next().await {
            body.extend_from_slice(&piece?);
        }
        Ok(Answer {
            status: self.status,
            headers: self.headers,
            body: body.into(),
        })
    }
}

/// A client with its own connections. Clones share them.
#[derive(Clone, Debug)]
pub struct HttpClient {
    to: SocketAddr,
    inner: Client<HttpConnector, BoxBody<Bytes, Infallible>>,
}

impl HttpClient {
    /// A client that has not connected yet.
    pub fn new(to: SocketAddr, protocol: Protocol) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let inner = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http2_only(protocol == Protocol::Http2)
            .build(connector);
        Self { to, inner }
    }

    /// Sends `call` and returns when the response headers are there, or with an error if they are
    /// not after two minutes. Dropping the future aborts.
    pub async fn open(&self, call: Call) -> Result<Streaming, String> {
        let uri: Uri = format!("http://{}{}", self.to, call.path)
            .parse()
            .map_err(|e| format!("path {:?}: {e}", call.path))?;
        let mut request = Request::builder().method(call.method.clone()).uri(uri);
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&call.headers);
        }
        let request = request.body(call.body()).map_err(|e| e.to_string())?;
        let response = in_time(self.inner.request(request)).await?;
        let response = response.map_err(|e| describe(&e))?;
        let (head, body) = response.into_parts();
        Ok(Streaming {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }

    /// Sends `call` and reads the whole answer.
    pub async fn send(&self, call: Call) -> Result<Answer, String> {
        self.open(call).await?.finish().await
    }
}

/// What `answer` comes to.
///
/// # Errors
/// Nothing came for two minutes.
pub async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, String> {
    let answer = tokio::time::timeout(DEADLINE, answer).await;
    answer.map_err(|_| format!("no answer in {} s", DEADLINE.as_secs()))
}

/// The header's value, lossily; empty if it is not there.
pub fn header(headers: &HeaderMap, name: &str) -> String {
    headers
        .get(name)
        .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
        .unwrap_or_default()
}

/// An error with its causes, which say more than itself.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
