//! The runs by router and policy, over the seeds, against the baseline.

use super::losses::one_line;
use super::metric::{METRICS, Metric};
use super::summary::{Summary, mean};
use std::collections::BTreeSet;
use warmroute::sim::record::{Run, Study};

/// A value over the seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The mean: arithmetic for a figure, geometric for a ratio.
    pub mean: f64,
    /// The smallest of any seed.
    pub min: f64,
    /// The largest of any seed.
    pub max: f64,
    /// How many seeds have a value.
    pub seeds: usize,
}

/// One figure of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The figure itself, in the unit of its key.
    pub value: Spread,
    /// What it is of the baseline's, seed by seed; `None` without a baseline.
    pub ratio: Option<Spread>,
    /// Whether no comparable row is better.
    pub best: bool,
}

/// One router under one policy.
pub struct Row<'a> {
    /// `router/policy`, fit to be printed.
    pub name: String,
    /// Whether the others are compared with it.
    pub is_baseline: bool,
    /// Whether nothing is missing that could make its figures look better than they are: a run, a
    /// seed, a request or a time.
    pub is_whole: bool,
    /// Its runs, in the order of the study, each with what it yields.
    pub runs: Vec<(&'a Run, Option<Summary>)>,
    /// A figure for each of [`METRICS`], in their order; `None` is "no data".
    pub figures: Vec<Option<Figure>>,
}

/// All rows of a study.
pub struct Comparison<'a> {
    /// In the order in which the study first names them.
    pub rows: Vec<Row<'a>>,
    /// All seeds, ascending.
    pub seeds: Vec<u64>,
    /// Why ratios are missing, if some are.
    pub baseline_problem: Option<String>,
}

impl<'a> Comparison<'a> {
    /// Compares the runs of a study.
    pub fn of(study: &'a Study) -> Self {
        let mut rows = rows(study);
        let seeds: BTreeSet<u64> = study.runs.iter().map(|run| run.seed).collect();
        let baseline_problem = baseline_problem(&rows, &study.baseline, &seeds);
        let baseline = rows.iter().find(|row| row.is_baseline);
        let base: Vec<_> = baseline
            .map(|row| summaries(row).collect())
            .unwrap_or_default();
        let of_row = |row| {
            METRICS
                .iter()
                .map(|metric| figure(metric, row, &base))
                .collect()
        };
        let figures: Vec<Vec<Option<Figure>>> = rows.iter().map(of_row).collect();
        for (row, figures) in rows.iter_mut().zip(figures) {
            row.figures = figures;
            row.is_whole = row.is_whole(seeds.len());
        }
        for (position, metric) in METRICS.iter().enumerate() {
            mark_best(metric, position, &mut rows);
        }
        Self {
            rows,
            seeds: seeds.into_iter().collect(),
            baseline_problem,
        }
    }
}

impl Row<'_> {
    /// Runs that yielded nothing.
    pub fn failed(&self) -> usize {
        self.runs
            .iter()
            .filter(|(_, summary)| summary.is_none())
            .count()
    }

    /// The sum of a count over the runs.
    pub fn total(&self, count: fn(&Summary) -> u64) -> u64 {
        summaries(self).map(|(_, summary)| count(summary)).sum()
    }

    /// The figure of a metric.
    pub fn figure(&self, key: &str) -> Option<&Figure> {
        let position = METRICS.iter().position(|metric| metric.key == key)?;
        self.figures.get(position)?.as_ref()
    }

    fn is_whole(&self, seeds: usize) -> bool {
        let distinct: BTreeSet<u64> = summaries(self).map(|((seed, _), _)| seed).collect();
        let lost = self.total(|s| s.errors + s.unsent + s.untimed);
        self.failed() == 0 && lost == 0 && distinct.len() == seeds
    }
}

/// `router/policy`.
pub fn name(run: &Run) -> String {
    format!("{}/{}", run.router, run.policy)
}

fn rows(study: &Study) -> Vec<Row<'_>> {
    let mut names: Vec<String> = Vec::new();
    let mut rows: Vec<Row<'_>> = Vec::new();
    for run in &study.runs {
        let name = name(run);
        let with_summary = (run, Summary::of(run, study.objective));
        match names.iter().position(|known| *known == name) {
            Some(position) => rows
                .iter_mut()
                .skip(position)
                .take(1)
                .for_each(|row| row.runs.push(with_summary.clone())),
            None => {
                rows.push(Row {
                    name: one_line(&name),
                    is_baseline: name == study.baseline,
                    is_whole: false,
                    runs: vec![with_summary],
                    figures: Vec::new(),
                });
                names.push(name);
            }
        }
    }
    rows
}

/// What its runs yielded, by seed and, should a seed come twice, by occurrence.
fn summaries<'r>(row: &'r Row<'_>) -> impl Iterator<Item = ((u64, usize), &'r Summary)> {
    row.runs
        .iter()
        .enumerate()
        .filter_map(|(position, (run, summary))| {
            let earlier = row.runs.iter().take(position);
            let occurrence = earlier.filter(|(other, _)| other.seed == run.seed).count();
            Some(((run.seed, occurrence), summary.as_ref()?))
        })
}

fn figure(metric: &Metric, row: &Row<'_>, base: &[((u64, usize), &Summary)]) -> Option<Figure> {
    let mut values = Vec::new();
    let mut ratios = Vec::new();
    for (key, summary) in summaries(row) {
        let Some(value) = (metric.get)(summary) else {
            continue;
        };
        values.push(value);
        let paired = base.iter().find(|(other, _)| *other == key);
        let base_value = paired.and_then(|(_, summary)| (metric.get)(summary));
        ratios.extend(
            base_value
                .filter(|base| *base > 0.0)
                .map(|base| value / base),
        );
    }
    Some(Figure {
        value: spread(&values, mean(&values)?),
        ratio: geometric_mean(&ratios).map(|mean| spread(&ratios, mean)),
        best: false,
    })
}

fn spread(values: &[f64], mean: f64) -> Spread {
    Spread {
        mean,
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        seeds: values.len(),
    }
}

/// A ratio and its inverse have to be as far from 1, which the arithmetic mean does not give.
fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    mean(&logarithms).map(f64::exp)
}

/// Marks all whose shown value is the best one, unless that is everyone.
fn mark_best(metric: &Metric, position: usize, rows: &mut [Row<'_>]) {
    let mut candidates: Vec<&mut Figure> = rows
        .iter_mut()
        .filter(|row| row.is_whole)
        .filter_map(|row| row.figures.get_mut(position)?.as_mut())
        .collect();
    let means = candidates.iter().map(|figure| figure.value.mean);
    let best = means.reduce(|one, other| {
        if metric.is_better(other, one) {
            other
        } else {
            one
        }
    });
    let Some(shown) = best.map(|best| metric.show(best)) else {
        return;
    };
    let is_best = |figure: &Figure| metric.show(figure.value.mean) == shown;
    if candidates.iter().all(|figure| is_best(figure)) {
        return;
    }
    for figure in &mut candidates {
        figure.best = is_best(figure);
    }
}

fn baseline_problem(rows: &[Row<'_>], wanted: &str, seeds: &BTreeSet<u64>) -> Option<String> {
    let wanted = one_line(wanted);
    let Some(row) = rows.iter().find(|row| row.is_baseline) else {
        return Some(format!(
            "The baseline {wanted} is not among the runs, so there are no ratios."
        ));
    };
    let there: BTreeSet<u64> = summaries(row)
        .filter(|(_, summary)| summary.requests > summary.errors)
        .map(|((seed, _), _)| seed)
        .collect();
    let missing: Vec<String> = seeds.difference(&there).map(u64::to_string).collect();
    match (there.is_empty(), missing.is_empty()) {
        (true, _) => Some(format!(
            "The baseline {wanted} yielded no result, so there are no ratios."
        )),
        (false, true) => None,
        (false, false) => Some(format!(
            "The baseline {wanted} yielded no result for seed {}, so the ratios are without it.",
            missing.join(", ")
        )),
    }
}
