//! How evenly the endpoints were loaded over time, as charts of lines.

use super::axis::{self, Axis};
use super::compare::{Comparison, Row};
use super::figures::{Drawing, Group, named};
use super::ink::{Ink, SERIES};
use super::losses::one_line;
use super::plot::{Line, Plot};
use super::series::{Lines, mean_ttft_ms, outstanding_tokens, span_s};
use warmroute::sim::record::Run;

/// Stretches of time.
const TOKEN_BINS: usize = 120;
const TTFT_BINS: usize = 60;
/// How much higher one policy may go than another before each gets a scale of its own.
const SHARED_SCALE: f64 = 8.0;

/// How evenly the endpoints were loaded, one chart for each policy, of its run with the first seed.
///
/// # Errors
/// A chart cannot be drawn.
pub fn over_time(comparison: &Comparison<'_>) -> Result<Vec<Group>, String> {
    let runs: Vec<(&Row<'_>, Option<&Run>)> = comparison
        .rows
        .iter()
        .map(|row| (row, first_run(row, comparison)))
        .collect();
    let span_s = runs
        .iter()
        .filter_map(|(_, run)| *run)
        .map(span_s)
        .fold(0.0, f64::max);
    let x = Axis::until(span_s, axis::seconds);
    let of = |values: fn(&Run, usize) -> Lines, bins: usize| -> Vec<Lines> {
        runs.iter()
            .map(|(_, run)| run.map(|run| values(run, bins)).unwrap_or_default())
            .collect()
    };
    let tokens = of(outstanding_tokens, TOKEN_BINS);
    let ttfts = of(mean_ttft_ms, TTFT_BINS);
    let ttft_axis = Axis::logarithmic(
        ttfts.iter().flatten().flatten().map(|(_, ms)| *ms),
        axis::ms,
    );
    let (token_axes, shared) = token_axes(&tokens);
    let draw = |what: &str, series: Vec<Lines>, axes: Vec<Axis>| {
        let all = runs.iter().zip(series).zip(axes);
        let drawing = |(((row, run), lines), y): ((&(&Row<'_>, Option<&Run>), Lines), Axis)| {
            over_time_of(what, row, *run, lines, &x, &y)
        };
        all.map(drawing).collect::<Result<Vec<_>, String>>()
    };
    let ttft_axes = vec![ttft_axis; runs.len()];
    let scale = match shared {
        true => "All charts have one scale.",
        false => "The scales differ, since some policies go far higher than others.",
    };
    Ok(vec![
        Group {
            title: "Outstanding prompt tokens by endpoint",
            about: format!(
                "Prompt tokens, less cached ones, of requests that were due and had no first token yet. {scale}"
            ),
            drawings: draw("Outstanding prompt tokens", tokens, token_axes)?,
        },
        Group {
            title: "Mean TTFT by endpoint",
            about:
                "By the time at which requests were due; logarithmic. All charts have one scale."
                    .to_owned(),
            drawings: draw("Mean TTFT", ttfts, ttft_axes)?,
        },
    ])
}

fn first_run<'a>(row: &Row<'a>, comparison: &Comparison<'_>) -> Option<&'a Run> {
    let first = comparison.seeds.first()?;
    let mut good = row.runs.iter().filter(|(_, summary)| summary.is_some());
    good.find(|(run, _)| run.seed == *first)
        .map(|(run, _)| *run)
}

/// An axis for each row, and whether it is the same one.
fn token_axes(all: &[Lines]) -> (Vec<Axis>, bool) {
    let top = |lines: &Lines| {
        lines
            .iter()
            .flatten()
            .map(|(_, tokens)| *tokens)
            .fold(0.0, f64::max)
    };
    let tops: Vec<f64> = all.iter().map(top).collect();
    let highest = tops.iter().copied().fold(0.0, f64::max);
    let lowest = tops
        .iter()
        .copied()
        .filter(|top| *top > 0.0)
        .fold(highest, f64::min);
    let shared = highest <= lowest * SHARED_SCALE;
    let axis = |top: f64| Axis::linear(if shared { highest } else { top }, axis::plain);
    (tops.into_iter().map(axis).collect(), shared)
}

fn over_time_of(
    what: &str,
    row: &Row<'_>,
    run: Option<&Run>,
    lines: Lines,
    x: &Axis,
    y: &Axis,
) -> Result<Drawing, String> {
    let names: Vec<&String> = run
        .map(|run| run.endpoints.iter().collect())
        .unwrap_or_default();
    let told_apart = names.len() <= SERIES;
    let ink = |index: usize| {
        if told_apart {
            Ink::Series(index)
        } else {
            Ink::Faint
        }
    };
    let mean = (!told_apart).then(|| mean_line(&lines)).map(|points| Line {
        points,
        ink: Ink::Series(0),
        width: 6,
    });
    let line = |(index, points)| Line {
        points,
        ink: ink(index),
        width: 3,
    };
    let legend = match told_apart {
        true => names
            .iter()
            .enumerate()
            .map(|(index, name)| (ink(index), one_line(name)))
            .collect(),
        false => vec![
            (Ink::Faint, format!("each of {} endpoints", names.len())),
            (Ink::Series(0), "their mean".to_owned()),
        ],
    };
    Ok(Drawing {
        title: named(row, run.is_none()),
        svg: Plot {
            label: format!(
                "{what} of {} over time, a line for each endpoint.",
                row.name
            ),
            x,
            y,
            lines: lines
                .into_iter()
                .enumerate()
                .map(line)
                .chain(mean)
                .collect(),
        }
        .draw()?,
        legend,
    })
}

/// The mean of lines at each x that any of them has; all take their x from one grid.
fn mean_line(lines: &Lines) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = lines.iter().flatten().copied().collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    let same = |one: &(f64, f64), other: &(f64, f64)| one.0 == other.0;
    let mean = |points: &[(f64, f64)]| {
        let sum: f64 = points.iter().map(|(_, value)| value).sum();
        points.first().map(|(x, _)| (*x, sum / points.len() as f64))
    };
    points.chunk_by(same).filter_map(mean).collect()
}
