//! A mock vLLM replica: answers as vLLM 0.32 does, in the time that the replica model says.
//!
//! Also included by tests and demos with `#[path]`; the `mod` lines below then resolve beside
//! this file.
#![allow(dead_code, missing_docs, unused_imports)] // Each includer uses a part of it.

mod adapters;
mod answer;
mod call;
mod conn;
mod engine;
mod error;
mod faults;
mod infer;
mod messages;
mod metrics;
mod pages;
mod port;
mod prompt;
mod reply;
mod responses;
mod routes;
mod stream;

pub use faults::{Fault, FaultError, UsageFault};
pub use port::Port;

use adapters::Loaded;
use call::Limits;
use conn::{Connection, Resetter};
use engine::{Engine, lock};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use metrics::Metrics;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use warmroute::sim::replica::Profile;

/// How many requests [`Mock::seen`] remembers.
const SEEN_MOST: usize = 10_000;

/// How a mock replica is set up.
#[derive(Debug, Clone)]
pub struct MockOptions {
    /// Port 0 takes any free one.
    pub listen: SocketAddr,
    pub model: String,
    /// LoRA adapters, served as models of their own.
    pub adapters: Vec<String>,
    /// How many adapters fit into one batch; `None` for all of `adapters`.
    pub max_loras: Option<u32>,
    pub max_model_len: u32,
    pub profile: Profile,
    /// 1.0 is real time, 0.1 ten times faster.
    pub time_scale: f64,
    /// Waiting and running requests from which on more are refused (vLLM's option of that name).
    pub max_num_queued_reqs: Option<u32>,
    /// An HTTP/1.1 connection without a request is closed after so long; vLLM's
    /// `VLLM_HTTP_TIMEOUT_KEEP_ALIVE`, 5 s there.
    pub keep_alive_ms: u64,
    /// Names this replica in every answer, in the header `x-mock-endpoint`. Routers leave headers of
    /// answers alone, even those that drop the request's.
    pub tells_endpoint: bool,
}

impl Default for MockOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            model: "tiny".to_owned(),
            adapters: Vec::new(),
            max_loras: None,
            max_model_len: 131_072,
            profile: Profile::fast(),
            time_scale: 1.0,
            max_num_queued_reqs: None,
            keep_alive_ms: 5_000,
            tells_endpoint: false,
        }
    }
}

/// One request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub method: String,
    /// With the query.
    pub path: String,
    /// Names in lower case, in the order of arrival (repeated names stay together).
    pub headers: Vec<(String, Vec<u8>)>,
    pub body_len: u64,
    /// In lower-case hex.
    pub body_sha256: String,
}

/// Sums over the inference requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inference requests that arrived, whatever was answered.
    pub requests: u64,
    /// Those that are not answered in full, and whose client is still there.
    pub in_flight: u64,
    /// Of the requests whose prefill is done.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
}

/// What all connections share.
struct Shared {
    address: SocketAddr,
    limits: Limits,
    profile: Profile,
    time_scale: f64,
    engine: Arc<Engine>,
    metrics: Metrics,
    faults: Mutex<Vec<Fault>>,
    metrics_override: Mutex<Option<String>>,
    seen: Mutex<VecDeque<Seen>>,
    requests: AtomicU64,
    in_flight: Arc<AtomicU64>,
    unknown_models: AtomicU64,
    max_num_queued_reqs: Option<u32>,
    keep_alive: Duration,
    tells_endpoint: bool,
    /// By path.
    other_calls: Mutex<BTreeMap<String, u64>>,
    next_id: AtomicU64,
    draining: watch::Sender<bool>,
}

/// A running mock replica. Dropping it stops it without waiting.
pub struct Mock {
    shared: Arc<Shared>,
    port: Port,
    accept: JoinHandle<()>,
    engine: JoinHandle<()>,
}

impl Mock {
    /// Binds, and serves from then on.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(options: MockOptions) -> std::io::Result<Self> {
        let port = Port::keep(options.listen)?;
        let listener = TcpListener::bind(port.address()).await?;
        let engine = Engine::new(options.profile.clone(), options.time_scale);
        let most_tokens = u32::try_from(options.profile.capacity_tokens()).unwrap_or(u32::MAX);
        let shared = Arc::new(Shared {
            address: port.address(),
            limits: Limits {
                model: options.model,
                adapters: Loaded::new(options.adapters, options.max_loras),
                max_model_len: options.max_model_len.min(most_tokens),
                block_tokens: options.profile.block_tokens,
            },
            profile: options.profile,
            time_scale: options.time_scale,
            engine: Arc::clone(&engine),
            metrics: Metrics::new(),
            faults: Mutex::default(),
            metrics_override: Mutex::default(),
            seen: Mutex::default(),
            requests: AtomicU64::new(0),
            in_flight: Arc::default(),
            unknown_models: AtomicU64::new(0),
            max_num_queued_reqs: options.max_num_queued_reqs,
            keep_alive: Duration::from_millis(options.keep_alive_ms),
            tells_endpoint: options.tells_endpoint,
            other_calls: Mutex::default(),
            next_id: AtomicU64::new(0),
            draining: watch::Sender::new(false),
        });
        let accept = tokio::spawn(accept(listener, Arc::clone(&shared)));
        let engine = tokio::spawn(engine.run());
        Ok(Self {
            shared,
            port,
            accept,
            engine,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.shared.address
    }

    /// The last 10,000 requests, oldest first, without those to `/mock/...`.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).iter().cloned().collect()
    }

    pub fn totals(&self) -> Totals {
        let gauges = self.shared.engine.gauges();
        Totals {
            requests: self.shared.requests.load(Ordering::Relaxed),
            in_flight: self.shared.in_flight.load(Ordering::Relaxed),
            prompt_tokens: gauges.prompt_tokens,
            cached_tokens: gauges.cached_tokens,
            output_tokens: gauges.generation_tokens,
        }
    }

    /// How many calls came that are no inference, by path (`others`: unknown paths), without those to
    /// `/mock/...`.
    pub fn other_calls(&self) -> BTreeMap<String, u64> {
        lock(&self.shared.other_calls).clone()
    }

    /// How many inference requests named a model that is not served here.
    pub fn unknown_models(&self) -> u64 {
        self.shared.unknown_models.load(Ordering::Relaxed)
    }

    /// What the replica model says of itself.
    pub fn gauges(&self) -> warmroute::sim::replica::Gauges {
        self.shared.engine.gauges()
    }

    /// Faults for every request from now on; those of a request's own header come on top.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        *lock(&self.shared.faults) = faults;
    }

    /// Answers `/metrics` with this text, or with its own again.
    pub fn set_metrics(&self, text: Option<String>) {
        *lock(&self.shared.metrics_override) = text;
    }

    /// Closes the listener, and all connections when their requests are finished.
    pub async fn drain(mut self) {
        self.shared.draining.send_replace(true);
        // That it has ended is all we want to know.
        let _ = (&mut self.accept).await;
    }

    /// Closes the listener and all connections. Nobody else gets its port while that is kept.
    pub async fn stop(mut self) -> Port {
        self.accept.abort();
        self.engine.abort();
        // Both end with "cancelled"; that they have ended is all we want to know.
        let _ = (&mut self.accept).await;
        let _ = (&mut self.engine).await;
        self.port.clone()
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.accept.abort();
        self.engine.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut draining = shared.draining.subscribe();
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Out of file descriptors, most likely: give others time to close.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                // Only latency is lost without it.
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
            () = begins(&mut draining) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn begins(draining: &mut watch::Receiver<bool>) {
    // The sender lives as long as what is shared.
    let _ = draining.wait_for(|draining| *draining).await;
}

async fn serve(stream: tokio::net::TcpStream, shared: Arc<Shared>) {
    let resetter = Resetter::default();
    let keep_alive = shared.keep_alive;
    let mut draining = shared.draining.subscribe();
    let service = {
        let resetter = resetter.clone();
        service_fn(move |request: hyper::Request<Incoming>| {
            routes::answer(Arc::clone(&shared), request, resetter.clone())
        })
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Hyper's limit for headers runs from the end of the request before.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(keep_alive);
    builder.http2().timer(TokioTimer::new());
    let io = TokioIo::new(Connection::new(stream, resetter.clone()));
    let mut connection = pin!(builder.serve_connection(io, service));
    // A connection that ends badly has ended all the same.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = resetter.wanted() => return,
        () = begins(&mut draining) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = resetter.wanted() => {}
    }
}
