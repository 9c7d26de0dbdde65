//! The sender: every request at its due time, whatever became of the others.
//!
//! Nothing limits what is under way, and latencies count from the due time: a slow answer cannot
//! delay the requests behind it and so hide that they had to wait. How late the sender itself was is
//! measured too, since a sender without processor time would falsify the result.

use super::client::{Client, Seen};
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use warmroute::sim::record::Served;
use warmroute::sim::workload::text::chat_body;
use warmroute::sim::workload::{Start, Workload};

/// A request's text is made so long before it is due, not when it is.
const LEAD: Duration = Duration::from_millis(150);
/// Between the beginning of a run and its first request.
const RUN_UP: Duration = Duration::from_millis(300);
/// How long answers are waited for when the user has interrupted the run.
const GRACE: Duration = Duration::from_secs(1);

/// What to send, and where.
#[derive(Clone, Debug)]
pub struct Order {
    pub workload: Arc<Workload>,
    pub client: Client,
    pub model: String,
    /// How much faster than the workload says.
    pub speed: f64,
    /// Names of endpoints as answers have them.
    pub endpoints: Vec<String>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Sent {
    /// In the order of the workload.
    pub served: Vec<Served>,
    /// Whether the engine said how much of the prompt was cached, in the same order.
    pub cached_known: Vec<bool>,
    /// Requests that were never sent, since the run was stopped.
    pub unsent: u32,
    /// How late requests were sent, in real microseconds, ascending.
    pub late_us: Vec<u64>,
}

/// One request that is over.
struct Outcome {
    request: u32,
    due: Instant,
    seen: Seen,
    error: Option<String>,
    ended: Instant,
    late_us: Option<u64>,
}

/// One request that was taken up, and not sent.
#[derive(Clone, Copy, Debug)]
struct Unsent {
    request: u32,
}

/// Sends the whole workload, and returns when all of it is answered; or soon after `stop` turns true.
/// `over` is called for each request that is over.
pub async fn send(order: &Order, mut stop: watch::Receiver<bool>, over: &dyn Fn()) -> Sent {
    let order = Arc::new(order.clone());
    let begun = Instant::now() + RUN_UP;
    let mut queue = Queue::new(&order, begun);
    let mut under_way = JoinSet::new();
    let mut gathered = Gathered::new(Arc::clone(&order), begun);
    loop {
        while let Some((request, due)) = queue.due_by(Instant::now() + LEAD) {
            gathered.is_taken_up(request, due);
            under_way.spawn(serve(Arc::clone(&order), request, due, stop.clone()));
        }
        // Nothing under way and nothing due later: whatever still waits would wait for ever.
        if under_way.is_empty() && queue.next_due().is_none() {
            break;
        }
        let next = queue.next_due().and_then(|due| due.checked_sub(LEAD));
        tokio::select! {
            Some(ended) = under_way.join_next() => {
                if let Some(outcome) = gathered.ended(ended) {
                    queue.is_over(outcome);
                    over();
                }
            }
            () = sleep_until(next), if next.is_some() => {}
            () = stopped(&mut stop) => {
                gathered.sent_until = Some(Instant::now());
                wait_a_moment(&mut under_way, &mut gathered).await;
                break;
            }
        }
    }
    gathered.sent()
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns once `stop` is true; never if nobody can set it any more.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Takes what is answered within the grace.
async fn wait_a_moment(under_way: &mut JoinSet<Result<Outcome, Unsent>>, gathered: &mut Gathered) {
    let rest = async {
        while let Some(ended) = under_way.join_next().await {
            gathered.ended(ended);
        }
    };
    // Running out of time is what it is for.
    let _ = tokio::time::timeout(GRACE, rest).await;
    under_way.shutdown().await;
}

/// One request, from the making of its text to the end of its answer.
async fn serve(
    order: Arc<Order>,
    request: u32,
    due: Instant,
    mut stop: watch::Receiver<bool>,
) -> Result<Outcome, Unsent> {
    let unsent = Unsent { request };
    let asked = order.workload.requests.get(request as usize);
    let asked = asked.ok_or(unsent)?;
    let body = Bytes::from(chat_body(asked, &order.model));
    let session = format!("{:016x}", asked.session);
    tokio::select! {
        biased;
        () = stopped(&mut stop) => return Err(unsent),
        () = tokio::time::sleep_until(due.into()) => {}
    }
    let late_us = due.elapsed().as_micros();
    let mut seen = Seen::default();
    let error = order.client.ask(body, &session, &mut seen).await.err();
    Ok(Outcome {
        request,
        due,
        seen,
        error,
        ended: Instant::now(),
        late_us: Some(u64::try_from(late_us).unwrap_or(u64::MAX)),
    })
}

/// What is to be sent: by due time, or when another one is over.
struct Queue {
    speed: f64,
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    /// For each request, those that wait for it.
    waiting: Vec<Vec<(u32, u64)>>,
}

impl Queue {
    fn new(order: &Order, begun: Instant) -> Self {
        let requests = &order.workload.requests;
        let mut queue = Self {
            speed: order.speed,
            due: BinaryHeap::new(),
            waiting: vec![Vec::new(); requests.len()],
        };
        for (at, request) in (0_u32..).zip(requests) {
            match request.start {
                Start::At { us } => {
                    let due = begun + queue.real(us);
                    queue.due.push(Reverse((due, at)));
                }
                Start::After { request, pause_us } => {
                    if let Some(waiting) = queue.waiting.get_mut(request as usize) {
                        waiting.push((at, pause_us));
                    }
                }
            }
        }
        queue
    }

    fn real(&self, us: u64) -> Duration {
        Duration::from_micros(us).div_f64(self.speed)
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// The next request that is due by `time`.
    fn due_by(&mut self, time: Instant) -> Option<(u32, Instant)> {
        let Reverse((due, request)) = *self.due.peek()?;
        if due > time {
            return None;
        }
        self.due.pop();
        Some((request, due))
    }

    /// Those that wait for this one are due now, or after their pause.
    fn is_over(&mut self, outcome: &Outcome) {
        let Some(waiting) = self.waiting.get_mut(outcome.request as usize) else {
            return;
        };
        for (request, pause_us) in std::mem::take(waiting) {
            let due = outcome.ended + self.real(pause_us);
            self.due.push(Reverse((due, request)));
        }
    }
}

/// Turns outcomes into records.
struct Gathered {
    order: Arc<Order>,
    begun: Instant,
    /// When each request that was taken up is due; none for those that were not sent after all.
    due: Vec<Option<Instant>>,
    /// What is due later was not sent.
    sent_until: Option<Instant>,
    outcomes: Vec<Outcome>,
}

impl Gathered {
    fn new(order: Arc<Order>, begun: Instant) -> Self {
        Self {
            due: vec![None; order.workload.requests.len()],
            order,
            begun,
            sent_until: None,
            outcomes: Vec::new(),
        }
    }

    fn is_taken_up(&mut self, request: u32, due: Instant) {
        if let Some(slot) = self.due.get_mut(request as usize) {
            *slot = Some(due);
        }
    }

    /// Takes down how a task ended, and returns the outcome if it has one.
    fn ended(&mut self, ended: Result<Result<Outcome, Unsent>, JoinError>) -> Option<&Outcome> {
        match ended.ok()? {
            Ok(outcome) => {
                self.outcomes.push(outcome);
                self.outcomes.last()
            }
            Err(Unsent { request }) => {
                if let Some(slot) = self.due.get_mut(request as usize) {
                    *slot = None;
                }
                None
            }
        }
    }

    fn sent(mut self) -> Sent {
        let mut by_request: Vec<Option<Outcome>> = self.due.iter().map(|_| None).collect();
        for outcome in std::mem::take(&mut self.outcomes) {
            if let Some(slot) = by_request.get_mut(outcome.request as usize) {
                *slot = Some(outcome);
            }
        }
        let mut sent = Sent::default();
        for (request, (outcome, due)) in (0_u32..).zip(by_request.into_iter().zip(&self.due)) {
            let outcome = outcome.or_else(|| self.cut_off(request, (*due)?));
            let Some(outcome) = outcome else {
                sent.unsent += 1;
                continue;
            };
            let cached = outcome.seen.usage.and_then(|usage| usage.cached_tokens);
            sent.cached_known.push(cached.is_some());
            sent.late_us.extend(outcome.late_us);
            sent.served.push(self.served(outcome));
        }
        sent.late_us.sort_unstable();
        sent
    }

    /// The outcome of a request that was sent and had none yet when the run was stopped.
    fn cut_off(&self, request: u32, due: Instant) -> Option<Outcome> {
        (due <= self.sent_until?).then(|| Outcome {
            request,
            due,
            seen: Seen::default(),
            error: Some("no answer yet when the run was interrupted".to_owned()),
            ended: due,
            late_us: None,
        })
    }

    fn served(&self, outcome: Outcome) -> Served {
        let seen = outcome.seen;
        let usage = seen.usage.unwrap_or_default();
        let name = seen.endpoint.as_deref();
        let known = |name: &str| self.order.endpoints.iter().position(|known| known == name);
        Served {
            request: outcome.request,
            endpoint: name.and_then(known).map(|at| at as u32),
            due_us: self.model_us(outcome.due),
            first_us: seen.first.map(|at| self.model_us(at)),
            end_us: seen.last.map(|at| self.model_us(at)),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens.unwrap_or_default(),
            output_tokens: match seen.usage {
                Some(usage) => usage.output_tokens,
                None => seen.token_events,
            },
            error: outcome.error,
        }
    }

    /// After the beginning, on the clock of the modelled hardware.
    fn model_us(&self, at: Instant) -> u64 {
        let real = at.saturating_duration_since(self.begun);
        (real.as_secs_f64() * self.order.speed * 1e6).round() as u64
    }
}
