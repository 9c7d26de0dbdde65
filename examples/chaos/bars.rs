//! What was measured, the bars, and the table of both.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

/// What a value has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// Exactly this.
    Is(f64),
    /// Anything: it is told for what it says of the others.
    Told,
}

impl Bar {
    /// NaN passes no bar.
    fn passes(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::Is(wanted) => value == wanted,
            Self::Told => true,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("at most {most}"),
            Self::AtLeast(least) => format!("at least {least}"),
            Self::Is(wanted) => format!("{wanted}"),
            Self::Told => String::new(),
        }
    }
}

/// One value with its name and bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    name: String,
    value: f64,
    bar: Bar,
}

impl Measured {
    /// A value that has to pass `bar`.
    pub fn new(name: impl Into<String>, value: f64, bar: Bar) -> Self {
        Self {
            name: name.into(),
            value,
            bar,
        }
    }

    /// A number of what must not happen at all.
    pub fn none(name: impl Into<String>, count: usize) -> Self {
        Self::new(name, count as f64, Bar::Is(0.0))
    }

    /// A number without a bar.
    pub fn told(name: impl Into<String>, value: f64) -> Self {
        Self::new(name, value, Bar::Told)
    }
}

/// What all scenarios came to.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    scenario: String,
    measured: Result<Measured, String>,
}

impl Report {
    /// Takes the values of one scenario, or why there are none, and prints the figures.
    pub fn add(&mut self, scenario: &str, measured: Result<Vec<Measured>, String>) {
        let row = |measured| Row {
            scenario: scenario.to_owned(),
            measured,
        };
        match measured {
            Ok(all) => {
                all.iter().for_each(|one| println!("{}", figure(one)));
                self.rows.extend(all.into_iter().map(|one| row(Ok(one))));
            }
            Err(why) => {
                eprintln!("chaos: {scenario} could not be measured: {why}");
                self.rows.push(row(Err(why)));
            }
        }
    }

    /// A row for each value, and one for each scenario without any.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_style(UTF8_HORIZONTAL_ONLY)
            .set_header(["scenario", "value", "", "bar", ""]);
        for row in &self.rows {
            let cells = match &row.measured {
                Ok(measured) => [
                    measured.name.clone(),
                    number(measured.value),
                    measured.bar.text(),
                    word(row.holds(), measured.bar),
                ],
                Err(_) => ["could not be measured", "", "", "FAILS"].map(str::to_owned),
            };
            table.add_row([vec![row.scenario.clone()], cells.to_vec()].concat());
        }
        if let Some(column) = table.column_mut(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Whether every bar holds.
    ///
    /// # Errors
    /// Which do not.
    pub fn verdict(&self) -> Result<(), String> {
        let failed: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| !row.holds())
            .map(|row| match &row.measured {
                Ok(measured) => measured.name.as_str(),
                Err(_) => row.scenario.as_str(),
            })
            .collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("does not hold: {}", failed.join(", "))),
        }
    }
}

impl Row {
    fn holds(&self) -> bool {
        let passes = |measured: &Measured| measured.bar.passes(measured.value);
        self.measured.as_ref().is_ok_and(passes)
    }
}

fn word(holds: bool, bar: Bar) -> String {
    match (bar, holds) {
        (Bar::Told, _) => "",
        (_, true) => "holds",
        (_, false) => "FAILS",
    }
    .to_owned()
}

fn figure(measured: &Measured) -> String {
    format!("FIGURE {} {}", measured.name, number(measured.value))
}

fn number(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{value:.0}"),
        false => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_passes_its_bar_or_fails() {
        let cases = [
            (Bar::AtMost(1.5), 1.5, true),
            (Bar::AtMost(1.5), 1.51, false),
            (Bar::AtMost(1.5), f64::NAN, false),
            (Bar::AtLeast(1.0), 0.9, false),
            (Bar::Is(0.0), 0.0, true),
            (Bar::Is(0.0), 1.0, false),
            (Bar::Told, f64::NAN, true),
        ];
        for (bar, value, passes) in cases {
            assert_eq!(bar.passes(value), passes, "{value} {bar:?}");
        }
    }

    #[test]
    fn what_could_not_be_measured_fails_as_a_bar_does() {
        let mut report = Report::default();
        report.add("good", Ok(vec![Measured::none("good_failed", 0)]));
        assert_eq!(report.verdict(), Ok(()));
        report.add("bad", Ok(vec![Measured::none("bad_failed", 2)]));
        report.add("absent", Err("no such key".to_owned()));
        let why = "does not hold: bad_failed, absent";
        assert_eq!(report.verdict(), Err(why.to_owned()));
        let table = report.table().to_string();
        assert_eq!(table.matches("FAILS").count(), 2, "{table}");
        assert_eq!(table.matches("holds").count(), 1, "{table}");
    }
}
