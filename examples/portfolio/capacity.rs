//! What a fleet could serve of a workload with a perfect cache: the measure of every cell's load.
//!
//! A perfect cache finds every token of a prompt that any earlier request had, whichever replica
//! that was on and however long ago. What is left for the replicas is arithmetic, with the terms of
//! [`Profile`]: tokens never seen before at the prefill rate; for every output token its decode and
//! the reading of its context; and its share of a step's fixed cost, at as many sequences in a step
//! as the KV cache holds (whole prompts and half of the outputs, nothing shared) and the engine
//! allows. The rate is that at which this takes all of the time of all replicas. No router reaches
//! it: real caches forget, and requests come by chance.

use warmroute::sim::replica::Profile;
use warmroute::sim::workload::Workload;

/// What a request of a workload costs in the mean, whatever serves it.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Prompt tokens never seen before.
    new_tokens: f64,
    /// Tokens that it holds in a KV cache.
    held_tokens: f64,
    output_tokens: f64,
    /// Output tokens times thousands of tokens of context.
    reads: f64,
}

impl Work {
    /// Of all requests, for caches with blocks of `block_tokens`.
    pub fn of(workload: &Workload, block_tokens: u32) -> Self {
        let facts = workload.facts(block_tokens);
        let reads = workload.requests.iter().map(|request| {
            let output_tokens = f64::from(request.output_tokens);
            output_tokens * (f64::from(request.prompt_tokens()) + output_tokens / 2.0) / 1e3
        });
        Self {
            new_tokens: facts.mean_prompt_tokens * (1.0 - facts.cacheable_share),
            held_tokens: facts.mean_prompt_tokens + facts.mean_output_tokens / 2.0,
            output_tokens: facts.mean_output_tokens,
            reads: reads.sum::<f64>() / workload.requests.len().max(1) as f64,
        }
    }

    /// Requests per second.
    pub fn rate_per_s(&self, replicas: &[Profile]) -> f64 {
        let rates = replicas.iter().map(|profile| 1.0 / self.service_s(profile));
        rates.sum()
    }

    /// Mean time that a request takes of one replica, in seconds.
    fn service_s(&self, profile: &Profile) -> f64 {
        let sequences = profile.capacity_tokens() as f64 / self.held_tokens.max(1.0);
        let sequences = sequences.clamp(1.0, f64::from(profile.max_running.max(1)));
        let base_us = f64::from(profile.step_base_us) / sequences;
        let decode_us = self.output_tokens * (base_us + f64::from(profile.decode_us_per_seq))
            + self.reads * f64::from(profile.context_us_per_1k_tokens);
        self.new_tokens / f64::from(profile.prefill_tokens_per_s) + decode_us / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute::sim::workload::{Request, Role, Segment, Start};

    #[test]
    fn the_rate_is_that_of_the_tokens_never_seen_before() {
        let request = |id| Request {
            start: Start::At { us: 0 },
            session: id,
            adapter: None,
            prompt: vec![
                Segment {
                    id: 1,
                    tokens: 800,
                    role: Role::System,
                },
                Segment {
                    id,
                    tokens: 160,
                    role: Role::User,
                },
            ],
            output_tokens: 10,
        };
        let workload = Workload {
            requests: vec![request(2), request(3)],
            ..Workload::default()
        };
        let profile = Profile {
            prefill_tokens_per_s: 1_000,
            step_base_us: 10_000,
            decode_us_per_seq: 1_000,
            context_us_per_1k_tokens: 1_000,
            blocks: 603,
            ..Profile::fast()
        };
        // 960 and 160 tokens are new; 9,648 tokens hold 9.997 sequences of 965.
        let decode_s = 10.0 * (0.01 * 965.0 / 9_648.0 + 0.001) + 10.0 * 0.965 * 0.001;
        let expected = 2.0 / (0.56 + decode_s);
        let rate = Work::of(&workload, 16).rate_per_s(&[profile.clone(), profile]);
        assert!(
            (rate / expected - 1.0).abs() < 1e-9,
            "{rate}, not {expected}"
        );
    }
}
