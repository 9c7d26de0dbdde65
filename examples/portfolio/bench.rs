//! Runs every contender in every cell with every seed, on all cores.

use std::path::Path;

use indicatif::{ParallelProgressIterator, ProgressBar, ProgressStyle};
use rayon::prelude::*;
use warmroute::sim::fleet::{self, Outcome};
use warmroute::sim::record::Served;
use warmroute::sim::workload::Workload;

use crate::capacity::Work;
use crate::cells::{Cell, Source};
use crate::contender::Contender;

/// vLLM's block size on GPUs.
const BLOCK_TOKENS: u32 = 16;

/// A cell with its workloads, one for each seed, or one for all.
pub struct Loaded {
    pub cell: Cell,
    workloads: Vec<Workload>,
}

impl Loaded {
    /// That of the seed with this index.
    pub fn workload(&self, seed: usize) -> Option<&Workload> {
        self.workloads.get(seed).or_else(|| self.workloads.first())
    }

    /// One line: what comes, and how often.
    pub fn describe(&self) -> String {
        let Some(workload) = self.workloads.first() else {
            return self.cell.name.clone();
        };
        let facts = workload.facts(BLOCK_TOKENS);
        let rate = workload.rate_per_s();
        let rate = rate.map_or("closed loop".to_owned(), |rate| format!("{rate:.2}/s"));
        format!(
            "{:<24} {:>6} requests, {rate:>11}, prompts {:>6.0}, outputs {:>4.0}, shared {:>3.0} %",
            self.cell.name,
            facts.requests,
            facts.mean_prompt_tokens,
            facts.mean_output_tokens,
            facts.cacheable_share * 100.0
        )
    }
}

/// Makes the workloads; the second part names the cells whose traces are missing.
pub fn load(
    cells: Vec<Cell>,
    seeds: &[u64],
    traces: &Path,
) -> Result<(Vec<Loaded>, Vec<String>), String> {
    let first = *seeds.first().ok_or("no seed is given")?;
    let mut sources: Vec<Source> = Vec::new();
    for cell in &cells {
        if !sources.contains(&cell.source) {
            sources.push(cell.source);
        }
    }
    let work = |source: &Source| {
        let probe = source.workload(1.0, first, traces)?;
        Ok((*source, probe.map(|probe| Work::of(&probe, BLOCK_TOKENS))))
    };
    let works: Vec<(Source, Option<Work>)> = sources
        .par_iter()
        .map(work)
        .collect::<Result<_, String>>()?;
    let mut there = Vec::new();
    let mut left_out = Vec::new();
    for cell in cells {
        let known = works.iter().find(|(source, _)| *source == cell.source);
        let Some((_, Some(work))) = known else {
            left_out.push(cell.name);
            continue;
        };
        let wanted = if cell.is_trace() { &[first][..] } else { seeds };
        let workloads = wanted.iter().map(|seed| cell.workload(work, *seed, traces));
        let workloads: Option<Vec<Workload>> = workloads.collect::<Result<_, _>>()?;
        let workloads = workloads.unwrap_or_default();
        there.push(Loaded { cell, workloads });
    }
    Ok((there, left_out))
}

/// What one contender did in one cell: means over the seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    pub ttft_ms: f64,
    pub p99_ttft_ms: f64,
    pub e2e_ms: f64,
    /// Share of the prompt tokens that the engines found in their caches.
    pub hit_rate: f64,
    pub errors: f64,
    pub preemptions: f64,
}

/// By cell, then by contender.
pub type Results = Vec<Vec<Means>>;

/// Runs all.
///
/// # Errors
/// A fleet that cannot be simulated, or a run that broke a law of conservation.
pub fn run(cells: &[Loaded], contenders: &[Contender], seeds: &[u64]) -> Result<Results, String> {
    let mut jobs = Vec::new();
    for seed in 0..seeds.len() {
        for cell in 0..cells.len() {
            jobs.extend((0..contenders.len()).map(|contender| (seed, cell, contender)));
        }
    }
    let bar = bar(jobs.len());
    let figures: Vec<Means> = jobs
        .par_iter()
        .with_max_len(1)
        .progress_with(bar.clone())
        .map(|(seed, cell, contender)| {
            let lost = "a run that is not there";
            one(
                cells.get(*cell).ok_or(lost)?,
                contenders.get(*contender).ok_or(lost)?,
                *seed,
                *seeds.get(*seed).ok_or(lost)?,
            )
        })
        .collect::<Result<_, String>>()?;
    bar.finish_and_clear();
    let mut results = vec![vec![Means::default(); contenders.len()]; cells.len()];
    for ((_, cell, contender), figure) in jobs.iter().zip(figures) {
        let sum = results
            .get_mut(*cell)
            .and_then(|row| row.get_mut(*contender));
        if let Some(sum) = sum {
            sum.add(&figure, seeds.len() as f64);
        }
    }
    Ok(results)
}

fn one(cell: &Loaded, contender: &Contender, seed: usize, value: u64) -> Result<Means, String> {
    let workload = cell.workload(seed).ok_or("no workload")?;
    let options = contender.fleet(&cell.cell.replicas, value);
    let place = || format!("{} in {} with seed {value}", contender.name, cell.cell.name);
    let outcome = fleet::run(&options, workload).map_err(|e| format!("{}: {e}", place()))?;
    if !outcome.faults.is_empty() {
        let faults = outcome.faults.join("; ");
        return Err(format!("{} broke its own laws: {faults}", place()));
    }
    Ok(Means::of(&outcome))
}

impl Means {
    fn of(outcome: &Outcome) -> Self {
        let served = &outcome.run.served;
        let good: Vec<&Served> = served.iter().filter(|one| one.error.is_none()).collect();
        let since_due = |one: &Served, at: Option<u64>| at.map(|us| us.saturating_sub(one.due_us));
        let ttfts: Vec<u64> = good
            .iter()
            .filter_map(|one| since_due(one, one.first_us))
            .collect();
        let ends: Vec<u64> = good
            .iter()
            .filter_map(|one| since_due(one, one.end_us))
            .collect();
        let tokens = |of: fn(&Served) -> u32| -> f64 {
            good.iter().map(|one| u64::from(of(one))).sum::<u64>() as f64
        };
        let preemptions: u64 = outcome
            .replicas
            .iter()
            .map(|gauges| gauges.preemptions)
            .sum();
        Self {
            hit_rate: tokens(|one| one.cached_tokens) / tokens(|one| one.prompt_tokens).max(1.0),
            errors: (served.len() - good.len()) as f64,
            preemptions: preemptions as f64,
            ..Self::of_times(ttfts, ends)
        }
    }

    /// Of times from when requests were due, in microseconds; nothing but latencies.
    pub fn of_times(mut ttfts_us: Vec<u64>, ends_us: Vec<u64>) -> Self {
        ttfts_us.sort_unstable();
        let p99 = (ttfts_us.len() * 99).div_ceil(100).saturating_sub(1);
        Self {
            ttft_ms: mean_ms(&ttfts_us),
            p99_ttft_ms: ttfts_us.get(p99).map_or(0.0, |us| *us as f64 / 1e3),
            e2e_ms: mean_ms(&ends_us),
            ..Self::default()
        }
    }

    /// Adds a part of another one.
    pub fn add(&mut self, other: &Self, parts: f64) {
        self.ttft_ms += other.ttft_ms / parts;
        self.p99_ttft_ms += other.p99_ttft_ms / parts;
        self.e2e_ms += other.e2e_ms / parts;
        self.hit_rate += other.hit_rate / parts;
        self.errors += other.errors / parts;
        self.preemptions += other.preemptions / parts;
    }
}

fn mean_ms(times_us: &[u64]) -> f64 {
    times_us.iter().sum::<u64>() as f64 / times_us.len().max(1) as f64 / 1e3
}

fn bar(runs: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} runs, {elapsed}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(runs as u64).with_style(style)
}
