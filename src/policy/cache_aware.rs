//! `cache_aware`: the longest match while load is in balance, and load alone while it is not.
//!
//! The threshold rule of three other routers, each with the defaults that it ships:
//!
//! | | `vllm_router` | `sglang_router` | `ray` |
//! |---|---|---|---|
//! | out of balance | max − min > 64 and max > 1.5 × min | the same | max − min > ∞ |
//! | then | fewest requests | fewest requests | the less loaded of two |
//! | good match | above 0.3 of the prompt | above 0.3 | at least 0.1 |
//! | no good match | fewest requests | smallest tree | smallest tree |
//!
//! Sources: `src/policies/cache_aware.rs` of vllm-project/router and
//! `sgl-model-gateway/src/policies/cache_aware.rs` of sgl-project/sglang (releases up to 0.2), with the
//! defaults of their command lines; `prefix_aware_router.py` of Ray Serve LLM.
//!
//! Two things are this crate's own. What an endpoint holds is what [`crate::index`] believes, which
//! forgets what the engine forgets; for the size of its tree stand the blocks that it was given
//! ([`crate::index::PrefixIndex::given_blocks`]). And ties, which go to the first endpoint of a list there, go by
//! load here, and by chance where that is equal too. Loads and blocks count per weight, relative to
//! the mean weight, so that the rule among equal weights is the published one.

use std::cmp::Ordering;

use super::order::{Random, by_requests, rank_by};
use super::{Candidate, LoadKind, Policy, PowerOfTwo, Ranking, Reason, View};

/// Whose rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// vllm-router's.
    #[default]
    VllmRouter,
    /// sglang-router's.
    SglangRouter,
    /// Ray Serve LLM's.
    Ray,
}

impl Preset {
    /// The thresholds that it ships.
    pub const fn thresholds(self) -> Thresholds {
        match self {
            Self::VllmRouter | Self::SglangRouter => Thresholds {
                preset: self,
                match_permille: 300,
                imbalance_requests: 64,
                imbalance_ratio_permille: 1_500,
            },
            // Infinite there: as many requests are never under way.
            Self::Ray => Thresholds {
                preset: self,
                match_permille: 100,
                imbalance_requests: u32::MAX,
                imbalance_ratio_permille: 1_000,
            },
        }
    }
}

/// A rule and where it changes its mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Whose rule: what is done on either side.
    pub preset: Preset,
    /// Share of the prompt's blocks that a good match has, in thousandths.
    pub match_permille: u32,
    /// Requests that the most loaded endpoint may have above the least loaded one.
    pub imbalance_requests: u32,
    /// Times the least load that the most may be, in thousandths; both must be passed.
    pub imbalance_ratio_permille: u32,
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct CacheAware {
    thresholds: Thresholds,
}

impl CacheAware {
    /// By these thresholds.
    pub fn new(thresholds: Thresholds) -> Self {
        Self { thresholds }
    }

    /// Exact: with r requests and weight w, an endpoint's load is r × mean weight / w.
    fn is_imbalanced(&self, candidates: &[Candidate]) -> bool {
        let load = |a: &&Candidate, b: &&Candidate| by_requests(a, b);
        let (Some(most), Some(least)) = (
            candidates.iter().max_by(load),
            candidates.iter().min_by(load),
        ) else {
            return false;
        };
        // Requests and weights have 32 bits, their number and the thresholds too: 128 hold all.
        let cross =
            |a: &Candidate, b: &Candidate| u128::from(a.load.requests) * u128::from(b.capacity());
        let (most_load, least_load) = (cross(most, least), cross(least, most));
        let weights = candidates.iter().map(Candidate::capacity);
        let weights = weights.fold(0_u64, u64::saturating_add);
        let count = u128::try_from(candidates.len()).unwrap_or(u128::MAX);
        let scale = u128::from(most.capacity()) * u128::from(least.capacity());
        let allowed = u128::from(self.thresholds.imbalance_requests)
            .saturating_mul(scale)
            .saturating_mul(count);
        let ratio_permille = u128::from(self.thresholds.imbalance_ratio_permille);
        let apart = most_load.saturating_sub(least_load);
        apart.saturating_mul(u128::from(weights)) > allowed
            && most_load.saturating_mul(1_000) > least_load.saturating_mul(ratio_permille)
    }

    /// Whether so many of the prompt's blocks are a good match.
    fn is_match(&self, matched_blocks: u32, blocks: usize) -> bool {
        let matched = u128::from(matched_blocks) * 1_000;
        // Of a prompt that is shorter than a block, nothing can match.
        let blocks = u128::try_from(blocks.max(1)).unwrap_or(u128::MAX);
        let wanted = u128::from(self.thresholds.match_permille).saturating_mul(blocks);
        match self.thresholds.preset {
            Preset::VllmRouter | Preset::SglangRouter => matched > wanted,
            Preset::Ray => matched >= wanted,
        }
    }

    fn by_load(&self, view: &View<'_>) -> Option<Vec<u32>> {
        match self.thresholds.preset {
            Preset::VllmRouter | Preset::SglangRouter => Some(rank(view, by_requests)),
            Preset::Ray => {
                let two = PowerOfTwo::new(LoadKind::Requests);
                two.rank(view).map(|ranking| ranking.endpoints)
            }
        }
    }

    fn unmatched(&self, view: &View<'_>) -> Vec<u32> {
        match self.thresholds.preset {
            Preset::VllmRouter => rank(view, by_requests),
            Preset::SglangRouter | Preset::Ray => rank(view, by_given),
        }
    }
}

fn rank(view: &View<'_>, order: impl Fn(&Candidate, &Candidate) -> Ordering) -> Vec<u32> {
    rank_by(view.candidates, &mut Random::new(view.random), order)
}

/// The longest match, then the load.
fn by_match(a: &Candidate, b: &Candidate) -> Ordering {
    b.matched_blocks
        .cmp(&a.matched_blocks)
        .then_with(|| by_requests(a, b))
}

/// The fewest blocks given per weight, then the load.
fn by_given(a: &Candidate, b: &Candidate) -> Ordering {
    let share =
        |a: &Candidate, b: &Candidate| u128::from(a.given_blocks) * u128::from(b.capacity());
    share(a, b)
        .cmp(&share(b, a))
        .then_with(|| by_requests(a, b))
}

impl Policy for CacheAware {
    fn name(&self) -> &'static str {
        "cache_aware"
    }

    fn reads_body(&self) -> bool {
        true
    }

    fn reads_index(&self) -> bool {
        true
    }

    fn reads_pace(&self) -> bool {
        false
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let matched = view.candidates.iter().map(|one| one.matched_blocks).max()?;
        let (endpoints, reason) = if self.is_imbalanced(view.candidates) {
            (self.by_load(view)?, Reason::Imbalanced)
        } else if self.is_match(matched, view.blocks.len()) {
            (rank(view, by_match), Reason::LongestMatch)
        } else {
            (self.unmatched(view), Reason::NoMatch)
        };
        Ranking::plain(endpoints, reason)
    }
}
