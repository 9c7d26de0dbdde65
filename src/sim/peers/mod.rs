//! Other projects' routing algorithms, for comparison in virtual time (native only).
//!
//! Each is written from its project's published description, with the settings that the project
//! ships. What surrounds an algorithm there (retries, health, queues in the router) is left out,
//! and what it asks of an engine is answered by the model. Texts are compared by segments, which
//! is as exact as characters or tokens would be, for a segment is equal or it is not.

mod cache_aware;
mod dynamo;
mod hashing;
mod index;
mod ledger;
mod llmd;
mod oracle;
mod ray;
mod sticky;
mod tree;
mod uncached;

use super::replica::{Gauges, Profile, Replica};
use super::workload::Request;

/// A request that wants an endpoint.
pub struct Ask<'a> {
    /// The time.
    pub now_us: u64,
    /// Index of the request, which names it in the calls that follow.
    pub id: u32,
    /// The request.
    pub request: &'a Request,
    /// Its full blocks, as the engines name them.
    pub chain: &'a [u64],
    /// Tokens in a block.
    pub block_tokens: u32,
    /// For each endpoint how many of the prompt's first tokens its cache holds now; empty unless
    /// the router [hears of caches](PeerRouter::hears_of_caches).
    pub cached_tokens: &'a [u64],
    /// The engines themselves, for the oracle alone.
    pub replicas: &'a [Replica],
    /// Chance.
    pub random: u64,
}

impl Ask<'_> {
    fn prompt_tokens(&self) -> u64 {
        u64::from(self.request.prompt_tokens())
    }
}

/// A router with one instance, which sees every request.
pub trait PeerRouter {
    /// Whether engines send it an event for every block that they cache or evict.
    fn hears_of_caches(&self) -> bool {
        false
    }

    /// How often it asks engines for their gauges.
    fn scrape_interval_us(&self) -> u64 {
        1_000_000
    }

    /// The index of the endpoint that gets the request.
    fn pick(&mut self, ask: &Ask<'_>) -> usize;

    /// The answer to request `id` begins.
    fn first_token(&mut self, _id: u32) {}

    /// Request `id` is over, well or not.
    fn finished(&mut self, id: u32);

    /// What an engine says about itself.
    fn scraped(&mut self, _endpoint: usize, _gauges: &Gauges) {}

    /// Requests that it believes to be under way.
    fn in_flight(&self) -> usize;
}

/// The algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// vllm-router's `cache_aware`.
    VllmCacheAware,
    /// sglang-router's `cache_aware`, as its documentation describes it.
    SglangCacheAware,
    /// KubeAI's prefix hash: the first 100 characters of the first user message.
    Kubeai,
    /// Ray Serve LLM's `PrefixCacheAffinityRouter`.
    Ray,
    /// llm-d's default scorers, on gauges of every 50 ms, as it ships.
    Llmd,
    /// The same on gauges of every second.
    LlmdSlow,
    /// llm-d's optimized baseline: sticky until saturated, then the fewest tokens.
    LlmdSticky,
    /// llm-d's token load alone.
    LlmdTokenLoad,
    /// Dynamo's KV router.
    Dynamo,
    /// Uncached tokens × (requests in flight + 1).
    UncachedInFlight,
    /// Consistent hashing on the beginning of the prompt, without any bound.
    PrefixRing,
    /// No project's: one that looks into the engines, to show what is in reach. Not in [`Self::ALL`].
    Oracle,
}

impl PeerKind {
    /// All of other projects.
    pub const ALL: [Self; 11] = [
        Self::VllmCacheAware,
        Self::SglangCacheAware,
        Self::Kubeai,
        Self::Ray,
        Self::Llmd,
        Self::LlmdSlow,
        Self::LlmdSticky,
        Self::LlmdTokenLoad,
        Self::Dynamo,
        Self::UncachedInFlight,
        Self::PrefixRing,
    ];

    /// Its name in tables and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::VllmCacheAware => "vllm_cache_aware",
            Self::SglangCacheAware => "sglang_cache_aware",
            Self::Kubeai => "kubeai",
            Self::Ray => "ray",
            Self::Llmd => "llmd",
            Self::LlmdSlow => "llmd_1s",
            Self::LlmdSticky => "llmd_sticky",
            Self::LlmdTokenLoad => "llmd_token_load",
            Self::Dynamo => "dynamo",
            Self::UncachedInFlight => "uncached_in_flight",
            Self::PrefixRing => "prefix_ring",
            Self::Oracle => "oracle",
        }
    }

    /// The one called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// A router of this kind in front of `replicas`, which are called `names`.
    pub fn router(self, replicas: &[Profile], names: &[String]) -> Box<dyn PeerRouter> {
        let count = replicas.len();
        match self {
            Self::VllmCacheAware => {
                let fallback = cache_aware::Fallback::LeastRequests;
                Box::new(cache_aware::CacheAware::new(count, fallback))
            }
            Self::SglangCacheAware => {
                let fallback = cache_aware::Fallback::SmallestTree;
                Box::new(cache_aware::CacheAware::new(count, fallback))
            }
            Self::Kubeai => Box::new(hashing::Hashing::kubeai(names)),
            Self::PrefixRing => Box::new(hashing::Hashing::prefix_ring(names)),
            Self::Ray => Box::new(ray::Ray::new(count)),
            Self::Llmd => Box::new(llmd::Llmd::new(replicas, llmd::SHIPPED_INTERVAL_US)),
            Self::LlmdSlow => Box::new(llmd::Llmd::new(replicas, 1_000_000)),
            Self::LlmdSticky => Box::new(sticky::Sticky::optimized_baseline(replicas)),
            Self::LlmdTokenLoad => Box::new(sticky::Sticky::token_load(replicas)),
            Self::Dynamo => Box::new(dynamo::Dynamo::new(count)),
            Self::UncachedInFlight => Box::new(uncached::UncachedInFlight::new(replicas)),
            Self::Oracle => Box::new(oracle::Oracle::new(count)),
        }
    }
}

/// The index of the least value; one of them by chance if there are more.
fn least<V: PartialOrd>(values: impl IntoIterator<Item = (usize, V)>, random: u64) -> usize {
    let mut best: Option<V> = None;
    let mut ties = Vec::new();
    for (index, value) in values {
        match &best {
            Some(least) if value > *least => continue,
            Some(least) if value == *least => {}
            _ => {
                ties.clear();
                best = Some(value);
            }
        }
        ties.push(index);
    }
    let chance = random.checked_rem(ties.len() as u64).unwrap_or(0);
    ties.get(chance as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
