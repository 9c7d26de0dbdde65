//! `expected_latency`: where the first token is expected soonest, counting what it costs others.
//!
//! Every term is time. For a request on an endpoint:
//!
//! ```text
//! ttft   = base + step + (prompt tokens queued there + own tokens not cached there) / prefill rate + kv
//! kv     = (share of the KV cache in use with this request and those that wait − 0.8) × mean
//!          residence, if above 0
//! delay  = prefill time of its first 16,384 own tokens × (requests that wait there + 0.1 × requests
//!          that decode there)
//! price  = own prefill time × mean number of requests that wait at an endpoint × (1 − how hot the
//!          prefix is)
//! decode = 0.1 × output tokens × (time per token there − the best anywhere)
//! cost   = ttft + delay + price + decode
//! ```
//!
//! - What is queued shrinks with the clock between signs of progress: a long prompt that is nearly done
//!   is no long queue.
//! - The delay is what the engine's steps make of it: who waits beside shares a step with the newcomer,
//!   and its first token comes when the step is over. It is counted for two full steps of vLLM's default
//!   size; a longer prompt does more harm than that, but where it goes it does so anyway, and if
//!   all of it counted, long prompts would wait behind each other for ever so that nobody else is delayed.
//! - The price is that of the fleet's time: when everybody waits, to compute again what is cached
//!   elsewhere keeps others waiting. With nobody waiting it is nothing. Of a prefix that was used
//!   just now it is nothing either: a second copy will serve many.
//! - Costs within 15 % of the best time to first token, or within a step of the engine, are a tie: where in
//!   its step an engine is nobody sees from outside. Among these, but for those with more than twice the
//!   mean of requests, the endpoint gets the
//!   request that was given the least new content, so that caches fill alike and requests are spread in
//!   time; of those that were given as much, the first on the ring.
//! - If others route to these engines too (a quarter of what is under way is not ours), nobody knows what
//!   they have sent where. Then the home of the prompt on the ring is taken to hold all of it, and breaks
//!   ties: all gateways that do so agree without a word.
//!
//! Rates are learned from the endpoints' own answers ([`crate::rates`]); what is cached is what the
//! index believes ([`crate::index`]). The form and its constants were found by simulation:
//! `make portfolio`, and docs/architecture.md, which says what else was tried.

use super::{Candidate, Policy, RANKED, Ranking, Reason, Ring, View};
use crate::endpoint::Pool;

/// Ring points of every endpoint.
const POINTS: u32 = 128;
/// Share of the best time to first token that counts as a tie, in thousandths.
const TIE_PERMILLE: u64 = 150;
/// Share of the KV cache from which on requests are expected to wait for space, in thousandths.
const KV_FULL_PERMILLE: u64 = 800;
/// Own tokens that count as delay for others: two steps of vLLM's default budget.
const DELAYING_TOKENS: u64 = 16_384;
/// Part of the requests under way that must be other people's for gateways to go by the ring.
const SHARED_PART: u64 = 4;

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
    /// Less than this is no difference.
    margin_us: u64,
    /// With what it costs others.
    total_us: u64,
}

impl Cost {
    fn of(fleet: &Fleet<'_>, candidate: &Candidate) -> Self {
        let Candidate { load, pace, .. } = *candidate;
        let asked = &fleet.view.cost;
        let cached_tokens = fleet.cached_tokens(candidate);
        let own_tokens = asked.prefill_tokens.saturating_sub(cached_tokens).max(1);
        let own_us = pace.prefill_us(own_tokens);
        let step_us = pace.output_us(load.context_tokens);
        let ttft_us = u64::from(pace.first_us)
            .saturating_add(step_us)
            .saturating_add(pace.prefill_us(candidate.queue_tokens))
            .saturating_add(own_us)
            .saturating_add(kv_wait_us(fleet, candidate));
        let decoding = u64::from(load.requests.saturating_sub(load.waiting));
        let delayed = u64::from(load.waiting).saturating_mul(10);
        let delay_us = pace
            .prefill_us(own_tokens.min(DELAYING_TOKENS))
            .saturating_mul(delayed.saturating_add(decoding))
            / 10;
        let price_us = own_us.saturating_mul(fleet.price_permille) / 1_000;
        let slower_us = output_us(fleet.view, candidate).saturating_sub(fleet.best_output_us);
        let decode_us = asked.decode_tokens.saturating_mul(slower_us) / 10;
        let total_us = ttft_us
            .saturating_add(delay_us)
            .saturating_add(price_us)
            .saturating_add(decode_us);
        Self {
            endpoint: candidate.endpoint,
            margin_us: step_us.max(ttft_us.saturating_mul(TIE_PERMILLE) / 1_000),
            total_us,
        }
    }
}

/// What all candidates of one pick have in common.
struct Fleet<'a> {
    view: &'a View<'a>,
    best_output_us: u64,
    /// Candidates.
    count: u64,
    /// Requests under way at all of them.
    requests: u64,
    /// What the fleet's time is worth beside the request's own, in thousandths.
    price_permille: u64,
    /// Who is taken to hold the whole prompt, because all gateways take it so.
    home: Option<u32>,
}

impl<'a> Fleet<'a> {
    /// `None` if there are no candidates.
    fn of(view: &'a View<'a>, ring: &Ring) -> Option<Self> {
        let outputs = view.candidates.iter().map(|one| output_us(view, one));
        let best_output_us = outputs.min()?;
        let waiting = view
            .candidates
            .iter()
            .map(|one| u64::from(one.load.waiting));
        let count = u64::try_from(view.candidates.len()).unwrap_or(u64::MAX);
        let longest = |one: &Candidate| (std::cmp::Reverse(one.matched_blocks), age_permille(one));
        let cold_permille = view.candidates.iter().map(longest).min()?.1;
        let price_permille = waiting.sum::<u64>().saturating_mul(cold_permille);
        Some(Self {
            view,
            best_output_us,
            count,
            requests: view
                .candidates
                .iter()
                .map(|one| u64::from(one.load.requests))
                .sum(),
            price_permille: price_permille.checked_div(count)?,
            home: is_shared(view).then(|| home(view, ring)).flatten(),
        })
    }

    /// Whether it has no more requests than twice the mean: what is too small to show in the costs, or fills
    /// no cache, may not pile up where it is a tie.
    fn has_room(&self, candidate: &Candidate) -> bool {
        let twice = self.requests.saturating_add(self.count).saturating_mul(2);
        u64::from(candidate.load.requests).saturating_mul(self.count) <= twice
    }

    fn cached_tokens(&self, candidate: &Candidate) -> u64 {
        if self.home == Some(candidate.endpoint) {
            return self.view.cost.prefill_tokens;
        }
        candidate.matched_tokens
    }
}

/// Whether others route to these endpoints too.
fn is_shared(view: &View<'_>) -> bool {
    let sum = |of: fn(&Candidate) -> u32| -> u64 {
        view.candidates.iter().map(|one| u64::from(of(one))).sum()
    };
    let others = sum(|one| one.other_requests);
    others > 0 && others.saturating_mul(SHARED_PART) >= sum(|one| one.load.requests)
}

/// The first candidate on the ring.
fn home(view: &View<'_>, ring: &Ring) -> Option<u32> {
    let mut candidates = ring.walk(ring_key(view));
    candidates.find(|home| view.candidates.iter().any(|one| one.endpoint == *home))
}

/// How long ago what is cached there of the prompt was used; nothing is as old as can be.
fn age_permille(candidate: &Candidate) -> u64 {
    match candidate.matched_blocks {
        0 => 1_000,
        _ => u64::from(candidate.matched_age_permille.min(1_000)),
    }
}

/// Time per output token there with this request.
fn output_us(view: &View<'_>, candidate: &Candidate) -> u64 {
    let context_tokens = candidate.load.context_tokens;
    let with_it = context_tokens.saturating_add(view.cost.context_tokens);
    candidate.pace.output_us(with_it)
}

/// How long the request is expected to wait for KV cache to become free.
fn kv_wait_us(fleet: &Fleet<'_>, candidate: &Candidate) -> u64 {
    let own_tokens = fleet.view.cost.context_tokens;
    let own_tokens = own_tokens.saturating_sub(fleet.cached_tokens(candidate));
    let wanted = candidate.kv_used_tokens.saturating_add(own_tokens);
    let filled = wanted.saturating_mul(1_000);
    let Some(fill_permille) = filled.checked_div(candidate.kv_tokens) else {
        return 0;
    };
    let above_permille = fill_permille.saturating_sub(KV_FULL_PERMILLE);
    candidate.pace.residence_us.saturating_mul(above_permille) / 1_000
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

impl ExpectedLatency {
    /// The one of several that are about as good.
    #[inline(never)]
    fn among(&self, fleet: &Fleet<'_>, several: &[&Candidate]) -> Option<u32> {
        let several: Vec<u32> = match fleet.home {
            Some(_) => several.iter().map(|one| one.endpoint).collect(),
            None => least_given(several),
        };
        match several.as_slice() {
            [] | [_] => several.first().copied(),
            // What fills no cache, like a prompt shorter than a block, must not all go to one. They are in
            // the order of the pool.
            several => self
                .ring
                .walk(ring_key(fleet.view))
                .find(|endpoint| several.binary_search(endpoint).is_ok()),
        }
    }
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
        let fleet = Fleet::of(view, &self.ring)?;
        let costs = view.candidates.iter();
        let costs: Vec<Cost> = costs.map(|one| Cost::of(&fleet, one)).collect();
        let best = costs.iter().min_by_key(|cost| cost.total_us)?;
        let limit_us = best.total_us.saturating_add(best.margin_us);
        let tied: Vec<&Candidate> = view
            .candidates
            .iter()
            .zip(&costs)
            .filter(|(_, cost)| cost.total_us <= limit_us)
            .map(|(candidate, _)| candidate)
            .collect();
        let mut roomy = tied.clone();
        roomy.retain(|one| fleet.has_room(one));
        let first = self
            .among(&fleet, &roomy)
            .or_else(|| self.among(&fleet, &tied));
        let first = first.unwrap_or(best.endpoint);
        Some(Ranking {
            endpoints: ranked(first, &costs),
            reason: match tied.len() {
                _ if view.key.is_none() => Reason::NoKey,
                0 | 1 => Reason::Fastest,
                _ => Reason::NearTie,
            },
            bound: 0,
            costs_us: costs.iter().map(|cost| cost.total_us).collect(),
        })
    }
}

/// Those that were given the least.
fn least_given(candidates: &[&Candidate]) -> Vec<u32> {
    let mut least_blocks = u32::MAX;
    let mut least = Vec::new();
    for one in candidates {
        if one.given_blocks < least_blocks {
            least_blocks = one.given_blocks;
            least.clear();
        }
        if one.given_blocks == least_blocks {
            least.push(one.endpoint);
        }
    }
    least
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
        pick_tokens(4_000, candidates)
    }

    fn pick_tokens(prefill_tokens: u64, candidates: &[Candidate]) -> Ranking {
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
                prefill_tokens,
                decode_tokens: 100,
                context_tokens: prefill_tokens + 100,
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
        warm.queue_tokens = 2_000;
        let ranking = pick(&[idle(0), warm, idle(2)]);
        assert_eq!((ranking.endpoints[0], ranking.reason), (1, Reason::Fastest));
        warm.queue_tokens = 8_000;
        assert_ne!(pick(&[idle(0), warm, idle(2)]).endpoints[0], 1);
    }

    #[test]
    fn a_slow_endpoint_is_left_alone_without_any_weight() {
        let mut slow = idle(0);
        slow.pace.prefill_us_per_1k_tokens *= 3;
        let mut busy = idle(1);
        busy.queue_tokens = 4_000;
        assert_eq!(pick(&[slow, busy]).endpoints, [1, 0]);
    }

    #[test]
    fn a_full_kv_cache_is_waited_for() {
        let mut full = idle(0);
        (full.kv_tokens, full.kv_used_tokens) = (100_000, 99_000);
        let mut roomy = idle(1);
        (roomy.kv_tokens, roomy.kv_used_tokens) = (100_000, 50_000);
        roomy.queue_tokens = 4_000;
        assert_eq!(pick(&[full, roomy]).endpoints[0], 1);
    }

    /// With everybody waiting, a copy costs others their time; unless many will use it.
    #[test]
    fn the_busier_the_fleet_the_dearer_is_a_copy_but_of_what_is_hot() {
        let waiting = |mut one: Candidate| {
            (one.load.requests, one.load.waiting) = (3, 3);
            one
        };
        let mut warm = idle(1);
        (warm.matched_blocks, warm.matched_tokens) = (60, 3_840);
        // Alone, the queue is too long.
        warm.queue_tokens = 14_000;
        warm.matched_age_permille = 1_000;
        assert_ne!(pick(&[idle(0), warm]).endpoints[0], 1);
        let mut others = [waiting(idle(0)), waiting(warm)];
        others[0].load.waiting = 2;
        assert_eq!(pick(&others).endpoints[0], 1);
        others[1].matched_age_permille = 0;
        others[1].queue_tokens = 20_000;
        assert_eq!(pick(&others).endpoints[0], 0);
    }

    #[test]
    fn a_long_prompt_does_not_wait_for_ever_so_that_nobody_else_is_delayed() {
        let mut decoding = idle(0);
        decoding.load.requests = 40;
        let mut queued = idle(1);
        queued.queue_tokens = 400_000;
        assert_eq!(pick_tokens(100_000, &[decoding, queued]).endpoints[0], 0);
        // Of a short one, as many are delayed by less.
        queued.queue_tokens = 4_000;
        assert_eq!(pick(&[decoding, queued]).endpoints[0], 1);
    }

    #[test]
    fn among_equals_caches_are_filled_alike() {
        let mut equals: Vec<Candidate> = (0..4).map(idle).collect();
        for (one, given_blocks) in equals.iter_mut().zip([700, 900, 100, 800]) {
            one.given_blocks = given_blocks;
        }
        let first = pick(&equals);
        assert_eq!((first.endpoints[0], first.reason), (2, Reason::NearTie));
        assert_eq!(first.costs_us.len(), 4);
        equals[2].queue_tokens = 4_000;
        assert_eq!(pick(&equals).endpoints[0], 0);
    }

    #[test]
    fn what_hardly_costs_anything_does_not_pile_up_where_it_is_a_tie() {
        let mut equals: Vec<Candidate> = (0..4).map(idle).collect();
        for (one, given_blocks) in equals.iter_mut().zip([5, 900, 900, 900]) {
            one.given_blocks = given_blocks;
        }
        let mut most = 0;
        for _ in 0..400 {
            let first = pick_tokens(10, &equals).endpoints[0] as usize;
            equals[first].load.requests += 1;
            most = most.max(equals[first].load.requests);
        }
        assert!((100..=203).contains(&most), "{most}");
    }

    #[test]
    fn what_fills_no_cache_is_spread_over_equals_by_its_key_or_by_chance() {
        let (pool, candidates) = (pool(4), [0, 1, 2, 3].map(idle));
        let policy = ExpectedLatency::new(&pool);
        let picked = |key: Option<u64>, random: u64| {
            let view = View {
                pool: &pool,
                candidates: &candidates,
                key,
                blocks: &[],
                cost: Load::default(),
                sequence: 0,
                random,
            };
            policy.rank(&view).unwrap().endpoints[0]
        };
        let hash = |turn: u64| xxhash_rust::xxh64::xxh64(&turn.to_le_bytes(), 1);
        let (mut by_key, mut by_chance) = ([0; 4], [0; 4]);
        for turn in 0..400 {
            let home = picked(Some(hash(turn)), 0);
            assert_eq!(picked(Some(hash(turn)), 7), home);
            by_key[home as usize] += 1;
            by_chance[picked(None, hash(turn)) as usize] += 1;
        }
        for count in by_key.into_iter().chain(by_chance) {
            assert!((60..=150).contains(&count), "{by_key:?}, {by_chance:?}");
        }
    }

    /// What other gateways have sent nobody knows here: the ring says where it is.
    #[test]
    fn gateways_that_share_the_engines_agree_on_a_home() {
        let shared = |given: [u32; 4]| -> Vec<Candidate> {
            let shared = |(endpoint, given_blocks)| Candidate {
                load: Load {
                    requests: 4,
                    ..Load::default()
                },
                other_requests: 3,
                given_blocks,
                ..idle(endpoint)
            };
            (0..4).zip(given).map(shared).collect()
        };
        let (mut one, other) = (shared([1, 2, 3, 4]), shared([4, 3, 2, 1]));
        let home = pick(&one).endpoints[0];
        assert_eq!(pick(&other).endpoints[0], home);
        // It is worth a queue, as what is cached is.
        one[home as usize].queue_tokens = 2_000;
        assert_eq!(pick(&one).endpoints[0], home);
        one[home as usize].queue_tokens = 8_000;
        assert_ne!(pick(&one).endpoints[0], home);
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
            residence_us: u64::MAX,
        };
        (huge.queue_tokens, huge.kv_tokens, huge.kv_used_tokens) = (u64::MAX, 1, u64::MAX);
        (huge.matched_age_permille, huge.given_blocks) = (u32::MAX, u32::MAX);
        assert_eq!(pick(&[huge, idle(1)]).endpoints, [1, 0]);
        assert_eq!(pick(&[huge]).endpoints, [0]);
    }
}
