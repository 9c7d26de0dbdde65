//! One HTTP stream as a state machine: [`Input`] in, [`Effects`] out.
//!
//! ```text
//! Idle ──headers──▶ Holding ──body seen, or enough of it, or watchdog──▶ Flight ──end──▶ Over
//!   └──────────────── nothing to wait for ───────────────────────────────▲
//! ```
//!
//! A flight holds one reservation and gives it back exactly once: it is taken out of its `Option`
//! by the end of the response or by [`Input::Closed`], whichever comes first.

mod event;
mod explain;

pub use self::event::{Answer, Effects, Event, Failure, Flow, Input, Rest, StreamView};
pub use self::explain::reason_name;

use crate::balancer::{Ask, Balancer, Decision};
use crate::config::{KeySource, OtherPaths, Toggle};
use crate::policy::PolicySpec;
use crate::prefix::routing_key;
use crate::request::{Api, InferenceRequest, RequestScanner, Scan};
use crate::state::Store;
use crate::state::ledger::Reservation;
use crate::steer;
use crate::tokens::ResponseReader;

/// The moment at which an input is handled, and what it is handled with.
pub struct Moment<'a, S: Store + ?Sized> {
    /// Shared state.
    pub store: &'a S,
    /// Wall clock, in microseconds.
    pub now_us: u64,
    /// Fresh random bits.
    pub random: u64,
    /// The stream.
    pub view: &'a dyn StreamView,
}

impl<S: Store + ?Sized> Moment<'_, S> {
    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }
}

/// A request that is held back until enough of its body is known.
struct Holding {
    intake: Intake,
    scanner: RequestScanner,
    held_bytes: u64,
}

/// What the headers said.
struct Intake {
    started_us: u64,
    api: Api,
    content_length: Option<u64>,
    /// Values of headers and cookies that may be routing keys, by pool and source.
    keys: Vec<Vec<Option<Vec<u8>>>>,
}

/// A request that is on its way.
struct Flight {
    started_us: u64,
    pool: usize,
    reservation: Option<Reservation>,
    explanation: Option<String>,
    response: Option<Response>,
    first_chunk_us: Option<u64>,
}

/// The response so far.
struct Response {
    status: u16,
    origin: Origin,
    streamed: Toggle,
    reader: ResponseReader,
}

/// Who wrote a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Engine,
    /// Envoy, because it had no answer from the endpoint.
    NoAnswer,
    /// Envoy, for a reason of its own.
    Envoy,
}

enum State {
    Idle,
    Holding(Box<Holding>),
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

    /// Since when the request is being held back, in microseconds.
    pub fn held_since_us(&self) -> Option<u64> {
        match &self.state {
            State::Holding(holding) => Some(holding.intake.started_us),
            _ => None,
        }
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
            (State::Idle, Input::RequestHeaders(rest)) => begin(balancer, moment, rest),
            (State::Holding(held), Input::RequestBody(chunk, rest)) => {
                read(balancer, moment, held, chunk, rest)
            }
            (State::Holding(held), Input::RequestTrailers) => {
                settle(balancer, moment, *held, Rest::End)
            }
            (State::Holding(held), Input::Watchdog) => {
                let (state, mut effects) = settle(balancer, moment, *held, Rest::Open);
                effects.events.push(Event::WatchdogFired);
                (state, effects)
            }
            (State::Flight(flight), input) => respond(balancer, moment, flight, input),
            (_, Input::Closed) => (State::Over, Effects::pass()),
            (state, _) => (state, Effects::pass()),
        };
        self.state = state;
        effects
    }
}

fn begin<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    rest: Rest,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let header = |name: &str| moment.view.request_header(name);
    let post = header(":method").is_some_and(|method| method == b"POST");
    let inference = header(":path")
        .filter(|_| post)
        .and_then(|path| Api::from_path(&path));
    if inference.is_none() && config.other_paths == OtherPaths::Pass {
        let remove_request_header = steer::forbidden_header(config.steering);
        return (
            State::Over,
            Effects {
                remove_request_header,
                ..Effects::pass()
            },
        );
    }
    let intake = Intake {
        started_us: moment.now_us,
        api: inference.unwrap_or(Api::ChatCompletions),
        content_length: header("content-length")
            .and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()),
        keys: config
            .pools
            .iter()
            .map(|pool| {
                pool.keys
                    .iter()
                    .map(|key| key_value(key, &header))
                    .collect()
            })
            .collect(),
    };
    let Some(api) = inference else {
        let request = InferenceRequest::unknown(intake.api, Scan::Unread);
        return depart(balancer, moment, intake, &request, Vec::new());
    };
    let encoded = header("content-encoding")
        .is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity"));
    if encoded || rest == Rest::End || !balancer.reads_body() {
        let scan = if encoded { Scan::Encoded } else { Scan::Unread };
        let request = InferenceRequest::unknown(api, scan);
        return depart(
            balancer,
            moment,
            intake,
            &request,
            vec![Event::Parsed(scan)],
        );
    }
    let scanner = RequestScanner::new(api, &config.scan);
    (
        State::Holding(Box::new(Holding {
            intake,
            scanner,
            held_bytes: 0,
        })),
        Effects::hold(),
    )
}

/// The value of a header or cookie that may be a routing key.
fn key_value(source: &KeySource, header: &dyn Fn(&str) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    match source {
        KeySource::Header(name) => header(name).filter(|value| !value.is_empty()),
        KeySource::Cookie(name) => cookie(&header("cookie")?, name.as_bytes()),
        KeySource::Body(_) => None,
    }
}

fn cookie(header: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    header
        .split(|byte| *byte == b';')
        .filter_map(|pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.split_at_checked(equals)?;
            (key.trim_ascii() == name)
                .then(|| value.get(1..).unwrap_or_default().trim_ascii().to_vec())
        })
        .find(|value| !value.is_empty())
}

fn read<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut held: Box<Holding>,
    chunk: &[u8],
    rest: Rest,
) -> (State, Effects) {
    held.scanner.push(chunk);
    held.held_bytes = held.held_bytes.saturating_add(chunk.len() as u64);
    let enough = held.scanner.is_settled() || held.held_bytes >= balancer.config().hold_max_bytes;
    if rest == Rest::End || enough {
        settle(balancer, moment, *held, rest)
    } else {
        (State::Holding(held), Effects::hold())
    }
}

/// Decides with what is known of the body by now.
fn settle<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    held: Holding,
    rest: Rest,
) -> (State, Effects) {
    let request = match rest {
        Rest::Open if held.held_bytes == 0 => {
            InferenceRequest::unknown(held.intake.api, Scan::Unread)
        }
        Rest::Open => held.scanner.finish_early(),
        Rest::End => held.scanner.finish(),
    };
    let events = vec![Event::Parsed(request.scan)];
    depart(balancer, moment, held.intake, &request, events)
}

/// Picks, reserves, and lets the request go.
fn depart<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    intake: Intake,
    request: &InferenceRequest,
    mut events: Vec<Event>,
) -> (State, Effects) {
    let config = balancer.config().clone();
    let model = request.model.as_deref();
    let pool = balancer.pool_for(model);
    let ask = Ask {
        pool,
        model,
        key: key_of(balancer, pool, &intake, request),
        cost: config.tokens.estimate(request, intake.content_length),
    };
    let Some((decision, reservation)) =
        balancer.pick(moment.store, moment.now_ms(), moment.random, ask)
    else {
        let remove_request_header = steer::forbidden_header(config.steering);
        return (
            State::Over,
            Effects {
                remove_request_header,
                events,
                ..Effects::pass()
            },
        );
    };
    events.push(Event::Picked {
        policy: decision.policy,
        endpoint: reservation.endpoint(),
        reason: decision.reason,
    });
    let explained =
        config.explain.response_header == Toggle::On || config.explain.log_field == Toggle::On;
    let explanation = explained.then(|| explain::line(balancer, &decision));
    let effects = Effects {
        steer: instruction(balancer, &decision),
        log_field: explanation
            .clone()
            .filter(|_| config.explain.log_field == Toggle::On),
        events,
        ..Effects::pass()
    };
    let flight = Flight {
        started_us: intake.started_us,
        pool,
        reservation: Some(reservation),
        explanation: explanation.filter(|_| config.explain.response_header == Toggle::On),
        response: None,
        first_chunk_us: None,
    };
    (State::Flight(Box::new(flight)), effects)
}

fn instruction(balancer: &Balancer, decision: &Decision) -> Option<steer::Steer> {
    let name = |index: &u32| {
        balancer
            .endpoint(decision.pool, *index)
            .map(|endpoint| endpoint.name())
    };
    let ranked: Vec<&str> = decision.endpoints.iter().filter_map(name).collect();
    steer::instruction(balancer.config().steering, &ranked)
}

/// The routing key that the pool's policy asks for.
fn key_of(
    balancer: &Balancer,
    pool: usize,
    intake: &Intake,
    request: &InferenceRequest,
) -> Option<u64> {
    let config = balancer.pool(pool)?;
    match config.policy {
        PolicySpec::PrefixHash { .. } => routing_key(request.model.as_deref(), &request.prompt),
        PolicySpec::ConsistentHash { .. } => {
            let from_headers = intake.keys.get(pool)?;
            config
                .keys
                .iter()
                .zip(from_headers)
                .enumerate()
                .find_map(|(index, (source, value))| {
                    let value = match source {
                        KeySource::Body(field) => {
                            request.fields.get(*field)?.as_deref()?.as_bytes()
                        }
                        _ => value.as_deref()?,
                    };
                    // The source's number keeps a user and a session of one name apart.
                    (!value.is_empty()).then(|| xxhash_rust::xxh64::xxh64(value, index as u64))
                })
        }
        _ => None,
    }
}

fn respond<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Box<Flight>,
    input: Input<'_>,
) -> (State, Effects) {
    let mut effects = Effects::pass();
    let ended = match input {
        Input::ResponseHeaders(rest) => {
            response_headers(balancer, moment, &mut flight, &mut effects);
            rest == Rest::End
        }
        Input::ResponseBody(chunk, rest) => {
            response_chunk(balancer, moment, &mut flight, chunk, rest);
            rest == Rest::End
        }
        Input::ResponseTrailers => true,
        Input::Closed => {
            abandon(balancer, moment, *flight, &mut effects);
            return (State::Over, effects);
        }
        _ => false,
    };
    if ended {
        finish(balancer, moment, *flight, &mut effects);
        return (State::Over, effects);
    }
    (State::Flight(flight), effects)
}

fn response_headers<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    effects: &mut Effects,
) {
    let view = moment.view;
    let status = view
        .response_header(":status")
        .and_then(|status| std::str::from_utf8(&status).ok()?.parse().ok())
        .unwrap_or(0_u16);
    let content_type = view.response_header("content-type").unwrap_or_default();
    let compressed = view.response_header("content-encoding").is_some();
    let reader = ResponseReader::for_content_type(if compressed { b"" } else { &content_type });
    let streamed = if content_type.starts_with(b"text/event-stream") {
        Toggle::On
    } else {
        Toggle::Off
    };
    let origin = origin(status, view);
    flight.response = Some(Response {
        status,
        origin,
        streamed,
        reader,
    });
    effects.response_header = flight.explanation.take();

    let retries = view.attempts().unwrap_or(1).saturating_sub(1);
    let ranked = balancer.config().steering == crate::config::SteeringMode::OverrideHost;
    if (retries > 0 || ranked)
        && let Some(address) = view
            .upstream_address()
            .and_then(|address| String::from_utf8(address).ok())
        && let Some(reservation) = flight.reservation.take()
    {
        let now_ms = moment.now_ms();
        flight.reservation =
            Some(balancer.served_by(moment.store, now_ms, reservation, flight.pool, &address));
    }
    if retries > 0
        && let Some(reservation) = &flight.reservation
    {
        effects.events.push(Event::Retried {
            endpoint: reservation.endpoint(),
            retries,
        });
    }
}

/// Only a 5xx may be Envoy's own word on a silent endpoint; other answers need no second look.
fn origin(status: u16, view: &dyn StreamView) -> Origin {
    if status < 500 {
        return Origin::Engine;
    }
    match view.response_details() {
        Some(details) if details == b"via_upstream" => Origin::Engine,
        Some(details) if details.starts_with(b"upstream_reset") => Origin::NoAnswer,
        _ => Origin::Envoy,
    }
}

fn response_chunk<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    chunk: &[u8],
    rest: Rest,
) {
    if let Some(response) = &mut flight.response {
        response.reader.push(chunk);
    }
    if chunk.is_empty() || flight.first_chunk_us.is_some() {
        return;
    }
    // Response headers of a stream come before its prefill; the first chunk is the sign.
    flight.first_chunk_us = Some(moment.now_us);
    if rest == Rest::Open
        && let Some(reservation) = &mut flight.reservation
    {
        balancer.prefill_done(moment.store, moment.now_ms(), reservation);
    }
}

/// The response came to its end.
fn finish<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Flight,
    effects: &mut Effects,
) {
    let Some(reservation) = flight.reservation.take() else {
        return;
    };
    let endpoint = reservation.endpoint();
    balancer.complete(moment.store, moment.now_ms(), reservation);
    let Some(mut response) = flight.response.take() else {
        return;
    };
    response.reader.finish();
    let failure = match (
        response.origin,
        response.status,
        response.reader.error_code(),
    ) {
        (Origin::NoAnswer, ..) => Some(Failure::Unreachable),
        (Origin::Envoy, ..) => None,
        (Origin::Engine, 429 | 503, _) | (Origin::Engine, 200, Some(429 | 503)) => {
            Some(Failure::Overloaded)
        }
        (Origin::Engine, 200, Some(500..)) => Some(Failure::StreamError),
        (Origin::Engine, 500.., _) => Some(Failure::ServerError),
        (Origin::Engine, ..) => None,
    };
    if let Some(failure) = failure {
        effects.events.push(Event::Failed { endpoint, failure });
    }
    if response.origin == Origin::Engine {
        let good = response.status == 200 && response.reader.error_code().is_none();
        effects.events.push(Event::Answered(Answer {
            endpoint,
            e2e_us: good.then(|| moment.now_us.saturating_sub(flight.started_us)),
            ..answer(endpoint, &flight, &response, moment.now_us)
        }));
    }
}

/// What is known of the answer apart from its total time.
fn answer(
    endpoint: crate::endpoint::EndpointId,
    flight: &Flight,
    response: &Response,
    now_us: u64,
) -> Answer {
    let usage = response.reader.usage();
    let good = response.status == 200
        && response.reader.error_code().is_none()
        && response.streamed == Toggle::On;
    let first_us = flight.first_chunk_us.filter(|_| good);
    let output_tokens = usage.map_or(response.reader.events(), |usage| usage.completion_tokens);
    Answer {
        endpoint,
        ttft_us: first_us.map(|first_us| first_us.saturating_sub(flight.started_us)),
        e2e_us: None,
        tpot_us: first_us
            .filter(|_| output_tokens >= 2)
            .map(|first_us| now_us.saturating_sub(first_us) / (output_tokens - 1)),
        usage,
    }
}

/// The stream is gone before the response came to its end: the client left, or the endpoint did.
fn abandon<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Flight,
    effects: &mut Effects,
) {
    let Some(reservation) = flight.reservation.take() else {
        return;
    };
    let endpoint = reservation.endpoint();
    balancer.complete(moment.store, moment.now_ms(), reservation);
    let broken = moment
        .view
        .response_details()
        .is_some_and(|details| details.starts_with(b"upstream_reset"));
    if broken {
        effects.events.push(Event::Failed {
            endpoint,
            failure: Failure::BrokenStream,
        });
    }
    if let Some(mut response) = flight.response.take() {
        response.reader.finish();
        let answer = Answer {
            tpot_us: None,
            ..answer(endpoint, &flight, &response, moment.now_us)
        };
        effects.events.push(Event::Answered(answer));
    }
}

#[cfg(test)]
mod tests;
