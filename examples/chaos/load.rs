//! The load: every request at its due time, whatever became of the others, until it is stopped.

use crate::outcome::Outcome;
use crate::support::client::{Call, HttpClient, Protocol};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use warmroute::sim::workload::text::chat_body;
use warmroute::sim::workload::{Request, Start, chat};

/// The model that mock replicas serve by default.
pub const MODEL: &str = "tiny";
/// What [`chat_body`] writes for a stream, and what it is without one.
const STREAMED: &str = r#""stream":true,"stream_options":{"include_usage":true}"#;
const WHOLE: &str = r#""stream":false"#;

/// How a request differs from what the workload says.
#[derive(Clone, Debug)]
pub struct Twist {
    /// A fault for the mock replica.
    pub fault: Option<String>,
    /// The status that it should have.
    pub meant: u16,
    /// Whether the answer is one document.
    pub is_whole: bool,
    /// Tokens of the answer, in place of the workload's.
    pub output_tokens: Option<u32>,
}

impl Twist {
    /// Not at all.
    pub const NONE: Self = Self {
        fault: None,
        meant: 200,
        is_whole: false,
        output_tokens: None,
    };

    /// A request that the replica answers with this status.
    pub fn status(meant: u16, fault: &str) -> Self {
        Self {
            fault: Some(fault.to_owned()),
            meant,
            ..Self::NONE
        }
    }

    /// An answer in one document.
    pub const WHOLE: Self = Self {
        is_whole: true,
        ..Self::NONE
    };
}

/// What to send.
#[derive(Clone, Debug)]
pub struct Order {
    /// Chats that share prefixes.
    pub chats: chat::Open,
    /// Of the chats.
    pub seed: u64,
    /// How much faster than the workload says.
    pub speed: f64,
    /// By the number of the request.
    pub twist: fn(u32) -> Twist,
}

impl Order {
    /// Chats at this rate on the modelled hardware, which is `speed` times slower, for up to
    /// `limit` of real time.
    pub fn chats(seed: u64, rate_per_s: f64, speed: f64, limit: Duration) -> Self {
        let requests = rate_per_s * speed * limit.as_secs_f64();
        Self {
            chats: chat::Open {
                requests: requests.ceil() as u32,
                rate_per_s,
                ..chat::Open::default()
            },
            seed,
            speed,
            twist: |_| Twist::NONE,
        }
    }

    /// With requests that differ.
    pub fn twisted(mut self, twist: fn(u32) -> Twist) -> Self {
        self.twist = twist;
        self
    }
}

/// A load that is under way. Dropping it leaves all of its requests.
pub struct Load {
    /// Due times count from here.
    pub begun: Instant,
    stop: watch::Sender<bool>,
    cut: watch::Sender<bool>,
    sender: JoinHandle<Vec<Outcome>>,
}

impl Load {
    /// Begins to send to `to`.
    pub fn start(to: SocketAddr, order: &Order) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (cut, is_cut) = watch::channel(false);
        let begun = Instant::now();
        let client = HttpClient::new(to, Protocol::Http1);
        let sender = Sender {
            begun,
            client,
            speed: order.speed,
            twist: order.twist,
            cut: is_cut,
        };
        let requests = chat::open(&order.chats, order.seed).requests;
        let sender = tokio::spawn(Arc::new(sender).send(requests, stopped));
        Self {
            begun,
            stop,
            cut,
            sender,
        }
    }

    /// How long it has lasted.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Sends no more, and returns what all requests came to when they are over, or after `limit`.
    ///
    /// # Errors
    /// The load had ended by itself: the workload was too short.
    pub async fn finish(mut self, limit: Duration) -> Result<Vec<Outcome>, String> {
        if self.stop.send(true).is_err() {
            return Err("the load ended before the scenario did".to_owned());
        }
        let in_time = tokio::time::timeout(limit, &mut self.sender).await;
        let all = match in_time {
            Ok(all) => all,
            Err(_) => {
                self.cut.send_replace(true);
                (&mut self.sender).await
            }
        };
        all.map_err(|e| format!("the load ended early: {e}"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.sender.abort();
    }
}

struct Sender {
    begun: Instant,
    client: HttpClient,
    speed: f64,
    twist: fn(u32) -> Twist,
    cut: watch::Receiver<bool>,
}

impl Sender {
    async fn send(
        self: Arc<Self>,
        requests: Vec<Request>,
        mut stopped: watch::Receiver<bool>,
    ) -> Vec<Outcome> {
        let mut under_way = JoinSet::new();
        let mut outcomes = Vec::new();
        for (number, request) in (0..).zip(requests) {
            let Start::At { us } = request.start else {
                continue;
            };
            let due = Duration::from_micros(us).div_f64(self.speed);
            tokio::select! {
                () = tokio::time::sleep_until((self.begun + due).into()) => {}
                () = turns_true(&mut stopped) => break,
            }
            under_way.spawn(Arc::clone(&self).one(number, request, due));
            while let Some(outcome) = under_way.try_join_next() {
                outcomes.extend(outcome.ok());
            }
        }
        // A receiver that is gone tells `finish` that the load was too short.
        drop(stopped);
        while let Some(outcome) = under_way.join_next().await {
            outcomes.extend(outcome.ok());
        }
        outcomes
    }

    async fn one(self: Arc<Self>, number: u32, mut request: Request, due: Duration) -> Outcome {
        let twist = (self.twist)(number);
        request.output_tokens = twist.output_tokens.unwrap_or(request.output_tokens);
        let mut body = chat_body(&request, MODEL);
        if twist.is_whole {
            body = body.replace(STREAMED, WHOLE);
        }
        let mut call = Call::post("/v1/chat/completions", Bytes::from(body))
            .header("x-session-id", format!("{:016x}", request.session));
        if let Some(fault) = &twist.fault {
            call = call.header("x-mock-fault", fault);
        }
        let mut outcome = Outcome::new(due, twist.meant);
        let mut cut = self.cut.clone();
        tokio::select! {
            () = outcome.fill(&self.client, call, self.begun + due) => {}
            () = turns_true(&mut cut) => {}
        }
        outcome
    }
}

/// Returns once it is true; never if nobody can set it any more.
pub async fn turns_true(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|flag| *flag).await.is_err() {
        std::future::pending::<()>().await;
    }
}
