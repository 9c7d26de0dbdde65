//! KubeAI's own results, and how the simulation compares with them.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use warmroute::sim::record::Study;

use crate::kubeai::{Comparison, THREADS};

/// KubeAI's own results: mean time to first token in milliseconds, tokens (prompt and output) a
/// second.
const PUBLISHED: [(&str, [(f64, f64); 3]); 3] = [
    (
        "random",
        [(126.9, 36_395.0), (2_264.4, 34_655.0), (8_481.5, 31_625.0)],
    ),
    (
        "least_request",
        [(211.5, 38_005.0), (319.9, 52_381.0), (1_196.0, 59_274.0)],
    ),
    (
        "prefix_hash",
        [(128.5, 41_521.0), (205.6, 56_933.0), (386.0, 71_812.0)],
    ),
];

/// How far the simulation is from the published headline, and what is known about why.
///
/// # Errors
/// The comparison lacks a cell.
pub fn distance(comparison: &Comparison) -> Result<Vec<String>, String> {
    let cell = |policy| comparison.cell(1_200, policy).ok_or("a cell is missing");
    let (ours, base) = (cell("prefix_hash")?, cell("random")?);
    let change = |ratio: f64| (ratio - 1.0) * 100.0;
    Ok(vec![
        format!(
            "At 1,200 threads prefix_hash changes TTFT by {:+.0} % and throughput by {:+.0} % against random; \
             KubeAI reports -95 % and +127 %.",
            change(ours.ttft_ms / base.ttft_ms),
            change(ours.tokens_per_s / base.tokens_per_s)
        ),
        format!(
            "Under prefix_hash and least_request the model comes near KubeAI's absolute figures; the distance is \
             in the baseline: KubeAI's random waits {:.0} times as long as the model's at 1,200 threads, and {:.0} \
             times at 600.",
            waits_longer(comparison, 1_200)?,
            waits_longer(comparison, 600)?
        ),
        "Their own runs differ as well: a second one at 1,200 threads has 513 ms and 70,589 tokens/s for prefix \
         hash, 4,490 ms and 36,866 for random, which is -89 % and +91 %."
            .to_owned(),
        "Theirs is a Kubernetes Service, which draws a replica for each connection; the model draws one for each \
         request. How the client kept its connections is not published; a replica that has drawn many keeps them."
            .to_owned(),
        "The size of the cache is not published. Less of it (--blocks 4750, --blocks 3500) brings random nearer to \
         theirs, but at 3,500 blocks prefix_hash falls far behind theirs, so that this alone is not the reason."
            .to_owned(),
    ])
}

/// The page of the largest number of threads, with KubeAI's own figures and what is known of the distance.
pub fn page(study: Study, distance: Vec<String>) -> Study {
    let last = study.runs.len() / THREADS.len();
    let threads = THREADS.last().copied().unwrap_or_default();
    let skipped = study.runs.len() - last;
    let own = PUBLISHED.iter().filter_map(|(policy, row)| {
        let (ttft_ms, tokens_per_s) = row.last()?;
        Some(format!(
            "KubeAI's own {policy}: TTFT {ttft_ms:.0} ms, {tokens_per_s:.0} tokens/s."
        ))
    });
    Study {
        title: format!("KubeAI's comparison at {threads} threads, simulated"),
        notes: own.chain(distance).collect(),
        runs: study.runs.into_iter().skip(skipped).collect(),
        ..study
    }
}

/// KubeAI's time to first token under random, in multiples of the model's.
fn waits_longer(comparison: &Comparison, threads: u32) -> Result<f64, String> {
    let model = comparison
        .cell(threads, "random")
        .ok_or("a cell is missing")?;
    let (theirs_ms, _) = published(threads, "random").ok_or("a figure is missing")?;
    Ok(theirs_ms / model.ttft_ms)
}

/// Model and publication side by side.
pub fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "threads",
        "policy",
        "TTFT ms",
        "KubeAI's",
        "tokens/s",
        "KubeAI's",
        "hit rate",
        "TTFT vs random",
        "KubeAI's",
        "tokens/s vs random",
        "KubeAI's",
    ]);
    for (threads, name, cell) in &comparison.rows {
        let published = |policy: &str| published(*threads, policy);
        let (ttft_ms, tokens_per_s, ttft, throughput) = match (published(name), published("random"))
        {
            (Some(ours), Some(base)) => (
                format!("{:.0}", ours.0),
                format!("{:.0}", ours.1),
                format!("{:.2}", ours.0 / base.0),
                format!("{:.2}", ours.1 / base.1),
            ),
            _ => Default::default(),
        };
        table.add_row([
            threads.to_string(),
            (*name).to_owned(),
            format!("{:.0}", cell.ttft_ms),
            ttft_ms,
            format!("{:.0}", cell.tokens_per_s),
            tokens_per_s,
            format!("{:.1} %", cell.hit_rate * 100.0),
            spread(cell.ttft_ratios),
            ttft,
            spread(cell.throughput_ratios),
            throughput,
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if index != 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn published(threads: u32, policy: &str) -> Option<(f64, f64)> {
    let column = THREADS.iter().position(|of| *of == threads)?;
    let (_, row) = PUBLISHED.iter().find(|(name, _)| *name == policy)?;
    row.get(column).copied()
}

fn spread((least, most): (f64, f64)) -> String {
    format!("{least:.2} to {most:.2}")
}
