//! Which policy, with which settings; and how it is built for a pool.

use super::{
    CacheAware, ConsistentHash, ExpectedLatency, LeastOutstandingTokens, LeastRequest, Policy,
    PowerOfTwo, PrefixHash, RandomPick, RoundRobin, Thresholds, WeightedRoundRobin,
};
use crate::endpoint::Pool;

/// What `power_of_two` compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadKind {
    /// Requests per capacity.
    #[default]
    Requests,
    /// Outstanding prefill and decode tokens per capacity.
    Tokens,
    /// Share of the KV cache in use; requests per capacity where that is equal or unknown.
    Kv,
    /// When the request would be through: the queue in time, with the request itself.
    ExpectedTime,
}

/// The unit in which `prefix_hash` bounds an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Requests.
    Requests,
    /// Outstanding prefill and decode tokens.
    #[default]
    Tokens,
    /// Time that the endpoint needs for what is queued there, as fast as it has shown itself to be.
    ExpectedTime,
}

/// A policy and its settings, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySpec {
    /// Each in turn.
    RoundRobin,
    /// At random, in proportion to the weights.
    Random,
    /// Each in turn, as often as its weight says, interleaved.
    WeightedRoundRobin,
    /// Fewest requests per weight.
    LeastRequest,
    /// Fewest outstanding tokens per weight.
    LeastOutstandingTokens,
    /// The less loaded of two random endpoints.
    PowerOfTwo {
        /// What is compared.
        load: LoadKind,
    },
    /// The first endpoint clockwise from the key.
    ConsistentHash {
        /// Ring points for an endpoint of weight 1.
        points: u32,
    },
    /// Where the first token is expected soonest, all things considered.
    ExpectedLatency,
    /// The longest match while load is in balance, and load alone while it is not.
    CacheAware(Thresholds),
    /// The first endpoint clockwise from the key that is within its bound.
    PrefixHash {
        /// How far above its fair share an endpoint may be, in thousandths: 1250 is a quarter above.
        load_factor_permille: u32,
        /// Unit of the bound.
        bound: Measure,
        /// Ring points of every endpoint.
        points: u32,
    },
}

impl PolicySpec {
    /// Whether the prefix index is asked, so that bodies are hashed in blocks.
    pub fn reads_index(&self) -> bool {
        matches!(self, Self::ExpectedLatency | Self::CacheAware(_))
    }
}

/// Builds the policy for `pool`. The views it is asked to rank must be of that same pool.
pub fn build(spec: &PolicySpec, pool: &Pool) -> Box<dyn Policy> {
    match *spec {
        PolicySpec::RoundRobin => Box::new(RoundRobin),
        PolicySpec::Random => Box::new(RandomPick),
        PolicySpec::WeightedRoundRobin => Box::new(WeightedRoundRobin::new()),
        PolicySpec::LeastRequest => Box::new(LeastRequest),
        PolicySpec::LeastOutstandingTokens => Box::new(LeastOutstandingTokens),
        PolicySpec::PowerOfTwo { load } => Box::new(PowerOfTwo::new(load)),
        PolicySpec::ConsistentHash { points } => Box::new(ConsistentHash::new(pool, points)),
        PolicySpec::ExpectedLatency => Box::new(ExpectedLatency::new(pool)),
        PolicySpec::CacheAware(thresholds) => Box::new(CacheAware::new(thresholds)),
        PolicySpec::PrefixHash {
            load_factor_permille,
            bound,
            points,
        } => Box::new(PrefixHash::new(pool, load_factor_permille, bound, points)),
    }
}
