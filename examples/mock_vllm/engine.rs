//! The replica model in real time: one timer for all requests, and a waiter for each.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use warmroute::sim::replica::{Detail, Event, Gauges, Job, Profile, Replica, SubmitError};

/// Events this close ahead are taken now: the timer is no finer.
const SLACK: Duration = Duration::from_millis(1);

/// How far one request has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    pub tokens: u32,
    pub cached_tokens: u32,
    pub finished: bool,
    /// Times are the model's.
    pub submitted_us: u64,
    pub admitted_us: u64,
    pub first_us: u64,
    pub finished_us: u64,
}

#[derive(Debug, Default)]
struct Waiter {
    adapter: Option<String>,
    progress: Mutex<Progress>,
    notify: Notify,
}

/// A request for the engine.
#[derive(Debug)]
pub struct Order {
    pub chain: Vec<u64>,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub detail: Detail,
    pub adapter: Option<String>,
}

/// The adapters of the requests in the engine.
#[derive(Debug, Default)]
pub struct Adapters {
    pub running: BTreeSet<String>,
    pub waiting: BTreeSet<String>,
}

/// A request in the engine; dropping it aborts the request.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    engine: Arc<Engine>,
    waiter: Arc<Waiter>,
}

impl Ticket {
    /// How far the request has come.
    pub fn progress(&self) -> Progress {
        *lock(&self.waiter.progress)
    }

    /// Waits until there are more than `tokens` tokens, or the request is finished.
    pub async fn more_than(&self, tokens: u32) -> Progress {
        loop {
            let progress = self.progress();
            if progress.tokens > tokens || progress.finished {
                return progress;
            }
            self.waiter.notify.notified().await;
        }
    }

    /// Waits for the end.
    pub async fn finished(&self) -> Progress {
        self.more_than(u32::MAX).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.progress().finished {
            self.engine.abort(self.id);
        }
    }
}

struct State {
    replica: Replica,
    waiters: HashMap<u64, Arc<Waiter>>,
    next_id: u64,
    /// The model's clock never goes back, even if it was run a little ahead.
    now_us: u64,
    events: Vec<Event>,
}

/// The engine of one mock replica.
pub struct Engine {
    started: Instant,
    time_scale: f64,
    state: Mutex<State>,
    wake: Notify,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Engine")
    }
}

/// A poisoned lock means a panic elsewhere, which has been reported; the counters are still good.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An idle engine. Nothing happens between submissions unless [`Self::run`] is running.
    pub fn new(profile: Profile, time_scale: f64) -> Arc<Self> {
        let state = State {
            replica: Replica::new(profile),
            waiters: HashMap::new(),
            next_id: 0,
            now_us: 0,
            events: Vec::new(),
        };
        Arc::new(Self {
            started: Instant::now(),
            time_scale: time_scale.max(1e-6),
            state: Mutex::new(state),
            wake: Notify::new(),
        })
    }

    /// Puts a request into the queue.
    pub fn submit(self: &Arc<Self>, order: Order) -> Result<Ticket, SubmitError> {
        let Order {
            chain,
            prompt_tokens,
            output_tokens,
            detail,
            adapter,
        } = order;
        let waiter = Arc::new(Waiter {
            adapter,
            ..Waiter::default()
        });
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        let before_us = state.replica.next_event_us();
        let now_us = self.now_us(&mut state, Duration::ZERO);
        let job = Job {
            id,
            chain,
            prompt_tokens,
            output_tokens,
            detail,
        };
        state.replica.submit(now_us, job)?;
        lock(&waiter.progress).submitted_us = now_us;
        state.waiters.insert(id, Arc::clone(&waiter));
        self.advance(&mut state);
        if state.replica.next_event_us() != before_us {
            self.wake.notify_one();
        }
        drop(state);
        let engine = Arc::clone(self);
        Ok(Ticket { id, engine, waiter })
    }

    /// The model's gauges, now.
    pub fn gauges(&self) -> Gauges {
        lock(&self.state).replica.gauges()
    }

    /// Which adapters have requests, now.
    pub fn adapters(&self) -> Adapters {
        let state = lock(&self.state);
        let running: HashSet<u64> = state.replica.running_ids().collect();
        let mut adapters = Adapters::default();
        for (id, waiter) in &state.waiters {
            let Some(adapter) = &waiter.adapter else {
                continue;
            };
            let set = if running.contains(id) {
                &mut adapters.running
            } else {
                &mut adapters.waiting
            };
            set.insert(adapter.clone());
        }
        adapters
    }

    /// Drives the model for ever.
    pub async fn run(self: Arc<Self>) {
        loop {
            let next_us = {
                let mut state = lock(&self.state);
                self.advance(&mut state);
                state.replica.next_event_us()
            };
            let Some(next_us) = next_us else {
                self.wake.notified().await;
                continue;
            };
            let real = Duration::from_micros(next_us).mul_f64(self.time_scale);
            let at = tokio::time::Instant::from_std(self.started + real);
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    fn abort(&self, id: u64) {
        let mut state = lock(&self.state);
        state.waiters.remove(&id);
        state.replica.abort(id);
    }

    fn now_us(&self, state: &mut State, ahead: Duration) -> u64 {
        let real = self.started.elapsed() + ahead;
        let model_us = (real.as_secs_f64() / self.time_scale * 1e6) as u64;
        state.now_us = state.now_us.max(model_us);
        state.now_us
    }

    fn advance(&self, state: &mut State) {
        let now_us = self.now_us(state, SLACK);
        let State {
            replica,
            waiters,
            events,
            ..
        } = state;
        replica.advance(now_us, events);
        for event in events.drain(..) {
            let (Event::FirstToken { id, .. }
            | Event::Token { id, .. }
            | Event::Finished { id, .. }) = event;
            let Some(waiter) = waiters.get(&id) else {
                continue;
            };
            let mut progress = lock(&waiter.progress);
            match event {
                Event::FirstToken {
                    at_us,
                    admitted_us,
                    cached_tokens,
                    ..
                } => {
                    progress.tokens = 1;
                    progress.cached_tokens = cached_tokens;
                    progress.first_us = at_us;
                    progress.admitted_us = admitted_us;
                }
                Event::Token { .. } => progress.tokens += 1,
                Event::Finished { at_us, .. } => {
                    progress.finished = true;
                    progress.finished_us = at_us;
                }
            }
            drop(progress);
            waiter.notify.notify_one();
            if matches!(event, Event::Finished { .. }) {
                waiters.remove(&id);
            }
        }
    }
}
