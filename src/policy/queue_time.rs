//! Load as time: how long what is queued at an endpoint keeps a new prompt waiting, at its own pace.
//!
//! ```text
//! queue = waiting requests × base time to first token
//!       + prefill tokens × time per prompt token
//!       + 0.1 × decode tokens × time per output token / requests that run beside each other
//! ```
//!
//! What waits is computed first. The base stands for the steps that every prompt takes, and for what
//! the learned line cannot put down to tokens because engines find most of them cached. Requests that
//! decode share their steps with the prompt and delay it little, hence the tenth; an engine produces
//! one token for each of them in a step, so that a token takes that share of it. The requests beside,
//! and the context that they make, are the means over all candidates: by an endpoint's own, ten
//! requests would be no more work than one, and who has more under way would seem no busier. So time
//! is proportional to work, and can be compared and summed.
//!
//! The form and the tenth were found by simulation (`make portfolio`), as those of
//! [`super::expected_latency`].

use std::cmp::Ordering;

use super::order::by_requests;
use super::{Candidate, Load, View};

/// What the slowest endpoint's speed counts.
const SLOWEST: u64 = 1 << 12;
/// Share of an output token's time that counts, as a divisor.
const DECODE_DIVISOR: u64 = 10;

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
    #[inline(never)]
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
    #[inline(never)]
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
    #[inline(never)]
    pub(super) fn speed(&self, candidate: &Candidate) -> u64 {
        let scaled = u128::from(self.slowest_us) * u128::from(SLOWEST);
        let speed = scaled / u128::from(self.all_us(candidate));
        u64::from(u32::try_from(speed).unwrap_or(u32::MAX)).max(1)
    }

    fn all_us(&self, candidate: &Candidate) -> u64 {
        self.total_us(candidate)
            .saturating_add(self.own_us(candidate).max(1))
    }

    #[inline(never)]
    fn of(&self, candidate: &Candidate, load: Load) -> u64 {
        let pace = &candidate.pace;
        let base_us = u64::from(load.waiting).saturating_mul(u64::from(pace.first_us));
        let step_us = u128::from(pace.output_us(self.context_tokens));
        let sharing = u128::from(self.running.saturating_mul(DECODE_DIVISOR));
        // 64 bits each; the divisor is at least 10.
        let decode_us = u128::from(load.decode_tokens) * step_us / sharing;
        base_us
            .saturating_add(pace.prefill_us(load.prefill_tokens))
            .saturating_add(u64::try_from(decode_us).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{Endpoint, Pool};
    use crate::rates::Pace;

    fn candidate(
        endpoint: u32,
        waiting: u32,
        prefill_tokens: u64,
        decode_tokens: u64,
    ) -> Candidate {
        Candidate {
            endpoint,
            load: Load {
                requests: 2,
                waiting,
                prefill_tokens,
                decode_tokens,
                context_tokens: 10_000,
            },
            ..Candidate::default()
        }
    }

    fn slowed(mut candidate: Candidate, times: u32) -> Candidate {
        candidate.pace = Pace {
            first_us: candidate.pace.first_us * times,
            prefill_us_per_1k_tokens: candidate.pace.prefill_us_per_1k_tokens * times,
            token_us: candidate.pace.token_us * times,
            token_us_per_1k_context: candidate.pace.token_us_per_1k_context * times,
            ..candidate.pace
        };
        candidate
    }

    const COST: Load = Load {
        requests: 1,
        waiting: 1,
        prefill_tokens: 1_000,
        decode_tokens: 100,
        context_tokens: 1_100,
    };

    fn queue(candidates: &[Candidate]) -> QueueTime {
        let address = |index| std::net::SocketAddr::from(([10, 0, 0, index], 80));
        let pool = Pool::new((1..5).map(|index| Endpoint::new(address(index))).collect());
        QueueTime::new(&View {
            pool: &pool,
            candidates,
            key: None,
            blocks: &[],
            cost: COST,
            sequence: 0,
            random: 0,
        })
    }

    #[test]
    fn a_queue_is_what_waits_and_a_tenth_of_what_decodes() {
        let busy = candidate(0, 2, 4_000, 600);
        let candidates = [busy, candidate(1, 0, 0, 0)];
        let queue = queue(&candidates);
        // (2 + 2 + 1) / 2 requests run beside each other, rounded up, with 10,550 tokens of context.
        let decode_us = 600 * (30_000 + 2_110) / 3 / 10;
        assert_eq!(queue.queue_us(&busy), 2 * 40_000 + 500_000 + decode_us);
        assert_eq!(queue.queue_us(&candidates[1]), 0);
        let own_us = 40_000 + 125_000 + 100 * 32_110 / 30;
        assert_eq!(queue.own_us(&busy), own_us);
        assert_eq!(queue.total_us(&candidates[1]), queue.queue_us(&busy));
    }

    #[test]
    fn who_is_twice_as_fast_has_twice_the_speed() {
        let fast = candidate(0, 2, 4_000, 600);
        let queue = queue(&[fast, slowed(fast, 2)]);
        assert_eq!(queue.speed(&slowed(fast, 2)), SLOWEST);
        let off = queue.speed(&fast).abs_diff(2 * SLOWEST);
        assert!(off <= 1, "{}", queue.speed(&fast));
    }

    #[test]
    fn the_faster_of_two_idle_endpoints_comes_first_until_it_has_more_to_do() {
        let idle = candidate(0, 0, 0, 0);
        let slow = slowed(candidate(1, 0, 0, 0), 3);
        assert_eq!(queue(&[idle, slow]).order(&idle, &slow), Ordering::Less);
        let busy = candidate(0, 4, 4_000, 0);
        assert_eq!(queue(&[busy, slow]).order(&busy, &slow), Ordering::Greater);
    }

    #[test]
    fn no_figure_however_large_does_harm() {
        let most = u32::MAX;
        let huge = Candidate {
            load: Load {
                requests: most,
                waiting: most,
                prefill_tokens: u64::MAX,
                decode_tokens: u64::MAX,
                context_tokens: u64::MAX,
            },
            pace: Pace {
                first_us: most,
                prefill_us_per_1k_tokens: most,
                token_us: most,
                token_us_per_1k_context: most,
                kv_tokens: 1,
                residence_us: 1,
            },
            ..Candidate::default()
        };
        let idle = candidate(1, 0, 0, 0);
        let queue = queue(&[huge, idle]);
        assert_eq!(queue.queue_us(&huge), u64::MAX);
        assert!(queue.speed(&idle) >= queue.speed(&huge));
        assert_eq!(queue.order(&idle, &huge), Ordering::Less);
    }
}
