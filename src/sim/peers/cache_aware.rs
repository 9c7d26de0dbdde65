//! `cache_aware` of vllm-router and sglang-router.
//!
//! Source: the description at the head of src/policies/cache_aware.rs in vllm-project/router and of
//! sgl-model-gateway/src/policies/cache_aware.rs in sgl-project/sglang, and the defaults of their
//! command lines: load is out of balance if max − min > 64 and max > 1.5 min, in requests in flight;
//! then the endpoint with the fewest gets the request. Else the one that was sent the longest
//! beginning of the prompt, if that is more than 0.3 of it. The description lets other requests go to
//! the endpoint with the smallest tree; releases of sglang-router up to 0.2 do so, while vllm-router
//! and later releases of the other take the one with the fewest requests. Where several endpoints
//! were sent the same text, the first of them gets it. Every 120 s trees are cut to 2^26 characters,
//! at four to a token.

use super::ledger::Ledger;
use super::tree::Tree;
use super::{Ask, PeerRouter};

const BALANCE_ABS: u32 = 64;
/// 1.5, as a fraction.
const BALANCE_REL: (u32, u32) = (3, 2);
/// 0.3, as a fraction.
const CACHE_THRESHOLD: (u64, u64) = (3, 10);
const MAX_TREE_TOKENS: u64 = (1 << 26) / 4;
const EVICTION_INTERVAL_US: u64 = 120_000_000;

/// Where a prompt goes that nobody knows well enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    LeastRequests,
    SmallestTree,
}

pub(super) struct CacheAware {
    ledger: Ledger,
    tree: Tree,
    fallback: Fallback,
    evicted_us: u64,
}

impl CacheAware {
    pub(super) fn new(endpoints: usize, fallback: Fallback) -> Self {
        Self {
            ledger: Ledger::new(endpoints),
            tree: Tree::new(endpoints),
            fallback,
            evicted_us: 0,
        }
    }

    fn least_requests(&self) -> usize {
        first_least(self.ledger.requests())
    }

    fn is_imbalanced(&self) -> bool {
        let requests = || self.ledger.requests().map(|(_, requests)| requests);
        let (most, least) = (requests().max().unwrap_or(0), requests().min().unwrap_or(0));
        let (over, under) = BALANCE_REL;
        most - least > BALANCE_ABS && most * under > least * over
    }

    fn choose(&self, ask: &Ask<'_>) -> usize {
        if self.is_imbalanced() {
            return self.least_requests();
        }
        let matched = self.tree.matched(ask.request);
        let (share, of) = CACHE_THRESHOLD;
        match (matched.owner, self.fallback) {
            (Some(owner), _) if matched.tokens * of > ask.prompt_tokens() * share => owner,
            (_, Fallback::LeastRequests) => self.least_requests(),
            (_, Fallback::SmallestTree) => first_least(self.tree.sizes_tokens()),
        }
    }
}

/// Ties go to the first.
fn first_least<V: Ord>(values: impl Iterator<Item = (usize, V)>) -> usize {
    let least = values.min_by(|a, b| a.1.cmp(&b.1));
    least.map_or(0, |(index, _)| index)
}

impl PeerRouter for CacheAware {
    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        if ask.now_us >= self.evicted_us + EVICTION_INTERVAL_US {
            self.evicted_us = ask.now_us;
            self.tree.evict(MAX_TREE_TOKENS);
        }
        let endpoint = self.choose(ask);
        self.tree.insert(ask.request, endpoint, ask.now_us);
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
