//! The report for a terminal.

use super::cells::{Cell, NO_DATA, columns, counts, unmeasured};
use super::compare::{Comparison, Row};
use super::losses::{losses, notes, one_line, printable};
use super::metric::{Metric, Part};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use warmroute::sim::record::Study;

/// Whether a table also has the counts of runs and requests.
#[derive(Clone, Copy)]
enum Counted {
    Yes,
    No,
}

/// The whole text, ending with a line break.
pub fn render(study: &Study) -> String {
    let comparison = Comparison::of(study);
    let mut lines = vec![
        printable(&study.title),
        format!("workload: {}", printable(&study.workload)),
        format!("fleet: {}", printable(&study.fleet)),
        format!("objective: {}", objective(study)),
        format!("baseline: {}", one_line(&study.baseline)),
        String::new(),
    ];
    // Two narrow tables fit a terminal, where one wide one would be broken up.
    let clients = columns(Part::Clients, &comparison);
    let is_first = |(_, metric): &(usize, &Metric)| matches!(metric.group, "Goodput" | "TTFT");
    let (first, rest): (Vec<_>, Vec<_>) = clients.into_iter().partition(is_first);
    let fleet = columns(Part::Fleet, &comparison);
    let tables = [
        (first, Counted::Yes),
        (rest, Counted::No),
        (fleet, Counted::No),
    ];
    for (columns, counted) in tables {
        lines.push(table(&columns, &comparison, counted).to_string());
        lines.push(String::new());
    }
    lines.push(legend(&comparison));
    let told = losses(&comparison);
    if told.is_empty() {
        lines.push("No run failed, and every request was sent and answered.".to_owned());
    }
    lines.extend(told.into_iter().map(|line| format!("! {line}")));
    let about = study.notes.iter().map(|note| printable(note));
    lines.extend(
        about
            .chain(notes(&comparison))
            .map(|line| format!("note: {line}")),
    );
    lines.join("\n") + "\n"
}

/// The objective in words.
pub fn objective(study: &Study) -> String {
    let ms = |us: u64| super::axis::short(us as f64 / 1e3);
    format!(
        "TTFT up to {} ms and TPOT up to {} ms",
        ms(study.objective.ttft_us),
        ms(study.objective.tpot_us)
    )
}

fn table(columns: &[(usize, &Metric)], comparison: &Comparison<'_>, counted: Counted) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let heads = columns.iter().map(|(_, metric)| heading(metric));
    let counts_of = |row| match counted {
        Counted::Yes => counts(row).to_vec(),
        Counted::No => Vec::new(),
    };
    let names = comparison.rows.first().map(counts_of).unwrap_or_default();
    let names = names.into_iter().map(|(name, _)| name.to_owned());
    let first = std::iter::once("router/\npolicy".to_owned());
    table.set_header(first.chain(heads).chain(names));
    for row in &comparison.rows {
        let figures = columns
            .iter()
            .map(|(position, metric)| cell(metric, *position, row));
        let counts = counts_of(row).into_iter().map(|(_, count)| count);
        let first = std::iter::once(row.name.replacen('/', "/\n", 1));
        table.add_row(first.chain(figures).chain(counts));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn heading(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() {
        String::new()
    } else {
        format!("\n{}", metric.unit)
    };
    let label = metric
        .label
        .replace(" per 1,000 requests", "\nper 1,000")
        .replace("output tokens", "output\ntokens");
    match metric.label.is_empty() {
        true => format!("{}{unit}", metric.group),
        false if metric.part == Part::Fleet && metric.group != "Router" => format!("{label}{unit}"),
        false => format!("{}\n{label}{unit}", metric.group),
    }
}

fn cell(metric: &Metric, position: usize, row: &Row<'_>) -> String {
    let Some(figure) = row.figures.get(position).and_then(Option::as_ref) else {
        return NO_DATA.to_owned();
    };
    let cell = Cell::of(metric, figure, row);
    let best = if figure.best { "* " } else { "" };
    let value = format!("{best}{}", cell.value);
    let spread = cell.spread.filter(|_| !row.is_baseline);
    let lines = [Some(value), cell.ratio, spread];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn legend(comparison: &Comparison<'_>) -> String {
    let mut text = "Means over the seeds; ×: ratio to the baseline, paired by seed; a..b: its smallest and largest of any seed.\n\
        *: best of the rows without errors, unsent requests or missing seeds."
        .to_owned();
    let unmeasured = unmeasured(comparison);
    if !unmeasured.is_empty() {
        text.push_str(&format!(
            "\nNot measured in any run: {}.",
            unmeasured.join(", ")
        ));
    }
    text
}
