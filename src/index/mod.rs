//! Which endpoint holds which prefix blocks, as far as a gateway can know.
//!
//! The index models each engine's prefix cache as vLLM keeps it: the blocks that were used last stay,
//! and of one prompt the tail goes first. A clock per endpoint counts the blocks that were new there;
//! a block's age is how far that clock has gone since its last use. It is taken to be gone when it is
//! older than the engine's cache is large, and a quarter more: to believe in a block that is gone costs
//! nothing but a computation that would be due anywhere, while to give one up too early makes a second
//! copy, which drives out a third block. Whenever an engine reports fewer cached tokens than were
//! expected, what was used before the first block that it missed is gone too ([`PrefixIndex::correct`]);
//! of an engine that does not tell its size ([`PrefixIndex::size`]), the age is learned from that.
//!
//! Memory is fixed from the first block on, whatever comes: a set-associative table that gives up what
//! was used longest ago.

mod log;
mod table;

use std::collections::BTreeMap;

use self::log::{Entry, Log};
use self::table::Table;
use crate::endpoint::{EndpointId, known};
use crate::state::Store;

/// Length of a prefix block in bytes of text: 64 tokens, at four bytes a token.
pub const BLOCK_BYTES: u32 = 256;
/// Most blocks of a prompt: 131,072 tokens.
pub const MAX_BLOCKS: u32 = 2_048;

/// Blocks whose places in memory are asked for together.
const FETCHED: usize = 32;

/// Age that no engine's cache is taken to be below, in blocks.
const LEAST_CAPACITY_BLOCKS: u32 = 16;

/// Part of a match that may be found or missed without it showing in what the engine reports.
const UNSURE_PART: u32 = 4;

/// Count of blocks given to an endpoint at which all counts are halved: four million tokens, a few times
/// what an engine's cache holds.
const GIVEN_BLOCKS: u32 = 1 << 16;

/// What is known about one endpoint's cache.
#[derive(Clone, Copy, Debug)]
struct Cache {
    /// Blocks that were new there so far.
    clock: u32,
    /// Age from which on a block is taken to be gone.
    capacity_blocks: u32,
    /// As the engine tells it; 0 if it does not.
    size_blocks: u32,
    /// Clock at the last restart; what is older is gone.
    born: u32,
    /// What was used up to here is gone: the engine has missed a block of this time.
    gone: u32,
    /// Blocks that were new to it when it was given them.
    given_blocks: u32,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            clock: 0,
            capacity_blocks: u32::MAX,
            size_blocks: 0,
            born: 0,
            gone: 0,
            given_blocks: 0,
        }
    }
}

impl Cache {
    fn holds(&self, stamp: u32) -> bool {
        let age = self.clock.wrapping_sub(stamp);
        let known = age < self.capacity_blocks && age <= self.clock.wrapping_sub(self.born);
        known && (self.gone == 0 || age < self.clock.wrapping_sub(self.gone))
    }
}

/// What an endpoint is believed to hold of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Leading blocks.
    pub blocks: u32,
    /// How much of the cache was renewed since the last of them was used, in thousandths: at 0 it has
    /// just been, at 1,000 it is about to be given up, or there is none.
    pub age_permille: u32,
}

/// What an insertion found, to be held against the engine's own report later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Belief {
    /// Leading blocks that the endpoint was believed to hold.
    pub blocks: u32,
    /// Ages of the leading blocks that were known, the believed ones first.
    ages: Vec<u32>,
    /// The life of the cache that it was believed of.
    born: u32,
    /// The clock that the ages are by.
    clock: u32,
}

/// The index of one gateway.
pub struct PrefixIndex {
    table: Table,
    caches: BTreeMap<EndpointId, Cache>,
}

impl PrefixIndex {
    /// An index of at most `blocks` blocks, over all endpoints.
    pub fn new(blocks: u32) -> Self {
        Self {
            table: Table::new(blocks),
            caches: BTreeMap::new(),
        }
    }

    /// Bytes that the table takes: none before the first block, then always the same.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// How many of the leading blocks of `chain` the endpoint is believed to hold.
    ///
    /// By bisection, since whoever holds a block holds those before it. Where the table has lost a
    /// block from the middle, the answer may be any block before the end.
    #[inline(never)]
    pub fn matched_blocks(&self, endpoint: EndpointId, chain: &[u64]) -> u32 {
        let Some(cache) = self.caches.get(&endpoint) else {
            return 0;
        };
        let held = |block: &u64| {
            let stamp = self.table.get(tag(endpoint, *block));
            stamp.is_some_and(|stamp| cache.holds(stamp))
        };
        u32::try_from(chain.partition_point(held)).unwrap_or(u32::MAX)
    }

    /// As [`Self::matched_blocks`], and how long ago the last one was used.
    pub fn longest_match(&self, endpoint: EndpointId, chain: &[u64]) -> Match {
        let blocks = self.matched_blocks(endpoint, chain);
        let age_permille = blocks
            .checked_sub(1)
            .and_then(|last| self.age_permille(endpoint, chain, last));
        Match {
            blocks,
            age_permille: age_permille.unwrap_or(1_000),
        }
    }

    fn age_permille(&self, endpoint: EndpointId, chain: &[u64], last: u32) -> Option<u32> {
        let cache = self.caches.get(&endpoint)?;
        let stamp = self.table.get(tag(endpoint, *chain.get(last as usize)?))?;
        // The tail of a prompt is older than its head from the start.
        let age = cache.clock.wrapping_sub(stamp).saturating_sub(last);
        let capacity_blocks = cache.capacity_blocks.max(1);
        u32::try_from(u64::from(age) * 1_000 / u64::from(capacity_blocks)).ok()
    }

    /// The engine has told how many blocks its cache holds.
    pub fn size(&mut self, endpoint: EndpointId, blocks: u32) {
        let cache = known(&mut self.caches, endpoint);
        if blocks > 0 && cache.size_blocks != blocks {
            cache.size_blocks = blocks;
            cache.capacity_blocks = blocks.saturating_add(blocks / 4).max(LEAST_CAPACITY_BLOCKS);
        }
    }

    /// Blocks that were new to the endpoint when they were sent there: a measure of what fills its cache.
    /// All endpoints' counts are halved together when one is large, so that who has come late catches up.
    ///
    /// A restart does not set it back: what refuses connections is forgotten once a second, and would be
    /// given everything for ever.
    ///
    /// It is not what the endpoint is believed to hold now: that is a guess, and whoever is taken to hold the
    /// least would be given everything for ever.
    pub fn given_blocks(&self, endpoint: EndpointId) -> u32 {
        let given = self.caches.get(&endpoint).map(|cache| cache.given_blocks);
        given.unwrap_or(0)
    }

    /// The endpoint computes `chain`, or finds it: from now on it holds all of it.
    #[inline(never)]
    pub fn insert(&mut self, endpoint: EndpointId, chain: &[u64]) -> Belief {
        let mut belief = Belief::default();
        let cache = known(&mut self.caches, endpoint);
        let before = *cache;
        (belief.born, belief.clock) = (before.born, before.clock);
        for block in chain {
            let Some(stamp) = self.table.get(tag(endpoint, *block)) else {
                break;
            };
            let held = before.holds(stamp);
            if held && belief.ages.len() == belief.blocks as usize {
                belief.blocks = belief.blocks.saturating_add(1);
            }
            belief.ages.push(before.clock.wrapping_sub(stamp));
        }
        let length = u32::try_from(chain.len()).unwrap_or(u32::MAX);
        let fresh = length.saturating_sub(belief.blocks);
        let passed = fresh.saturating_add(overtaken(&belief, cache.capacity_blocks));
        cache.clock = cache.clock.wrapping_add(passed);
        cache.given_blocks = cache.given_blocks.saturating_add(fresh);
        let full = cache.given_blocks >= GIVEN_BLOCKS;
        // Tail first, so that the head is the youngest, here as in the engine.
        for (blocks, last) in chain
            .rchunks(FETCHED)
            .zip((0..length).rev().step_by(FETCHED))
        {
            let tags = blocks.iter().rev().map(|block| tag(endpoint, *block));
            self.table.fetch(tags.clone());
            for (tag, back) in tags.zip(0..) {
                let depth = last.wrapping_sub(back);
                self.table.put(tag, cache.clock.wrapping_sub(depth));
            }
        }
        if full {
            for cache in self.caches.values_mut() {
                cache.given_blocks /= 2;
            }
        }
        belief
    }

    /// The engine has told how many leading blocks it found when `belief` was held.
    pub fn correct(&mut self, endpoint: EndpointId, belief: &Belief, found_blocks: u32) {
        let Some(cache) = self.caches.get_mut(&endpoint) else {
            return;
        };
        // What was lost in a restart was not too old.
        if belief.born != cache.born {
            return;
        }
        let age = |blocks: u32| belief.ages.get(blocks as usize).copied();
        // The engine counts in blocks of its own, so that the last one may be found in part; and in tokens,
        // which have more bytes in one half of a prompt than in the other.
        let certain = found_blocks
            .saturating_add(1)
            .saturating_add(belief.blocks / UNSURE_PART);
        if certain < belief.blocks {
            // The first block that was certainly missed was too old, and so is everything older.
            if let Some(age) = age(certain) {
                let gone = belief.clock.wrapping_sub(age);
                if cache.clock.wrapping_sub(gone) < cache.clock.wrapping_sub(cache.gone) {
                    cache.gone = gone;
                }
                // Who tells the size is not second-guessed.
                if cache.size_blocks > 0 {
                    return;
                }
                let capacity = match cache.capacity_blocks {
                    u32::MAX => age,
                    known => known.min(known / 4 * 3 + age / 4),
                };
                cache.capacity_blocks = capacity.max(LEAST_CAPACITY_BLOCKS);
            }
        } else if let Some(oldest) = found_blocks.checked_sub(1).and_then(age) {
            // It was still there at that age.
            if cache.capacity_blocks != u32::MAX && cache.size_blocks == 0 {
                let grown = cache
                    .capacity_blocks
                    .saturating_add(cache.capacity_blocks / 256);
                cache.capacity_blocks = grown.max(oldest.saturating_add(1));
            }
        }
    }

    /// The endpoint has lost everything: it was restarted.
    pub fn forget(&mut self, endpoint: EndpointId) {
        if let Some(cache) = self.caches.get_mut(&endpoint) {
            cache.clock = cache.clock.wrapping_add(1);
            cache.born = cache.clock;
        }
    }
}

/// By how much the blocks that are used again make all others older, on average: a block of age a
/// overtakes those that are younger, which are a / capacity of all.
fn overtaken(belief: &Belief, capacity_blocks: u32) -> u32 {
    let ages = belief.ages.iter().take(belief.blocks as usize);
    let sum: u64 = ages.map(|age| u64::from(*age)).sum();
    u32::try_from(sum / u64::from(capacity_blocks.max(1))).unwrap_or(u32::MAX)
}

/// One worker's index, kept like those of the others.
pub struct SharedIndex {
    index: PrefixIndex,
    log: Log,
}

impl SharedIndex {
    /// `vm` is unique among the VMs that share the store, `group` names those with one configuration.
    pub fn new(blocks: u32, vm: u64, group: u64) -> Self {
        Self {
            index: PrefixIndex::new(blocks),
            log: Log::new(vm, group),
        }
    }

    /// The index, with what the other workers have sent since the last time.
    pub fn latest<S: Store + ?Sized>(&mut self, store: &S) -> &PrefixIndex {
        let index = &mut self.index;
        self.log.read(store, |entry| match entry {
            Entry::Sent(endpoint, blocks) => {
                index.insert(endpoint, blocks);
            }
            Entry::Lost(endpoint) => index.forget(endpoint),
        });
        index
    }

    /// As [`PrefixIndex::insert`], for all workers.
    pub fn insert<S: Store + ?Sized>(
        &mut self,
        store: &S,
        endpoint: EndpointId,
        chain: &[u64],
    ) -> Belief {
        if chain.is_empty() {
            return Belief::default();
        }
        self.log.append(store, Entry::Sent(endpoint, chain));
        self.index.insert(endpoint, chain)
    }

    /// As [`PrefixIndex::size`], for this worker: each hears of it by itself.
    pub fn size(&mut self, endpoint: EndpointId, blocks: u32) {
        self.index.size(endpoint, blocks);
    }

    /// As [`PrefixIndex::forget`], for all workers.
    pub fn forget<S: Store + ?Sized>(&mut self, store: &S, endpoint: EndpointId) {
        // What the others have sent so far is lost as well.
        self.latest(store);
        self.log.append(store, Entry::Lost(endpoint));
        self.index.forget(endpoint);
    }

    /// Nobody will read what was said.
    pub fn clear<S: Store + ?Sized>(&self, store: &S) {
        self.log.clear(store);
    }

    /// As [`PrefixIndex::correct`], for this worker; the others learn from answers of their own.
    pub fn correct(&mut self, endpoint: EndpointId, belief: &Belief, found_blocks: u32) {
        self.index.correct(endpoint, belief, found_blocks);
    }
}

/// A block at an endpoint.
fn tag(endpoint: EndpointId, block: u64) -> u64 {
    let mixed = (block ^ endpoint.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests;
