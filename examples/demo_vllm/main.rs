//! `make demo-vllm`: two real vLLM replicas on this machine's CPU behind a real Envoy with Warmroute,
//! a shrunken public trace, and what share of its prompt tokens the engines report as cached,
//! beside what the simulation predicts for the same trace.
//!
//! The hardware of the prediction is measured on the idle engines before the first run; all else,
//! where each request goes and what it finds there, is the model's own. The model of the language
//! is random weights: what it says is noise, what its engine caches is not.
//!
//! It wants a machine with nothing else to do. prefix_hash looks at load, so that its picks depend on
//! how fast the engines are; if they are slower in the run than they were when measured, the
//! prediction is of another fleet. The table has both times to first token to judge that by.
#![allow(missing_docs)] // A program: its interface is `--help`.

mod calibrate;
mod call;
mod drive;
mod engine;
mod model;
mod predict;
mod report;
#[path = "../../tests/support/mod.rs"]
mod support;
mod trace;

use clap::Parser;
use report::Outcome;
use std::path::PathBuf;
use std::process::ExitCode;
use warmroute::sim::fleet::POLICIES;
use warmroute::sim::profiles;
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::Workload;

/// A shrunken trace through Envoy and Warmroute on two real vLLM replicas, beside its simulation.
#[derive(Parser, Debug)]
#[command(name = "demo_vllm")]
pub struct Args {
    /// Policies to run, in this order.
    #[arg(long, value_delimiter = ',', value_parser = POLICIES, default_values_t = ["round_robin", "prefix_hash"].map(String::from))]
    pub policies: Vec<String>,
    /// Mooncake trace, JSON lines [default: conversation_trace.jsonl in --traces].
    #[arg(long)]
    pub trace: Option<PathBuf>,
    /// Where the public traces lie.
    #[arg(
        long,
        env = "WARMROUTE_TRACES",
        default_value = "../shared/data/traces"
    )]
    pub traces: PathBuf,
    /// Of the conversations of the trace, one in so many is taken, whole. Their later turns are what
    /// routing and eviction decide about, and the beginning of the whole trace has few of them.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub one_in: u32,
    /// Requests of these, from the beginning; the longest of them are then left out.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub requests: u32,
    /// Lengths are divided by this, so that a block of the trace (512 tokens) is 512 / K tokens.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub shrink: u32,
    /// Requests of more tokens, prompt and output together after shrinking, are left out.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..=8_000))]
    pub max_tokens: u32,
    /// Mean requests per second, to which the arrivals of the trace are stretched.
    #[arg(long, default_value_t = 1.6, value_parser = rate)]
    pub rate: f64,
    /// KV cache blocks of each engine, of 32 tokens.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(256..=8_192))]
    pub blocks: u32,
    /// Port of the first engine; the second has the next one. The ring of prefix_hash depends on it.
    #[arg(long, default_value_t = 9_401, value_parser = clap::value_parser!(u16).range(1_024..65_535))]
    pub port: u16,
    /// Envoy's workers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub workers: u32,
    /// Predicts only, for engines as once measured, and starts none.
    #[arg(long)]
    pub predict: bool,
    /// Writes every request of every run here, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Prints `FIGURE name value` lines.
    #[arg(long)]
    pub figures: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.01..=1_000.0).contains(&rate) => Ok(rate),
        _ => Err("expected requests per second, 0.01 to 1,000".to_owned()),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    support::program::run("demo_vllm", demo(&args))
}

async fn demo(args: &Args) -> Result<(), String> {
    let (workload, left_out) = trace::load(args)?;
    if args.predict {
        return predict_only(args, &workload, left_out);
    }
    eprintln!(
        "{} requests ({left_out} longer ones left out); starting two engines",
        workload.requests.len()
    );
    let engines = engine::start(args).await?;
    let profile = calibrate::profile(&engines, args.blocks).await?;
    eprintln!("measured on the idle engines: {profile:?}");
    let mut outcomes = Vec::new();
    for policy in &args.policies {
        let predicted = predict::fleet(args, policy, &profile, &workload)?;
        let real = drive::run(args, policy, &engines, &workload).await?;
        outcomes.push(Outcome {
            with_real_picks: predict::with_picks_of(&real, &profile, &workload)?,
            endless: predict::endless(args, policy, &profile, &workload)?,
            real,
            predicted,
        });
    }
    println!("{}", report::table(&outcomes));
    println!("{}", report::legend(args, &workload, left_out, &profile));
    if let Some(file) = &args.json {
        let text = report::json(&outcomes)?;
        std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if args.figures {
        print!("{}", report::figures(&outcomes)?);
    }
    report::succeeded(&outcomes)
}

fn predict_only(args: &Args, workload: &Workload, left_out: usize) -> Result<(), String> {
    let profile = Profile {
        blocks: args.blocks - 1,
        ..profiles::vllm_cpu_tiny()
    };
    println!("{}", trace::describe(args, workload, left_out));
    for policy in &args.policies {
        let predicted = predict::fleet(args, policy, &profile, workload)?;
        let endless = predict::endless(args, policy, &profile, workload)?;
        println!("{}", report::predicted(&predicted, &endless));
    }
    Ok(())
}
