//! What `expected_latency` promises beyond speed, as figures: on unequal replicas that nobody has
//! described to it, and with several gateways that cannot see each other.
//!
//! The workloads and loads are the portfolio's. Every figure is the worst over them; the parts go to
//! stderr. Where a trace is missing, so are the figures that its workload has a part in, and stderr
//! says so.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use warmroute::sim::fleet::{self, FleetOptions, Paces, policy};
use warmroute::sim::profiles;
use warmroute::sim::record::{Run, Served};
use warmroute::sim::workload::Workload;

use crate::capacity::Work;
use crate::cells::{self, Cell, Source};

const SEEDS: [u64; 3] = [1, 2, 3];
/// vLLM's block size on GPUs.
const BLOCK_TOKENS: u32 = 16;
/// Of fast and slow replicas in turn: 2.5 to 1.
const TRUE_WEIGHTS: [u32; 2] = [5, 2];

/// Mean time to first token and share of prompt tokens found cached, over the seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    ttft_ms: f64,
    hit_rate: f64,
}

/// A cell with its workloads, one for each seed.
struct Loaded {
    cell: Cell,
    workloads: Vec<Workload>,
}

/// What figures are taken over: the cells that can run, and the traces of those that cannot.
#[derive(Default)]
struct Cells {
    loaded: Vec<Loaded>,
    missing: Vec<&'static str>,
}

/// A figure and its parts, one for each workload; the largest is the worst, or the smallest.
#[derive(Debug)]
enum Worst {
    Largest(&'static str, Vec<f64>),
    Smallest(&'static str, Vec<f64>),
}

/// Prints all.
///
/// # Errors
/// A run that failed, or broke a law of conservation.
pub fn run() -> Result<(), String> {
    unequal()?;
    three_gateways()
}

/// The figures of unequal replicas.
fn unequal() -> Result<(), String> {
    let cells = load(
        cells::chosen(
            &["unequal_conversation", "unequal_rag", "unequal_uniform"].map(str::to_owned),
        )?,
        &traces(),
    )?;
    let (mut vs_plain, mut vs_weighted, mut vs_told) = (Vec::new(), Vec::new(), Vec::new());
    for one in &cells.loaded {
        let ours = one.means("expected_latency", |_| ())?;
        let told = one.means("expected_latency", |fleet| fleet.paces = Paces::Told)?;
        let weighted = |fleet: &mut FleetOptions| {
            let weights = TRUE_WEIGHTS.into_iter().cycle();
            fleet.weights = weights.take(fleet.replicas.len()).collect();
        };
        let plain_tokens = one.means("least_outstanding_tokens", |_| ())?;
        let weighted_tokens = one.means("least_outstanding_tokens", weighted)?;
        eprintln!(
            "{}: expected_latency {:.0} ms, with true speeds from the start {:.0}; least_outstanding_tokens {:.0}, with true weights {:.0}",
            one.cell.name,
            ours.ttft_ms,
            told.ttft_ms,
            plain_tokens.ttft_ms,
            weighted_tokens.ttft_ms
        );
        vs_plain.push(ours.ttft_ms / plain_tokens.ttft_ms);
        vs_weighted.push(ours.ttft_ms / weighted_tokens.ttft_ms);
        vs_told.push(ours.ttft_ms / told.ttft_ms);
    }
    cells.print(&[
        Worst::Largest("hetero_vs_least_tokens_ttft", vs_plain),
        Worst::Largest("hetero_vs_weighted_least_tokens_ttft", vs_weighted),
        Worst::Largest("hetero_learned_vs_true_ttft", vs_told),
    ]);
    Ok(())
}

/// The figures of three gateways.
fn three_gateways() -> Result<(), String> {
    let h100 = vec![profiles::h100x2(); 8];
    let conversation = cells::chosen(&["conversation_80".to_owned()])?;
    let conversation = conversation.iter().map(|cell| cell.source);
    let mut wanted: Vec<Cell> = conversation
        .flat_map(|source| cells::open("conversation", source, &[70], &h100))
        .collect();
    wanted.extend(cells::open("rag", Source::Rag, &[70], &h100));
    wanted.extend(cells::chosen(&["chat_600".to_owned()])?);
    let cells = load(wanted, &traces())?;
    let (mut hits, mut ttft) = (Vec::new(), Vec::new());
    for one in &cells.loaded {
        let single = one.means("expected_latency", |_| ())?;
        let three = one.means("expected_latency", |fleet| fleet.gateways = 3)?;
        eprintln!(
            "{}: one gateway {:.3} cached, {:.0} ms; three {:.3}, {:.0} ms",
            one.cell.name, single.hit_rate, single.ttft_ms, three.hit_rate, three.ttft_ms
        );
        hits.push(three.hit_rate / single.hit_rate);
        ttft.push(three.ttft_ms / single.ttft_ms);
    }
    cells.print(&[
        Worst::Smallest("three_gateways_hit_rate_ratio", hits),
        Worst::Largest("three_gateways_ttft_ratio", ttft),
    ]);
    Ok(())
}

fn traces() -> PathBuf {
    std::env::var_os("WARMROUTE_TRACES")
        .unwrap_or("../shared/data/traces".into())
        .into()
}

/// The cells with their workloads, and the traces that are not there.
fn load(wanted: Vec<Cell>, traces: &Path) -> Result<Cells, String> {
    let mut cells = Cells::default();
    for cell in wanted {
        let Some(probe) = cell.source.workload(1.0, 1, traces)? else {
            if let Source::Trace { file, .. } = cell.source {
                cells.missing.push(file);
            }
            continue;
        };
        let work = Work::of(&probe, BLOCK_TOKENS);
        let workloads = SEEDS.iter().map(|seed| cell.workload(&work, *seed, traces));
        let workloads: Option<Vec<Workload>> = workloads.collect::<Result<_, _>>()?;
        let workloads = workloads.unwrap_or_default();
        cells.loaded.push(Loaded { cell, workloads });
    }
    Ok(cells)
}

impl Cells {
    fn print(&self, figures: &[Worst]) {
        for figure in figures {
            match figure.line(&self.missing) {
                Ok(line) => println!("{line}"),
                Err(why) => eprintln!("{why}"),
            }
        }
    }
}

impl Worst {
    /// The line for stdout, or why there is none.
    fn line(&self, missing: &[&str]) -> Result<String, String> {
        let (name, parts, worse): (_, _, fn(f64, f64) -> f64) = match self {
            Self::Largest(name, parts) => (name, parts, f64::max),
            Self::Smallest(name, parts) => (name, parts, f64::min),
        };
        if !missing.is_empty() {
            let traces = missing.join(", ");
            return Err(format!("{name} is left out: {traces} is missing"));
        }
        let are_numbers = parts.iter().all(|part| part.is_finite());
        match parts.iter().copied().reduce(worse) {
            Some(value) if are_numbers => Ok(format!("FIGURE {name} {value:.3}")),
            _ => Err(format!("{name} is left out: there is nothing to measure")),
        }
    }
}

impl Loaded {
    /// `name` on this cell's fleet, with a change.
    fn means(
        &self,
        name: &str,
        change: impl Fn(&mut FleetOptions) + Sync,
    ) -> Result<Means, String> {
        let run = |(seed, workload): (u64, &Workload)| {
            let mut options = FleetOptions {
                seed,
                ..FleetOptions::new(self.cell.replicas.clone(), policy(name))
            };
            change(&mut options);
            let place = || format!("{name} in {} with seed {seed}", self.cell.name);
            let outcome =
                fleet::run(&options, workload).map_err(|e| format!("{}: {e}", place()))?;
            match outcome.faults.first() {
                None => Ok(Means::of(&outcome.run)),
                Some(fault) => Err(format!("{} broke its own laws: {fault}", place())),
            }
        };
        let seeds: Vec<(u64, &Workload)> = SEEDS.into_iter().zip(&self.workloads).collect();
        let runs: Vec<Means> = seeds
            .into_par_iter()
            .map(run)
            .collect::<Result<_, String>>()?;
        let mean =
            |of: fn(&Means) -> f64| runs.iter().map(of).sum::<f64>() / runs.len().max(1) as f64;
        Ok(Means {
            ttft_ms: mean(|one| one.ttft_ms),
            hit_rate: mean(|one| one.hit_rate),
        })
    }
}

impl Means {
    fn of(run: &Run) -> Self {
        let ttfts = run
            .served
            .iter()
            .filter_map(|one| Some(one.first_us?.saturating_sub(one.due_us)));
        let (count, sum_us) = ttfts.fold((0_u32, 0), |(count, sum), us| (count + 1, sum + us));
        let sum =
            |of: fn(&Served) -> u32| run.served.iter().map(|one| u64::from(of(one))).sum::<u64>();
        Self {
            ttft_ms: sum_us as f64 / 1e3 / f64::from(count.max(1)),
            hit_rate: sum(|one| one.cached_tokens) as f64
                / sum(|one| one.prompt_tokens).max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_worst_of_its_parts() {
        let largest = Worst::Largest("ttft", vec![0.5, 1.25, 0.75]);
        assert_eq!(largest.line(&[]).unwrap(), "FIGURE ttft 1.250");
        let smallest = Worst::Smallest("hits", vec![0.5, 0.25, 0.75]);
        assert_eq!(smallest.line(&[]).unwrap(), "FIGURE hits 0.250");
    }

    #[test]
    fn a_figure_over_fewer_workloads_is_left_out() {
        let nowhere = Path::new("/nowhere");
        let words = ["unequal_conversation", "unequal_uniform"].map(str::to_owned);
        let cells = load(cells::chosen(&words).unwrap(), nowhere).unwrap();
        assert_eq!((cells.loaded.len(), cells.missing.len()), (1, 1));
        let figure = Worst::Largest("ttft", vec![0.5]);
        assert_eq!(
            figure.line(&cells.missing).unwrap_err(),
            "ttft is left out: conversation_trace.jsonl is missing"
        );
        let whole = load(cells::chosen(&words[1..]).unwrap(), nowhere).unwrap();
        assert_eq!(figure.line(&whole.missing).unwrap(), "FIGURE ttft 0.500");
    }

    #[test]
    fn nothing_is_no_figure() {
        for parts in [vec![], vec![0.5, f64::NAN], vec![f64::INFINITY, 0.5]] {
            let figures = [
                Worst::Largest("ttft", parts.clone()),
                Worst::Smallest("ttft", parts),
            ];
            for figure in figures {
                assert_eq!(
                    figure.line(&[]).unwrap_err(),
                    "ttft is left out: there is nothing to measure"
                );
            }
        }
    }
}
