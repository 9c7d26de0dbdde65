//! A run over time, by endpoint, from what became of its requests alone.

use super::summary::{place, ttft_ms};
use warmroute::sim::record::{Run, Served};

/// Values by endpoint, each as points of seconds and value.
pub type Lines = Vec<Vec<(f64, f64)>>;

/// Length of a run in seconds: from time zero to the last event.
pub fn span_s(run: &Run) -> f64 {
    let last = |s: &Served| {
        s.due_us
            .max(s.first_us.unwrap_or(0))
            .max(s.end_us.unwrap_or(0))
    };
    run.served.iter().map(last).max().unwrap_or(0) as f64 / 1e6
}

/// Prompt tokens that were neither cached nor followed by a first token yet, as means over `bins`
/// stretches of time. A failed request counts until its end; without one, not at all.
pub fn outstanding_tokens(run: &Run, bins: usize) -> Lines {
    let width_s = span_s(run) / bins as f64;
    let mut sums = vec![vec![0.0; bins]; run.endpoints.len()];
    for served in &run.served {
        let Some(end_us) = served.first_us.or(served.end_us) else {
            continue;
        };
        let Some(sums) = place(served, run).and_then(|index| sums.get_mut(index)) else {
            continue;
        };
        let (from, to) = (
            served.due_us as f64 / 1e6 / width_s,
            end_us as f64 / 1e6 / width_s,
        );
        let tokens = f64::from(served.prompt_tokens.saturating_sub(served.cached_tokens));
        let touched = (to.ceil() as usize).saturating_sub(from as usize);
        for (bin, sum) in sums
            .iter_mut()
            .enumerate()
            .skip(from as usize)
            .take(touched)
        {
            let overlap = to.min(bin as f64 + 1.0) - from.max(bin as f64);
            *sum += tokens * overlap.max(0.0);
        }
    }
    let middle_s = |bin: usize| (bin as f64 + 0.5) * width_s;
    let points = |sums: Vec<f64>| {
        sums.into_iter()
            .enumerate()
            .map(|(bin, sum)| (middle_s(bin), sum))
    };
    sums.into_iter()
        .map(|sums| points(sums).collect())
        .collect()
}

/// Mean time to first token, in milliseconds, of the whole answers that were due in each of `bins`
/// stretches of time. A stretch without any has no point.
pub fn mean_ttft_ms(run: &Run, bins: usize) -> Lines {
    let width_s = span_s(run) / bins as f64;
    let mut sums = vec![vec![(0.0, 0_u32); bins]; run.endpoints.len()];
    for served in run.served.iter().filter(|s| s.error.is_none()) {
        let bin = ((served.due_us as f64 / 1e6 / width_s) as usize).min(bins.saturating_sub(1));
        let slot = place(served, run).and_then(|index| sums.get_mut(index)?.get_mut(bin));
        if let (Some((sum, count)), Some(ms)) = (slot, ttft_ms(served)) {
            *sum += ms;
            *count += 1;
        }
    }
    let point = |(bin, (sum, count)): (usize, (f64, u32))| {
        (count > 0).then(|| ((bin as f64 + 0.5) * width_s, sum / f64::from(count)))
    };
    let points = |sums: Vec<(f64, u32)>| sums.into_iter().enumerate().filter_map(point).collect();
    sums.into_iter().map(points).collect()
}
