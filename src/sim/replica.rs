//! A pure, deterministic model of one vLLM replica: continuous batching over a block prefix cache.
//!
//! Time goes in steps, as in vLLM's V1 scheduler. In a step every running request that is past
//! its prefill gets one token, requests in prefill get chunks, and waiting requests are admitted
//! first come, first served, all within one token budget. A step lasts
//!
//! ```text
//! step_base + prefill tokens / prefill rate + decode_per_seq × decodes + context_per_1k × context / 1000
//! ```
//!
//! A request is admitted when the blocks of its whole prompt are there (vLLM admits on the first
//! chunk and may preempt more); blocks for output are taken as it grows, and when none is left
//! the last admitted request is preempted and computed again later. Full blocks of generated tokens
//! stay cached and age like those of prompts, but are never found: a follow-up prompt brings its
//! own.
//!
//! The model does no I/O. Call [`Replica::submit`] and [`Replica::abort`] with the time, and
//! [`Replica::advance`] at (or after) [`Replica::next_event_us`].

use super::cache::{BlockCache, BlockRef};
use std::collections::VecDeque;

/// What a replica can do. Times are of the modelled hardware, not of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Prompt tokens computed per second of prefill.
    pub prefill_tokens_per_s: u32,
    /// Cost of a step before any token: reading the weights once, launching kernels.
    pub step_base_us: u32,
    /// Additional cost of each sequence that decodes in a step.
    pub decode_us_per_seq: u32,
    /// Additional cost of reading the context of the decoding sequences, for 1,000 tokens.
    pub context_us_per_1k_tokens: u32,
    /// Most tokens in one step (vLLM's `--max-num-batched-tokens`).
    pub token_budget: u32,
    /// Most sequences in one step (vLLM's `--max-num-seqs`).
    pub max_running: u32,
    /// Blocks of KV cache (vLLM's `num_gpu_blocks`, of which vLLM keeps one to itself).
    pub blocks: u32,
    /// Tokens in a block (vLLM's `--block-size`, 16 by default on GPUs).
    pub block_tokens: u32,
}

impl Default for Profile {
    /// About an NVIDIA L4 with an 8B Llama in bfloat16. Derived, not measured: the L4 data sheet
    /// gives 300 GB/s and 121 TFLOPS (dense, 16 bits), 24 GB. 16 GB of weights take 53 ms to
    /// read; 16 GFLOP a token at half of the peak make 3,700 tokens/s and 270 µs per decode;
    /// 128 KiB of KV a token (32 layers × 8 heads × 128 × 2 × 2 bytes) take 437 µs per 1,000
    /// tokens to read; and the 5.2 GB left (at 0.9 of the memory) hold about 40,000 tokens.
    /// Budget and sequences are vLLM's defaults for this size of GPU.
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 3_700,
            step_base_us: 53_000,
            decode_us_per_seq: 270,
            context_us_per_1k_tokens: 437,
            token_budget: 2_048,
            max_running: 256,
            blocks: 2_500,
            block_tokens: 16,
        }
    }
}

impl Profile {
    /// For tests: near-zero times and a cache of a million tokens.
    pub fn fast() -> Self {
        Self {
            prefill_tokens_per_s: 1_000_000_000,
            step_base_us: 5,
            decode_us_per_seq: 0,
            context_us_per_1k_tokens: 0,
            token_budget: 65_536,
            max_running: 1_024,
            blocks: 65_536,
            block_tokens: 16,
        }
    }

    /// The same hardware with all times longer by `permille` thousandths: 2500 is 2.5 times slower.
    #[must_use]
    pub fn slowed(&self, permille: u32) -> Self {
        let permille = u64::from(permille.max(1));
        let longer = |us: u32| u32::try_from(u64::from(us) * permille / 1_000).unwrap_or(u32::MAX);
        let rate = u64::from(self.prefill_tokens_per_s) * 1_000 / permille;
        Self {
            prefill_tokens_per_s: u32::try_from(rate).unwrap_or(u32::MAX),
            step_base_us: longer(self.step_base_us),
            decode_us_per_seq: longer(self.decode_us_per_seq),
            context_us_per_1k_tokens: longer(self.context_us_per_1k_tokens),
            ..self.clone()
        }
    }

    /// Most tokens one request can have, prompt and output together.
    pub fn capacity_tokens(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_tokens)
    }
}

/// Which events a job wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// First token and end.
    Ends,
    /// Every token too.
    Tokens,
}

/// One request as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Names the job in events; unique among the jobs in the replica.
    pub id: u64,
    /// Chained ids of the prompt's full blocks; a shorter chain leaves the rest unshared.
    pub chain: Vec<u64>,
    /// Length of the prompt; at least one is assumed.
    pub prompt_tokens: u32,
    /// Tokens to generate; at least one is assumed.
    pub output_tokens: u32,
    /// Which events to report.
    pub detail: Detail,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitError {
    /// Prompt and output do not fit into the cache even alone.
    TooLarge,
}

/// What happened to a job, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Prefill is done, and the first token is there.
    FirstToken {
        /// The job.
        id: u64,
        /// End of the step.
        at_us: u64,
        /// Start of the first step that had the job in its batch.
        admitted_us: u64,
        /// Prompt tokens that the prefix cache saved.
        cached_tokens: u32,
    },
    /// A later token; only for [`Detail::Tokens`].
    Token {
        /// The job.
        id: u64,
        /// End of the step.
        at_us: u64,
    },
    /// The last token has been reported and the blocks are free.
    Finished {
        /// The job.
        id: u64,
        /// End of the step.
        at_us: u64,
    },
}

/// What a replica reports about itself, under vLLM's names for the same.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Gauges {
    /// `num_requests_running`.
    pub running: u32,
    /// `num_requests_waiting`.
    pub waiting: u32,
    /// `kv_cache_usage_perc`: share of the blocks that requests hold, 0 to 1.
    pub kv_usage: f64,
    /// `prefix_cache_queries_total`: prompt tokens looked up.
    pub prefix_queries_tokens: u64,
    /// `prefix_cache_hits_total`: prompt tokens found.
    pub prefix_hits_tokens: u64,
    /// `prompt_tokens_total`: tokens of prompts whose prefill is done, cached ones included.
    pub prompt_tokens: u64,
    /// `prompt_tokens_cached_total`: the cached ones among them.
    pub cached_tokens: u64,
    /// `generation_tokens_total`.
    pub generation_tokens: u64,
    /// `num_preemptions_total`.
    pub preemptions: u64,
    /// Jobs that generated all their tokens.
    pub finished: u64,
    /// Jobs that were aborted.
    pub aborted: u64,
    /// Steps begun.
    pub steps: u64,
    /// Time in steps, in microseconds.
    pub busy_us: u64,
    /// Tokens computed in prefill: prompts without what was cached, and what preemption lost.
    pub computed_tokens: u64,
}

/// A job in the replica.
#[derive(Clone, Debug)]
struct Sequence {
    job: Job,
    /// Tokens to compute before decoding: the prompt, and after a preemption the output so far.
    prefill_tokens: u32,
    /// Tokens whose KV is there, once the running step is done.
    computed_tokens: u32,
    generated_tokens: u32,
    cached_tokens: u32,
    admitted_us: Option<u64>,
    in_step: bool,
    /// Full blocks we hold, head first.
    held: Vec<BlockRef>,
    /// Blocks we hold without an id: those that are not full.
    anonymous_blocks: u32,
    /// How many full blocks have been looked up or named.
    named_blocks: u32,
}

impl Sequence {
    fn new(mut job: Job, block_tokens: u32) -> Self {
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

    fn blocks(&self) -> u32 {
        self.anonymous_blocks
            .saturating_add(u32::try_from(self.held.len()).unwrap_or(u32::MAX))
    }

    fn release(&mut self, cache: &mut BlockCache) {
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

/// What a step does, for its duration.
#[derive(Debug, Default)]
struct Batch {
    budget_tokens: u32,
    prefill_tokens: u64,
    decodes: u64,
    context_tokens: u64,
}

/// One replica; see the module's documentation.
#[derive(Clone, Debug)]
pub struct Replica {
    profile: Profile,
    cache: BlockCache,
    waiting: VecDeque<Sequence>,
    /// In order of admission.
    running: Vec<Sequence>,
    /// End of the step in progress.
    step_end_us: Option<u64>,
    /// When the next step may begin.
    clock_us: u64,
    started_us: u64,
    counters: Gauges,
    /// The job at the head of the queue that had no room, and the free blocks then.
    held_back: Option<u64>,
    held_back_free: u32,
}

impl Replica {
    /// An idle replica with an empty cache.
    pub fn new(mut profile: Profile) -> Self {
        profile.block_tokens = profile.block_tokens.max(1);
        profile.token_budget = profile.token_budget.max(1);
        profile.max_running = profile.max_running.max(1);
        profile.prefill_tokens_per_s = profile.prefill_tokens_per_s.max(1);
        Self {
            cache: BlockCache::new(profile.blocks),
            profile,
            waiting: VecDeque::new(),
            running: Vec::new(),
            step_end_us: None,
            clock_us: 0,
            started_us: 0,
            counters: Gauges::default(),
            held_back: None,
            held_back_free: 0,
        }
    }

    /// The profile in force.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Queues a job at `now_us`.
    ///
    /// # Errors
    /// [`SubmitError::TooLarge`] if the job can never run.
    pub fn submit(&mut self, now_us: u64, job: Job) -> Result<(), SubmitError> {
        let sequence = Sequence::new(job, self.profile.block_tokens);
        let most_tokens = u64::from(sequence.job.prompt_tokens)
            + u64::from(sequence.job.output_tokens).saturating_sub(1);
        if most_tokens > self.profile.capacity_tokens() {
            return Err(SubmitError::TooLarge);
        }
        if self.is_idle() {
            self.clock_us = self.clock_us.max(now_us);
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Drops a job wherever it is and frees its blocks; false if it is not here. The step in
    /// progress takes its time all the same.
    pub fn abort(&mut self, id: u64) -> bool {
        if let Some(at) = self
            .running
            .iter()
            .position(|sequence| sequence.job.id == id)
        {
            let mut sequence = self.running.remove(at);
            sequence.release(&mut self.cache);
        } else if let Some(at) = self
            .waiting
            .iter()
            .position(|sequence| sequence.job.id == id)
        {
            self.waiting.remove(at);
        } else {
            return false;
        }
        self.counters.aborted += 1;
        true
    }

    /// When [`Self::advance`] next has something to do.
    pub fn next_event_us(&self) -> Option<u64> {
        match self.step_end_us {
            Some(end_us) => Some(end_us),
            None if self.is_idle() => None,
            None => Some(self.clock_us),
        }
    }

    /// Does everything up to and including `now_us`, and appends what happened, in order.
    pub fn advance(&mut self, now_us: u64, events: &mut Vec<Event>) {
        while self.next_event_us().is_some_and(|at_us| at_us <= now_us) {
            match self.step_end_us.take() {
                Some(end_us) => {
                    self.clock_us = end_us;
                    self.end_step(end_us, events);
                }
                None => self.step_end_us = Some(self.begin_step()),
            }
        }
    }

    /// The cache is lost, as by a restart; requests under way and counters go on all the same.
    pub fn restart(&mut self, now_us: u64) {
        self.cache.lose();
        self.started_us = now_us;
    }

    /// When it was last restarted.
    pub fn started_us(&self) -> u64 {
        self.started_us
    }

    /// The current gauges and counters.
    pub fn gauges(&self) -> Gauges {
        let share = f64::from(self.cache.used_blocks()) / f64::from(self.profile.blocks.max(1));
        Gauges {
            running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            kv_usage: share,
            ..self.counters
        }
    }

    /// The jobs in the batch, in order of admission.
    pub fn running_ids(&self) -> impl Iterator<Item = u64> {
        self.running.iter().map(|sequence| sequence.job.id)
    }

    /// How many of the prompt's first tokens the cache holds now.
    pub fn matched_tokens(&self, chain: &[u64]) -> u64 {
        u64::from(self.cache.matched_blocks(chain)) * u64::from(self.profile.block_tokens)
    }

    fn is_idle(&self) -> bool {
        self.step_end_us.is_none() && self.running.is_empty() && self.waiting.is_empty()
    }

    /// Schedules one step and returns its end.
    fn begin_step(&mut self) -> u64 {
        let mut batch = Batch {
            budget_tokens: self.profile.token_budget,
            ..Batch::default()
        };
        let preempted = self.schedule_running(&mut batch);
        if !preempted {
            self.admit_waiting(&mut batch);
        }
        let profile = &self.profile;
        let duration_us = u64::from(profile.step_base_us)
            + batch.prefill_tokens * 1_000_000 / u64::from(profile.prefill_tokens_per_s)
            + batch.decodes * u64::from(profile.decode_us_per_seq)
            + batch.context_tokens * u64::from(profile.context_us_per_1k_tokens) / 1_000;
        // At least one, so that time moves whatever the profile says.
        let duration_us = duration_us.max(1);
        self.counters.steps += 1;
        self.counters.busy_us += duration_us;
        self.counters.computed_tokens += batch.prefill_tokens;
        self.clock_us.saturating_add(duration_us)
    }

    /// Gives the running requests their share of the step; true if one had to be preempted.
    fn schedule_running(&mut self, batch: &mut Batch) -> bool {
        let mut preempted = false;
        let mut at = 0;
        while batch.budget_tokens > 0 && at < self.running.len() {
            if self.needs_block(at) && !self.cache.allocate(1) {
                self.preempt_last();
                preempted = true;
                continue;
            }
            let needs_block = self.needs_block(at);
            if let Some(sequence) = self.running.get_mut(at) {
                sequence.anonymous_blocks += u32::from(needs_block);
                schedule(sequence, &mut self.cache, &self.profile, batch);
            }
            at += 1;
        }
        preempted
    }

    fn needs_block(&self, at: usize) -> bool {
        self.running.get(at).is_some_and(|sequence| {
            let room = u64::from(sequence.blocks()) * u64::from(self.profile.block_tokens);
            sequence.computed_tokens >= sequence.prefill_tokens
                && u64::from(sequence.computed_tokens) >= room
        })
    }

    fn preempt_last(&mut self) {
        let Some(mut sequence) = self.running.pop() else {
            return;
        };
        sequence.release(&mut self.cache);
        sequence.prefill_tokens = sequence
            .job
            .prompt_tokens
            .saturating_add(sequence.generated_tokens);
        self.counters.preemptions += 1;
        self.waiting.push_front(sequence);
    }

    fn admit_waiting(&mut self, batch: &mut Batch) {
        while batch.budget_tokens > 0 && self.running.len() < self.profile.max_running as usize {
            let Some(mut sequence) = self.waiting.pop_front() else {
                return;
            };
            if !self.take_blocks(&mut sequence) {
                self.waiting.push_front(sequence);
                return;
            }
            sequence.admitted_us.get_or_insert(self.clock_us);
            schedule(&mut sequence, &mut self.cache, &self.profile, batch);
            self.running.push(sequence);
        }
    }

    /// Holds the cached part of the prompt and allocates the rest; false, and nothing taken, if
    /// there is no room.
    fn take_blocks(&mut self, sequence: &mut Sequence) -> bool {
        // Held back before, and no block has become free since.
        if self.held_back == Some(sequence.job.id)
            && self.cache.free_blocks() <= self.held_back_free
        {
            return false;
        }
        let block_tokens = self.profile.block_tokens;
        // The last token is always computed, to have something to sample from.
        let most = (sequence.prefill_tokens - 1) / block_tokens;
        let chain = sequence
            .job
            .chain
            .get(..most as usize)
            .unwrap_or(&sequence.job.chain);
        sequence.held.clear();
        let unheld = self.cache.find(chain, &mut sequence.held);
        let matched = sequence.blocks();
        let needed = sequence
            .prefill_tokens
            .div_ceil(block_tokens)
            .saturating_sub(matched);
        if u64::from(needed) + u64::from(unheld) > u64::from(self.cache.free_blocks()) {
            sequence.held.clear();
            self.held_back = Some(sequence.job.id);
            self.held_back_free = self.cache.free_blocks();
            return false;
        }
        self.held_back = None;
        for block in &sequence.held {
            self.cache.hold(*block);
        }
        // There is room, as just found.
        let allocated = self.cache.allocate(needed);
        debug_assert!(allocated);
        sequence.anonymous_blocks = needed;
        sequence.named_blocks = matched;
        sequence.computed_tokens = matched * block_tokens;
        if sequence.admitted_us.is_none() {
            sequence.cached_tokens = sequence.computed_tokens;
            self.counters.prefix_queries_tokens += u64::from(sequence.job.prompt_tokens);
            self.counters.prefix_hits_tokens += u64::from(sequence.cached_tokens);
        }
        true
    }

    fn end_step(&mut self, at_us: u64, events: &mut Vec<Event>) {
        let counters = &mut self.counters;
        let cache = &mut self.cache;
        self.running.retain_mut(|sequence| {
            let in_step = std::mem::take(&mut sequence.in_step);
            if !in_step || sequence.computed_tokens < sequence.prefill_tokens {
                return true;
            }
            add_token(sequence, counters, at_us, events);
            if sequence.generated_tokens < sequence.job.output_tokens {
                return true;
            }
            sequence.release(cache);
            counters.finished += 1;
            events.push(Event::Finished {
                id: sequence.job.id,
                at_us,
            });
            false
        });
    }
}

/// Puts one sequence, whose blocks are there, into the step.
fn schedule(sequence: &mut Sequence, cache: &mut BlockCache, profile: &Profile, batch: &mut Batch) {
    sequence.in_step = true;
    let missing = sequence
        .prefill_tokens
        .saturating_sub(sequence.computed_tokens);
    if missing == 0 {
        sequence.computed_tokens += 1;
        batch.budget_tokens -= 1;
        batch.decodes += 1;
        batch.context_tokens += u64::from(sequence.computed_tokens);
        name_full_blocks(sequence, cache, profile);
        return;
    }
    let chunk = missing.min(batch.budget_tokens);
    sequence.computed_tokens += chunk;
    batch.budget_tokens -= chunk;
    batch.prefill_tokens += u64::from(chunk);
    name_full_blocks(sequence, cache, profile);
}

/// As in vLLM, blocks are cached from the moment they are scheduled to be filled. What has no id in
/// the chain, or one that is cached already, gets one that nobody looks for: it takes its place in
/// the cache all the same.
fn name_full_blocks(sequence: &mut Sequence, cache: &mut BlockCache, profile: &Profile) {
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

fn add_token(sequence: &mut Sequence, counters: &mut Gauges, at_us: u64, events: &mut Vec<Event>) {
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

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
