//! What a workload is like, in a few numbers.

use super::Workload;
use std::collections::HashSet;

/// Lengths of a workload and what a cache could save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Number of requests.
    pub requests: usize,
    /// Mean length of a prompt.
    pub mean_prompt_tokens: f64,
    /// 99th percentile of the prompts' lengths (nearest rank).
    pub p99_prompt_tokens: u32,
    /// Mean length of an output.
    pub mean_output_tokens: f64,
    /// 99th percentile of the outputs' lengths (nearest rank).
    pub p99_output_tokens: u32,
    /// Share of all prompt tokens, from 0 to 1, that one cache without limit would find if the
    /// requests came one after the other.
    pub cacheable_share: f64,
}

impl Workload {
    /// Its facts, for a cache of blocks of `block_tokens`.
    ///
    /// As in vLLM, only full blocks are found, and the last token of a prompt is always computed.
    /// Answers are not put into the cache, only prompts.
    pub fn facts(&self, block_tokens: u32) -> Facts {
        let block_tokens = block_tokens.max(1);
        let mut cached: HashSet<u64> = HashSet::new();
        let mut found_tokens = 0u64;
        for request in &self.requests {
            let chain = request.chain(block_tokens);
            let most = request.prompt_tokens().saturating_sub(1) / block_tokens;
            let hits = chain.iter().take(most as usize);
            let hits = hits.take_while(|id| cached.contains(id)).count() as u64;
            found_tokens = found_tokens.saturating_add(hits * u64::from(block_tokens));
            cached.extend(chain);
        }
        let prompts: Vec<u32> = self.requests.iter().map(|r| r.prompt_tokens()).collect();
        let outputs: Vec<u32> = self.requests.iter().map(|r| r.output_tokens).collect();
        Facts {
            requests: self.requests.len(),
            mean_prompt_tokens: mean(&prompts),
            p99_prompt_tokens: p99(&prompts),
            mean_output_tokens: mean(&outputs),
            p99_output_tokens: p99(&outputs),
            cacheable_share: found_tokens as f64 / sum(&prompts).max(1) as f64,
        }
    }
}

fn sum(values: &[u32]) -> u64 {
    values.iter().map(|value| u64::from(*value)).sum()
}

fn mean(values: &[u32]) -> f64 {
    sum(values) as f64 / values.len().max(1) as f64
}

fn p99(values: &[u32]) -> u32 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(0)
}
