//! `expected_latency`: where the first token is expected soonest, counting what it delays for others.
//!
//! Every term is time. For a request on an endpoint:
//!
//! ```text
//! ttft  = base + step + (prompt tokens queued there + own tokens not cached there) / prefill rate
//! kv    = 2 × (share of the KV cache in use with this request − 0.8) × mean residence, if above 0
//! delay = own prefill time × (requests that wait there + 0.1 × requests that decode there)
//! decode = 0.1 × output tokens × (time per token there − the best anywhere)
//! cost  = ttft + kv + delay + decode
//! ```
//!
//! Rates and sizes are learned from the endpoints' own answers ([`crate::rates`]), what is cached is
//! what the index believes ([`crate::index`]). Costs within 15 % of the best time to first token are a
//! tie, and the ring decides, so that gateways that cannot see each other agree.
//!
//! The form and its constants were found by simulation: `make portfolio`, and docs/architecture.md.

use super::{Candidate, Policy, RANKED, Ranking, Reason, Ring, View};
use crate::endpoint::Pool;

/// Ring points of every endpoint.
const POINTS: u32 = 128;
/// Share of the best time to first token that counts as a tie, in thousandths.
const TIE_PERMILLE: u64 = 150;
/// Share of the KV cache from which on requests are expected to wait for space, in thousandths.
const KV_FULL_PERMILLE: u64 = 800;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct ExpectedLatency {
    ring: Ring,
}

impl ExpectedLatency {
    /// For the endpoints of `pool`.
    pub fn new(pool: &Pool) -> Self {
        Self {
            ring: Ring::new(pool, POINTS),
        }
    }
}

/// What a request would cost on one endpoint, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Cost {
    endpoint: u32,
    /// Until its own first token.
    ttft_us: u64,
    /// With what it costs others.
    total_us: u64,
}

impl Cost {
    fn of(view: &View<'_>, candidate: &Candidate, best_output_us: u64) -> Self {
        let Candidate { load, pace, .. } = *candidate;
        let prompt_tokens = view.cost.prefill_tokens;
        let own_tokens = prompt_tokens
            .saturating_sub(candidate.matched_tokens)
            .max(1);
        let own_us = pace.prefill_us(own_tokens);
        let ttft_us = u64::from(pace.first_us)
            .saturating_add(pace.output_us(load.context_tokens))
            .saturating_add(pace.prefill_us(load.prefill_tokens))
            .saturating_add(own_us)
            .saturating_add(kv_wait_us(view, candidate));
        let decoding = u64::from(load.requests.saturating_sub(load.waiting));
        let delayed = u64::from(load.waiting)
            .saturating_mul(10)
            .saturating_add(decoding);
        let delay_us = own_us.saturating_mul(delayed) / 10;
        let slower_us = output_us(view, candidate).saturating_sub(best_output_us);
        let decode_us = view.cost.decode_tokens.saturating_mul(slower_us) / 10;
        Self {
            endpoint: candidate.endpoint,
            ttft_us,
            total_us: ttft_us.saturating_add(delay_us).saturating_add(decode_us),
        }
    }
}

/// Time per output token there with this request.
fn output_us(view: &View<'_>, candidate: &Candidate) -> u64 {
    let context_tokens = candidate.load.context_tokens;
    let with_it = context_tokens.saturating_add(view.cost.context_tokens);
    candidate.pace.output_us(with_it)
}

/// How long the request is expected to wait for KV cache to become free.
fn kv_wait_us(view: &View<'_>, candidate: &Candidate) -> u64 {
    let Candidate { load, pace, .. } = *candidate;
    let wanted = load.context_tokens.saturating_add(view.cost.context_tokens);
    let Some(fill_permille) = wanted.saturating_mul(1_000).checked_div(pace.kv_tokens) else {
        return 0;
    };
    let above_permille = fill_permille.saturating_sub(KV_FULL_PERMILLE);
    pace.residence_us.saturating_mul(above_permille) / 500
}

/// The first block that fewer than half of the candidates hold: what all have in common says nothing.
fn ring_key(view: &View<'_>) -> u64 {
    let mut matched: Vec<u32> = view
        .candidates
        .iter()
        .map(|candidate| candidate.matched_blocks)
        .collect();
    matched.sort_unstable_by(|a, b| b.cmp(a));
    let common = matched.get(matched.len() / 2).copied().unwrap_or(0);
    let block = view.blocks.get(common as usize).or(view.blocks.last());
    block.copied().or(view.key).unwrap_or(view.random)
}

impl Policy for ExpectedLatency {
    fn name(&self) -> &'static str {
        "expected_latency"
    }

    fn reads_body(&self) -> bool {
        true
    }

    fn reads_index(&self) -> bool {
        true
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let outputs = view.candidates.iter().map(|one| output_us(view, one));
        let best_output_us = outputs.min()?;
        let costs: Vec<Cost> = view
            .candidates
            .iter()
            .map(|one| Cost::of(view, one, best_output_us))
            .collect();
        let best = costs.iter().min_by_key(|cost| cost.total_us)?;
        let margin_us = best.ttft_us.saturating_mul(TIE_PERMILLE) / 1_000;
        let limit_us = best.total_us.saturating_add(margin_us);
        let tied = |endpoint: &u32| {
            let cost = costs.iter().find(|cost| cost.endpoint == *endpoint);
            cost.is_some_and(|cost| cost.total_us <= limit_us)
        };
        let first = self.ring.walk(ring_key(view)).find(tied);
        let first = first.unwrap_or(best.endpoint);
        let ties = costs
            .iter()
            .filter(|cost| cost.total_us <= limit_us)
            .count();
        Some(Ranking {
            endpoints: ranked(first, &costs),
            reason: if ties > 1 {
                Reason::NearTie
            } else {
                Reason::Fastest
            },
            bound: 0,
            costs_us: costs.iter().map(|cost| cost.total_us).collect(),
        })
    }
}

/// The pick, then the cheapest others.
fn ranked(first: u32, costs: &[Cost]) -> Vec<u32> {
    let mut others: Vec<&Cost> = costs.iter().filter(|cost| cost.endpoint != first).collect();
    others.sort_by_key(|cost| (cost.total_us, cost.endpoint));
    let others = others.iter().map(|cost| cost.endpoint);
    std::iter::once(first).chain(others).take(RANKED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::policy::Load;
    use crate::rates::Pace;

    fn pool(size: u8) -> Pool {
        let address = |index| std::net::SocketAddr::from(([10, 0, 0, index], 80));
        Pool::new(
            (1..=size)
                .map(|index| Endpoint::new(address(index)))
                .collect(),
        )
    }

    fn idle(endpoint: u32) -> Candidate {
        Candidate {
            endpoint,
            weight: 1,
            ..Candidate::default()
        }
    }

    /// A prompt of 4,000 tokens, picked among `candidates`.
    fn pick(candidates: &[Candidate]) -> Ranking {
        let pool = pool(u8::try_from(candidates.len()).unwrap());
        let blocks: Vec<u64> = (1..=60)
            .map(|block: u64| block.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        let view = View {
            pool: &pool,
            candidates,
            key: Some(1),
            blocks: &blocks,
            cost: Load {
                requests: 1,
                waiting: 1,
                prefill_tokens: 4_000,
                decode_tokens: 100,
                context_tokens: 4_100,
            },
            sequence: 0,
            random: 0,
        };
        ExpectedLatency::new(&pool).rank(&view).unwrap()
    }

    #[test]
    fn what_is_cached_is_worth_a_queue_up_to_the_time_it_saves() {
        let mut warm = idle(1);
        (warm.matched_blocks, warm.matched_tokens) = (60, 3_840);
        warm.load.prefill_tokens = 2_000;
        let ranking = pick(&[idle(0), warm, idle(2)]);
        assert_eq!((ranking.endpoints[0], ranking.reason), (1, Reason::Fastest));
        warm.load.prefill_tokens = 8_000;
        assert_ne!(pick(&[idle(0), warm, idle(2)]).endpoints[0], 1);
    }

    #[test]
    fn a_slow_endpoint_is_left_alone_without_any_weight() {
        let mut slow = idle(0);
        slow.pace.prefill_us_per_1k_tokens *= 3;
        let mut busy = idle(1);
        busy.load.prefill_tokens = 4_000;
        assert_eq!(pick(&[slow, busy]).endpoints, [1, 0]);
    }

    #[test]
    fn a_full_kv_cache_is_waited_for() {
        let mut full = idle(0);
        (full.pace.kv_tokens, full.load.context_tokens) = (100_000, 99_000);
        let mut roomy = idle(1);
        (roomy.pace.kv_tokens, roomy.load.context_tokens) = (100_000, 50_000);
        roomy.load.prefill_tokens = 4_000;
        assert_eq!(pick(&[full, roomy]).endpoints[0], 1);
    }

    #[test]
    fn among_equals_the_ring_decides_and_all_gateways_agree() {
        let idle: Vec<Candidate> = (0..4).map(idle).collect();
        let first = pick(&idle);
        assert_eq!(first.reason, Reason::NearTie);
        assert_eq!(first.costs_us.len(), 4);
        let mut busier = idle.clone();
        busier[0].load.requests = 1;
        assert_eq!(pick(&busier).endpoints[0], first.endpoints[0]);
    }

    #[test]
    fn no_figure_however_large_does_harm() {
        let mut huge = idle(0);
        huge.load = Load {
            requests: u32::MAX,
            waiting: u32::MAX,
            prefill_tokens: u64::MAX,
            decode_tokens: u64::MAX,
            context_tokens: u64::MAX,
        };
        huge.pace = Pace {
            first_us: u32::MAX,
            prefill_us_per_1k_tokens: u32::MAX,
            token_us: u32::MAX,
            token_us_per_1k_context: u32::MAX,
            kv_tokens: 1,
            residence_us: u64::MAX,
        };
        assert_eq!(pick(&[huge, idle(1)]).endpoints, [1, 0]);
        assert_eq!(pick(&[huge]).endpoints, [0]);
    }
}
