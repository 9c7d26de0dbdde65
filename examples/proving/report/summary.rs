//! A run as a few figures.

use warmroute::sim::record::{Objective, Run, Served};

/// Mean and quantiles of a latency, in milliseconds; quantiles are of the nearest rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// The figures of one run. What cannot be said is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Requests that were sent.
    pub requests: u64,
    /// Requests that failed. They count in no latency, rate or share below.
    pub errors: u64,
    /// Requests that were never sent.
    pub unsent: u64,
    /// Whole answers without the time of their first or last token: in no latency.
    pub untimed: u64,
    /// Whole answers whose endpoint is not known: in no endpoint's load.
    pub unplaced: u64,
    /// From the first request's due time to the last event of any request.
    pub duration_s: Option<f64>,
    /// Answers within the objective, per second.
    pub goodput_per_s: Option<f64>,
    /// Whole answers per second.
    pub requests_per_s: Option<f64>,
    /// Prompt and output tokens per second.
    pub tokens_per_s: Option<f64>,
    /// Output tokens per second.
    pub output_tokens_per_s: Option<f64>,
    /// Time to first token.
    pub ttft: Option<Latency>,
    /// Time per output token after the first.
    pub tpot: Option<Latency>,
    /// Time to the last token.
    pub e2e: Option<Latency>,
    /// Cached prompt tokens over prompt tokens.
    pub hit_rate: Option<f64>,
    /// Prompt and output tokens of the busiest endpoint over the mean of all endpoints.
    pub load_skew: Option<f64>,
    /// Processor seconds of the router per 1,000 requests.
    pub router_cpu_s_per_1000: Option<f64>,
    /// Most memory that the router used.
    pub router_peak_rss_bytes: Option<f64>,
    /// Calls to the engines other than inference.
    pub extra_calls: Option<f64>,
}

impl Summary {
    /// `None` if the run failed as a whole.
    pub fn of(run: &Run, objective: Objective) -> Option<Self> {
        if run.failed.is_some() {
            return None;
        }
        let whole: Vec<&Served> = run.served.iter().filter(|s| s.error.is_none()).collect();
        let duration_s = duration_s(&run.served);
        let rate = |count: u64| duration_s.map(|seconds| count as f64 / seconds);
        let sum = |tokens: fn(&Served) -> u32| whole.iter().map(|s| u64::from(tokens(s))).sum();
        let (prompt, cached): (u64, u64) = (sum(|s| s.prompt_tokens), sum(|s| s.cached_tokens));
        let output: u64 = sum(|s| s.output_tokens);
        let requests = run.served.len() as u64;
        let within = whole.iter().filter(|s| is_good(s, objective)).count() as u64;
        let timed = |s: &&&Served| s.first_us.is_none() || s.end_us.is_none();
        Some(Self {
            requests,
            errors: requests - whole.len() as u64,
            unsent: u64::from(run.unsent),
            untimed: whole.iter().filter(timed).count() as u64,
            unplaced: whole.iter().filter(|s| place(s, run).is_none()).count() as u64,
            duration_s,
            goodput_per_s: rate(within),
            requests_per_s: rate(whole.len() as u64),
            tokens_per_s: rate(prompt + output),
            output_tokens_per_s: rate(output),
            ttft: latency(ttfts_ms(&run.served)),
            tpot: latency(tpots_ms(&run.served)),
            e2e: latency(e2es_ms(&run.served)),
            hit_rate: (prompt > 0).then(|| cached as f64 / prompt as f64),
            load_skew: load_skew(run, &whole),
            router_cpu_s_per_1000: run
                .cost
                .filter(|_| requests > 0)
                .map(|cost| cost.cpu_us as f64 / 1e3 / requests as f64),
            router_peak_rss_bytes: run.cost.map(|cost| cost.peak_rss_bytes as f64),
            extra_calls: run.extra_calls.map(|calls| calls as f64),
        })
    }
}

/// Time to first token of every whole answer, in milliseconds.
pub fn ttfts_ms(served: &[Served]) -> Vec<f64> {
    of_whole(served, ttft_ms)
}

/// Time per output token after the first, of every whole answer that has more than one.
pub fn tpots_ms(served: &[Served]) -> Vec<f64> {
    of_whole(served, tpot_ms)
}

/// Time to the last token of every whole answer, in milliseconds.
pub fn e2es_ms(served: &[Served]) -> Vec<f64> {
    of_whole(served, |s| Some(since(s.due_us, s.end_us?)))
}

/// Time to first token, in milliseconds.
pub fn ttft_ms(served: &Served) -> Option<f64> {
    Some(since(served.due_us, served.first_us?))
}

/// The nearest rank of ascending values; `None` if there are none.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// `None` if there are none.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The endpoint's index, if it is one of the run's.
pub fn place(served: &Served, run: &Run) -> Option<usize> {
    let index = served.endpoint? as usize;
    (index < run.endpoints.len()).then_some(index)
}

fn of_whole(served: &[Served], value: fn(&Served) -> Option<f64>) -> Vec<f64> {
    let whole = served.iter().filter(|s| s.error.is_none());
    whole.filter_map(value).collect()
}

fn tpot_ms(served: &Served) -> Option<f64> {
    let after_first = served.output_tokens.checked_sub(1).filter(|&n| n > 0)?;
    Some(since(served.first_us?, served.end_us?) / f64::from(after_first))
}

/// An answer of one token has no time per output token, so only its first token is judged.
fn is_good(served: &Served, objective: Objective) -> bool {
    let ttft = ttft_ms(served).is_some_and(|ms| ms * 1e3 <= objective.ttft_us as f64);
    let tpot = tpot_ms(served).is_none_or(|ms| ms * 1e3 <= objective.tpot_us as f64);
    ttft && tpot && served.end_us.is_some()
}

/// Clocks of two machines may disagree by a little; a latency below zero is none.
fn since(from_us: u64, to_us: u64) -> f64 {
    to_us.saturating_sub(from_us) as f64 / 1e3
}

fn duration_s(served: &[Served]) -> Option<f64> {
    let begin = served.iter().map(|s| s.due_us).min()?;
    let last = |s: &Served| {
        s.due_us
            .max(s.first_us.unwrap_or(0))
            .max(s.end_us.unwrap_or(0))
    };
    let end = served.iter().map(last).max()?;
    (end > begin).then(|| (end - begin) as f64 / 1e6)
}

fn latency(mut values: Vec<f64>) -> Option<Latency> {
    values.sort_by(f64::total_cmp);
    Some(Latency {
        mean_ms: mean(&values)?,
        p50_ms: quantile(&values, 0.5)?,
        p90_ms: quantile(&values, 0.9)?,
        p99_ms: quantile(&values, 0.99)?,
    })
}

fn load_skew(run: &Run, whole: &[&Served]) -> Option<f64> {
    let mut load = vec![0_u64; run.endpoints.len()];
    for served in whole {
        if let Some(tokens) = place(served, run).and_then(|index| load.get_mut(index)) {
            *tokens += u64::from(served.prompt_tokens) + u64::from(served.output_tokens);
        }
    }
    let total: u64 = load.iter().sum();
    let busiest = load.iter().max().copied()?;
    (total > 0).then(|| busiest as f64 * load.len() as f64 / total as f64)
}
