//! How latencies are distributed, as charts of lines.

use super::axis::{self, Axis};
use super::compare::{Comparison, Row};
use super::figures::{Drawing, Group, named};
use super::ink::{Ink, SERIES};
use super::plot::{Line, Plot};
use super::summary::{e2es_ms, quantile, tpots_ms, ttfts_ms};
use warmroute::sim::record::Served;

/// Most policies that are told apart in one chart, besides the baseline.
const TOLD_APART: usize = 6;

/// Takes latencies out of a run, in milliseconds.
type Latencies = fn(&[Served]) -> Vec<f64>;

/// How latencies are distributed: which share of the answers was at least that fast.
///
/// # Errors
/// A chart cannot be drawn.
pub fn distributions(comparison: &Comparison<'_>) -> Result<Vec<Group>, String> {
    let panels = panels(comparison);
    let kinds: [(&'static str, Latencies); 3] = [
        ("TTFT", ttfts_ms),
        ("TPOT", tpots_ms),
        ("End to end", e2es_ms),
    ];
    let group = |(title, values): (&'static str, Latencies)| {
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

/// The distribution of all seeds' answers together, as latency and share, thinned out.
fn curve(row: &Row<'_>, values: Latencies) -> Vec<(f64, f64)> {
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
