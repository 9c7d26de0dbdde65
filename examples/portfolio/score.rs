//! Figures of every contender in every cell, divided by those of the best other one.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::bench::{Loaded, Means, Results};
use crate::contender::Contender;

/// What is compared; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    MeanTtft,
    P99Ttft,
    MeanEndToEnd,
}

impl Measure {
    pub const ALL: [Self; 3] = [Self::MeanTtft, Self::P99Ttft, Self::MeanEndToEnd];

    pub fn title(self) -> &'static str {
        match self {
            Self::MeanTtft => "mean TTFT",
            Self::P99Ttft => "p99 TTFT",
            Self::MeanEndToEnd => "mean end-to-end",
        }
    }

    /// As figures are called.
    pub fn figure(self) -> &'static str {
        match self {
            Self::MeanTtft => "mean_ttft",
            Self::P99Ttft => "p99_ttft",
            Self::MeanEndToEnd => "e2e_mean",
        }
    }

    pub fn of(self, means: &Means) -> f64 {
        match self {
            Self::MeanTtft => means.ttft_ms,
            Self::P99Ttft => means.p99_ttft_ms,
            Self::MeanEndToEnd => means.e2e_ms,
        }
    }
}

/// One contender over all cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub geomean: f64,
    pub worst: f64,
    /// Index of the cell with the worst ratio.
    pub worst_cell: usize,
}

/// Everything that was measured, with names.
pub struct Scores {
    pub cells: Vec<String>,
    pub contenders: Vec<String>,
    results: Results,
}

impl Scores {
    pub fn new(cells: &[Loaded], contenders: &[Contender], results: &Results) -> Self {
        Self {
            cells: cells.iter().map(|one| one.cell.name.clone()).collect(),
            contenders: contenders.iter().map(|one| one.name.clone()).collect(),
            results: results.clone(),
        }
    }

    /// The figures of one cell, by contender.
    pub fn figures_ms(&self, measure: Measure, cell: usize) -> Vec<f64> {
        let row = self.results.get(cell).map(Vec::as_slice);
        let row = row.unwrap_or_default().iter();
        row.map(|means| measure.of(means)).collect()
    }

    /// Each contender's figure in one cell divided by the least of the others.
    pub fn ratios(&self, measure: Measure, cell: usize) -> Vec<f64> {
        let figures = self.figures_ms(measure, cell);
        let others = |index: usize| {
            let others = figures
                .iter()
                .enumerate()
                .filter(move |(at, _)| *at != index);
            others
                .map(|(_, figure)| *figure)
                .fold(f64::INFINITY, f64::min)
        };
        let figures = figures.iter().enumerate();
        figures
            .map(|(index, figure)| figure / others(index))
            .collect()
    }

    /// Every contender over all cells.
    pub fn summaries(&self, measure: Measure) -> Vec<Summary> {
        let rows: Vec<Vec<f64>> = (0..self.cells.len())
            .map(|cell| self.ratios(measure, cell))
            .collect();
        let summary = |contender: usize| {
            let ratios = rows.iter().filter_map(|row| row.get(contender).copied());
            let ratios: Vec<f64> = ratios.collect();
            let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
            let worst = ratios.iter().copied().enumerate();
            let worst = worst.max_by(|a, b| a.1.total_cmp(&b.1));
            let (worst_cell, worst) = worst.unwrap_or((0, f64::NAN));
            Summary {
                geomean: (logs / ratios.len().max(1) as f64).exp(),
                worst,
                worst_cell,
            }
        };
        (0..self.contenders.len()).map(summary).collect()
    }

    /// `FIGURE name value` lines of one contender, whose names begin with `prefix`.
    pub fn figures(&self, subject: usize, prefix: &str) -> String {
        let missing = Summary {
            geomean: f64::NAN,
            worst: f64::NAN,
            worst_cell: 0,
        };
        let of = |measure| {
            let summaries = self.summaries(measure);
            summaries.get(subject).copied().unwrap_or(missing)
        };
        let (ttft, p99, e2e) = (
            of(Measure::MeanTtft),
            of(Measure::P99Ttft),
            of(Measure::MeanEndToEnd),
        );
        let others = self.summaries(Measure::MeanTtft).into_iter().enumerate();
        let others = others.filter(|(index, _)| *index != subject);
        let best = others.fold(f64::INFINITY, |best, (_, one)| best.min(one.geomean));
        let lines = [
            ("mean_ttft_geomean", ttft.geomean),
            ("mean_ttft_worst_cell", ttft.worst),
            ("p99_ttft_geomean", p99.geomean),
            ("p99_ttft_worst_cell", p99.worst),
            ("e2e_mean_worst_cell", e2e.worst),
            ("vs_best_single_policy", ttft.geomean / best),
        ];
        let mut text = String::new();
        for (name, value) in lines {
            let _ = writeln!(text, "FIGURE {prefix}_{name} {value:.3}");
        }
        text
    }

    /// All figures by cell and contender, and the summaries.
    pub fn json(&self) -> Value {
        let means = |means: &Means| {
            json!({
                "mean_ttft_ms": means.ttft_ms,
                "p99_ttft_ms": means.p99_ttft_ms,
                "mean_e2e_ms": means.e2e_ms,
                "hit_rate": means.hit_rate,
                "errors": means.errors,
                "preemptions": means.preemptions,
            })
        };
        let row = |row: &Vec<Means>| -> Value {
            let named = self.contenders.iter().cloned().zip(row.iter().map(means));
            Value::Object(named.collect())
        };
        let cells = self.cells.iter().cloned().zip(self.results.iter().map(row));
        let summaries = Measure::ALL.map(|measure| {
            let summaries = self.summaries(measure).into_iter().map(|one| {
                let worst_cell = self.cells.get(one.worst_cell);
                json!({"geomean": one.geomean, "worst": one.worst, "worst_cell": worst_cell})
            });
            let named = self.contenders.iter().cloned().zip(summaries);
            (measure.title().to_owned(), Value::Object(named.collect()))
        });
        json!({
            "cells": Value::Object(cells.collect()),
            "ratios_to_best_other": Value::Object(summaries.into_iter().collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(rows: &[&[f64]]) -> Scores {
        let means = |ttft_ms: &f64| Means {
            ttft_ms: *ttft_ms,
            p99_ttft_ms: 3.0 * ttft_ms,
            e2e_ms: 5.0,
            ..Means::default()
        };
        Scores {
            cells: (0..rows.len())
                .map(|index| format!("cell{index}"))
                .collect(),
            contenders: ["a", "b", "c"].map(str::to_owned).to_vec(),
            results: rows
                .iter()
                .map(|row| row.iter().map(means).collect())
                .collect(),
        }
    }

    #[test]
    fn a_figure_is_divided_by_the_best_of_the_others() {
        let scores = scores(&[&[10.0, 20.0, 40.0], &[90.0, 10.0, 30.0]]);
        assert_eq!(scores.ratios(Measure::MeanTtft, 0), [0.5, 2.0, 4.0]);
        assert_eq!(scores.ratios(Measure::MeanTtft, 1), [9.0, 1.0 / 3.0, 3.0]);
        let of_a = scores.summaries(Measure::MeanTtft)[0];
        assert!((of_a.geomean - 4.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!((of_a.worst, of_a.worst_cell), (9.0, 1));
    }

    #[test]
    fn the_figures_name_the_subject_and_the_best_single_policy() {
        let scores = scores(&[&[10.0, 20.0, 40.0], &[90.0, 10.0, 30.0]]);
        let text = scores.figures(0, "portfolio");
        assert!(text.contains("FIGURE portfolio_mean_ttft_worst_cell 9.000\n"));
        assert!(text.contains("FIGURE portfolio_e2e_mean_worst_cell 1.000\n"));
        let best = (2.0_f64 / 3.0).sqrt();
        let line = format!(
            "portfolio_vs_best_single_policy {:.3}\n",
            4.5_f64.sqrt() / best
        );
        assert!(text.contains(&line), "{text}");
    }
}
