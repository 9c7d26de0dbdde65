//! A router that looks into the engines: what no real one can, to show what is in reach.
//!
//! It knows the queues, caches and speeds of the engines, and the lengths of the outputs; of requests
//! that are still to come it knows nothing. For every endpoint it runs the engine's model forward to
//! its end, with the request and without it, and picks the one where the sum is least of
//!
//! ```text
//! time to the own first token + what the first tokens of others are delayed
//!   + 0.1 × (the same of the last tokens)
//! ```
//!
//! It is greedy: best for the requests that are there, which need not be best for those to come. So
//! what it reaches is in reach, and is no bound. The weight of last tokens stands for what is left
//! behind for others. Of 0, 0.03 and 0.1 none is best everywhere; with 0, outputs end much later.

use std::collections::HashMap;

use super::ledger::Ledger;
use super::{Ask, PeerRouter, least};
use crate::sim::replica::{Detail, Event, Job, Replica};

/// What a microsecond of delay of a last token counts, in those of a first token.
const END_WEIGHT: f64 = 0.1;

/// When the requests at one endpoint will have their first and last tokens, if no other one comes.
#[derive(Clone, Debug, Default)]
struct Schedule {
    first_us: HashMap<u64, u64>,
    end_us: HashMap<u64, u64>,
}

impl Schedule {
    /// What becomes of `replica` with nothing but what it has.
    fn of(mut replica: Replica) -> Self {
        let mut events = Vec::new();
        replica.advance(u64::MAX, &mut events);
        let mut schedule = Self::default();
        for event in events {
            match event {
                Event::FirstToken { id, at_us, .. } => schedule.first_us.insert(id, at_us),
                Event::Finished { id, at_us } => schedule.end_us.insert(id, at_us),
                Event::Token { .. } => None,
            };
        }
        schedule
    }

    /// What it costs more than `before`, in microseconds; a request that is new counts from `now_us`.
    fn cost_us(&self, before: &Self, now_us: u64) -> f64 {
        delay_us(&self.first_us, &before.first_us, now_us)
            + END_WEIGHT * delay_us(&self.end_us, &before.end_us, now_us)
    }
}

/// The sum of delays. Added in whole numbers, so that the order of a map makes no difference.
fn delay_us(after: &HashMap<u64, u64>, before: &HashMap<u64, u64>, now_us: u64) -> f64 {
    let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
    let delays = after.iter().map(|(id, us)| {
        let before_us = before.get(id).copied().unwrap_or(now_us);
        signed(*us).saturating_sub(signed(before_us))
    });
    delays.fold(0, i64::saturating_add) as f64
}

pub(super) struct Oracle {
    schedules: Vec<Schedule>,
    ledger: Ledger,
}

impl Oracle {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            schedules: vec![Schedule::default(); endpoints],
            ledger: Ledger::new(endpoints),
        }
    }
}

/// What becomes of `replica` if it gets the request; `None` if it cannot hold it.
fn with(replica: &Replica, ask: &Ask<'_>) -> Option<Schedule> {
    let mut replica = replica.clone();
    let job = Job {
        id: u64::from(ask.id),
        chain: ask.request.chain(replica.profile().block_tokens),
        prompt_tokens: ask.request.prompt_tokens(),
        output_tokens: ask.request.output_tokens,
        detail: Detail::Ends,
    };
    replica.submit(ask.now_us, job).ok()?;
    Some(Schedule::of(replica))
}

impl PeerRouter for Oracle {
    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let mut schedules: Vec<Option<Schedule>> =
            ask.replicas.iter().map(|one| with(one, ask)).collect();
        let costs = schedules.iter().zip(&self.schedules).enumerate();
        let costs = costs.filter_map(|(endpoint, (after, before))| {
            Some((endpoint, after.as_ref()?.cost_us(before, ask.now_us)))
        });
        let endpoint = least(costs, ask.random);
        let chosen = schedules.get_mut(endpoint).and_then(Option::take);
        if let (Some(chosen), Some(place)) = (chosen, self.schedules.get_mut(endpoint)) {
            *place = chosen;
        }
        self.ledger.begin(ask.id, endpoint, 0);
        endpoint
    }

    fn finished(&mut self, id: u32) {
        self.ledger.finish(id);
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }
}
