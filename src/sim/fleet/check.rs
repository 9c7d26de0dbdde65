//! Laws that every run must keep, whatever the policy: work is conserved.

use crate::sim::record::Served;
use crate::sim::replica::{Gauges, Profile};

/// What the requests say a replica did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    requests: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
}

/// Compares what the clients saw with what the replicas count, and both with the clock.
pub(super) fn replicas(served: &[Served], gauges: &[Gauges], profiles: &[Profile]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut sums = vec![Sum::default(); gauges.len()];
    for one in served.iter().filter(|one| one.error.is_none()) {
        let in_order =
            one.first_us >= Some(one.due_us) && one.end_us >= one.first_us && one.output_tokens > 0;
        if !in_order {
            faults.push(format!("out of order: {one:?}"));
        }
        let endpoint = one.endpoint.map(|endpoint| endpoint as usize);
        if let Some(sum) = endpoint.and_then(|endpoint| sums.get_mut(endpoint)) {
            sum.requests += 1;
            sum.prompt_tokens += u64::from(one.prompt_tokens);
            sum.cached_tokens += u64::from(one.cached_tokens);
            sum.output_tokens += u64::from(one.output_tokens);
        }
    }
    for (index, ((sum, gauges), profile)) in sums.iter().zip(gauges).zip(profiles).enumerate() {
        let counted = Sum {
            requests: gauges.finished,
            prompt_tokens: gauges.prompt_tokens,
            cached_tokens: gauges.cached_tokens,
            output_tokens: gauges.generation_tokens,
        };
        if counted != *sum {
            faults.push(format!(
                "replica {index} counts {counted:?}, its clients {sum:?}"
            ));
        }
        faults.extend(work(index, gauges, profile));
    }
    faults
}

/// Nothing is left, what was not cached was computed, and computing took its time.
fn work(index: usize, gauges: &Gauges, profile: &Profile) -> Vec<String> {
    let mut faults = Vec::new();
    if gauges.running + gauges.waiting > 0 || gauges.kv_usage > 0.0 {
        faults.push(format!("replica {index} is not empty: {gauges:?}"));
    }
    let missing = gauges.prompt_tokens - gauges.cached_tokens;
    // What preemption loses is computed again, less what others have cached by then.
    if gauges.preemptions == 0 && gauges.computed_tokens != missing {
        let computed = gauges.computed_tokens;
        faults.push(format!(
            "replica {index} computed {computed} tokens of {missing}"
        ));
    }
    let least_us = gauges.steps * u64::from(profile.step_base_us)
        + gauges.computed_tokens * 1_000_000 / u64::from(profile.prefill_tokens_per_s.max(1));
    // Each step's share is rounded down.
    if gauges.busy_us + gauges.steps < least_us {
        let busy_us = gauges.busy_us;
        faults.push(format!(
            "replica {index} was busy for {busy_us} us, not {least_us}"
        ));
    }
    faults
}
