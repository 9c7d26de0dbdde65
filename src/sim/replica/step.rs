//! One step: who is in it, how long it takes, and what it leaves behind.

use super::sequence::{Sequence, add_token, name_full_blocks};
use super::{Event, Profile, Replica};
use crate::sim::cache::BlockCache;

/// What a step does, for its duration.
#[derive(Debug, Default)]
struct Batch {
    budget_tokens: u32,
    prefill_tokens: u64,
    decodes: u64,
    context_tokens: u64,
}

impl Replica {
    /// Schedules one step and returns its end.
    pub(super) fn begin_step(&mut self) -> u64 {
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

    pub(super) fn end_step(&mut self, at_us: u64, events: &mut Vec<Event>) {
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
