//! `make chaos`: mishaps on a real Envoy with mock replicas, one scenario after the other, and a bar
//! for what each may cost the clients.
//!
//! Every value comes from this very run. A scenario that cannot be measured counts as a bar that
//! fails, whatever the reason. `chaos soak` is one long run with bursts, and with replicas that fall
//! silent, are killed, drain and leave, in turn.
#![allow(missing_docs)] // A program: its interface is `--help`.

mod bars;
mod eds;
#[path = "../replay/play/event.rs"]
mod event;
mod front;
mod gauges;
mod load;
mod outcome;
#[path = "../figures/process.rs"]
mod process;
mod proxy;
mod replica;
mod scenario;
#[path = "../../tests/support/mod.rs"]
mod support;

use bars::Report;
use clap::{Parser, Subcommand};
use scenario::{Context, Scenario};
use std::process::ExitCode;
use std::time::Instant;

/// Mishaps on a real Envoy with mock replicas, and a bar for what each may cost the clients.
#[derive(Parser, Debug)]
#[command(name = "chaos")]
struct Args {
    /// Only these scenarios; all if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Scenario>,
    /// Seed of the loads.
    #[arg(long, default_value_t = 1, global = true)]
    seed: u64,
    /// Envoy's workers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), global = true)]
    workers: u32,
    #[command(subcommand)]
    long: Option<Long>,
}

#[derive(Subcommand, Debug)]
enum Long {
    /// Steady load with bursts, silences, kills, drains and departures: nothing may grow, leak or fail.
    Soak {
        /// How long the load lasts.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1_440))]
        minutes: u64,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    support::program::run("chaos", chaos(&args))
}

async fn chaos(args: &Args) -> Result<(), String> {
    let context = Context {
        seed: args.seed,
        workers: args.workers,
    };
    let mut report = Report::default();
    match args.long {
        Some(Long::Soak { minutes }) => {
            let measured = scenario::soak(&context, minutes).await;
            report.add("soak", measured);
        }
        None => {
            for scenario in Scenario::chosen(&args.only) {
                let begun = Instant::now();
                let measured = scenario.run(&context).await;
                eprintln!(
                    "{}: {:.0} s",
                    scenario.name(),
                    begun.elapsed().as_secs_f64()
                );
                report.add(&scenario.name(), measured);
            }
        }
    }
    println!("{}", report.table());
    report.verdict()
}
