//! The prefix cache of one model replica: a bounded set of chained, reference-counted blocks.
//!
//! A block id is a hash of its own tokens and of the id before it, so equal ids mean equal
//! prefixes. Adapter and cache salt seed the chain; the cache itself need not know them.
//! Blocks that no running request holds stay cached until their space is needed; the least
//! recently used goes first, and of one request the tail goes before the head, as vLLM's block
//! pool does (`BlockPool.free_blocks` is given a request's blocks in reverse order).

use super::workload::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Block ids are hashes already; hashing them again would only cost time.
#[derive(Clone, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0.rotate_left(5) ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Seed of the ids of blocks that are not shared.
const UNSHARED: u64 = 0x756e_7368_6172_6564;
const NONE: u32 = u32::MAX;

/// One cached block. `older`/`newer` link the unreferenced blocks by age.
#[derive(Debug, Clone, Copy)]
struct Slot {
    id: u64,
    refs: u32,
    older: u32,
    newer: u32,
}

/// A cached block. Good as long as somebody holds it; then give it back with
/// [`BlockCache::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef(u32);

/// A bounded prefix cache; see the module's documentation.
#[derive(Clone, Debug)]
pub struct BlockCache {
    capacity_blocks: u32,
    by_id: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    /// Ids given so far to blocks that are not shared.
    unshared: u64,
    /// Blocks with an id that someone holds.
    held_blocks: u32,
    /// Blocks without an id: not full yet.
    anonymous_blocks: u32,
    oldest: u32,
    newest: u32,
}

impl BlockCache {
    /// An empty cache of `capacity_blocks` blocks.
    pub fn new(capacity_blocks: u32) -> Self {
        Self {
            capacity_blocks,
            by_id: HashMap::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            unshared: 0,
            held_blocks: 0,
            anonymous_blocks: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    /// The number of blocks there are.
    pub fn capacity_blocks(&self) -> u32 {
        self.capacity_blocks
    }

    /// Blocks held by requests, with or without an id. Cached but unheld blocks do not count,
    /// as in vLLM's `kv_cache_usage_perc`.
    pub fn used_blocks(&self) -> u32 {
        self.held_blocks.saturating_add(self.anonymous_blocks)
    }

    /// Blocks that can be had, by evicting cached ones if needed.
    pub fn free_blocks(&self) -> u32 {
        self.capacity_blocks.saturating_sub(self.used_blocks())
    }

    /// Blocks with an id, held or not.
    pub fn cached_blocks(&self) -> u32 {
        u32::try_from(self.by_id.len()).unwrap_or(u32::MAX)
    }

    /// How many of the first blocks of `chain` are cached.
    pub fn matched_blocks(&self, chain: &[u64]) -> u32 {
        let hits = chain
            .iter()
            .take_while(|id| self.by_id.contains_key(id))
            .count();
        u32::try_from(hits).unwrap_or(u32::MAX)
    }

    /// Finds the first blocks of `chain` that are cached, appends them to `found` and returns how
    /// many of them nobody holds (holding those uses up free space).
    pub fn find(&self, chain: &[u64], found: &mut Vec<BlockRef>) -> u32 {
        let mut unheld = 0u32;
        for id in chain {
            let Some(index) = self.by_id.get(id) else {
                break;
            };
            found.push(BlockRef(*index));
            let is_unheld = self
                .slots
                .get(*index as usize)
                .is_some_and(|slot| slot.refs == 0);
            unheld = unheld.saturating_add(u32::from(is_unheld));
        }
        unheld
    }

    /// Takes a reference on a block that [`Self::find`] has just found. Nothing may be allocated
    /// between the two: that could evict it.
    pub fn hold(&mut self, block: BlockRef) {
        let Some(slot) = self.slots.get_mut(block.0 as usize) else {
            return;
        };
        slot.refs = slot.refs.saturating_add(1);
        if slot.refs == 1 {
            self.held_blocks = self.held_blocks.saturating_add(1);
            self.unlink(block.0);
        }
    }

    /// Gives back one reference. The block stays cached, as the most recently used one; so
    /// release a request's blocks tail first.
    pub fn release(&mut self, block: BlockRef) {
        let Some(slot) = self.slots.get_mut(block.0 as usize) else {
            return;
        };
        slot.refs = slot.refs.saturating_sub(1);
        if slot.refs == 0 {
            self.held_blocks = self.held_blocks.saturating_sub(1);
            self.link_newest(block.0);
        }
    }

    /// Takes `count` blocks without an id, evicting as needed. False, and nothing taken, if
    /// there are not that many.
    #[must_use]
    pub fn allocate(&mut self, count: u32) -> bool {
        if count > self.free_blocks() {
            return false;
        }
        self.anonymous_blocks = self.anonymous_blocks.saturating_add(count);
        while u64::from(self.cached_blocks()) + u64::from(self.anonymous_blocks)
            > u64::from(self.capacity_blocks)
        {
            self.evict_oldest();
        }
        true
    }

    /// Gives back `count` blocks without an id.
    pub fn free(&mut self, count: u32) {
        self.anonymous_blocks = self.anonymous_blocks.saturating_sub(count);
    }

    /// Names one allocated block, which others can find from now on. `None`, and nothing done, if the
    /// id is cached already: the caller has a duplicate.
    pub fn name(&mut self, id: u64) -> Option<BlockRef> {
        if self.anonymous_blocks == 0 || self.by_id.contains_key(&id) {
            return None;
        }
        let slot = Slot {
            id,
            refs: 1,
            older: NONE,
            newer: NONE,
        };
        let index = match self.vacant.pop() {
            Some(index) => {
                *self.slots.get_mut(index as usize)? = slot;
                index
            }
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(slot);
                index
            }
        };
        self.anonymous_blocks -= 1;
        self.held_blocks = self.held_blocks.saturating_add(1);
        self.by_id.insert(id, index);
        Some(BlockRef(index))
    }

    /// Names one allocated block such that nobody finds it, but it ages like any other. `None` if no
    /// block without an id is left.
    pub fn name_unshared(&mut self) -> Option<BlockRef> {
        self.unshared = self.unshared.wrapping_add(1);
        // Ids of chains are hashes, as this one is: they meet about once in 2^64.
        self.name(mix(UNSHARED, self.unshared))
    }

    /// Forgets everything. What is held stays held, but nobody finds it any more.
    pub fn lose(&mut self) {
        while self.oldest != NONE {
            self.evict_oldest();
        }
        for (slot, index) in self.slots.iter_mut().zip(0_u32..) {
            if slot.refs > 0 {
                self.by_id.remove(&slot.id);
                self.unshared = self.unshared.wrapping_add(1);
                slot.id = mix(UNSHARED, self.unshared);
                self.by_id.insert(slot.id, index);
            }
        }
    }

    fn evict_oldest(&mut self) {
        let index = self.oldest;
        let Some(id) = self.slots.get(index as usize).map(|slot| slot.id) else {
            return;
        };
        self.unlink(index);
        self.by_id.remove(&id);
        self.vacant.push(index);
    }

    fn unlink(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else {
            return;
        };
        let (older, newer) = (slot.older, slot.newer);
        (slot.older, slot.newer) = (NONE, NONE);
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, index: u32) {
        let older = self.newest;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            (slot.older, slot.newer) = (older, NONE);
        }
        match self.slots.get_mut(older as usize) {
            Some(slot) => slot.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cache: &mut BlockCache, chain: &[u64]) {
        let mut held = Vec::new();
        cache.find(chain, &mut held);
        held.iter().for_each(|block| cache.hold(*block));
        let new = &chain[held.len()..];
        assert!(cache.allocate(new.len() as u32));
        let named: Vec<_> = new.iter().map(|id| cache.name(*id).unwrap()).collect();
        for block in held.into_iter().chain(named).rev() {
            cache.release(block);
        }
    }

    #[test]
    fn tail_goes_first_and_the_oldest_request_before_the_newer() {
        let mut cache = BlockCache::new(6);
        run(&mut cache, &[1, 2, 3]);
        run(&mut cache, &[11, 12, 13]);
        assert_eq!(cache.matched_blocks(&[1, 2, 3]), 3);
        assert!(cache.allocate(2));
        assert_eq!(cache.matched_blocks(&[1, 2, 3]), 1);
        assert_eq!(cache.matched_blocks(&[11, 12, 13]), 3);
        cache.free(2);
        assert_eq!(cache.free_blocks(), 6);
    }

    #[test]
    fn an_unshared_block_is_found_by_nobody_and_ages_like_any_other() {
        let mut cache = BlockCache::new(4);
        assert!(cache.name_unshared().is_none(), "there is none to name");
        assert!(cache.allocate(2));
        let (first, second) = (cache.name_unshared(), cache.name_unshared());
        assert_ne!(first, second);
        cache.release(second.unwrap());
        cache.release(first.unwrap());
        assert_eq!((cache.used_blocks(), cache.cached_blocks()), (0, 2));
        run(&mut cache, &[1, 2]);
        assert_eq!(cache.cached_blocks(), 4);
        assert!(cache.allocate(2));
        assert_eq!(cache.matched_blocks(&[1, 2]), 2, "the older two went first");
        cache.free(2);
        assert_eq!(cache.free_blocks(), 4);
    }

    #[test]
    fn what_is_lost_is_found_by_nobody_and_what_is_held_still_takes_its_space() {
        let mut cache = BlockCache::new(4);
        run(&mut cache, &[1, 2]);
        let mut held = Vec::new();
        cache.find(&[1], &mut held);
        cache.hold(held[0]);
        cache.lose();
        assert_eq!((cache.matched_blocks(&[1, 2]), cache.used_blocks()), (0, 1));
        // The same prompt comes again while the old one is still there.
        run(&mut cache, &[1, 2]);
        cache.release(held[0]);
        assert_eq!((cache.matched_blocks(&[1, 2]), cache.used_blocks()), (2, 0));
        run(&mut cache, &[5, 6, 7]);
        assert_eq!(cache.cached_blocks(), 4);
        assert_eq!(cache.matched_blocks(&[5, 6, 7]), 3);
    }

    #[test]
    fn use_makes_young() {
        let mut cache = BlockCache::new(6);
        run(&mut cache, &[1, 2, 3]);
        run(&mut cache, &[11, 12, 13]);
        run(&mut cache, &[1, 2, 3]);
        assert!(cache.allocate(3));
        assert_eq!(cache.matched_blocks(&[1, 2, 3]), 3);
        assert_eq!(cache.matched_blocks(&[11, 12, 13]), 0);
    }

    #[test]
    fn held_blocks_are_never_evicted() {
        let mut cache = BlockCache::new(3);
        assert!(cache.allocate(2));
        let head = cache.name(1).unwrap();
        let tail = cache.name(2).unwrap();
        assert!(!cache.allocate(2));
        assert!(cache.allocate(1));
        assert_eq!(cache.matched_blocks(&[1, 2]), 2);
        assert_eq!(cache.find(&[1, 2], &mut Vec::new()), 0);
        cache.release(tail);
        assert_eq!(cache.find(&[1, 2, 3], &mut Vec::new()), 1);
        assert!(cache.allocate(1));
        assert_eq!(cache.matched_blocks(&[1, 2]), 1);
        cache.release(head);
        assert_eq!((cache.used_blocks(), cache.free_blocks()), (2, 1));
    }

    #[test]
    fn a_shared_block_is_free_after_the_last_release() {
        let mut cache = BlockCache::new(2);
        assert!(cache.allocate(1));
        let first = cache.name(7).unwrap();
        let mut found = Vec::new();
        cache.find(&[7], &mut found);
        let second = found[0];
        cache.hold(second);
        assert!(cache.name(7).is_none());
        cache.release(first);
        assert_eq!(cache.used_blocks(), 1);
        cache.release(second);
        assert_eq!(cache.used_blocks(), 0);
        assert_eq!(cache.matched_blocks(&[7]), 1);
    }

    proptest::proptest! {
        /// Against a naive twin: a vector ordered by age.
        #[test]
        fn same_as_a_naive_lru(chains in proptest::collection::vec((0u64..6, 1usize..5), 1..60)) {
            let capacity = 8;
            let mut cache = BlockCache::new(capacity);
            let mut naive: Vec<u64> = Vec::new();
            for (root, length) in chains {
                let chain: Vec<u64> = (0..length as u64).map(|depth| root * 100 + depth).collect();
                let matched = chain.iter().take_while(|id| naive.contains(id)).count();
                proptest::prop_assert_eq!(cache.matched_blocks(&chain) as usize, matched);
                // Held blocks leave the ageing list first, then the oldest go.
                naive.retain(|id| !chain[..matched].contains(id));
                while naive.len() + chain.len() > capacity as usize {
                    naive.remove(0);
                }
                naive.extend(chain.iter().rev());
                run(&mut cache, &chain);
                proptest::prop_assert_eq!(cache.cached_blocks() as usize, naive.len());
            }
        }
    }
}
