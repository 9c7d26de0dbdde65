//! What a report would hide otherwise: failed runs, failed and unsent requests, and notes.

use super::compare::{Comparison, Row};
use super::metric::thousands;
use std::collections::BTreeMap;
use warmroute::sim::record::Run;

/// Most error texts told of one row; the others are counted.
const TEXTS: usize = 3;
/// Longest text from outside in one line, in characters.
const TEXT_CHARS: usize = 200;

/// One line for each thing that went wrong or was not measured.
pub fn losses(comparison: &Comparison<'_>) -> Vec<String> {
    let mut lines: Vec<String> = comparison.baseline_problem.iter().cloned().collect();
    for row in &comparison.rows {
        failures(row, &mut lines);
        missing(row, comparison.seeds.as_slice(), &mut lines);
        errors(row, &mut lines);
        count(row, row.total(|s| s.unsent), "never sent", &mut lines);
        count(
            row,
            row.total(|s| s.untimed),
            "answered without the time of the first or last token",
            &mut lines,
        );
        count(
            row,
            row.total(|s| s.unplaced),
            "answered by an endpoint that is not known, so left out of load skew and of the charts over time",
            &mut lines,
        );
    }
    lines
}

/// Notes of runs, each once a row with the seeds that it holds for.
pub fn notes(comparison: &Comparison<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &comparison.rows {
        let mut told: Vec<(&String, Vec<u64>)> = Vec::new();
        for (run, note) in row
            .runs
            .iter()
            .flat_map(|(run, _)| run.notes.iter().map(move |note| (run, note)))
        {
            match told.iter_mut().find(|(known, _)| *known == note) {
                Some((_, seeds)) => seeds.push(run.seed),
                None => told.push((note, vec![run.seed])),
            }
        }
        for (note, seeds) in told {
            let whose = match seeds.len() == row.runs.len() {
                true => String::new(),
                false => format!(", {}", of_seeds(&seeds)),
            };
            lines.push(format!("{}{whose}: {}", row.name, printable(note)));
        }
    }
    lines
}

/// Error texts of runs with their counts, the most frequent first.
pub fn error_texts<'r>(runs: impl Iterator<Item = &'r Run>) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for error in runs
        .flat_map(|run| &run.served)
        .filter_map(|s| s.error.as_deref())
    {
        *counts.entry(one_line(error)).or_default() += 1;
    }
    let mut texts: Vec<_> = counts.into_iter().collect();
    texts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    texts
}

/// Text from outside, fit for a line of a table or a list: printable, and not too long.
pub fn one_line(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS) {
        Some((end, _)) => printable(text.get(..end).unwrap_or_default()) + "…",
        None => printable(text),
    }
}

/// Text without control characters, which could move a terminal's cursor or end a line.
pub fn printable(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.chars().map(plain).collect();
    line.trim().to_owned()
}

fn failures(row: &Row<'_>, lines: &mut Vec<String>) {
    for (run, _) in &row.runs {
        match &run.failed {
            Some(why) => lines.push(format!(
                "{}, seed {}: the run failed: {} ({} requests sent, {} not; none counts)",
                row.name,
                run.seed,
                one_line(why),
                run.served.len(),
                run.unsent
            )),
            None if run.served.is_empty() => {
                lines.push(format!(
                    "{}, seed {}: no request was sent",
                    row.name, run.seed
                ));
            }
            None => {}
        }
    }
}

fn missing(row: &Row<'_>, seeds: &[u64], lines: &mut Vec<String>) {
    let has = |seed: &u64| row.runs.iter().any(|(run, _)| run.seed == *seed);
    let missing: Vec<u64> = seeds.iter().copied().filter(|seed| !has(seed)).collect();
    if !missing.is_empty() {
        lines.push(format!("{}: no run with {}", row.name, of_seeds(&missing)));
    }
}

fn errors(row: &Row<'_>, lines: &mut Vec<String>) {
    let texts = error_texts(
        row.runs
            .iter()
            .map(|(run, _)| *run)
            .filter(|run| run.failed.is_none()),
    );
    let total = row.total(|s| s.errors);
    if total == 0 {
        return;
    }
    let mut told: Vec<String> = texts
        .iter()
        .take(TEXTS)
        .map(|(text, count)| format!("{}× “{text}”", thousands(&count.to_string())))
        .collect();
    let rest: u64 = texts.iter().skip(TEXTS).map(|(_, count)| count).sum();
    if rest > 0 {
        told.push(format!("{}× other errors", thousands(&rest.to_string())));
    }
    let of = thousands(&row.total(|s| s.requests).to_string());
    let total = thousands(&total.to_string());
    lines.push(format!(
        "{}: {total} of {of} requests failed: {}",
        row.name,
        told.join(", ")
    ));
}

fn count(row: &Row<'_>, count: u64, what: &str, lines: &mut Vec<String>) {
    if count > 0 {
        let noun = if count == 1 { "request" } else { "requests" };
        lines.push(format!(
            "{}: {} {noun} {what}",
            row.name,
            thousands(&count.to_string())
        ));
    }
}

fn of_seeds(seeds: &[u64]) -> String {
    let noun = if seeds.len() == 1 { "seed" } else { "seeds" };
    let list: Vec<String> = seeds.iter().map(u64::to_string).collect();
    format!("{noun} {}", list.join(", "))
}
