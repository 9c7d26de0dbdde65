//! `make figures`: measures on a real Envoy, and prints `FIGURE name value` lines.
//!
//! Every value comes from this very run. What cannot be measured is named on stderr instead, and
//! the exit code is 1.
#![allow(missing_docs)] // A program: its interface is `--help`.

mod bodies;
mod closed_loop;
#[path = "../../tests/e2e_load/decision.rs"]
mod decision;
mod index;
mod inflight;
#[path = "../../tests/e2e_load/mixed.rs"]
mod mixed;
mod picks;
mod process;
mod rps;
mod samples;
#[path = "../../tests/support/mod.rs"]
mod support;
mod upstream;
#[path = "../../tests/e2e_load/waves.rs"]
mod waves;

use clap::{Parser, ValueEnum};
use std::process::ExitCode;

/// One measurement; it yields one figure or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// What is in flight after 10,000 requests that ended in every way.
    Inflight,
    /// Picks beyond the bound of prefix_hash, among 20,000 that raced.
    Bounds,
    /// On how many of eight endpoints eight simultaneous requests land.
    Simultaneous,
    /// Bodies that reached the replica changed.
    Bodies,
    /// Requests per second and CPU time of Envoy with the filter, against Envoy without it.
    Rps,
    /// What the prefix index takes in four workers at once, and whether its memory grows.
    Index,
}

/// Measures on a real Envoy, and prints `FIGURE name value` lines.
#[derive(Parser, Debug)]
#[command(name = "figures")]
struct Args {
    /// Only these; all if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Measurement>,
}

/// A measured value and its name.
type Figure = (&'static str, f64);

fn main() -> ExitCode {
    let args = Args::parse();
    let mut code = ExitCode::SUCCESS;
    for measurement in Measurement::value_variants() {
        if !args.only.is_empty() && !args.only.contains(measurement) {
            continue;
        }
        match measure(*measurement) {
            Ok(figures) => figures.iter().for_each(print),
            Err(why) => {
                eprintln!("figures: {measurement:?} could not be measured: {why}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

fn measure(measurement: Measurement) -> Result<Vec<Figure>, String> {
    match measurement {
        Measurement::Inflight => run(inflight::measure()),
        Measurement::Bounds => run(picks::bounds()),
        Measurement::Simultaneous => run(picks::simultaneous()),
        Measurement::Bodies => run(bodies::measure()),
        // It has a runtime of its own, on one core.
        Measurement::Rps => rps::measure(),
        Measurement::Index => run(index::measure()),
    }
}

fn run(
    measurement: impl Future<Output = Result<Vec<Figure>, String>>,
) -> Result<Vec<Figure>, String> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?
        .block_on(measurement)
}

fn print((name, value): &Figure) {
    if value.fract() == 0.0 {
        println!("FIGURE {name} {value:.0}");
    } else {
        println!("FIGURE {name} {value:.3}");
    }
}
