//! The scale of an axis, with labelled ticks.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Most decades that a logarithmic axis shows; what is smaller is drawn at its beginning.
const DECADES: i32 = 6;

/// A scale with ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0 to at least `max`; `label` names a value.
    pub fn linear(max: f64, label: fn(f64) -> String) -> Self {
        let max = if max.is_finite() && max > 0.0 {
            max
        } else {
            1.0
        };
        let step = step(max / 4.0);
        let count = (max / step - 1e-9).ceil().max(1.0) as u32;
        let values = (0..=count).map(|n| f64::from(n) * step);
        Self {
            from: 0.0,
            to: f64::from(count) * step,
            logarithmic: false,
            ticks: values.map(|value| (value, label(value))).collect(),
        }
    }

    /// From 0 to exactly `max`; `label` names a value.
    pub fn until(max: f64, label: fn(f64) -> String) -> Self {
        let mut axis = Self::linear(max, label);
        axis.to = if max.is_finite() && max > 0.0 {
            max
        } else {
            1.0
        };
        axis.ticks.retain(|(value, _)| *value <= axis.to);
        axis
    }

    /// From 0 to exactly 1, in quarters, as percent.
    pub fn share() -> Self {
        let values = [0.0, 0.25, 0.5, 0.75, 1.0];
        Self {
            from: 0.0,
            to: 1.0,
            logarithmic: false,
            ticks: values
                .map(|value| (value, format!("{:.0} %", value * 100.0)))
                .to_vec(),
        }
    }

    /// Logarithmic, over all values above 0.
    pub fn logarithmic(values: impl Iterator<Item = f64>, label: fn(f64) -> String) -> Self {
        let above = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = above.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let low = low.max(high / 10_f64.powi(DECADES));
        let (low, high) = (round(low, f64::floor), round(high * 1.0001, f64::ceil));
        let decades = (high / low).log10();
        let factors: &[f64] = match decades {
            _ if decades > 3.0 => &[1.0],
            _ if decades > 1.6 => &[1.0, 3.0],
            _ if decades < 0.7 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            _ => &[1.0, 2.0, 5.0],
        };
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        let values = (first..=last).flat_map(|power| {
            factors
                .iter()
                .map(move |factor| factor * 10_f64.powi(power))
        });
        let inside = values.filter(|value| *value >= low * 0.999 && *value <= high * 1.001);
        Self {
            from: low,
            to: high,
            logarithmic: true,
            ticks: inside.map(|value| (value, label(value))).collect(),
        }
    }

    /// Where a value is: 0 at the beginning, 1 at the end, never outside.
    fn place(&self, value: f64) -> f64 {
        let place = match self.logarithmic {
            true => (value.max(self.from) / self.from).log10() / (self.to / self.from).log10(),
            false => (value - self.from) / (self.to - self.from),
        };
        if place.is_nan() {
            0.0
        } else {
            place.clamp(0.0, 1.0)
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let length = f64::from(limit.1 - limit.0);
        limit.0 + (self.place(*value) * length).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(value, _)| *value).collect()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(tick, _)| tick == value);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Milliseconds, as seconds from 1,000 on.
pub fn ms(value: f64) -> String {
    match value {
        _ if value >= 999.5 => format!("{} s", short(value / 1e3)),
        _ if value == 0.0 => "0".to_owned(),
        _ => format!("{} ms", short(value)),
    }
}

/// Seconds.
pub fn seconds(value: f64) -> String {
    format!("{} s", short(value))
}

/// A plain number, in thousands or millions where it is large.
pub fn plain(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{} M", short(value / 1e6)),
        _ if value >= 1e3 => format!("{} k", short(value / 1e3)),
        _ => short(value),
    }
}

/// The shortest text of a round number.
pub fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

/// The next 1, 2 or 5 times a power of ten.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let factors = [1.0, 2.0, 5.0];
    let fits = factors
        .into_iter()
        .find(|factor| factor * power >= least * 0.999);
    fits.unwrap_or(10.0) * power
}

/// To one significant digit, up or down.
fn round(value: f64, to_whole: fn(f64) -> f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    to_whole(value / power) * power
}
