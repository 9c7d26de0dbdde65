//! `make demo`: a multi-turn chat load through a real Envoy with Warmroute on four mock replicas,
//! under each policy in turn with fresh caches, and a table of what the clients saw.
//!
//! The replicas are the model of `warmroute::sim::replica` as an 8B model on an L4, with all times
//! shortened by one factor, and reported as the modelled hardware has them.
#![allow(missing_docs)] // A program: its interface is `--help`.

mod load;
mod report;
mod run;
#[path = "../../tests/support/mod.rs"]
mod support;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use warmroute::sim::fleet::POLICIES;

/// A chat load through Envoy and Warmroute on mock replicas, under one policy after the other.
#[derive(Parser, Debug)]
#[command(name = "demo")]
pub struct Args {
    /// Policies to run, in this order.
    #[arg(long, value_delimiter = ',', value_parser = POLICIES, default_values_t = POLICIES.map(String::from))]
    pub policies: Vec<String>,
    /// Chats under way at any time.
    #[arg(long, default_value_t = 100)]
    pub threads: u32,
    /// Chats in all; each thread starts the next one when its last is over.
    #[arg(long, default_value_t = 140)]
    pub chats: u32,
    /// Mean number of turns of a chat.
    #[arg(long, default_value_t = load::MEAN_TURNS)]
    pub turns: f64,
    /// Replicas behind Envoy.
    #[arg(long, default_value_t = 4)]
    pub replicas: usize,
    /// Envoy's workers.
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// Seed of the load; the same for every policy.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How much faster than the modelled hardware everything runs.
    #[arg(long, default_value_t = 5.0)]
    pub speed: f64,
    /// Writes the results here too, as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Prints `FIGURE name value` lines that compare prefix_hash with round_robin.
    #[arg(long)]
    pub figures: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    support::program::run("demo", demo(&args))
}

async fn demo(args: &Args) -> Result<(), String> {
    let chats = load::chats(args.seed, args.chats, args.turns);
    let mut results = Vec::new();
    for policy in &args.policies {
        results.push(run::policy(args, policy, &chats).await?);
    }
    println!("{}", report::table(&results));
    println!("{}", report::legend(args));
    if let Some(file) = &args.json {
        let text = report::json(args, &results);
        std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if args.figures {
        print!("{}", report::figures(&results)?);
    }
    report::succeeded(&results)
}
