//! The life of one job in the replica: its blocks and its tokens.

use super::{Detail, Event, Gauges, Job, Profile};
use crate::sim::cache::{BlockCache, BlockRef};

/// A job in the replica.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) job: Job,
    /// Tokens to compute before decoding: the prompt, and after a preemption the output so far.
    pub(super) prefill_tokens: u32,
    /// Tokens whose KV is there, once the running step is done.
    pub(super) computed_tokens: u32,
    pub(super) generated_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) admitted_us: Option<u64>,
    pub(super) in_step: bool,
    /// Full blocks we hold, head first.
    pub(super) held: Vec<BlockRef>,
    /// Blocks we hold without an id: those that are not full.
    pub(super) anonymous_blocks: u32,
    /// How many full blocks have been looked up or named.
    pub(super) named_blocks: u32,
}

impl Sequence {
    pub(super) fn new(mut job: Job, block_tokens: u32) -> Self {
        job.prompt_tokens = job.prompt_tokens.max(1);
        job.output_tokens = job.output_tokens.max(1);
        job.chain
            .truncate((job.prompt_tokens / block_tokens) as usize);
        Self {
            prefill_tokens: job.prompt_tokens,
            job,
            computed_tokens: 0,
            generated_tokens: 0,
            cached_tokens: 0,
            admitted_us: None,
            in_step: false,
            held: Vec::new(),
            anonymous_blocks: 0,
            named_blocks: 0,
        }
    }

    pub(super) fn blocks(&self) -> u32 {
        self.anonymous_blocks
            .saturating_add(u32::try_from(self.held.len()).unwrap_or(u32::MAX))
    }

    pub(super) fn release(&mut self, cache: &mut BlockCache) {
        for block in self.held.drain(..).rev() {
            cache.release(block);
        }
        cache.free(self.anonymous_blocks);
        self.anonymous_blocks = 0;
        self.named_blocks = 0;
        self.computed_tokens = 0;
        self.in_step = false;
    }
}

/// As in vLLM, blocks are cached from the moment they are scheduled to be filled. What has no id in
/// the chain, or one that is cached already, gets one that nobody looks for: it takes its place in
/// the cache all the same.
pub(super) fn name_full_blocks(sequence: &mut Sequence, cache: &mut BlockCache, profile: &Profile) {
    let full = sequence.computed_tokens / profile.block_tokens;
    for index in sequence.named_blocks..full {
        let id = sequence.job.chain.get(index as usize);
        let shared = id.and_then(|id| cache.name(*id));
        if let Some(block) = shared.or_else(|| cache.name_unshared()) {
            sequence.held.push(block);
            sequence.anonymous_blocks = sequence.anonymous_blocks.saturating_sub(1);
        }
    }
    sequence.named_blocks = full.max(sequence.named_blocks);
}

pub(super) fn add_token(
    sequence: &mut Sequence,
    counters: &mut Gauges,
    at_us: u64,
    events: &mut Vec<Event>,
) {
    let id = sequence.job.id;
    sequence.generated_tokens += 1;
    counters.generation_tokens += 1;
    if sequence.generated_tokens == 1 {
        counters.prompt_tokens += u64::from(sequence.job.prompt_tokens);
        counters.cached_tokens += u64::from(sequence.cached_tokens);
        events.push(Event::FirstToken {
            id,
            at_us,
            admitted_us: sequence.admitted_us.unwrap_or(at_us),
            cached_tokens: sequence.cached_tokens,
        });
    } else if sequence.job.detail == Detail::Tokens {
        events.push(Event::Token { id, at_us });
    }
}
