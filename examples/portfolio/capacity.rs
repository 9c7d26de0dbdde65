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

/// Requests per second.
pub fn rate_per_s(workload: &Workload, replicas: &[Profile]) -> f64 {
    let service_s = |profile: &Profile| service_s(workload, profile);
    replicas
        .iter()
        .map(|profile| 1.0 / service_s(profile))
        .sum()
}

/// Mean time that a request takes of one replica, in seconds.
fn service_s(workload: &Workload, profile: &Profile) -> f64 {
    let facts = workload.facts(profile.block_tokens);
    let new_tokens = facts.mean_prompt_tokens * (1.0 - facts.cacheable_share);
    let held_tokens = facts.mean_prompt_tokens + facts.mean_output_tokens / 2.0;
    let sequences = profile.capacity_tokens() as f64 / held_tokens;
    let sequences = sequences.clamp(1.0, f64::from(profile.max_running));
    let step_us =
        f64::from(profile.step_base_us) / sequences + f64::from(profile.decode_us_per_seq);
    // Output tokens × thousands of tokens of context, in the mean.
    let reads = workload.requests.iter().map(|request| {
        let output_tokens = f64::from(request.output_tokens);
        output_tokens * (f64::from(request.prompt_tokens()) + output_tokens / 2.0) / 1e3
    });
    let reads = reads.sum::<f64>() / workload.requests.len().max(1) as f64;
    let decode_us =
        facts.mean_output_tokens * step_us + reads * f64::from(profile.context_us_per_1k_tokens);
    new_tokens / f64::from(profile.prefill_tokens_per_s) + decode_us / 1e6
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
        let rate = rate_per_s(&workload, &[profile.clone(), profile]);
        assert!(
            (rate / expected - 1.0).abs() < 1e-9,
            "{rate}, not {expected}"
        );
    }
}
