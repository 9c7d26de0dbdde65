//! A workload in real time through routers, and a report that compares them: `make compare`.
//!
//! For each seed every router gets the same requests at the same times, with fresh processes and cold
//! caches. By default the engines are mock replicas (`warmroute::sim::replica` in real time) in this
//! process; `--endpoints` puts the routers in front of real ones, `--url` measures a router that runs.
#![allow(missing_docs)] // A program: its interface is `--help`.

mod args;
mod figures;
mod interrupt;
mod play;
mod progress;
#[path = "../proving/mod.rs"]
mod proving;
#[path = "../../tests/support/mod.rs"]
mod support;
mod twin;

use args::{Args, Plan};
use clap::Parser;
use interrupt::Interrupt;
use play::run::run;
use progress::Progress;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use warmroute::sim::record::{Run, Study};
use warmroute::sim::workload::Workload;

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(compare(&args)),
        Err(why) => Err(why.to_string()),
    };
    outcome.unwrap_or_else(|why| {
        eprintln!("replay: {why}");
        ExitCode::FAILURE
    })
}

async fn compare(args: &Args) -> Result<ExitCode, String> {
    if args.twin {
        let interrupt = Interrupt::listen()?;
        twin::run(&interrupt).await?;
        return Ok(interrupt.code().map_or(ExitCode::SUCCESS, ExitCode::from));
    }
    let begun = Instant::now();
    let plan = args.plan()?;
    // All of them before the first run, so that a bad file costs no time.
    let workloads = args
        .seeds
        .iter()
        .map(|seed| Ok((*seed, Arc::new(args.workload.load(*seed)?))))
        .collect::<Result<Vec<_>, String>>()?;
    let interrupt = Interrupt::listen()?;
    let runs = play_all(&plan, &workloads, &interrupt).await;
    let study = study(args, plan, &workloads, runs, &interrupt);
    args.report.write(&study)?;
    println!("{} runs in {:.1} minutes", study.runs.len(), minutes(begun));
    if args.figures {
        print!("{}", figures::lines(&study, minutes(begun)));
    }
    Ok(code(&study, &interrupt))
}

fn minutes(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() / 60.0
}

/// Seeds outermost: what drifts on this machine hits all routers alike.
async fn play_all(
    plan: &Plan,
    workloads: &[(u64, Arc<Workload>)],
    interrupt: &Interrupt,
) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut progress = Progress::new(workloads.len() * plan.routers.len());
    for (seed, workload) in workloads {
        for through in &plan.routers {
            if interrupt.code().is_some() {
                return runs;
            }
            let requests = workload.requests.len();
            let bar = progress.run(&format!("{} seed {seed}", args::label(through)), requests);
            let over = || bar.inc(1);
            let stop = interrupt.receiver();
            let run = run(&plan.setting, through, workload, *seed, stop, &over).await;
            progress.is_over(&bar, &run);
            runs.push(run);
        }
    }
    runs
}

fn study(
    args: &Args,
    plan: Plan,
    workloads: &[(u64, Arc<Workload>)],
    runs: Vec<Run>,
    interrupt: &Interrupt,
) -> Study {
    let mut notes = vec![format!(
        "For each seed, every router got the same requests at the same times. Latencies count from when a request \
         was due. Retries and circuit breakers were off. Client{} and router shared {} cores.",
        if plan.setting.start.envoy_tells_endpoint {
            ""
        } else {
            ", replicas"
        },
        std::thread::available_parallelism().map_or(0, usize::from),
    )];
    if plan.setting.speed != 1.0 {
        notes.push(format!(
            "Times are those of the modelled hardware; the runs were {} times as fast. The routers' own timers (scrapes, \
             health checks) and their processing were not.",
            plan.setting.speed
        ));
    }
    let missing = workloads.len() * plan.routers.len() - runs.len();
    if interrupt.code().is_some() {
        notes.push(format!(
            "The comparison was interrupted: {missing} runs were not made."
        ));
    }
    let workload = workloads.first();
    Study {
        title: "Routers compared on one workload, in real time".to_owned(),
        command: command(),
        workload: workload.map_or_else(String::new, |(_, w)| args.workload.describe(w)),
        fleet: plan.fleet,
        baseline: plan.baseline,
        objective: plan.objective,
        notes,
        runs,
    }
}

/// The command line that does this again.
fn command() -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@%+".contains(c);
    let words =
        std::env::args()
            .skip(1)
            .map(|word| match !word.is_empty() && word.chars().all(plain) {
                true => word,
                false => format!("'{}'", word.replace('\'', r"'\''")),
            });
    let start = "cargo run --profile tools --example replay --".to_owned();
    let all: Vec<String> = std::iter::once(start).chain(words).collect();
    all.join(" ")
}

/// An interrupted comparison has the signal's code, one with a router that could not be run has 1.
fn code(study: &Study, interrupt: &Interrupt) -> ExitCode {
    if let Some(code) = interrupt.code() {
        return ExitCode::from(code);
    }
    let mut failed = study.runs.iter().filter_map(|run| run.failed.as_ref());
    match failed.next() {
        None => ExitCode::SUCCESS,
        Some(first) => {
            let all = 1 + failed.count();
            eprintln!("replay: {all} runs have no result, the first: {first}");
            ExitCode::FAILURE
        }
    }
}
