//! A chart of bars, one for each row of the comparison, as SVG.

use super::compare::Spread;
use super::ink::Ink;
use super::metric::Metric;
use super::plot::{WIDTH, finish, sized, text};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Height of a bar with its distance to the next, in units.
const PITCH: i32 = 46;
/// Where bars begin and where the longest may end, in units.
const LEFT: i32 = 500;
const RIGHT: i32 = 770;
/// Most letters of a name, and how many of its end are kept if it is longer.
const NAME_CHARS: usize = 34;
const TAIL_CHARS: usize = 16;
/// Height of the letters of names, in units.
const NAME_UNITS: f64 = 26.0;

/// One bar.
pub struct Bar<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it is the one that the others are compared with.
    pub is_baseline: bool,
    /// Whether nothing is missing in it.
    pub is_whole: bool,
    /// Its length; the whisker goes from the smallest to the largest seed.
    pub value: Option<Spread>,
}

/// Draws the bars from top to bottom.
///
/// # Errors
/// The drawing library cannot draw them.
pub fn draw(metric: &Metric, bars: &[Bar<'_>]) -> Result<String, String> {
    let height = PITCH as u32 * bars.len().max(1) as u32 + 16;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw_on(&area, metric, bars).map_err(|error| format!("cannot draw a chart: {error}"))?;
    }
    let label = format!(
        "{} by policy, as bars; the table has the same figures.",
        metric.name()
    );
    Ok(finish(svg, &label, height))
}

fn draw_on<'b>(
    area: &DrawingArea<SVGBackend<'b>, plotters::coord::Shift>,
    metric: &Metric,
    bars: &[Bar<'_>],
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'b> as DrawingBackend>::ErrorType>> {
    let longest = bars
        .iter()
        .filter_map(|bar| bar.value)
        .map(|value| value.max);
    let longest = longest.filter(|max| max.is_finite()).fold(0.0, f64::max);
    let at = |value: f64| match longest > 0.0 {
        true => LEFT + (value / longest * f64::from(RIGHT - LEFT)) as i32,
        false => LEFT,
    };
    let right = sized(NAME_UNITS).pos(Pos::new(HPos::Right, VPos::Center));
    let left = text().pos(Pos::new(HPos::Left, VPos::Center));
    for (row, bar) in (0_i32..).zip(bars) {
        let middle = 8 + row * PITCH + PITCH / 2;
        area.draw(&Text::new(
            shortened(bar.name),
            (LEFT - 14, middle),
            right.clone(),
        ))?;
        let Some(value) = bar.value else {
            area.draw(&Text::new("no data", (LEFT + 10, middle), left.clone()))?;
            continue;
        };
        let corners = [(LEFT, middle - 16), (at(value.mean), middle + 16)];
        match bar.is_baseline {
            true => area.draw(&outline(corners))?,
            false => area.draw(&Rectangle::new(corners, Ink::Series(0).color().filled()))?,
        }
        if value.max > value.min {
            let whisker = Ink::Text.color().stroke_width(3);
            let (from, to) = (at(value.min), at(value.max));
            area.draw(&PathElement::new([(from, middle), (to, middle)], whisker))?;
            for end in [from, to] {
                area.draw(&PathElement::new(
                    [(end, middle - 8), (end, middle + 8)],
                    whisker,
                ))?;
            }
        }
        let mark = if bar.is_whole { "" } else { " ⚠" };
        let shown = metric.show_with_unit(value.mean) + mark;
        area.draw(&Text::new(
            shown,
            (at(value.max.max(value.mean)) + 12, middle),
            left.clone(),
        ))?;
    }
    let axis = Ink::Text.color().stroke_width(2);
    let bottom = 8 + PITCH * bars.len() as i32;
    area.draw(&PathElement::new([(LEFT, 8), (LEFT, bottom)], axis))?;
    area.present()
}

/// The border of a bar; the backend draws that of a rectangle in one width only.
fn outline([(left, top), (right, bottom)]: [(i32, i32); 2]) -> PathElement<(i32, i32)> {
    let path = [(left, top), (right, top), (right, bottom), (left, bottom)];
    PathElement::new(path, Ink::Text.color().stroke_width(4))
}

/// Without its middle if it is long: both the router and the policy can still be told.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    match count > NAME_CHARS {
        true => {
            let head = name.chars().take(NAME_CHARS - TAIL_CHARS - 1);
            head.chain(['…'])
                .chain(name.chars().skip(count - TAIL_CHARS))
                .collect()
        }
        false => name.to_owned(),
    }
}
