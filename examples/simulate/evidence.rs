//! What `expected_latency` promises beyond speed, as figures: on unequal replicas that nobody has
//! described to it, and with several gateways that cannot see each other.
//!
//! The workloads and loads are the portfolio's. Every figure is the worst over them; the parts go to
//! stderr.

use std::path::PathBuf;

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
    let loaded = load(cells::chosen(
        &["unequal_conversation", "unequal_rag", "unequal_uniform"].map(str::to_owned),
    )?)?;
    let (mut vs_plain, mut vs_weighted, mut vs_told) = (0.0_f64, 0.0_f64, 0.0_f64);
    for one in &loaded {
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
        vs_plain = vs_plain.max(ours.ttft_ms / plain_tokens.ttft_ms);
        vs_weighted = vs_weighted.max(ours.ttft_ms / weighted_tokens.ttft_ms);
        vs_told = vs_told.max(ours.ttft_ms / told.ttft_ms);
    }
    println!("FIGURE hetero_vs_least_tokens_ttft {vs_plain:.3}");
    println!("FIGURE hetero_vs_weighted_least_tokens_ttft {vs_weighted:.3}");
    println!("FIGURE hetero_learned_vs_true_ttft {vs_told:.3}");
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
    let (mut hits, mut ttft) = (f64::INFINITY, 0.0_f64);
    for one in &load(wanted)? {
        let single = one.means("expected_latency", |_| ())?;
        let three = one.means("expected_latency", |fleet| fleet.gateways = 3)?;
        eprintln!(
            "{}: one gateway {:.3} cached, {:.0} ms; three {:.3}, {:.0} ms",
            one.cell.name, single.hit_rate, single.ttft_ms, three.hit_rate, three.ttft_ms
        );
        hits = hits.min(three.hit_rate / single.hit_rate);
        ttft = ttft.max(three.ttft_ms / single.ttft_ms);
    }
    println!("FIGURE three_gateways_hit_rate_ratio {hits:.3}");
    println!("FIGURE three_gateways_ttft_ratio {ttft:.3}");
    Ok(())
}

/// The cells with their workloads, but for those whose trace is missing.
fn load(cells: Vec<Cell>) -> Result<Vec<Loaded>, String> {
    let traces = std::env::var_os("WARMROUTE_TRACES").unwrap_or("../shared/data/traces".into());
    let traces = PathBuf::from(traces);
    let mut loaded = Vec::new();
    for cell in cells {
        let Some(probe) = cell.source.workload(1.0, 1, &traces)? else {
            eprintln!("left out, for its trace is missing: {}", cell.name);
            continue;
        };
        let work = Work::of(&probe, BLOCK_TOKENS);
        let workloads = SEEDS
            .iter()
            .map(|seed| cell.workload(&work, *seed, &traces));
        let workloads: Option<Vec<Workload>> = workloads.collect::<Result<_, _>>()?;
        let workloads = workloads.unwrap_or_default();
        loaded.push(Loaded { cell, workloads });
    }
    Ok(loaded)
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
