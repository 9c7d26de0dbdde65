//! What simulation promises, as `FIGURE name value` lines: how fast it is, and that one seed is one run.

use std::time::Instant;

use warmroute::sim::fleet::{self, FleetOptions, POLICIES, policy};
use warmroute::sim::profiles;
use warmroute::sim::workload::{Workload, chat, rag};

use crate::evidence;
use crate::kubeai::{self, KubeaiArgs};
use crate::proving::report::ReportArgs;

/// Requests of each timed run.
const TIMED: u32 = 100_000;

/// Measures and prints.
///
/// # Errors
/// A run that failed, or broke a law of conservation.
pub fn run() -> Result<(), String> {
    let (slowest, rate) = slowest()?;
    println!("FIGURE sim_requests_per_second {rate:.0}");
    eprintln!("the slowest of all policies and workloads: {slowest}");
    println!("FIGURE sim_same_seed_identical {}", u8::from(same_seed()?));
    evidence::run()?;
    let (comparison, _) = kubeai::comparison(&KubeaiArgs {
        seeds: vec![1, 2, 3],
        requests: chat::Closed::default().requests,
        blocks: profiles::l4_fp8().blocks,
        report: ReportArgs::default(),
    })?;
    for threads in [300, 600, 1_200] {
        let cell = |policy| comparison.cell(threads, policy).ok_or("a cell is missing");
        let ours = cell("prefix_hash")?;
        for (name, base) in [
            ("random", cell("random")?),
            ("least_request", cell("least_request")?),
        ] {
            let at = match threads {
                1_200 => String::new(),
                _ => format!("_at_{threads}"),
            };
            let ttft = ours.ttft_ms / base.ttft_ms;
            let throughput = ours.tokens_per_s / base.tokens_per_s;
            println!("FIGURE kubeai_load_prefix_hash_vs_{name}_ttft{at} {ttft:.3}");
            println!("FIGURE kubeai_load_prefix_hash_vs_{name}_throughput{at} {throughput:.3}");
        }
    }
    Ok(())
}

/// The slowest policy on the slower of two workloads, one thread each: many short steps, and long
/// prompts of many blocks.
fn slowest() -> Result<(String, f64), String> {
    let workloads = [
        chat::closed(
            &chat::Closed {
                requests: TIMED,
                ..chat::Closed::default()
            },
            1,
        ),
        rag::workload(
            &rag::Options {
                requests: TIMED,
                ..rag::Options::default()
            },
            1,
        ),
    ];
    let mut slowest = (String::new(), f64::INFINITY);
    for workload in &workloads {
        for name in POLICIES {
            let begun = Instant::now();
            let outcome = one(workload, name, 1)?;
            let rate = workload.requests.len() as f64 / begun.elapsed().as_secs_f64();
            if !outcome.faults.is_empty() {
                return Err(format!("{name}: {}", outcome.faults.join("; ")));
            }
            if rate < slowest.1 {
                slowest = (format!("{name} on {}", workload.name), rate);
            }
        }
    }
    Ok(slowest)
}

fn one(workload: &Workload, name: &str, seed: u64) -> Result<fleet::Outcome, String> {
    let replica = match workload.name.as_str() {
        "rag" => profiles::h100x2(),
        _ => profiles::l4_fp8(),
    };
    let options = FleetOptions {
        seed,
        ..FleetOptions::new(vec![replica; 8], policy(name))
    };
    fleet::run(&options, workload).map_err(|e| e.to_string())
}

/// Whether every policy does the same twice, to the byte, and another seed something else.
fn same_seed() -> Result<bool, String> {
    let chats = |seed| {
        let options = chat::Closed {
            requests: 5_000,
            ..chat::Closed::default()
        };
        chat::closed(&options, seed)
    };
    let bytes = |name, seed| {
        let run = one(&chats(seed), name, seed)?.run;
        serde_json::to_vec(&run).map_err(|e| e.to_string())
    };
    for name in POLICIES {
        if bytes(name, 1)? != bytes(name, 1)? || bytes(name, 1)? == bytes(name, 2)? {
            return Ok(false);
        }
    }
    Ok(true)
}
