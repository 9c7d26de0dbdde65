//! Gauges and counters of a replica.

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
