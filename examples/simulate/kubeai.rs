//! KubeAI's published comparison, simulated with this crate's policies, beside its own results.
//!
//! Theirs: 8 × NVIDIA L4, Llama-3.1-8B in FP8, vLLM with `--max-num-batched-tokens 16384`, 8,000
//! chats of ShareGPT with 300, 600 and 1,200 under way, 40 output tokens at most. The figures are the
//! output of substratusai/kubeai `benchmarks/multi-turn-chat-go/runs/llama-3.1-8x-l4/run.ipynb` of
//! 25 February 2025, which its blog of the next day reports; a second run of theirs is in
//! `run.8replicas.ipynb` of the same directory. The workload is described in
//! `warmroute::sim::workload::chat`.

use serde_json::{Value, json};
use warmroute::sim::fleet::{FleetOptions, policy};
use warmroute::sim::profiles;
use warmroute::sim::record::{Objective, Run, Study};
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::chat;

use crate::kubeai_report;
use crate::proving::report::ReportArgs;
use crate::study::{self, Plan};

/// Chats under way at any time.
pub const THREADS: [u32; 3] = [300, 600, 1_200];

/// Runs KubeAI's comparison.
#[derive(clap::Args, Debug)]
pub struct KubeaiArgs {
    /// Seeds of the chats and of all chances.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    pub seeds: Vec<u64>,
    /// Requests of each run; KubeAI had 59,031.
    #[arg(long, default_value_t = chat::Closed::default().requests, value_parser = clap::value_parser!(u32).range(1_000..))]
    pub requests: u32,
    /// Blocks of KV cache of each replica, of 16 tokens.
    #[arg(long, default_value_t = profiles::l4_fp8().blocks)]
    pub blocks: u32,
    /// The page and the JSON are of the largest number of threads.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// The L4 with KubeAI's engine settings: a step may take 16,384 tokens.
fn replica(blocks: u32) -> Profile {
    Profile {
        token_budget: 16_384,
        blocks,
        ..profiles::l4_fp8()
    }
}

/// The policies by KubeAI's names for them; its own rule bounds by requests.
fn policies() -> [(&'static str, Value); 4] {
    [
        ("random", policy("random")),
        ("least_request", policy("least_request")),
        ("prefix_hash", policy("prefix_hash")),
        (
            "prefix_hash by requests",
            json!({"name": "prefix_hash", "bound": "requests"}),
        ),
    ]
}

/// What one policy came to under one number of threads, averaged over the seeds.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub ttft_ms: f64,
    pub tokens_per_s: f64,
    pub hit_rate: f64,
    /// By seed, against the same seed under `random`: least and most.
    pub ttft_ratios: (f64, f64),
    pub throughput_ratios: (f64, f64),
}

/// One row for each number of threads and policy.
pub struct Comparison {
    pub rows: Vec<(u32, &'static str, Cell)>,
}

impl Comparison {
    /// The cell of one policy.
    pub fn cell(&self, threads: u32, policy: &str) -> Option<Cell> {
        let mut rows = self.rows.iter();
        let found = rows.find(|(of, name, _)| *of == threads && *name == policy);
        found.map(|(_, _, cell)| *cell)
    }
}

/// Simulates all of it; the study has the runs in the order of the comparison, seed by seed.
///
/// # Errors
/// As [`study::study`].
pub fn comparison(args: &KubeaiArgs) -> Result<(Comparison, Study), String> {
    let mut plan = Plan {
        title: "KubeAI's comparison".to_owned(),
        workload: format!(
            "Chats of {:.1} turns in the mean, {} under way at any time.",
            chat::MEAN_TURNS,
            THREADS.map(|threads| threads.to_string()).join(", ")
        ),
        fleet: format!(
            "8 x l4-fp8, {} blocks of KV cache, 16,384 tokens a step, modelled.",
            args.blocks
        ),
        baseline: "warmroute/random".to_owned(),
        objective: Objective {
            ttft_us: 2_000_000,
            tpot_us: 200_000,
        },
        notes: Vec::new(),
        runs: Vec::new(),
        workloads: Vec::new(),
    };
    for threads in THREADS {
        for seed in &args.seeds {
            let options = chat::Closed {
                requests: args.requests,
                threads,
                ..chat::Closed::default()
            };
            for (_, policy) in policies() {
                let fleet = FleetOptions {
                    seed: *seed,
                    ..FleetOptions::new(vec![replica(args.blocks); 8], policy)
                };
                plan.runs.push((fleet, plan.workloads.len()));
            }
            plan.workloads.push(chat::closed(&options, *seed));
        }
    }
    let study = study::study(plan)?;
    let rows = rows(&study.runs, args.seeds.len());
    Ok((Comparison { rows }, study))
}

/// `runs` in the order of the plan: by threads, by seed, by policy.
fn rows(runs: &[Run], seeds: usize) -> Vec<(u32, &'static str, Cell)> {
    let names = policies().map(|(name, _)| name);
    let mut rows = Vec::new();
    for (threads, runs) in THREADS.iter().zip(runs.chunks(seeds * names.len())) {
        for (index, name) in names.iter().enumerate() {
            let pairs: Vec<(Sums, Sums)> = runs
                .chunks(names.len())
                .filter_map(|of_seed| Some((sums(of_seed.get(index)?), sums(of_seed.first()?))))
                .collect();
            rows.push((*threads, *name, cell(&pairs)));
        }
    }
    rows
}

#[derive(Clone, Copy)]
struct Sums {
    ttft_ms: f64,
    tokens_per_s: f64,
    hit_rate: f64,
}

fn sums(run: &Run) -> Sums {
    let total = |of: fn(&warmroute::sim::record::Served) -> u64| -> f64 {
        run.served.iter().map(of).sum::<u64>() as f64
    };
    let end_us = run.served.iter().filter_map(|one| one.end_us).max();
    let waited_us = total(|one| one.first_us.unwrap_or(one.due_us) - one.due_us);
    let prompt_tokens = total(|one| u64::from(one.prompt_tokens));
    let output_tokens = total(|one| u64::from(one.output_tokens));
    Sums {
        ttft_ms: waited_us / 1_000.0 / run.served.len() as f64,
        tokens_per_s: (prompt_tokens + output_tokens) / end_us.unwrap_or(1) as f64 * 1e6,
        hit_rate: total(|one| u64::from(one.cached_tokens)) / prompt_tokens,
    }
}

fn cell(pairs: &[(Sums, Sums)]) -> Cell {
    let mean = |of: fn(&Sums) -> f64| -> f64 {
        pairs.iter().map(|(ours, _)| of(ours)).sum::<f64>() / pairs.len() as f64
    };
    let spread = |of: fn(&Sums) -> f64| {
        let ratios = pairs.iter().map(|(ours, base)| of(ours) / of(base));
        ratios.fold((f64::INFINITY, 0.0_f64), |(least, most), ratio| {
            (least.min(ratio), most.max(ratio))
        })
    };
    Cell {
        ttft_ms: mean(|sums| sums.ttft_ms),
        tokens_per_s: mean(|sums| sums.tokens_per_s),
        hit_rate: mean(|sums| sums.hit_rate),
        ttft_ratios: spread(|sums| sums.ttft_ms),
        throughput_ratios: spread(|sums| sums.tokens_per_s),
    }
}

/// Runs and prints the comparison.
///
/// # Errors
/// As [`comparison`], or a file cannot be written.
pub fn run(args: &KubeaiArgs) -> Result<(), String> {
    let (comparison, study) = comparison(args)?;
    println!("{}", kubeai_report::table(&comparison));
    let distance = kubeai_report::distance(&comparison)?;
    println!("{}", distance.join("\n"));
    let page = kubeai_report::page(study, distance);
    args.report.write_to(&page, &mut std::io::sink())
}
