//! `--bounds`: how far every cell's best contenders are from what is in reach.
//!
//! - `alone` is a bound that nobody passes, for the mean and for every percentile: [`crate::alone`].
//! - `pooled` is an estimate. All replicas are one with the sum of their rates, budgets and caches,
//!   which works on each prompt with all of it: nobody waits while another replica idles, and no
//!   prompt is computed twice. No fleet that serves in order of arrival is faster in the sum of its
//!   work; but with several replicas short requests pass long ones, and then the mean can be less.
//! - `oracle` is reached, by a router that looks into the engines and knows every output's length
//!   ([`PeerKind::Oracle`]). It is greedy, so that another one may do better still.
//!
//! The truth, what the best of all routers could reach, lies between `alone` and the least that
//! anybody here reaches.

use std::fmt::Write;

use rayon::prelude::*;
use warmroute::sim::fleet::{FleetOptions, policy};
use warmroute::sim::replica::Profile;

use crate::alone;
use crate::bench::{self, Loaded, Means};
use crate::contender::Contender;
use crate::score::{Measure, Scores};
use crate::table;

/// One cell under one measure, in milliseconds.
pub struct Reach {
    pub cell: String,
    pub subject: f64,
    pub best_other: f64,
    pub best_other_name: String,
    pub oracle: f64,
    pub pooled: f64,
    pub alone: f64,
}

impl Reach {
    /// The least that anybody reached.
    fn reached(&self) -> f64 {
        self.subject.min(self.best_other).min(self.oracle)
    }
}

/// Runs the contenders, the oracle and the pool; a table for each measure, and figures whose names
/// begin with `prefix`.
///
/// # Errors
/// As [`bench::run`].
pub fn run(
    cells: &[Loaded],
    contenders: &[Contender],
    subject: usize,
    seeds: &[u64],
    prefix: &str,
) -> Result<String, String> {
    let mut all = contenders.to_vec();
    all.extend([Contender::oracle(), Contender::pooled()]);
    let results = bench::run(cells, &all, seeds)?;
    let alone: Vec<Means> = cells.par_iter().map(|cell| of_cell(cell, seeds)).collect();
    let scores = Scores::new(cells, &all, &results);
    let mut text = String::new();
    for measure in Measure::ALL {
        let reaches: Vec<Reach> = (0..cells.len())
            .filter_map(|cell| {
                let figures = scores.figures_ms(measure, cell);
                let alone = measure.of(alone.get(cell)?);
                reach(&scores, cell, &figures, subject, alone)
            })
            .collect();
        let _ = writeln!(text, "{}", table::reaches(measure, &reaches));
        text.push_str(&figures(measure, &reaches, prefix));
    }
    Ok(text)
}

/// The bound's means over the seeds.
fn of_cell(cell: &Loaded, seeds: &[u64]) -> Means {
    let mut means = Means::default();
    for seed in 0..seeds.len() {
        let Some(workload) = cell.workload(seed) else {
            continue;
        };
        let bounds = alone::bounds(workload, &cell.cell.replicas);
        let ttfts = bounds.iter().map(|one| one.ttft_us).collect();
        let ends = bounds.iter().map(|one| one.e2e_us).collect();
        means.add(&Means::of_times(ttfts, ends), seeds.len() as f64);
    }
    means
}

/// `figures` are those of the contenders, then of the oracle and of the pool.
fn reach(
    scores: &Scores,
    cell: usize,
    figures: &[f64],
    subject: usize,
    alone: f64,
) -> Option<Reach> {
    let [contenders @ .., oracle, pooled] = figures else {
        return None;
    };
    let others = contenders
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != subject);
    let (best, best_other) = others.min_by(|a, b| a.1.total_cmp(b.1))?;
    Some(Reach {
        cell: scores.cells.get(cell)?.clone(),
        subject: *contenders.get(subject)?,
        best_other: *best_other,
        best_other_name: scores.contenders.get(best)?.clone(),
        oracle: *oracle,
        pooled: *pooled,
        alone,
    })
}

/// Geometric means over the cells: how far above what is in reach, and above the bound.
fn figures(measure: Measure, reaches: &[Reach], prefix: &str) -> String {
    let geomean = |of: &dyn Fn(&Reach) -> f64| {
        let logs: f64 = reaches.iter().map(|one| of(one).ln()).sum();
        (logs / reaches.len().max(1) as f64).exp()
    };
    let name = measure.figure();
    let lines = [
        ("vs_reached", geomean(&|one| one.subject / one.reached())),
        ("vs_oracle", geomean(&|one| one.subject / one.oracle)),
        ("vs_bound", geomean(&|one| one.subject / one.alone)),
        (
            "of_best_other_vs_oracle",
            geomean(&|one| one.best_other / one.oracle),
        ),
        (
            "of_best_other_vs_bound",
            geomean(&|one| one.best_other / one.alone),
        ),
    ];
    let mut text = String::new();
    for (what, value) in lines {
        let _ = writeln!(text, "FIGURE {prefix}_{name}_geomean_{what} {value:.3}");
    }
    text
}

/// All replicas as one, with nobody to route.
pub fn pooled(replicas: &[Profile], seed: u64) -> FleetOptions {
    let sum = |of: fn(&Profile) -> u32| replicas.iter().map(of).fold(0, u32::saturating_add);
    let beside_us = |of: fn(&Profile) -> u32| {
        let rates = replicas.iter().map(|one| 1.0 / f64::from(of(one).max(1)));
        (1.0 / rates.sum::<f64>()).round() as u32
    };
    let first = replicas.first().cloned().unwrap_or_default();
    let profile = Profile {
        prefill_tokens_per_s: sum(|one| one.prefill_tokens_per_s),
        step_base_us: replicas
            .iter()
            .map(|one| one.step_base_us)
            .min()
            .unwrap_or_default(),
        decode_us_per_seq: beside_us(|one| one.decode_us_per_seq),
        context_us_per_1k_tokens: beside_us(|one| one.context_us_per_1k_tokens),
        token_budget: sum(|one| one.token_budget),
        max_running: sum(|one| one.max_running),
        blocks: sum(|one| one.blocks),
        ..first
    };
    FleetOptions {
        seed,
        ..FleetOptions::new(vec![profile], policy("round_robin"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_equals_does_the_work_of_all_in_the_steps_of_one() {
        let one = Profile {
            decode_us_per_seq: 800,
            ..Profile::default()
        };
        let pool = pooled(&vec![one.clone(); 8], 1).replicas.remove(0);
        assert_eq!(pool.prefill_tokens_per_s, 8 * one.prefill_tokens_per_s);
        assert_eq!(pool.step_base_us, one.step_base_us);
        assert_eq!(pool.decode_us_per_seq, 100);
        assert_eq!(pool.capacity_tokens(), 8 * one.capacity_tokens());
        let pool = pooled(&[one.clone(), one.slowed(3_000)], 1);
        assert_eq!(pool.replicas[0].decode_us_per_seq, 600);
        assert_eq!(pool.replicas[0].step_base_us, one.step_base_us);
    }
}
