//! Uncached tokens × (requests in flight + 1): the product rule.
//!
//! Load and affinity in one number without weights, as found in several routers' "cache × load"
//! scores. What an endpoint has cached is an LRU of what it was sent, as large as its cache. At least
//! one token is always uncached, so that the product never hides the load. Ties go to the fewest
//! requests, then by chance.

use super::index::Index;
use super::ledger::Ledger;
use super::{Ask, PeerRouter, least};
use crate::sim::replica::Profile;

pub(super) struct UncachedInFlight {
    index: Index,
    ledger: Ledger,
}

impl UncachedInFlight {
    pub(super) fn new(replicas: &[Profile]) -> Self {
        Self {
            index: Index::new(replicas.iter().map(|profile| profile.blocks)),
            ledger: Ledger::new(replicas.len()),
        }
    }
}

impl PeerRouter for UncachedInFlight {
    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let products = self.ledger.requests().map(|(endpoint, requests)| {
            let matched = u64::from(self.index.matched_blocks(endpoint, ask.chain));
            let cached_tokens = matched * u64::from(ask.block_tokens);
            let uncached_tokens = ask.prompt_tokens().saturating_sub(cached_tokens).max(1);
            let product = uncached_tokens * (u64::from(requests) + 1);
            (endpoint, (product, requests))
        });
        let endpoint = least(products, ask.random);
        self.ledger.begin(ask.id, endpoint, 0);
        self.index.insert(endpoint, ask.chain);
        endpoint
    }

    fn finished(&mut self, id: u32) {
        self.ledger.finish(id);
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }
}
