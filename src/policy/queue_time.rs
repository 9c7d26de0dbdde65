//! Load as time: how long the work that is queued at an endpoint keeps it busy, at its own pace.
//!
//! ```text
//! queue = prefill tokens × time per prompt token
//!       + decode tokens × time per output token / requests that run beside each other
//! ```
//!
//! An engine produces one token for each running request in a step, so that a token costs it that
//! share of the step. The requests beside, and the context that they make, are the means over all
//! candidates: if an endpoint's own were taken, ten requests would be no more work than one, and who
//! has more under way would seem no busier. So time is proportional to work, and the times of all
//! endpoints can be compared and summed.

use std::cmp::Ordering;

use super::order::by_requests;
use super::{Candidate, Load, View};

/// What the slowest endpoint's speed counts.
const SLOWEST: u64 = 1 << 12;

/// What all candidates of one pick have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueTime {
    /// Everything under way at all candidates.
    total: Load,
    /// The new request.
    own: Load,
    context_tokens: u64,
    running: u64,
    slowest_us: u64,
}

impl QueueTime {
    pub(super) fn new(view: &View<'_>) -> Self {
        let loads = view.candidates.iter().map(|candidate| candidate.load);
        let total = loads.fold(Load::default(), Load::plus);
        let with_own = total.plus(view.cost);
        let count = u64::try_from(view.candidates.len()).unwrap_or(u64::MAX);
        let mean = |sum: u64| sum.div_ceil(count.max(1));
        let mut queue = Self {
            total,
            own: view.cost,
            context_tokens: mean(with_own.context_tokens),
            running: mean(u64::from(with_own.requests)).max(1),
            slowest_us: 0,
        };
        let all_us = view.candidates.iter().map(|one| queue.all_us(one));
        queue.slowest_us = all_us.max().unwrap_or(0);
        queue
    }

    /// What is queued at the endpoint.
    pub(super) fn queue_us(&self, candidate: &Candidate) -> u64 {
        self.of(candidate, candidate.load)
    }

    /// Compares when the new request would be through, then the requests.
    pub(super) fn order(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let through_us = |candidate: &Candidate| self.of(candidate, candidate.load.plus(self.own));
        through_us(a)
            .cmp(&through_us(b))
            .then_with(|| by_requests(a, b))
    }

    /// What the new request adds there.
    pub(super) fn own_us(&self, candidate: &Candidate) -> u64 {
        self.of(candidate, self.own)
    }

    /// Everything under way, if this endpoint had to do all of it.
    pub(super) fn total_us(&self, candidate: &Candidate) -> u64 {
        self.of(candidate, self.total)
    }

    /// How fast the endpoint is at all that is to be done, relative to the slowest, which counts 4096.
    pub(super) fn speed(&self, candidate: &Candidate) -> u64 {
        let scaled = u128::from(self.slowest_us) * u128::from(SLOWEST);
        let speed = scaled / u128::from(self.all_us(candidate));
        u64::from(u32::try_from(speed).unwrap_or(u32::MAX)).max(1)
    }

    fn all_us(&self, candidate: &Candidate) -> u64 {
        self.total_us(candidate)
            .saturating_add(self.own_us(candidate).max(1))
    }

    fn of(&self, candidate: &Candidate, load: Load) -> u64 {
        let pace = &candidate.pace;
        let step_us = u128::from(pace.output_us(self.context_tokens));
        let decode_us = u128::from(load.decode_tokens) * step_us / u128::from(self.running);
        let decode_us = u64::try_from(decode_us).unwrap_or(u64::MAX);
        pace.prefill_us(load.prefill_tokens)
            .saturating_add(decode_us)
    }
}
