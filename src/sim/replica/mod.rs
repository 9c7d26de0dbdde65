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

mod gauges;
mod job;
mod profile;
mod sequence;
mod step;
#[cfg(test)]
mod tests;

pub use self::gauges::Gauges;
pub use self::job::{Detail, Event, Job, SubmitError};
pub use self::profile::Profile;

use self::sequence::Sequence;
use super::cache::BlockCache;
use std::collections::VecDeque;

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
}
