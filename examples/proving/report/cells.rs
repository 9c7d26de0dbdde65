//! What stands in the cells of the tables, on a terminal and on a page.

use super::compare::{Comparison, Figure, Row, Spread};
use super::metric::{METRICS, Metric, Part, thousands};

/// What a cell says that has no value.
pub const NO_DATA: &str = "no data";

/// What one cell says.
pub struct Cell {
    /// The value, without its unit.
    pub value: String,
    /// The ratio to the baseline.
    pub ratio: Option<String>,
    /// The smallest and the largest ratio, or without ratios value, of any seed; `None` where both
    /// look alike.
    pub spread: Option<String>,
}

impl Cell {
    /// Of a figure.
    pub fn of(metric: &Metric, figure: &Figure, row: &Row<'_>) -> Self {
        let ratio = figure.ratio.filter(|_| !row.is_baseline);
        let spread = match ratio {
            Some(ratio) => range(ratio, |value| format!("{value:.2}")),
            None => range(figure.value, |value| metric.show(value)),
        };
        Self {
            value: metric.show(figure.value.mean),
            ratio: ratio.map(|ratio| format!("×{:.2}", ratio.mean)),
            spread,
        }
    }
}

/// The metrics of a table, less those that no row has, with their positions in [`METRICS`].
pub fn columns(part: Part, comparison: &Comparison<'_>) -> Vec<(usize, &'static Metric)> {
    let is_measured = |position: usize| {
        let mut figures = comparison.rows.iter().map(|row| row.figures.get(position));
        figures.any(|figure| matches!(figure, Some(Some(_))))
    };
    let all = METRICS.iter().enumerate();
    let of_part = all.filter(|(_, metric)| metric.part == part);
    of_part
        .filter(|(position, metric)| metric.group != "Router" || is_measured(*position))
        .collect()
}

/// The names of what no row has, for the line that says so.
pub fn unmeasured(comparison: &Comparison<'_>) -> Vec<String> {
    let columns = columns(Part::Fleet, comparison);
    let is_shown = |metric: &Metric| columns.iter().any(|(_, shown)| shown.key == metric.key);
    let of_part = METRICS.iter().filter(|metric| metric.part == Part::Fleet);
    of_part
        .filter(|metric| !is_shown(metric))
        .map(Metric::name)
        .collect()
}

/// Counts of a row: runs with a result of all runs, requests, errors, unsent requests.
pub fn counts(row: &Row<'_>) -> [(&'static str, String); 4] {
    let runs = match row.failed() {
        0 => row.runs.len().to_string(),
        failed => format!("{} of {}", row.runs.len() - failed, row.runs.len()),
    };
    let count = |count: u64| thousands(&count.to_string());
    [
        ("runs", runs),
        ("requests", count(row.total(|s| s.requests))),
        ("errors", count(row.total(|s| s.errors))),
        ("unsent", count(row.total(|s| s.unsent))),
    ]
}

fn range(spread: Spread, show: impl Fn(f64) -> String) -> Option<String> {
    let (min, max) = (show(spread.min), show(spread.max));
    (min != max).then(|| format!("{min}..{max}"))
}
