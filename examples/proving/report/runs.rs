//! Every run by itself, as a table of the page.

use super::cells::NO_DATA;
use super::compare::Comparison;
use super::html::escape;
use super::metric::{METRICS, Metric, thousands};
use super::pages::name;
use super::summary::Summary;
use warmroute::sim::record::Run;

/// A line for each run, the failed ones too.
pub fn table(comparison: &Comparison<'_>) -> String {
    let metrics: Vec<&Metric> = METRICS
        .iter()
        .filter(|metric| is_measured(metric, comparison))
        .collect();
    let heads: String = metrics.iter().map(|metric| head(metric)).collect();
    let rows = comparison.rows.iter().flat_map(|row| {
        row.runs
            .iter()
            .map(move |(run, summary)| (&row.name, run, summary))
    });
    let lines: String = rows
        .map(|(name, run, summary)| line(name, run, summary.as_ref(), &metrics))
        .collect();
    format!(
        "<div class=\"scroll small\" tabindex=\"0\" role=\"region\" aria-labelledby=\"runs\">\n<table>\n\
         <caption id=\"runs\"><span>Figures of every run</span></caption>\n<thead>\n<tr><th scope=\"col\">Router and policy</th>\
         <th scope=\"col\">seed</th><th scope=\"col\">requests</th><th scope=\"col\">errors</th>\
         <th scope=\"col\">unsent</th><th scope=\"col\">length <span class=\"unit\">s</span></th>{heads}</tr>\n</thead>\n\
         <tbody>\n{lines}</tbody>\n</table>\n</div>\n"
    )
}

fn is_measured(metric: &Metric, comparison: &Comparison<'_>) -> bool {
    let summaries = comparison
        .rows
        .iter()
        .flat_map(|row| &row.runs)
        .filter_map(|(_, summary)| summary.as_ref());
    summaries.filter_map(metric.get).next().is_some()
}

fn head(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() {
        String::new()
    } else {
        format!(" <span class=\"unit\">{}</span>", metric.unit)
    };
    format!("<th scope=\"col\">{}{unit}</th>", metric.name())
}

fn line(row: &str, run: &Run, summary: Option<&Summary>, metrics: &[&Metric]) -> String {
    let start = format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td>",
        name(row),
        run.seed
    );
    let Some(summary) = summary else {
        let why = escape(&super::losses::one_line(
            run.failed.as_deref().unwrap_or_default(),
        ));
        let span = metrics.len() + 4;
        return format!("{start}<td class=\"failed\" colspan=\"{span}\">failed: {why}</td></tr>\n");
    };
    let cell = |text: Option<String>| match text {
        Some(text) => format!("<td>{text}</td>"),
        None => format!("<td class=\"none\">{NO_DATA}</td>"),
    };
    let counts = [summary.requests, summary.errors, summary.unsent];
    let counts = counts
        .map(|count| cell(Some(thousands(&count.to_string()))))
        .concat();
    let length = cell(summary.duration_s.map(super::metric::number));
    let figures: String = metrics
        .iter()
        .map(|metric| cell((metric.get)(summary).map(|value| metric.show(value))))
        .collect();
    format!("{start}{counts}{length}{figures}</tr>\n")
}
