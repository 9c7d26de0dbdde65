//! The outcomes as a table, as JSON and as figures.

use crate::Args;
use crate::load::OUTPUT_TOKENS;
use crate::run::Outcome;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use serde_json::json;

/// A row for each policy.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "policy",
        "requests",
        "errors",
        "TTFT mean ms",
        "p50",
        "p99",
        "cache hits",
        "load skew",
    ]);
    for outcome in outcomes {
        table.add_row([
            outcome.policy.clone(),
            outcome.requests.to_string(),
            outcome.errors.to_string(),
            format!("{:.0}", mean(&outcome.ttft_ms)),
            format!("{:.0}", quantile(&outcome.ttft_ms, 0.5)),
            format!("{:.0}", quantile(&outcome.ttft_ms, 0.99)),
            format!("{:.1} %", outcome.hit_rate * 100.0),
            format!("{:.2}", outcome.load_skew),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What the columns are.
pub fn legend(args: &Args) -> String {
    format!(
        "{} chats in {} threads, {OUTPUT_TOKENS} output tokens a turn, {} mock replicas (8B model in FP8, L4), \
         {} Envoy workers, seed {}.\n\
         Times are those of the modelled hardware; the run was {} times faster.\n\
         cache hits: share of prompt tokens found in a prefix cache; \
         load skew: prompt and output tokens of the busiest replica over the mean.",
        args.chats, args.threads, args.replicas, args.workers, args.seed, args.speed
    )
}

/// `FIGURE name value` lines.
///
/// # Errors
/// One of the two policies was not run, or a request failed: what failed has no time to first token,
/// and would make its policy look better.
pub fn figures(outcomes: &[Outcome]) -> Result<String, String> {
    let of = |policy: &str| {
        let found = outcomes.iter().find(|o| o.policy == policy);
        found.ok_or_else(|| format!("--figures needs --policies with {policy}"))
    };
    let (ours, base) = (of("prefix_hash")?, of("round_robin")?);
    succeeded(outcomes)?;
    Ok([
        (
            "demo_ttft_ratio_prefix_hash_vs_round_robin",
            mean(&ours.ttft_ms) / mean(&base.ttft_ms),
        ),
        ("demo_hit_rate_prefix_hash", ours.hit_rate),
        (
            "demo_hit_rate_ratio_prefix_hash_vs_round_robin",
            ours.hit_rate / base.hit_rate,
        ),
        ("demo_errors", 0.0),
    ]
    .map(|(name, value)| format!("FIGURE {name} {value:.3}\n"))
    .concat())
}

/// Whether every request got a whole, good answer.
///
/// # Errors
/// How many did not, by policy.
pub fn succeeded(outcomes: &[Outcome]) -> Result<(), String> {
    let failed: Vec<String> = outcomes
        .iter()
        .filter(|o| o.errors > 0 || o.requests == 0)
        .map(|o| format!("{} of {} under {}", o.errors, o.requests, o.policy))
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("requests failed: {}", failed.join(", "))),
    }
}

/// Everything, for other programs.
pub fn json(args: &Args, outcomes: &[Outcome]) -> String {
    let rows: Vec<_> = outcomes
        .iter()
        .map(|o| {
            json!({
                "policy": o.policy,
                "requests": o.requests,
                "errors": o.errors,
                "ttft_mean_ms": mean(&o.ttft_ms),
                "ttft_p50_ms": quantile(&o.ttft_ms, 0.5),
                "ttft_p99_ms": quantile(&o.ttft_ms, 0.99),
                "hit_rate": o.hit_rate,
                "load_skew": o.load_skew,
                "elapsed_s": o.elapsed_s,
            })
        })
        .collect();
    let all = json!({
        "threads": args.threads, "chats": args.chats, "turns": args.turns,
        "replicas": args.replicas, "workers": args.workers, "seed": args.seed,
        "speed": args.speed, "policies": rows,
    });
    format!("{all:#}\n")
}

/// NaN if there are none.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The nearest rank; `sorted` ascending. NaN if there are none.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(policy: &str, errors: usize) -> Outcome {
        Outcome {
            policy: policy.to_owned(),
            requests: 10,
            errors,
            ttft_ms: vec![100.0; 10 - errors],
            hit_rate: 0.5,
            load_skew: 1.0,
            elapsed_s: 1.0,
        }
    }

    #[test]
    fn figures_are_of_runs_without_errors_only() {
        let good = [outcome("round_robin", 0), outcome("prefix_hash", 0)];
        let lines = figures(&good).unwrap_or_default();
        assert!(
            lines.contains("FIGURE demo_ttft_ratio_prefix_hash_vs_round_robin 1.000\n"),
            "{lines}"
        );
        for errors in [1, 10] {
            let bad = [outcome("round_robin", 0), outcome("prefix_hash", errors)];
            let why = format!("requests failed: {errors} of 10 under prefix_hash");
            assert_eq!(figures(&bad), Err(why.clone()));
            assert_eq!(succeeded(&bad), Err(why));
        }
        assert_eq!(succeeded(&good), Ok(()));
    }
}
