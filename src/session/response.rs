//! From the response headers to the last chunk: who serves, how fast, and that the prompt is computed.

use super::conclude::conclude;
use super::outcome::{Ending, is_the_endpoints, passed_over};
use super::{Effects, Event, Failure, Flight, Flow, Input, Moment, Rest, Stage, State, opening};
use crate::balancer::Balancer;
use crate::health::{Signal, retry_after_ms};
use crate::request::Api;
use crate::state::Store;
use crate::state::ledger::Reservation;

pub(super) fn respond<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Box<Flight>,
    input: Input<'_>,
) -> (State, Effects) {
    let mut effects = Effects::pass();
    let ended = match input {
        Input::ResponseHeaders(rest) => {
            response_headers(balancer, moment, &mut flight, &mut effects);
            if rest == Rest::Open {
                opening::hold(balancer.config(), moment.view, &mut flight, &mut effects);
            }
            rest == Rest::End
        }
        Input::ResponseBody(chunk, rest) => {
            let rest = response_chunk(balancer, moment, &mut flight, chunk, rest);
            effects.reply = opening::read(&mut flight, chunk, rest, &mut effects);
            rest == Rest::End
        }
        Input::ResponseTrailers => {
            effects.reply = opening::read(&mut flight, &[], Rest::End, &mut effects);
            true
        }
        Input::Watchdog => {
            flight.opening = None;
            false
        }
        Input::Closed => {
            conclude(balancer, moment, *flight, Ending::Broken, &mut effects);
            return (State::Over, effects);
        }
        _ => false,
    };
    if let Some(reply) = &effects.reply {
        effects.flow = Flow::Hold;
        effects.response_header = flight.explanation.take();
        effects.events.push(Event::Replied(reply.kind));
    }
    if ended || effects.reply.is_some() {
        conclude(balancer, moment, *flight, Ending::Complete, &mut effects);
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
    flight.stage = Stage::Answering;
    // It cannot be read any more once it is known whether it matters.
    let retry_after = moment.view.response_header("retry-after");
    flight.retry_after_ms = retry_after.and_then(|text| retry_after_ms(&text, moment.now_ms()));
    effects.response_header = flight.explanation.take();
    // In the other modes every attempt goes to the one endpoint that was named.
    if balancer.config().steering.retries() > 0 {
        retried(balancer, moment, flight, effects);
    }
}

/// Moves the load to whom Envoy turned to in the end: the next of the list, or its own fallback; and
/// blames those that it had tried before.
fn retried<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    effects: &mut Effects,
) {
    let Some(mut reservation) = flight.reservation.take() else {
        return;
    };
    let address = moment.view.upstream_address();
    if let Some(address) = address.and_then(|address| String::from_utf8(address).ok()) {
        let now_ms = moment.now_ms();
        reservation = balancer.served_by(
            moment.store,
            now_ms,
            reservation,
            flight.pool,
            &flight.ranked,
            &address,
        );
    }
    let retries = moment.view.attempts().unwrap_or(1).saturating_sub(1);
    if retries > 0 {
        let endpoint = reservation.endpoint();
        let signal = passed_over(moment.view);
        let tried = usize::try_from(retries).unwrap_or(usize::MAX);
        let tried = flight.ranked.iter().take(tried);
        for failed in tried.filter(|failed| **failed != endpoint) {
            balancer.heard(moment.store, moment.now_ms(), *failed, signal);
            flight.probe &= *failed != flight.picked;
            effects.events.push(Event::Failed {
                endpoint: *failed,
                failure: Failure::Replaced,
            });
        }
        effects.events.push(Event::Retried { endpoint, retries });
    }
    flight.reservation = Some(reservation);
}

/// Reads on. Says whether the answer is complete: Envoy tells the end of a body only afterwards, in
/// a callback of its own.
fn response_chunk<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
    chunk: &[u8],
    rest: Rest,
) -> Rest {
    if flight.api.is_some() {
        flight.reader.push(chunk);
    }
    show_life(balancer, moment, flight);
    let rest = if flight.reader.is_whole() {
        Rest::End
    } else {
        rest
    };
    if chunk.is_empty() || flight.first_chunk_us.is_some() || !flight.has_begun() {
        return rest;
    }
    flight.first_chunk_us = Some(moment.now_us());
    if flight.api.is_some()
        && flight.reader.is_stream()
        && flight.reader.error_code().is_none()
        && let Some(reservation) = &flight.reservation
        && reservation.endpoint() == flight.picked
    {
        let first_us = moment.now_us().saturating_sub(flight.departed_us);
        // One step passes in any case.
        let first_us = first_us.saturating_sub(flight.step_us);
        if let Some(rates) = balancer.rates(flight.pool) {
            rates.first_token(reservation.endpoint(), flight.ahead_tokens, first_us);
        }
    }
    if rest == Rest::Open
        && let Some(reservation) = &mut flight.reservation
    {
        balancer.prefill_done(moment.store, moment.now_ms(), reservation);
    }
    rest
}

/// Says that the endpoint answers, where somebody waits for that.
fn show_life<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    flight: &mut Flight,
) {
    let Some(endpoint) = flight.reservation.as_ref().map(Reservation::endpoint) else {
        return;
    };
    let good = flight.reader.events() > 0 && flight.reader.error_code().is_none();
    if flight.probe && good {
        flight.probe = false;
        balancer.heard(moment.store, moment.now_ms(), endpoint, Signal::Good);
    } else if balancer.wants_life(endpoint) && is_the_endpoints(moment.view) {
        balancer.heard(moment.store, moment.now_ms(), endpoint, Signal::Alive);
    }
}

impl Flight {
    /// Whether what has come of the body shows that the prompt has been computed. Response headers
    /// never do, the first chunk does; but the Responses API announces itself before it begins.
    fn has_begun(&self) -> bool {
        let announces = self.api == Some(Api::Responses) && self.reader.is_stream();
        !announces || self.reader.events() > 0
    }
}
