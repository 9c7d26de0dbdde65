//! The report for a terminal.

use super::cells::{Cell, NO_DATA, columns, counts, unmeasured};
use super::compare::{Comparison, Row};
use super::losses::{losses, notes, one_line};
use super::metric::{Metric, Part};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use warmroute::sim::record::Study;

/// The whole text, ending with a line break.
pub fn render(study: &Study) -> String {
    let comparison = Comparison::of(study);
    let mut lines = vec![
        one_line(&study.title),
        format!("workload: {}", one_line(&study.workload)),
        format!("fleet: {}", one_line(&study.fleet)),
        format!("good: {}", good(study)),
        format!("baseline: {}", one_line(&study.baseline)),
        String::new(),
    ];
    for part in [Part::Clients, Part::Fleet] {
        lines.push(table(part, &comparison).to_string());
        lines.push(String::new());
    }
    lines.push(legend(&comparison));
    let told = losses(&comparison);
    if told.is_empty() {
        lines.push("No run failed, and every request was sent and answered.".to_owned());
    }
    lines.extend(told.into_iter().map(|line| format!("! {line}")));
    let about = study.notes.iter().map(|note| one_line(note));
    lines.extend(about.chain(notes(&comparison)).map(|line| format!("note: {line}")));
    lines.join("\n") + "\n"
}

/// The objective in words.
pub fn good(study: &Study) -> String {
    let ms = |us: u64| super::metric::number(us as f64 / 1e3);
    format!(
        "TTFT up to {} ms and TPOT up to {} ms",
        ms(study.objective.ttft_us),
        ms(study.objective.tpot_us)
    )
}

fn table(part: Part, comparison: &Comparison<'_>) -> Table {
    let columns = columns(part, comparison);
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    let counted = part == Part::Clients;
    let counted_names = ["runs", "requests", "errors", "unsent"].map(str::to_owned);
    let mut header = vec!["router/policy".to_owned()];
    header.extend(counted_names.into_iter().filter(|_| counted));
    header.extend(columns.iter().map(|(_, metric)| heading(metric)));
    table.set_header(header);
    for row in &comparison.rows {
        let mut cells = vec![row.name.clone()];
        cells.extend(counts(row).into_iter().filter(|_| counted).map(|(_, count)| count));
        cells.extend(columns.iter().map(|(position, metric)| cell(metric, *position, row)));
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn heading(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() { String::new() } else { format!("\n{}", metric.unit) };
    let label = metric.label.replace(" per 1,000 requests", "\nper 1,000").replace("output tokens", "output\ntokens");
    match metric.label.is_empty() {
        true => format!("{}{unit}", metric.group),
        false if metric.group == "Replicas" || metric.group == "Throughput" => format!("{label}{unit}"),
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
    let lines = [Some(value), cell.ratio, cell.spread];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn legend(comparison: &Comparison<'_>) -> String {
    let mut text = "Means over the seeds; ×: ratio to the baseline, paired by seed; a..b: smallest and largest of any seed.\n\
        *: best of the rows without errors, unsent requests or missing seeds."
        .to_owned();
    let unmeasured = unmeasured(comparison);
    if !unmeasured.is_empty() {
        text.push_str(&format!("\nNot measured in any run: {}.", unmeasured.join(", ")));
    }
    text
}
