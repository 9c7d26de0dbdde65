//! Ray Serve LLM's `PrefixCacheAffinityRouter`.
//!
//! Source: "Prefix-aware routing" in Ray's documentation, and the defaults of
//! llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py in ray-project/ray.
//! While no two queues differ by more than a threshold, the prompt goes to the replicas that were
//! sent the longest beginning of it, if that is at least 0.1 of it, else to those with the smallest
//! trees; the shortest queue among them gets it. The threshold is infinite as it ships, so that the
//! power of two choices, which is for unequal queues, is never asked. Nothing is evicted.

use super::ledger::Ledger;
use super::tree::Tree;
use super::{Ask, PeerRouter, least};

/// 0.1, as a fraction.
const MATCH_RATE: (u64, u64) = (1, 10);

pub(super) struct Ray {
    ledger: Ledger,
    tree: Tree,
}

impl Ray {
    pub(super) fn new(endpoints: usize) -> Self {
        Self {
            ledger: Ledger::new(endpoints),
            tree: Tree::new(endpoints),
        }
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<usize> {
        let matched = self.tree.matched(ask.request);
        let (share, of) = MATCH_RATE;
        if matched.tokens * of >= ask.prompt_tokens() * share && !matched.holders.is_empty() {
            return matched.holders;
        }
        let smallest = self.tree.sizes_tokens().map(|(_, size)| size).min();
        let tied = self
            .tree
            .sizes_tokens()
            .filter(|(_, size)| Some(*size) == smallest);
        tied.map(|(endpoint, _)| endpoint).collect()
    }
}

impl PeerRouter for Ray {
    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let queues = self.candidates(ask).into_iter();
        let queues = queues.map(|endpoint| (endpoint, self.ledger.of(endpoint).requests));
        let endpoint = least(queues, ask.random);
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
