//! Every policy and other projects' algorithms over a fixed set of workloads, in virtual time.
//!
//! The same arguments give the same figures.
#![allow(missing_docs)] // A program: its interface is `--help`.

mod alone;
mod bench;
mod bounds;
mod capacity;
mod cells;
mod contender;
mod score;
mod table;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use contender::{Contender, Contenders};
use score::{Measure, Scores};

/// Compares routing policies over a portfolio of workloads.
#[derive(Parser, Debug)]
#[command(name = "portfolio")]
pub struct Cli {
    /// Cells: names or their beginnings (`rag`, `rag_80`), `all`, or `quick`.
    #[arg(
        long,
        value_name = "CELL,...",
        value_delimiter = ',',
        default_value = "all"
    )]
    cells: Vec<String>,
    /// Policies: names, `all`, `own`, `peers`, or a `policy` object of the plugin configuration,
    /// with `NAME=` before it for a name of its own (once more for each further one).
    #[arg(long = "policies", value_name = "POLICY,...", default_value = "all")]
    policies: Vec<Contenders>,
    /// Seeds of workloads and chances; a trace is the same for all.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// The policy whose ratios are printed as figures.
    #[arg(long, default_value = "expected_latency")]
    subject: String,
    /// Where the traces lie; cells whose trace is missing are left out.
    #[arg(
        long,
        value_name = "DIR",
        env = "WARMROUTE_TRACES",
        default_value = "../shared/data/traces"
    )]
    traces: PathBuf,
    /// Milliseconds instead of ratios in the tables.
    #[arg(long)]
    absolute: bool,
    /// Prints everything as JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Prints `FIGURE name value` lines instead of tables.
    #[arg(long)]
    figures: bool,
    /// The cells that no policy was designed on, in place of the portfolio.
    #[arg(long, conflicts_with = "cells")]
    unseen: bool,
    /// Prints how far the policies are from what is in reach: from a router that looks into the
    /// engines, and from a bound that nobody passes.
    #[arg(long, conflicts_with_all = ["absolute", "json"])]
    bounds: bool,
    /// Lists the cells with their rates, and runs nothing.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("portfolio: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let mut contenders: Vec<Contender> = Vec::new();
    for one in cli.policies.iter().flat_map(|some| &some.0) {
        // Twice the same would be its own best other.
        if !contenders.contains(one) {
            contenders.push(one.clone());
        }
    }
    let subject = contenders.iter().position(|one| one.name == cli.subject);
    let unknown = || format!("--subject: `{}` is not among the policies", cli.subject);
    let subject = subject.ok_or_else(unknown)?;
    if contenders.len() < 2 {
        return Err("one policy alone has nobody to be compared with".to_owned());
    }
    let cells = match cli.unseen {
        true => cells::unseen(),
        false => cells::chosen(&cli.cells)?,
    };
    let begun = Instant::now();
    let (cells, left_out) = bench::load(cells, &cli.seeds, &cli.traces)?;
    for name in &left_out {
        eprintln!("left out, for its trace is missing: {name}");
    }
    if cells.is_empty() {
        return Err("no cell is left".to_owned());
    }
    if cli.list {
        cells
            .iter()
            .for_each(|cell| println!("{}", cell.describe()));
        return Ok(());
    }
    let prefix = if cli.unseen { "unseen" } else { "portfolio" };
    if cli.bounds {
        let bounds = bounds::run(&cells, &contenders, subject, &cli.seeds, prefix)?;
        print!("{bounds}");
        eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
        return Ok(());
    }
    let results = bench::run(&cells, &contenders, &cli.seeds)?;
    let scores = Scores::new(&cells, &contenders, &results);
    if cli.json {
        println!("{}", scores.json());
    } else if cli.figures {
        print!("{}", scores.figures(subject, prefix));
    } else {
        for measure in Measure::ALL {
            println!("{}", table::table(&scores, measure, cli.absolute));
        }
        println!("{}", table::best(&scores));
        print!("{}", scores.figures(subject, prefix));
    }
    eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}
