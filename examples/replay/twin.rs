//! `--twin`: the same requests, fleet and policies in real time and in virtual time, and how far apart
//! what they say of the policies is.
//!
//! Each cell is a command line of this program, so that either side can be looked at by hand. The
//! simulation runs at the speed of the real run, with the addresses that the replicas had there and
//! the text that was sent, so that rings, keys and timers are the same; what it leaves out is what it
//! always leaves out: networks, Envoy's own work, and whatever else the machine did.

use crate::Args;
use crate::interrupt::Interrupt;
use crate::play::engines::Replicas;
use crate::play::names::{self, Family, Name};
use crate::play::peer;
use crate::play::run::Through;
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use warmroute::sim::fleet::{self, FleetOptions, Reading, policy};
use warmroute::sim::peers::PeerKind;
use warmroute::sim::record::Run;
use warmroute::sim::workload::Workload;

const OURS: &str = "warmroute/expected_latency";
/// The best of the others in the portfolio, as far as they can be run here.
const OTHERS: [&str; 4] = [
    "warmroute/prefix_hash",
    "warmroute/least_outstanding_tokens",
    "warmroute/round_robin",
    "vllm-router/cache_aware",
];
/// Policies nearer to each other than this in simulation are not in an order.
const APART: f64 = 0.9;

/// What is sent, as flags of this program.
struct Cell {
    name: &'static str,
    flags: &'static [&'static str],
}

/// As small as two cores carry with everything on them: client, replicas and router.
const CELLS: [Cell; 2] = [
    Cell {
        name: "rag",
        flags: &[
            "--workload=rag",
            "--documents=60",
            "--long-tokens=2000",
            "--output-tokens=60",
            "--rate=8",
            "--requests=600",
        ],
    },
    Cell {
        name: "conversation",
        flags: &["--workload=chat-open", "--rate=24", "--requests=1400"],
    },
];

/// Mean times to first token of one router in one cell, on the clock of the modelled hardware.
#[derive(Clone, Debug)]
struct Twins {
    router: String,
    real_ms: f64,
    sim_ms: f64,
    real_hits: f64,
    sim_hits: f64,
}

/// Runs all cells and prints tables and figures; stops early if it is interrupted.
///
/// # Errors
/// A run without a result, or a simulation that broke a law of conservation.
pub async fn run(interrupt: &Interrupt) -> Result<(), String> {
    let routers = routers()?.join(",");
    let (mut error, mut is_same_order) = (0.0_f64, true);
    for cell in &CELLS {
        let own = ["replay", "--profile=l4", "--speed=4", "--routers", &routers];
        let args = Args::try_parse_from(own.iter().chain(cell.flags)).map_err(|e| e.to_string())?;
        let workload = Arc::new(args.workload.load(1)?);
        let twins = twins(cell.name, &args, &workload, interrupt).await?;
        if interrupt.code().is_some() {
            return Ok(());
        }
        println!("{}", table(cell.name, &twins));
        error = error.max(ratio_error(&twins)?);
        is_same_order &= same_order(&twins);
    }
    println!("FIGURE real_vs_sim_ratio_error {error:.3}");
    println!("FIGURE real_vs_sim_same_order {}", u8::from(is_same_order));
    Ok(())
}

async fn twins(
    cell: &str,
    args: &Args,
    workload: &Arc<Workload>,
    interrupt: &Interrupt,
) -> Result<Vec<Twins>, String> {
    let plan = args.plan()?;
    let workloads = [(1, Arc::clone(workload))];
    let runs = crate::play_all(&plan, &workloads, interrupt).await;
    let mut twins = Vec::new();
    for (through, real) in plan.routers.iter().zip(&runs) {
        let router = crate::args::label(through);
        if let Some(why) = &real.failed {
            return Err(format!("{router} in {cell}: {why}"));
        }
        for note in &real.notes {
            eprintln!("{router} in {cell}: {note}");
        }
        let Through::Started(name) = through else {
            continue;
        };
        let simulated = simulated(*name, &plan.setting.replicas, real, workload)?;
        let Replicas::Mock { speed, .. } = plan.setting.replicas else {
            continue;
        };
        twins.push(Twins {
            router,
            real_ms: ttft_ms(real),
            sim_ms: ttft_ms(&simulated) * speed,
            real_hits: hit_rate(real),
            sim_hits: hit_rate(&simulated),
        });
    }
    Ok(twins)
}

/// Those that are there; another project's program may not be.
fn routers() -> Result<Vec<&'static str>, String> {
    let mut routers = vec![OURS];
    for other in OTHERS {
        let named = names::parse(other)?;
        let foreign = named.iter().find(|name| name.family == Family::VllmRouter);
        match foreign.map(|name| peer::find(name.family)) {
            Some(Err(why)) => eprintln!("going on without {other}: {why}"),
            _ => routers.push(other),
        }
    }
    Ok(routers)
}

/// The twin of a real run, in the real run's own time: everything is as fast as it was there.
fn simulated(
    name: Name,
    replicas: &Replicas,
    real: &Run,
    workload: &Workload,
) -> Result<Run, String> {
    let Replicas::Mock {
        count,
        profile,
        speed,
    } = replicas
    else {
        return Err("only mock replicas have a twin".to_owned());
    };
    let addresses = real.endpoints.iter().map(|endpoint| endpoint.parse());
    let addresses: Result<Vec<SocketAddr>, _> = addresses.collect();
    let mut addresses = addresses.map_err(|e| e.to_string())?;
    addresses.sort_unstable();
    let peer = (name.family == Family::VllmRouter).then_some(PeerKind::VllmCacheAware);
    // A thousandth part of this speed is exact for the speeds used here.
    let profile = profile.slowed((1_000.0 / speed).round() as u32);
    let options = FleetOptions {
        addresses,
        reading: Reading::Bodies,
        peer,
        ..FleetOptions::new(vec![profile; *count as usize], policy(name.policy))
    };
    let workload = workload.clone().sped_up(*speed);
    let outcome = fleet::run(&options, &workload).map_err(|e| e.to_string())?;
    match outcome.faults.first() {
        None => Ok(outcome.run),
        Some(fault) => Err(format!("{name}: the simulation broke a law: {fault}")),
    }
}

fn ttft_ms(run: &Run) -> f64 {
    let ttfts = run.served.iter().filter_map(|served| {
        let first_us = served.first_us.filter(|_| served.error.is_none())?;
        Some(first_us.saturating_sub(served.due_us))
    });
    let (count, sum_us) = ttfts.fold((0_u32, 0_u64), |(count, sum), us| (count + 1, sum + us));
    sum_us as f64 / 1e3 / f64::from(count.max(1))
}

fn hit_rate(run: &Run) -> f64 {
    let cached = run.served.iter().map(|one| u64::from(one.cached_tokens));
    let prompt = run.served.iter().map(|one| u64::from(one.prompt_tokens));
    cached.sum::<u64>() as f64 / prompt.sum::<u64>().max(1) as f64
}

/// How far the real advantage over the best other is from the simulated one.
fn ratio_error(twins: &[Twins]) -> Result<f64, String> {
    let ratio = |of: fn(&Twins) -> f64| {
        let (ours, others): (Vec<&Twins>, Vec<&Twins>) =
            twins.iter().partition(|one| one.router == OURS);
        let best = others.iter().map(|one| of(one)).reduce(f64::min)?;
        Some(of(ours.first()?) / best)
    };
    let real = ratio(|one| one.real_ms).ok_or("there is nothing to compare")?;
    let sim = ratio(|one| one.sim_ms).ok_or("there is nothing to compare")?;
    Ok((real / sim - 1.0).abs())
}

/// Whether every two that are clearly apart in simulation are in the same order in reality.
fn same_order(twins: &[Twins]) -> bool {
    twins.iter().all(|one| {
        let slower = twins
            .iter()
            .filter(|other| one.sim_ms < other.sim_ms * APART);
        slower.into_iter().all(|other| one.real_ms < other.real_ms)
    })
}

fn table(name: &str, twins: &[Twins]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        name,
        "TTFT real, ms",
        "simulated",
        "real ÷ simulated",
        "cached real",
        "simulated",
    ]);
    for one in twins {
        table.add_row([
            one.router.clone(),
            format!("{:.0}", one.real_ms),
            format!("{:.0}", one.sim_ms),
            format!("{:.2}", one.real_ms / one.sim_ms),
            format!("{:.3}", one.real_hits),
            format!("{:.3}", one.sim_hits),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = String::new();
    let _ = writeln!(text, "{table}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twins(of: &[(&str, f64, f64)]) -> Vec<Twins> {
        let twins = of.iter().map(|(router, real_ms, sim_ms)| Twins {
            router: (*router).to_owned(),
            real_ms: *real_ms,
            sim_ms: *sim_ms,
            real_hits: 0.0,
            sim_hits: 0.0,
        });
        twins.collect()
    }

    #[test]
    fn each_side_has_its_own_best_other() {
        let twins = twins(&[(OURS, 90.0, 80.0), ("a", 100.0, 200.0), ("b", 300.0, 160.0)]);
        let error = ratio_error(&twins).unwrap();
        assert!((error - 0.8).abs() < 1e-12, "{error}");
        assert!(ratio_error(&twins[1..]).is_err());
    }

    #[test]
    fn only_what_is_clearly_apart_has_an_order() {
        assert!(same_order(&twins(&[
            (OURS, 100.0, 95.0),
            ("a", 90.0, 100.0)
        ])));
        assert!(!same_order(&twins(&[
            (OURS, 100.0, 85.0),
            ("a", 90.0, 100.0)
        ])));
    }

    #[test]
    fn the_cells_are_command_lines() {
        for cell in &CELLS {
            let args = Args::try_parse_from(["replay"].iter().chain(cell.flags));
            assert!(args.is_ok_and(|args| args.plan().is_ok()), "{}", cell.name);
        }
    }
}
