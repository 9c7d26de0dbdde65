//! The report for other programs.

use super::compare::{Comparison, Row, Spread};
use super::losses::{error_texts, losses};
use super::metric::METRICS;
use super::summary::Summary;
use serde_json::{Map, Value, json};
use warmroute::sim::record::{Run, Study};

/// Name and version of the keys; a change of a key's meaning gets another number.
const SCHEMA: &str = "warmroute-study/1";
/// Most error texts told of one run; the others are counted.
const TEXTS: usize = 10;

/// The whole document, ending with a line break. Figures without data are `null`.
pub fn render(study: &Study) -> String {
    let comparison = Comparison::of(study);
    let runs: Vec<Value> = comparison
        .rows
        .iter()
        .flat_map(|row| row.runs.iter())
        .map(|(run, s)| of_run(run, s.as_ref()))
        .collect();
    let document = json!({
        "schema": SCHEMA,
        "title": study.title,
        "command": study.command,
        "workload": study.workload,
        "fleet": study.fleet,
        "baseline": study.baseline,
        "baseline_problem": comparison.baseline_problem,
        "objective": {
            "ttft_ms": study.objective.ttft_us as f64 / 1e3,
            "tpot_ms": study.objective.tpot_us as f64 / 1e3,
        },
        "seeds": comparison.seeds,
        "notes": study.notes,
        "losses": losses(&comparison),
        "comparison": comparison.rows.iter().map(of_row).collect::<Vec<_>>(),
        "runs": runs,
    });
    format!("{document:#}\n")
}

fn of_row(row: &Row<'_>) -> Value {
    let pairs = METRICS.iter().zip(&row.figures);
    let figures: Map<String, Value> = pairs
        .map(|(metric, figure)| {
            let value = figure.as_ref().map(|figure| {
                json!({
                    "value": of_spread(figure.value),
                    "ratio_to_baseline": figure.ratio.map(of_spread),
                    "best": figure.best,
                })
            });
            (metric.key.to_owned(), value.unwrap_or(Value::Null))
        })
        .collect();
    json!({
        "name": row.name,
        "router": row.runs.first().map(|(run, _)| &run.router),
        "policy": row.runs.first().map(|(run, _)| &run.policy),
        "is_baseline": row.is_baseline,
        "runs": row.runs.len(),
        "failed_runs": row.failed(),
        "requests": row.total(|s| s.requests),
        "errors": row.total(|s| s.errors),
        "unsent": row.total(|s| s.unsent),
        "figures": figures,
    })
}

fn of_spread(spread: Spread) -> Value {
    json!({"mean": spread.mean, "min": spread.min, "max": spread.max, "seeds": spread.seeds})
}

fn of_run(run: &Run, summary: Option<&Summary>) -> Value {
    let texts = error_texts(std::iter::once(run));
    let other: u64 = texts.iter().skip(TEXTS).map(|(_, count)| count).sum();
    let told: Vec<Value> = texts
        .iter()
        .take(TEXTS)
        .map(|(text, count)| json!({"text": text, "count": count}))
        .collect();
    let figures: Map<String, Value> = METRICS
        .iter()
        .map(|metric| (metric.key.to_owned(), json!(summary.and_then(metric.get))))
        .collect();
    json!({
        "router": run.router,
        "policy": run.policy,
        "seed": run.seed,
        "failed": run.failed,
        "endpoints": run.endpoints,
        "requests": run.served.len(),
        "errors": run.served.iter().filter(|s| s.error.is_some()).count(),
        "error_texts": told,
        "other_errors": other,
        "unsent": run.unsent,
        "untimed": summary.map(|s| s.untimed),
        "unplaced": summary.map(|s| s.unplaced),
        "duration_s": summary.and_then(|s| s.duration_s),
        "figures": figures,
        "notes": run.notes,
    })
}
