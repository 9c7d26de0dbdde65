//! Colours of charts: stand-ins while drawing, style sheet variables in the page.
//!
//! A chart is drawn in colours that stand for a role, and each is then replaced by a variable of
//! the page's style sheet, so that a chart follows light, dark and print like the text around it.
//! Lines also get their dashes here: no line is told from another by its colour alone.

use plotters::style::RGBColor;

/// Colours for lines, besides the baseline's.
pub const SERIES: usize = 8;

/// The role of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Axes and letters.
    Text,
    /// Lines of the grid.
    Grid,
    /// Lines that are there for comparison only.
    Faint,
    /// The baseline.
    Baseline,
    /// A line of its own; beyond [`SERIES`] the colours come again.
    Series(usize),
}

/// All roles.
const ROLES: [Ink; 4 + SERIES] = [
    Ink::Text,
    Ink::Grid,
    Ink::Faint,
    Ink::Baseline,
    Ink::Series(0),
    Ink::Series(1),
    Ink::Series(2),
    Ink::Series(3),
    Ink::Series(4),
    Ink::Series(5),
    Ink::Series(6),
    Ink::Series(7),
];

impl Ink {
    /// The stand-in to draw with.
    pub fn color(self) -> RGBColor {
        match self {
            Self::Text => RGBColor(1, 0, 1),
            Self::Grid => RGBColor(1, 0, 2),
            Self::Faint => RGBColor(1, 0, 3),
            Self::Baseline => RGBColor(1, 0, 4),
            Self::Series(index) => RGBColor(1, 1, (index % SERIES) as u8),
        }
    }

    /// The variable of the style sheet.
    pub fn variable(self) -> String {
        match self {
            Self::Text => "var(--ink)".to_owned(),
            Self::Grid => "var(--grid)".to_owned(),
            Self::Faint => "var(--faint)".to_owned(),
            Self::Baseline => "var(--base)".to_owned(),
            Self::Series(index) => format!("var(--s{})", index % SERIES),
        }
    }

    /// The dashes of a line, in units of the charts; `None` for an unbroken line.
    pub fn dashes(self) -> Option<&'static str> {
        match self {
            Self::Baseline => Some("4 8"),
            Self::Series(index) => match index % SERIES {
                0 => None,
                1 => Some("26 8"),
                2 => Some("14 7"),
                3 => Some("24 6 5 6"),
                4 => Some("40 6 10 6"),
                5 => Some("9 9"),
                6 => Some("24 6 5 6 5 6"),
                _ => Some("50 12"),
            },
            _ => None,
        }
    }
}

/// Replaces the stand-ins of a drawing.
pub fn dye(mut svg: String) -> String {
    for ink in ROLES {
        let RGBColor(red, green, blue) = ink.color();
        let (stand_in, variable) = (
            format!("\"#{red:02X}{green:02X}{blue:02X}\""),
            ink.variable(),
        );
        let dashes = ink
            .dashes()
            .map(|dashes| format!(" stroke-dasharray=\"{dashes}\""));
        let stroke = format!("stroke=\"{variable}\"{}", dashes.unwrap_or_default());
        svg = svg.replace(&format!("stroke={stand_in}"), &stroke);
        svg = svg.replace(&format!("fill={stand_in}"), &format!("fill=\"{variable}\""));
    }
    svg
}

/// A short piece of a line, for a legend.
pub fn sample(ink: Ink) -> String {
    let dashes = ink
        .dashes()
        .map(|dashes| format!(" stroke-dasharray=\"{dashes}\""));
    format!(
        "<svg class=\"key\" viewBox=\"0 0 72 12\" aria-hidden=\"true\"><path d=\"M2 6H70\" fill=\"none\" \
         stroke-width=\"6\" stroke=\"{}\"{}/></svg>",
        ink.variable(),
        dashes.unwrap_or_default()
    )
}
