//! Any policy on any workload in virtual time: the real core, modelled replicas, one seed.
//!
//! The same arguments give the same bytes.
#![allow(missing_docs)] // A program: its interface is `--help`.

#[path = "../portfolio/capacity.rs"]
mod capacity;
#[path = "../portfolio/cells.rs"]
#[allow(dead_code)] // The portfolio uses the rest.
mod cells;
mod evidence;
mod figures;
mod fleet;
mod kubeai;
mod kubeai_report;
#[path = "../proving/mod.rs"]
mod proving;
mod scenario;
mod study;

use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use warmroute::sim::record::{Objective, Study};

use fleet::FleetArgs;
use proving::report::ReportArgs;
use proving::workload::WorkloadArgs;
use study::Plan;

/// Simulates a fleet of model servers behind Envoy and Warmroute, in virtual time.
#[derive(Parser, Debug)]
#[command(name = "simulate", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compare: Compare,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Three replicas and one request: the tables of docs/three-replicas.md.
    Scenario,
    /// KubeAI's published comparison, simulated, beside its own results.
    Kubeai(kubeai::KubeaiArgs),
    /// Prints `FIGURE name value` lines.
    Figures,
    /// Prints those of them that are about unequal replicas and several gateways.
    Evidence,
}

/// Compares policies on one workload.
#[derive(Args, Debug)]
struct Compare {
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Seeds; each makes a workload of its own and all policies run on it.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// The policy that the others are compared with.
    #[arg(long, default_value = "round_robin")]
    baseline: String,
    /// Latest good time to first token.
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    ttft_ms: u64,
    /// Longest good time per output token.
    #[arg(long, default_value_t = 100, value_name = "MS")]
    tpot_ms: u64,
    #[command(flatten)]
    report: ReportArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => compare(&cli.compare),
        Some(Command::Scenario) => scenario::tables().map(|tables| print!("{tables}")),
        Some(Command::Kubeai(args)) => kubeai::run(&args),
        Some(Command::Figures) => figures::run(),
        Some(Command::Evidence) => evidence::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("simulate: {why}");
            ExitCode::FAILURE
        }
    }
}

fn compare(args: &Compare) -> Result<(), String> {
    args.report.write(&studied(args)?)
}

fn studied(args: &Compare) -> Result<Study, String> {
    let mut workloads = Vec::new();
    let mut runs = Vec::new();
    for seed in &args.seeds {
        let fleets = args.fleet.fleets(*seed);
        runs.extend(fleets.into_iter().map(|fleet| (fleet, workloads.len())));
        workloads.push(args.workload.load(*seed)?);
    }
    let first = workloads.first().ok_or("no seed is given")?;
    study::study(Plan {
        title: format!("Policies on {}, simulated", first.name),
        workload: args.workload.describe(first),
        fleet: args.fleet.describe(),
        baseline: format!("warmroute/{}", args.baseline),
        objective: Objective {
            ttft_us: args.ttft_ms.saturating_mul(1_000),
            tpot_us: args.tpot_ms.saturating_mul(1_000),
        },
        notes: vec![
            "Simulated: the replicas are models, networks and Envoy itself take no time."
                .to_owned(),
        ],
        runs,
        workloads,
    })
}
