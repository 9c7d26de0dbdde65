//! The routing algorithms, one a file, behind one small trait.
//!
//! A policy sees the eligible endpoints at one instant and ranks them. It keeps no state of its
//! own: what must be remembered between picks (whose turn it is, who carries what) lives in the
//! ledger, so that all workers of an Envoy agree and a pick can be replayed.

mod cache_aware;
mod consistent_hash;
mod expected_latency;
mod least_outstanding_tokens;
mod least_request;
mod order;
mod power_of_two;
mod prefix_hash;
mod queue_time;
mod random;
mod ring;
mod round_robin;
mod spec;
mod weighted_round_robin;

pub use cache_aware::{CacheAware, Preset, Thresholds};
pub use consistent_hash::ConsistentHash;
pub use expected_latency::ExpectedLatency;
pub use least_outstanding_tokens::LeastOutstandingTokens;
pub use least_request::LeastRequest;
pub use power_of_two::PowerOfTwo;
pub use prefix_hash::{PrefixHash, bound};
pub use random::RandomPick;
pub use ring::{Ring, Walk, point};
pub use round_robin::RoundRobin;
pub use spec::{LoadKind, Measure, PolicySpec, build};
pub use weighted_round_robin::{MAX_CYCLE, WeightedRoundRobin, smooth_schedule};

use crate::endpoint::Pool;
use crate::rates::Pace;

/// Work that one endpoint carries, or that one request will cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: u32,
    /// Those among them whose first token has not come.
    pub waiting: u32,
    /// Prompt tokens still to be computed.
    pub prefill_tokens: u64,
    /// Output tokens still to be produced.
    pub decode_tokens: u64,
    /// Tokens whose KV is held or will be: prompts, cached or not, and outputs.
    pub context_tokens: u64,
}

impl Load {
    /// Prefill and decode tokens together.
    pub fn tokens(&self) -> u64 {
        self.prefill_tokens.saturating_add(self.decode_tokens)
    }

    /// Whether nothing is carried.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// The sum with `other`.
    pub fn plus(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    /// Adds, without wrapping.
    pub fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.prefill_tokens = self.prefill_tokens.saturating_add(other.prefill_tokens);
        self.decode_tokens = self.decode_tokens.saturating_add(other.decode_tokens);
        self.context_tokens = self.context_tokens.saturating_add(other.context_tokens);
    }

    /// Subtracts; never below zero.
    pub fn subtract(&mut self, other: Self) {
        self.requests = self.requests.saturating_sub(other.requests);
        self.waiting = self.waiting.saturating_sub(other.waiting);
        self.prefill_tokens = self.prefill_tokens.saturating_sub(other.prefill_tokens);
        self.decode_tokens = self.decode_tokens.saturating_sub(other.decode_tokens);
        self.context_tokens = self.context_tokens.saturating_sub(other.context_tokens);
    }
}

/// An eligible endpoint as a policy sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Index into the pool.
    pub endpoint: u32,
    /// Capacity weight, at least 1.
    pub weight: u32,
    /// Everything known to be under way there: ours and what the engine reports of others.
    pub load: Load,
    /// Requests of the load that did not come through this gateway.
    pub other_requests: u32,
    /// Share of the KV cache in use, in thousandths, as last scraped; 0 if unknown.
    pub kv_usage_permille: u32,
    /// Leading blocks of the prompt that are believed to be in its prefix cache; 0 unless the policy
    /// reads the index.
    pub matched_blocks: u32,
    /// The same in tokens, at most the whole prompt.
    pub matched_tokens: u64,
    /// How much of its prefix cache was renewed since the last of these blocks was used, in thousandths;
    /// [`crate::index::Match`].
    pub matched_age_permille: u32,
    /// Blocks that were new to it, of any prompts, the old ones counted less; 0 unless the policy reads
    /// the index.
    pub given_blocks: u32,
    /// Prompt tokens that are computed there before a new one: those of the load, without what should be
    /// done by now. The whole load unless the policy reads paces.
    pub queue_tokens: u64,
    /// Size of the KV cache in tokens; 0 if unknown, or if no fresh report tells how full it is.
    pub kv_tokens: u64,
    /// Of these, what is in use, by the last report and what has changed since, and what is waited for.
    pub kv_used_tokens: u64,
    /// How fast it has shown itself to be; the default unless the policy reads paces.
    pub pace: Pace,
}

impl Candidate {
    /// The capacity weight, never 0.
    pub fn capacity(&self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// Everything a policy may look at for one pick.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The pool that `candidates` index into.
    pub pool: &'a Pool,
    /// The eligible endpoints, in the order of the pool. Never empty.
    pub candidates: &'a [Candidate],
    /// Routing key, if the request has one.
    pub key: Option<u64>,
    /// The prompt's prefix blocks, under its model; empty unless the policy reads the index.
    pub blocks: &'a [u64],
    /// What the request is expected to cost.
    pub cost: Load,
    /// How many picks this pool had before; counts exactly, across all workers.
    pub sequence: u64,
    /// Fresh random bits.
    pub random: u64,
}

/// How many endpoints a ranking names: the pick and the ones to retry on.
pub const RANKED: usize = 3;

/// Why the first endpoint of a ranking was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was its turn.
    Turn,
    /// Chance alone.
    Random,
    /// It carries the least.
    LeastLoaded,
    /// It carries less than one other that chance drew.
    LessLoadedOfTwo,
    /// It is the first endpoint clockwise from the routing key.
    Home,
    /// The endpoints before it on the ring are at their bound.
    Overflow,
    /// The request has no routing key, so that load decided.
    NoKey,
    /// The first token is expected there soonest, or what it delays is worth less.
    Fastest,
    /// Several are about as good: the one that was given the least, or the ring, decided among them.
    NearTie,
    /// It holds the longest beginning of the prompt.
    LongestMatch,
    /// Nobody holds enough of the prompt.
    NoMatch,
    /// Load is out of balance, so that it decided alone.
    Imbalanced,
}

/// A policy's answer: indices into the pool, best first, without repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// At least one, at most [`RANKED`] endpoints (indices into the pool).
    pub endpoints: Vec<u32>,
    /// Why the first one.
    pub reason: Reason,
    /// Bound that the first one was held against, in the policy's unit; 0 if it has none.
    pub bound: u64,
    /// What each candidate would cost, or how long its queue is where that is bounded, in their order
    /// and in microseconds; empty if the policy counts neither.
    pub costs_us: Vec<u64>,
}

impl Ranking {
    /// One of a policy that holds nobody against a bound and counts no costs; `None` if it names nobody.
    fn plain(endpoints: Vec<u32>, reason: Reason) -> Option<Self> {
        (!endpoints.is_empty()).then_some(Self {
            endpoints,
            reason,
            bound: 0,
            costs_us: Vec::new(),
        })
    }
}

/// One routing algorithm, built for one pool.
pub trait Policy: Send + Sync {
    /// The name in configuration, metrics and logs.
    fn name(&self) -> &'static str;

    /// Whether the decision, or the load that decisions are taken by, depends on the request's body.
    ///
    /// True for `consistent_hash`, whose keys may come from the body; whoever knows that they all come
    /// from headers need not wait for it.
    fn reads_body(&self) -> bool;

    /// Whether the prefix index is asked what the candidates hold.
    fn reads_index(&self) -> bool {
        false
    }

    /// Whether it is told how fast the candidates are.
    fn reads_pace(&self) -> bool {
        self.reads_index()
    }

    /// Ranks the candidates of `view`. `None` only if there are none.
    fn rank(&self, view: &View<'_>) -> Option<Ranking>;
}
