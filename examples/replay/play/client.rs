//! The client: one streamed chat completion, timed.

use super::event::{Stream, Usage, excerpt};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::{Duration, Instant};

/// Headers of answers that name who served: the mock replicas', and the one that Envoy is told to add.
const SERVED_BY: [&str; 2] = ["x-mock-endpoint", SERVED_BY_ENVOY];
/// What Envoy adds where the replicas do not name themselves.
pub const SERVED_BY_ENVOY: &str = "x-served-by";
/// Shorter than any server keeps an idle connection (uvicorn: 5 s), so that none is used that is
/// just being closed.
const POOL_IDLE: Duration = Duration::from_secs(4);
const ERROR_BODY_MOST_BYTES: usize = 4_096;

/// What is known of one request, as far as it came.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Who served it, as the answer's headers say.
    pub endpoint: Option<String>,
    /// When the first token came.
    pub first: Option<Instant>,
    /// When the last token came.
    pub last: Option<Instant>,
    /// What the engine counted.
    pub usage: Option<Usage>,
    /// Events with output, for engines that do not count.
    pub token_events: u32,
}

/// A client of one router. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Client {
    chat: Uri,
    silence: Duration,
    inner: HyperClient<HttpConnector, Full<Bytes>>,
}

impl Client {
    /// A client of the server at `base` (`http://host:port`, perhaps with a path), which gives up on
    /// an answer that is silent for `silence`.
    ///
    /// # Errors
    /// `base` is no such URL.
    pub fn new(base: &str, silence: Duration) -> Result<Self, String> {
        let wrong = |why: &str| format!("{base}: {why}");
        let uri: Uri = base.parse().map_err(|e| wrong(&format!("{e}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("TLS is not supported; use http://")),
            _ => return Err(wrong("expected http://HOST:PORT")),
        }
        let chat = format!("{}/v1/chat/completions", base.trim_end_matches('/'));
        let chat = chat.parse().map_err(|e| wrong(&format!("{e}")))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let inner = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build(connector);
        Ok(Self {
            chat,
            silence,
            inner,
        })
    }

    /// Sends a chat and reads its stream to the end; `seen` is filled in as it comes.
    ///
    /// # Errors
    /// Anything but a whole, good answer.
    pub async fn ask(&self, body: Bytes, session: &str, seen: &mut Seen) -> Result<(), String> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        request.uri_mut().clone_from(&self.chat);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Ok(session) = HeaderValue::try_from(session) {
            headers.insert("x-session-id", session);
        }
        let response = self.in_time(self.inner.request(request)).await?;
        let response = response.map_err(|e| describe(&e))?;
        seen.endpoint = served_by(response.headers());
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        self.read(response.into_body(), seen).await
    }

    async fn read(&self, mut body: Incoming, seen: &mut Seen) -> Result<(), String> {
        let mut stream = Stream::default();
        while let Some(frame) = self.in_time(body.frame()).await? {
            let frame = frame.map_err(|e| format!("the stream broke: {}", describe(&e)))?;
            let Ok(data) = frame.into_data() else {
                continue; // Trailers.
            };
            if stream.take(&data)? {
                let now = Instant::now();
                seen.first.get_or_insert(now);
                seen.last = Some(now);
            }
            seen.usage = stream.usage;
            seen.token_events = stream.token_events;
        }
        stream.finish()
    }

    /// What a status other than 200 comes with.
    async fn refusal(&self, response: Response<Incoming>) -> String {
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let mut text = Vec::new();
        while text.len() < ERROR_BODY_MOST_BYTES {
            let Ok(Some(Ok(frame))) = self.in_time(body.frame()).await else {
                break;
            };
            text.extend_from_slice(&frame.into_data().unwrap_or_default());
        }
        match excerpt(&text).as_str() {
            "" => format!("status {status}"),
            said => format!("status {status}: {said}"),
        }
    }

    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Result<T, String> {
        let answer = tokio::time::timeout(self.silence, answer).await;
        answer.map_err(|_| format!("silent for {} s", self.silence.as_secs()))
    }
}

fn served_by(headers: &HeaderMap) -> Option<String> {
    let value = SERVED_BY.iter().find_map(|name| headers.get(*name))?;
    Some(value.to_str().ok()?.to_owned())
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
