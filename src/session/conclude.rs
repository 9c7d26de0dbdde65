//! The end of a stream: giving back what is reserved, and what the whole answer teaches.

use super::outcome::{Ending, Outcome, broke_off, outcome, signal};
use super::{Answer, Effects, Event, Failure, Flight, Moment, Stage, StreamView};
use crate::balancer::Balancer;
use crate::endpoint::EndpointId;
use crate::health::Signal;
use crate::state::Store;

/// Gives back what is reserved, and says what became of the request.
pub(super) fn conclude<S: Store + ?Sized>(
    balancer: &mut Balancer,
    moment: &Moment<'_, S>,
    mut flight: Flight,
    ending: Ending,
    effects: &mut Effects,
) {
    let Some(reservation) = flight.reservation.take() else {
        return;
    };
    let endpoint = reservation.endpoint();
    balancer.complete(moment.store, moment.now_ms(), reservation);
    flight.reader.finish();
    let Some(outcome) = outcome_of(&flight, moment.view, ending) else {
        return unproved(balancer, moment, &flight);
    };
    if let Outcome::Failed(failure) = outcome {
        effects.events.push(Event::Failed { endpoint, failure });
    }
    match signal(&flight, moment.view, ending, outcome) {
        Some(signal) => balancer.heard(moment.store, moment.now_ms(), endpoint, signal),
        None => unproved(balancer, moment, &flight),
    }
    if flight.api.is_none() {
        return;
    }
    let answer = flight.answer(endpoint, moment.now_us(), ending, outcome);
    // Only a whole, good answer has a time to its end.
    if answer.e2e_us.is_some() {
        learn(balancer, &flight, &answer);
    }
    effects.events.push(Event::Answered(answer));
}

/// What became of the request; `None` if it was left before there was any answer.
fn outcome_of(flight: &Flight, view: &dyn StreamView, ending: Ending) -> Option<Outcome> {
    match ending {
        Ending::Broken if broke_off(view) => Some(Outcome::Failed(Failure::BrokenStream)),
        Ending::Broken if flight.stage == Stage::Asked => None,
        _ => Some(outcome(&flight.reader, view)),
    }
}

/// A request that was to show whether its endpoint works again is over, and has not shown it.
fn unproved<S: Store + ?Sized>(balancer: &mut Balancer, moment: &Moment<'_, S>, flight: &Flight) {
    if flight.probe {
        balancer.heard(
            moment.store,
            moment.now_ms(),
            flight.picked,
            Signal::Unproved,
        );
    }
}

/// Takes from a whole, good answer what it shows of requests like it and of its endpoint.
fn learn(balancer: &mut Balancer, flight: &Flight, answer: &Answer) {
    balancer.learn_tokens(&flight.lesson, answer.usage, flight.reader.events());
    // After a retry nothing is known of when it came to who served.
    if answer.endpoint != flight.picked {
        return;
    }
    if let Some(rates) = balancer.rates(flight.pool) {
        // A prompt holds its blocks from about when it is computed, which only a stream shows.
        if let (Some(ttft_us), Some(e2e_us)) = (answer.ttft_us, answer.e2e_us) {
            rates.resided(e2e_us.saturating_sub(ttft_us));
        }
        if let Some(tpot_us) = answer.tpot_us {
            rates.output(answer.endpoint, flight.context_tokens, tpot_us);
        }
    }
    if let (Some(bytes), Some(usage)) = (flight.prompt_bytes, answer.usage) {
        balancer.correct(answer.endpoint, &flight.belief, bytes, &usage);
    }
}

impl Flight {
    /// The figures of an answer that is over.
    fn answer(
        &self,
        endpoint: EndpointId,
        now_us: u64,
        ending: Ending,
        outcome: Outcome,
    ) -> Answer {
        // A client may leave as soon as it has read that the stream is over.
        let complete = ending == Ending::Complete || self.reader.done();
        let total_us = now_us.saturating_sub(self.departed_us);
        Answer {
            endpoint,
            ttft_us: self.ttft_us(outcome),
            e2e_us: (complete && outcome == Outcome::Good).then_some(total_us),
            tpot_us: self.tpot_us(outcome, now_us).filter(|_| complete),
            usage: self.reader.usage(),
        }
    }

    fn ttft_us(&self, outcome: Outcome) -> Option<u64> {
        let first_us = self
            .first_chunk_us
            .filter(|_| outcome == Outcome::Good && self.reader.is_stream());
        first_us.map(|first_us| first_us.saturating_sub(self.departed_us))
    }

    fn tpot_us(&self, outcome: Outcome, now_us: u64) -> Option<u64> {
        let ttft_us = self.ttft_us(outcome)?;
        let reported = self.reader.usage().map(|usage| usage.completion_tokens);
        let intervals = reported
            .unwrap_or(self.reader.events())
            .checked_sub(1)
            .filter(|intervals| *intervals > 0)?;
        let total_us = now_us.saturating_sub(self.departed_us);
        Some(total_us.saturating_sub(ttft_us) / intervals)
    }
}
