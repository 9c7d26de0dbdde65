//! Charts with what stands around them, and the bars at the top of a page.

use super::bars::{self, Bar};
use super::compare::{Comparison, Row};
use super::ink::Ink;
use super::metric::{Metric, by_key};

/// Figures that are shown as bars.
const BARS: [&str; 4] = ["goodput_per_s", "ttft_p99_ms", "hit_rate", "load_skew"];

/// A chart with what stands around it.
pub struct Drawing {
    /// Its heading.
    pub title: String,
    /// The chart.
    pub svg: String,
    /// What its lines are.
    pub legend: Vec<(Ink, String)>,
}

/// Charts of one kind.
pub struct Group {
    /// Their heading.
    pub title: &'static str,
    /// What they show and how they are read.
    pub about: String,
    /// The charts.
    pub drawings: Vec<Drawing>,
}

/// Bars of the figures that tell most.
///
/// # Errors
/// A chart cannot be drawn.
pub fn overview(comparison: &Comparison<'_>) -> Result<Vec<Drawing>, String> {
    let metrics = BARS.iter().filter_map(|key| by_key(key));
    let drawing = |metric| {
        let bar = |row| bar(row, metric);
        let bars: Vec<Bar<'_>> = comparison.rows.iter().map(bar).collect();
        Ok(Drawing {
            title: format!("{}: {}", upper_first(&metric.name()), metric.direction()),
            svg: bars::draw(metric, &bars)?,
            legend: Vec::new(),
        })
    };
    metrics.map(drawing).collect()
}

/// The name of a row in a legend or a heading.
pub fn named(row: &Row<'_>, empty: bool) -> String {
    let baseline = if row.is_baseline { " (baseline)" } else { "" };
    let empty = match (empty, row.is_whole) {
        (true, _) => ", no data ⚠",
        (false, true) => "",
        (false, false) => " ⚠",
    };
    format!("{}{baseline}{empty}", row.name)
}

fn upper_first(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

fn bar<'r>(row: &'r Row<'_>, metric: &Metric) -> Bar<'r> {
    Bar {
        name: &row.name,
        is_baseline: row.is_baseline,
        is_whole: row.is_whole,
        value: row.figure(metric.key).map(|figure| figure.value),
    }
}
