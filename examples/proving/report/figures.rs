//! Which charts a page has, and what is in each.

use super::axis::{self, Axis};
use super::bars::{self, Bar};
use super::compare::{Comparison, Row};
use super::ink::{Ink, SERIES};
use super::metric::by_key;
use super::plot::{Line, Plot};
use super::series::{Lines, mean_ttft_ms, outstanding_tokens, span_s};
use super::summary::{e2es_ms, quantile, tpots_ms, ttfts_ms};
use warmroute::sim::record::{Run, Served};

/// Figures that are shown as bars.
const BARS: [&str; 4] = ["goodput_per_s", "ttft_p99_ms", "hit_rate", "load_skew"];
/// Most policies that are told apart in one chart, besides the baseline.
const TOLD_APART: usize = 6;
/// Stretches of time.
const TOKEN_BINS: usize = 120;
const TTFT_BINS: usize = 60;
/// How much higher one policy may go than another before each gets a scale of its own.
const SHARED_SCALE: f64 = 8.0;

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

/// How latencies are distributed: which share of the answers was at least that fast.
///
/// # Errors
/// A chart cannot be drawn.
pub fn distributions(comparison: &Comparison<'_>) -> Result<Vec<Group>, String> {
    let panels = panels(comparison);
    let kinds: [(&'static str, fn(&[Served]) -> Vec<f64>); 3] = [
        ("TTFT", ttfts_ms),
        ("TPOT", tpots_ms),
        ("End to end", e2es_ms),
    ];
    let group = |(title, values): (&'static str, fn(&[Served]) -> Vec<f64>)| {
        let curves: Vec<_> = comparison
            .rows
            .iter()
            .map(|row| curve(row, values))
            .collect();
        let x = Axis::logarithmic(curves.iter().flatten().map(|(x, _)| *x), axis::ms);
        let drawing = |panel: &Panel| distribution(title, comparison, panel, &curves, &x);
        Ok(Group {
            title,
            about: String::new(),
            drawings: panels.iter().map(drawing).collect::<Result<_, String>>()?,
        })
    };
    kinds.into_iter().map(group).collect()
}

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

/// Rows that share a chart, by position, and how each is drawn.
struct Panel {
    title: String,
    members: Vec<(usize, Ink)>,
}

/// One panel if all rows can be told apart in it; else neighbours of one router, as far as that
/// goes, with the baseline in every panel.
fn panels(comparison: &Comparison<'_>) -> Vec<Panel> {
    let baseline = comparison.rows.iter().position(|row| row.is_baseline);
    let others: Vec<usize> = (0..comparison.rows.len())
        .filter(|position| Some(*position) != baseline)
        .collect();
    let with_baseline = |members: &[usize], title: String| {
        let inks = members
            .iter()
            .enumerate()
            .map(|(slot, position)| (*position, Ink::Series(slot)));
        let base = baseline.map(|position| (position, Ink::Baseline));
        Panel {
            title,
            members: base.into_iter().chain(inks).collect(),
        }
    };
    if others.len() < SERIES {
        return vec![with_baseline(&others, String::new())];
    }
    let router = |position: &usize| {
        let row = comparison.rows.get(*position);
        row.and_then(|row| row.name.split('/').next())
            .unwrap_or_default()
    };
    let mut packs: Vec<Vec<usize>> = Vec::new();
    for group in others.chunk_by(|one, other| router(one) == router(other)) {
        for piece in group.chunks(group.len().div_ceil(group.len().div_ceil(TOLD_APART))) {
            match packs
                .last_mut()
                .filter(|pack| pack.len() + piece.len() <= TOLD_APART)
            {
                Some(pack) => pack.extend_from_slice(piece),
                None => packs.push(piece.to_vec()),
            }
        }
    }
    let title = |number: usize, pack: &[usize]| {
        let mut routers: Vec<&str> = pack.iter().map(router).collect();
        routers.dedup();
        format!(" ({number} of {}): {}", packs.len(), routers.join(", "))
    };
    let numbered = (1..).zip(&packs);
    numbered
        .map(|(number, pack)| with_baseline(pack, title(number, pack)))
        .collect()
}

fn distribution(
    what: &str,
    comparison: &Comparison<'_>,
    panel: &Panel,
    curves: &[Vec<(f64, f64)>],
    x: &Axis,
) -> Result<Drawing, String> {
    let member = |position: usize| panel.members.iter().find(|(member, _)| *member == position);
    let faint = (0..curves.len()).filter(|position| member(*position).is_none());
    let faint = faint.map(|position| (position, Ink::Faint, 2));
    let told = panel
        .members
        .iter()
        .rev()
        .map(|(position, ink)| (*position, *ink, 5));
    let line = |(position, ink, width): (usize, Ink, u32)| Line {
        points: curves.get(position).cloned().unwrap_or_default(),
        ink,
        width,
    };
    let lines: Vec<Line> = faint.chain(told).map(line).collect();
    let others = lines.iter().any(|line| line.ink == Ink::Faint);
    let names = panel.members.iter().filter_map(|(position, ink)| {
        let row = comparison.rows.get(*position)?;
        let empty = curves.get(*position).is_none_or(Vec::is_empty);
        Some((*ink, named(row, empty)))
    });
    let others = others.then(|| (Ink::Faint, "the other policies".to_owned()));
    Ok(Drawing {
        title: format!("{what}{}", panel.title),
        svg: Plot {
            label: format!(
                "Distribution of {what}{}: share of answers by latency.",
                panel.title
            ),
            x,
            y: &Axis::share(),
            lines,
        }
        .draw()?,
        legend: names.chain(others).collect(),
    })
}

fn named(row: &Row<'_>, empty: bool) -> String {
    let baseline = if row.is_baseline { " (baseline)" } else { "" };
    let empty = match (empty, row.is_whole) {
        (true, _) => ", no data ⚠",
        (false, true) => "",
        (false, false) => " ⚠",
    };
    format!("{}{baseline}{empty}", row.name)
}

/// The distribution of all seeds' answers together, as latency and share, thinned out.
fn curve(row: &Row<'_>, values: fn(&[Served]) -> Vec<f64>) -> Vec<(f64, f64)> {
    let good = row.runs.iter().filter(|(_, summary)| summary.is_some());
    let mut pooled: Vec<f64> = good.flat_map(|(run, _)| values(&run.served)).collect();
    pooled.sort_by(f64::total_cmp);
    let levels = (0..=99_u32)
        .map(|percent| f64::from(percent) / 100.0)
        .chain([0.995, 0.999, 1.0]);
    levels
        .filter_map(|level| Some((quantile(&pooled, level)?, level)))
        .collect()
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
            .map(|(index, name)| (ink(index), super::losses::one_line(name)))
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

fn upper_first(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

fn bar<'r>(row: &'r Row<'_>, metric: &super::metric::Metric) -> Bar<'r> {
    Bar {
        name: &row.name,
        is_baseline: row.is_baseline,
        is_whole: row.is_whole,
        value: row.figure(metric.key).map(|figure| figure.value),
    }
}
