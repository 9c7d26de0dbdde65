//! `FIGURE name value` lines: the comparison as a whole, and prefix_hash against the best other router.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use warmroute::sim::record::{Run, Study};

const OURS: (&str, &str) = ("warmroute", "prefix_hash");

/// A figure of a run, and whether more of it is better.
struct Measure {
    name: &'static str,
    of: fn(&Run) -> Option<f64>,
    best: fn(f64, f64) -> f64,
}

const MEASURES: [Measure; 3] = [
    Measure {
        name: "ttft_mean",
        of: ttft_mean_us,
        best: f64::min,
    },
    Measure {
        name: "hit_rate",
        of: hit_rate,
        best: f64::max,
    },
    Measure {
        name: "cpu_per_1000_requests",
        of: cpu_us_per_1000_requests,
        best: f64::min,
    },
];

/// All lines. A ratio is left out if prefix_hash or every other router has no such figure.
pub fn lines(study: &Study, minutes: f64) -> String {
    let errors: usize = study.runs.iter().map(errors).sum();
    let reported: BTreeSet<_> = study
        .runs
        .iter()
        .filter(|run| run.failed.is_none())
        .map(key)
        .collect();
    let mut lines = String::new();
    // Writing into a String cannot fail.
    let _ = writeln!(lines, "FIGURE compare_minutes {minutes:.1}");
    let _ = writeln!(lines, "FIGURE compare_harness_errors {errors}");
    let _ = writeln!(lines, "FIGURE compare_routers_reported {}", reported.len());
    for measure in MEASURES {
        let peers = reported.iter().filter(|(router, _)| *router != OURS.0);
        let best = peers
            .filter_map(|peer| mean(study, *peer, measure.of))
            .reduce(measure.best);
        if let (Some(ours), Some(best)) = (mean(study, OURS, measure.of), best) {
            let name = measure.name;
            let _ = writeln!(
                lines,
                "FIGURE compare_{name}_ratio_prefix_hash_vs_best_peer {:.3}",
                ours / best
            );
        }
    }
    lines
}

fn key(run: &Run) -> (&str, &str) {
    (&run.router, &run.policy)
}

/// A run without a result counts as one.
fn errors(run: &Run) -> usize {
    let failed = run.served.iter().filter(|served| served.error.is_some());
    failed.count() + usize::from(run.failed.is_some())
}

/// Over the seeds.
fn mean(study: &Study, of: (&str, &str), figure: fn(&Run) -> Option<f64>) -> Option<f64> {
    let runs = study.runs.iter().filter(|run| key(run) == of);
    let values: Vec<f64> = runs.filter_map(figure).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn ttft_mean_us(run: &Run) -> Option<f64> {
    let good = run.served.iter().filter(|served| served.error.is_none());
    let ttfts: Vec<u64> = good
        .filter_map(|served| Some(served.first_us?.saturating_sub(served.due_us)))
        .collect();
    (!ttfts.is_empty()).then(|| ttfts.iter().sum::<u64>() as f64 / ttfts.len() as f64)
}

fn hit_rate(run: &Run) -> Option<f64> {
    let prompt: u64 = run
        .served
        .iter()
        .map(|served| u64::from(served.prompt_tokens))
        .sum();
    let cached: u64 = run
        .served
        .iter()
        .map(|served| u64::from(served.cached_tokens))
        .sum();
    (prompt > 0).then(|| cached as f64 / prompt as f64)
}

fn cpu_us_per_1000_requests(run: &Run) -> Option<f64> {
    let cost = run.cost.filter(|_| !run.served.is_empty())?;
    Some(cost.cpu_us as f64 * 1_000.0 / run.served.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute::sim::record::{Objective, Served};

    fn run(router: &str, policy: &str, ttft_us: u64, cached_tokens: u32) -> Run {
        let served = Served {
            due_us: 100,
            first_us: Some(100 + ttft_us),
            prompt_tokens: 100,
            cached_tokens,
            ..Served::default()
        };
        Run {
            router: router.to_owned(),
            policy: policy.to_owned(),
            served: vec![served],
            ..Run::default()
        }
    }

    fn study(runs: Vec<Run>) -> Study {
        Study {
            title: String::new(),
            command: String::new(),
            workload: String::new(),
            fleet: String::new(),
            baseline: String::new(),
            objective: Objective {
                ttft_us: 1,
                tpot_us: 1,
            },
            notes: Vec::new(),
            runs,
        }
    }

    #[test]
    fn the_best_peer_is_another_one_for_each_figure() {
        let study = study(vec![
            run("warmroute", "prefix_hash", 60, 80),
            run("warmroute", "consistent_hash", 1, 99),
            run("envoy", "round_robin", 50, 20),
            run("envoy", "ring_hash", 200, 40),
        ]);
        let lines = lines(&study, 1.25);
        assert!(lines.contains("FIGURE compare_minutes 1.2\n"), "{lines}");
        assert!(
            lines.contains("FIGURE compare_harness_errors 0\n"),
            "{lines}"
        );
        assert!(
            lines.contains("FIGURE compare_routers_reported 4\n"),
            "{lines}"
        );
        assert!(
            lines.contains("ttft_mean_ratio_prefix_hash_vs_best_peer 1.200\n"),
            "{lines}"
        );
        assert!(
            lines.contains("hit_rate_ratio_prefix_hash_vs_best_peer 2.000\n"),
            "{lines}"
        );
        assert!(!lines.contains("cpu"), "nothing was measured: {lines}");
    }

    #[test]
    fn failed_runs_and_failed_requests_are_errors() {
        let mut bad = run("envoy", "round_robin", 50, 20);
        bad.served[0].error = Some("status 500".to_owned());
        let none = Run {
            failed: Some("no Envoy".to_owned()),
            ..Run::default()
        };
        let lines = lines(&study(vec![bad, none]), 0.0);
        assert!(
            lines.contains("FIGURE compare_harness_errors 2\n"),
            "{lines}"
        );
        assert!(
            lines.contains("FIGURE compare_routers_reported 1\n"),
            "{lines}"
        );
    }
}
