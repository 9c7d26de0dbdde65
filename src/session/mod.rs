//! One HTTP stream as a state machine: [`Input`] in, [`Effects`] out.
//!
//! ```text
//! Idle ──headers──▶ Holding ──body seen, or enough of it, or watchdog──▶ Flight ──end──▶ Over
//!   └──────────────── nothing to wait for ───────────────────────────────▲
//! ```
//!
//! Where it is not known yet which endpoints there are, a request is `Waiting` between the two.
//!
//! A flight holds one reservation and gives it back exactly once: it is taken out of its `Option`
//! by the end of the response or by [`Input::Closed`], whichever comes first.

mod ask;
mod conclude;
mod depart;
mod event;
mod explain;
mod opening;
mod outcome;
mod request;
mod response;

pub use self::event::{Answer, Effects, Event, Failure, Flow, Input, Patience, Rest, StreamView};
pub use self::explain::reason_name;

use std::cell::OnceCell;

use crate::balancer::Balancer;
use crate::endpoint::EndpointId;
use crate::index::Belief;
use crate::request::{Api, InferenceRequest, RequestScanner};
use crate::state::Store;
use crate::state::ledger::Reservation;
use crate::tokens::{FirstEvent, Lesson, ResponseReader};

/// The moment at which an input is handled, and what it is handled with.
pub struct Moment<'a, S: Store + ?Sized> {
    store: &'a S,
    random: u64,
    view: &'a dyn StreamView,
    /// The clock is read once, and only if somebody asks.
    now_us: OnceCell<u64>,
}

impl<'a, S: Store + ?Sized> Moment<'a, S> {
    /// Now, on the stream that `view` shows; `random` are fresh random bits.
    pub fn new(store: &'a S, random: u64, view: &'a dyn StreamView) -> Self {
        Self {
            store,
            random,
            view,
            now_us: OnceCell::new(),
        }
    }

    fn now_us(&self) -> u64 {
        *self.now_us.get_or_init(|| self.view.now_us())
    }

    fn now_ms(&self) -> u64 {
        self.now_us() / 1_000
    }
}

/// A request that is held back until enough of its body is known.
struct Holding {
    api: Api,
    scanner: RequestScanner,
    held_bytes: u64,
}

/// A request of which enough is known, but not which endpoints there are.
struct Waiting {
    /// As [`Flight::api`].
    api: Option<Api>,
    request: InferenceRequest,
}

impl Waiting {
    /// The pool whose endpoints it waits for.
    fn pool(&self, balancer: &Balancer) -> usize {
        balancer.pool_for(self.request.model.as_deref())
    }
}

/// A request that is on its way.
struct Flight {
    /// `None` for what is no inference call: nothing is learned from its answer.
    api: Option<Api>,
    departed_us: u64,
    pool: usize,
    reservation: Option<Reservation>,
    explanation: Option<String>,
    stage: Stage,
    reader: ResponseReader,
    /// How an answer begins whose headers are held; `None` if they are not.
    opening: Option<FirstEvent>,
    first_chunk_us: Option<u64>,
    /// Whom what follows is about: after a retry it says nothing of who served.
    picked: EndpointId,
    /// Whom Envoy was told to try, best first; only where it is told of more than one.
    ranked: Vec<EndpointId>,
    /// It shows whether the picked endpoint works again, and has not shown it yet.
    probe: bool,
    /// How long the endpoint asked to be spared.
    retry_after_ms: Option<u64>,
    /// What the index said of the prompt.
    belief: Belief,
    /// Bytes that the engine's count of prompt tokens stands for, if it does for bytes alone.
    prompt_bytes: Option<u64>,
    /// What a good answer teaches of requests like this one.
    lesson: Lesson,
    /// Tokens to be computed before the first one comes out, those of others included.
    ahead_tokens: u64,
    /// Tokens of context at the endpoint, its own included.
    context_tokens: u64,
    /// How long a step was expected to take before.
    step_us: u64,
}

/// Whether a response has begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asked,
    Answering,
}

enum State {
    Idle,
    Holding(Box<Holding>),
    Waiting(Box<Waiting>),
    Flight(Box<Flight>),
    Over,
}

/// One HTTP stream.
pub struct Session {
    state: State,
}

impl Default for Session {
    fn default() -> Self {
        Self { state: State::Idle }
    }
}

impl Session {
    /// Whether the request is being held back.
    pub fn is_holding(&self) -> bool {
        matches!(self.state, State::Holding(_))
    }

    /// Whether the request waits for endpoints.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    /// Whether something is reserved.
    pub fn is_in_flight(&self) -> bool {
        matches!(&self.state, State::Flight(flight) if flight.reservation.is_some())
    }

    /// Handles one input. Inputs that make no sense in the present state change nothing.
    pub fn handle<S: Store + ?Sized>(
        &mut self,
        balancer: &mut Balancer,
        moment: &Moment<'_, S>,
        input: Input<'_>,
    ) -> Effects {
        let state = std::mem::replace(&mut self.state, State::Over);
        let (state, effects) = match (state, input) {
            (State::Idle, Input::RequestHeaders(rest)) => request::begin(balancer, moment, rest),
            (State::Idle, Input::Request(read)) => request::begin_read(balancer, moment, read),
            (State::Holding(held), Input::RequestBody(chunk, rest)) => {
                request::read(balancer, moment, held, chunk, rest)
            }
            (State::Holding(held), Input::RequestTrailers) => {
                request::settle(balancer, moment, *held, Rest::End)
            }
            (State::Holding(held), Input::Watchdog) => {
                let (state, mut effects) = request::settle(balancer, moment, *held, Rest::Open);
                effects.events.push(Event::WatchdogFired);
                (state, effects)
            }
            (State::Waiting(waiting), Input::Endpoints(Patience::Waits))
                if balancer.awaits_members(waiting.pool(balancer)) =>
            {
                (State::Waiting(waiting), Effects::hold())
            }
            (State::Waiting(waiting), Input::Endpoints(_)) => {
                let Waiting { api, request } = *waiting;
                depart::depart(balancer, moment, api, &request, Vec::new(), Patience::Over)
            }
            // Envoy itself has answered.
            (State::Waiting(_), Input::ResponseHeaders(_)) => (State::Over, Effects::pass()),
            (State::Flight(flight), input) => response::respond(balancer, moment, flight, input),
            (_, Input::Closed) => (State::Over, Effects::pass()),
            (state, _) => (state, Effects::pass()),
        };
        self.state = state;
        effects
    }
}

#[cfg(test)]
mod tests;
