//! The tables that people read.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

use crate::bounds::Reach;
use crate::score::{Measure, Scores, Summary};

fn new_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Cells by contenders: ratios to the best other one, or milliseconds.
pub fn table(scores: &Scores, measure: Measure, is_absolute: bool) -> String {
    let mut table = new_table();
    // A name of several words takes several lines, or the table would be too wide.
    let names = scores.contenders.iter().map(|name| name.replace('_', "\n"));
    let unit = if is_absolute { "ms" } else { "× best other" };
    let header = std::iter::once(format!("{}\n{unit}", measure.title()));
    table.set_header(header.chain(names));
    for (index, name) in scores.cells.iter().enumerate() {
        let row = if is_absolute {
            numbers(scores.figures_ms(measure, index))
        } else {
            numbers(scores.ratios(measure, index))
        };
        table.add_row(std::iter::once(Cell::new(name)).chain(row));
    }
    let summaries = scores.summaries(measure);
    let mut add = |name: &str, of: fn(&Summary) -> f64| {
        let row = numbers(summaries.iter().map(of).collect());
        table.add_row(std::iter::once(Cell::new(name)).chain(row));
    };
    add("geomean of ratios", |one| one.geomean);
    add("worst ratio", |one| one.worst);
    format!("{table}\n")
}

/// Cells by what is in reach.
pub fn reaches(measure: Measure, reaches: &[Reach]) -> Table {
    let mut table = new_table();
    let title = format!("{}\nms", measure.title());
    let columns = [
        "subject",
        "best other",
        "oracle",
        "pooled\n(estimate)",
        "alone\n(bound)",
        "subject\n÷ oracle",
        "best other\n÷ oracle",
        "subject\n÷ alone",
        "best other\n÷ alone",
    ];
    table.set_header(
        [title.as_str()]
            .into_iter()
            .chain(columns)
            .chain(["best other is"]),
    );
    for one in reaches {
        let row = numbers(vec![
            one.subject,
            one.best_other,
            one.oracle,
            one.pooled,
            one.alone,
            one.subject / one.oracle,
            one.best_other / one.oracle,
            one.subject / one.alone,
            one.best_other / one.alone,
        ]);
        let name = Cell::new(&one.best_other_name);
        table.add_row(
            std::iter::once(Cell::new(&one.cell))
                .chain(row)
                .chain([name]),
        );
    }
    table
}

fn numbers(values: Vec<f64>) -> impl Iterator<Item = Cell> {
    let digits = |value: f64| match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    };
    let cell = move |value| Cell::new(digits(value)).set_alignment(CellAlignment::Right);
    values.into_iter().map(cell)
}

/// Who is best in each cell, by how much before the next.
pub fn best(scores: &Scores) -> String {
    let mut table = new_table();
    table.set_header(["best in", "mean TTFT", "p99 TTFT", "mean end-to-end"]);
    for (index, name) in scores.cells.iter().enumerate() {
        let best = Measure::ALL.map(|measure| best_of(scores, measure, index));
        table.add_row(std::iter::once(name.clone()).chain(best));
    }
    format!("{table}\n")
}

fn best_of(scores: &Scores, measure: Measure, cell: usize) -> String {
    let figures = scores.figures_ms(measure, cell);
    let best = figures.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
    let Some((index, ms)) = best else {
        return String::new();
    };
    let ratio = scores.ratios(measure, cell).get(index).copied();
    let name = scores.contenders.get(index).map_or("", String::as_str);
    format!("{name} {ms:.0} ms (× {:.2})", ratio.unwrap_or(f64::NAN))
}
