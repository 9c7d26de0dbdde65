//! Checks a configuration before anyone deploys it.

mod cluster;
mod discovery;
mod find;
mod place;
mod warn;

use clap::Parser;
use find::{Document, Found};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use warmroute::config::{Config, SteeringMode};
use warmroute::policy::build;

/// Checks Warmroute configurations: the filter's own (JSON), or every one inside an Envoy
/// configuration, an EnvoyFilter or a WasmPlugin (YAML or JSON).
///
/// Exit code: 0 if all are valid, 1 if one is not or none was found, 2 if a file cannot be read.
#[derive(Parser)]
#[command(name = "check")]
struct Arguments {
    /// Files to check.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Warnings count as errors.
    #[arg(long)]
    strict: bool,
}

/// What a line is about. The order is that of the exit codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Fine,
    Warning,
    Wrong,
    Unreadable,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let verdicts = arguments.files.iter().map(|file| check(file));
    match verdicts.max().unwrap_or(Verdict::Unreadable) {
        Verdict::Fine => ExitCode::SUCCESS,
        Verdict::Warning if !arguments.strict => ExitCode::SUCCESS,
        Verdict::Warning | Verdict::Wrong => ExitCode::from(1),
        Verdict::Unreadable => ExitCode::from(2),
    }
}

fn check(file: &Path) -> Verdict {
    let name = file.display();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(why) => {
            eprintln!("{name}: {why}");
            return Verdict::Unreadable;
        }
    };
    match find::read(&text, is_json(file)) {
        Ok(Document::Plugin) => match Config::parse(text.as_bytes()) {
            Ok(config) => {
                println!("{name}: ok: {}", summary(&config));
                Verdict::Fine
            }
            Err(error) => {
                println!("{name}: error: {error}");
                Verdict::Wrong
            }
        },
        Ok(Document::Envoy { documents, filters }) => {
            let all = filters.iter().map(|found| {
                let place = place::text(&documents, &found.path);
                one(&format!("{name}: {place}"), &documents, &filters, found)
            });
            all.max().unwrap_or_else(|| {
                println!("{name}: error: no Warmroute filter found");
                Verdict::Wrong
            })
        }
        Err(why) => {
            eprintln!("{name}: {why}");
            Verdict::Unreadable
        }
    }
}

fn is_json(file: &Path) -> bool {
    file.extension()
        .is_some_and(|extension| extension == "json")
}

/// One filter of an Envoy configuration.
fn one(place: &str, documents: &[serde_json::Value], filters: &[Found], found: &Found) -> Verdict {
    if !found.is_warmroute() {
        println!("{place}: another Wasm filter, not checked");
        return Verdict::Fine;
    }
    let config = match found.plugin() {
        Ok(text) => Config::parse(&text).map_err(|error| error.to_string()),
        Err(why) => Err(why),
    };
    let config = match config {
        Ok(config) => config,
        Err(why) => {
            println!("{place}: error: {why}");
            return Verdict::Wrong;
        }
    };
    println!("{place}: ok: {}", summary(&config));
    let warnings = warn::all(documents, filters, found, &config);
    for warning in &warnings {
        println!("{place}: warning: {warning}");
    }
    if warnings.is_empty() {
        Verdict::Fine
    } else {
        Verdict::Warning
    }
}

/// `4 endpoints in 1 pool, prefix_hash, original_dst`, or `the members of 1 cluster in 1 pool, …`
fn summary(config: &Config) -> String {
    let count = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        many => format!("{many} {word}s"),
    };
    let endpoints: usize = config.pools.iter().map(|pool| pool.pool.len()).sum();
    let mut clusters: Vec<&String> = config
        .pools
        .iter()
        .flat_map(|pool| &pool.clusters)
        .collect();
    clusters.sort_unstable();
    clusters.dedup();
    let clusters = format!("the members of {}", count(clusters.len(), "cluster"));
    let endpoints = match (endpoints, config.discovery.is_some()) {
        (0, _) => clusters,
        (some, true) if config.pools.iter().any(|pool| !pool.clusters.is_empty()) => {
            format!("{} and {clusters}", count(some, "endpoint"))
        }
        (some, _) => count(some, "endpoint"),
    };
    let mut policies: Vec<&str> = config
        .pools
        .iter()
        .map(|pool| build(&pool.policy, &pool.pool).name())
        .collect();
    policies.sort_unstable();
    policies.dedup();
    let steering = match config.steering {
        SteeringMode::OriginalDst => "original_dst",
        SteeringMode::FilterState => "filter_state",
        SteeringMode::OverrideHost => "override_host",
        SteeringMode::Composite => "composite",
    };
    format!(
        "{endpoints} in {}, {}, {steering}",
        count(config.pools.len(), "pool"),
        policies.join(" and ")
    )
}
