//! Which blocks each endpoint should have, by what was sent there: one bounded LRU an endpoint.

use crate::sim::cache::BlockCache;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Index(Vec<BlockCache>);

impl Index {
    /// One cache for each of these capacities.
    pub(super) fn new(blocks: impl IntoIterator<Item = u32>) -> Self {
        Self(blocks.into_iter().map(BlockCache::new).collect())
    }

    /// How many of the first blocks of `chain` an endpoint has.
    pub(super) fn matched_blocks(&self, endpoint: usize, chain: &[u64]) -> u32 {
        let cache = self.0.get(endpoint);
        cache.map_or(0, |cache| cache.matched_blocks(chain))
    }

    /// Notes that an endpoint has seen `chain`.
    pub(super) fn insert(&mut self, endpoint: usize, chain: &[u64]) {
        let Some(cache) = self.0.get_mut(endpoint) else {
            return;
        };
        let mut held = Vec::with_capacity(chain.len());
        cache.find(chain, &mut held);
        for block in &held {
            cache.hold(*block);
        }
        for id in chain.iter().skip(held.len()) {
            if !cache.allocate(1) {
                break;
            }
            match cache.name(*id) {
                Some(block) => held.push(block),
                None => cache.free(1),
            }
        }
        for block in held.into_iter().rev() {
            cache.release(block);
        }
    }
}
