//! How a request leaves: picked for and steered, or not, or answered in the endpoints' place.

use super::{Effects, Event, Flight, Flow, Moment, Patience, Stage, State, Waiting, ask, explain};
use crate::account;
use crate::balancer::{Ask, Balancer, Decision, Refusal};
use crate::config::{Config, SteeringMode, Toggle};
use crate::endpoint::{Endpoint, EndpointId};
use crate::index::Belief;
use crate::prefix::block_keys;
use crate::reply::Reply;
use crate::request::{Api, InferenceRequest};
use crate::state::Store;
use crate::state::ledger::Reservation;
use crate::steer;
use crate::tokens::{Lesson, ResponseReader};

/// Where endpoints are awaited, it will not be long.
const SOON: Refusal = Refusal::NoEndpoint {
    retry_after_ms: 1_000,
};

/// Picks, reserves, and lets the request go.
pub(super) fn depart<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    api: Option<Api>,
    request: &InferenceRequest,
    mut events: Vec<Event>,
    patience: Patience,
) -> (State, Effects) {
    let model = request.model.as_deref();
    let pool = balancer.pool_for(model);
    let lesson = Lesson::of(request);
    let cost = ask::cost(balancer, moment.view, api, request, &lesson);
    let blocks = match balancer.reads_index(pool) {
        true => block_keys(model, &request.prompt.blocks),
        false => Vec::new(),
    };
    let ask = Ask {
        pool,
        model,
        key: ask::key(balancer, pool, moment.view, request),
        blocks: &blocks,
        cost,
        share_permille: ask::share_permille(balancer.config(), moment.view),
    };
    let picked = balancer.pick(moment.store, moment.now_ms(), moment.random, ask);
    let (decision, reservation) = match picked {
        Ok(picked) => picked,
        // What is not there, or not served, may be among what is not known yet.
        Err(Refusal::NoEndpoint { .. } | Refusal::UnknownModel)
            if patience == Patience::Waits && balancer.awaits_members(pool) =>
        {
            let request = request.clone();
            let effects = Effects {
                events,
                ..Effects::hold()
            };
            return (State::Waiting(Box::new(Waiting { api, request })), effects);
        }
        Err(refusal) => {
            let refusal = match refusal {
                Refusal::UnknownModel if balancer.awaits_members(pool) => SOON,
                refusal => refusal,
            };
            let reply = Reply::refusal(refusal, api, model);
            return refused(balancer.config(), reply, events);
        }
    };
    if api.is_some() {
        balancer.learn_typical(decision.cost);
    }
    let belief = balancer.sent(moment.store, reservation.endpoint(), &blocks);
    events.push(Event::Picked {
        policy: decision.policy,
        endpoint: reservation.endpoint(),
        reason: decision.reason,
    });
    let explain = balancer.config().explain;
    let logged = explain.log_field == Toggle::On;
    let shown = explain.response_header == Toggle::On;
    let effects = Effects {
        log_field: logged.then(|| account::line(balancer, &ask, moment.random, &decision)),
        events,
        ..steered(balancer, &decision)
    };
    let departed_us = moment.now_us();
    let flight = Flight {
        ranked: ranked(balancer, &decision),
        explanation: shown.then(|| explain::line(balancer, &decision)),
        ..Flight::begin(
            departed_us,
            api,
            request,
            lesson,
            &decision,
            reservation,
            belief,
        )
    };
    (State::Flight(Box::new(flight)), effects)
}

/// What Envoy is told of a decision.
fn steered(balancer: &Balancer, decision: &Decision) -> Effects {
    let steering = balancer.config().steering;
    let tried: Vec<&str> = attempts(balancer, decision).map(Endpoint::name).collect();
    Effects {
        // The other modes replace the header that they use.
        remove_request_headers: match steering {
            SteeringMode::FilterState => steer::forbidden_headers(steering),
            _ => &[],
        },
        steer: steer::instruction(steering, &tried),
        max_retries: steer::max_retries(steering, decision.attempts.len()),
        retry_on: steer::retry_on(steering, decision.overload),
        ..Effects::pass()
    }
}

/// Whom Envoy tries one after the other; nobody where it is told of one alone.
fn ranked(balancer: &Balancer, decision: &Decision) -> Vec<EndpointId> {
    match balancer.config().steering.retries() {
        0 => Vec::new(),
        _ => attempts(balancer, decision).map(Endpoint::id).collect(),
    }
}

fn attempts<'a>(
    balancer: &'a Balancer,
    decision: &'a Decision,
) -> impl Iterator<Item = &'a Endpoint> {
    let indices = decision.attempts.iter();
    indices.filter_map(|index| balancer.endpoint(decision.pool, *index))
}

impl Flight {
    /// The request is under way, and nothing has come of its answer.
    fn begin(
        departed_us: u64,
        api: Option<Api>,
        request: &InferenceRequest,
        lesson: Lesson,
        decision: &Decision,
        reservation: Reservation,
        belief: Belief,
    ) -> Self {
        let chosen = decision.chosen().copied().unwrap_or_default();
        let (load, cost) = (chosen.load, decision.cost);
        Self {
            api,
            departed_us,
            pool: decision.pool,
            picked: reservation.endpoint(),
            ranked: Vec::new(),
            probe: decision.probe,
            retry_after_ms: None,
            reservation: Some(reservation),
            explanation: None,
            stage: Stage::Asked,
            reader: ResponseReader::default(),
            opening: None,
            first_chunk_us: None,
            belief,
            prompt_bytes: bytes_of_tokens(request),
            lesson,
            ahead_tokens: chosen.queue_tokens.saturating_add(cost.prefill_tokens),
            context_tokens: load.context_tokens.saturating_add(cost.context_tokens),
            step_us: chosen.pace.output_us(load.context_tokens),
        }
    }
}

/// Bytes that the engine's count of prompt tokens stands for; `None` if it stands for more (images), or
/// may leave out what was cached.
fn bytes_of_tokens(request: &InferenceRequest) -> Option<u64> {
    let counts_all = request.api != Api::Messages && request.prompt.images == 0;
    counts_all.then(|| request.prompt.bytes())
}

/// Lets a request go without a destination, and without one that the client may have named.
pub(super) fn unsteered(config: &Config, events: Vec<Event>) -> Effects {
    Effects {
        remove_request_headers: steer::forbidden_headers(config.steering),
        events,
        ..Effects::pass()
    }
}

/// Answers in the endpoints' place: there is none to send the request to.
pub(super) fn refused(config: &Config, reply: Reply, mut events: Vec<Event>) -> (State, Effects) {
    events.push(Event::Replied(reply.kind));
    let effects = Effects {
        flow: Flow::Hold,
        reply: Some(reply),
        ..unsteered(config, events)
    };
    (State::Over, effects)
}
