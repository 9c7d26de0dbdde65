//! A chart of lines, as SVG.

use super::axis::Axis;
use super::ink::{Ink, dye};
use plotters::prelude::*;

/// Letters of the drawing backend are smaller than asked for by this factor.
const FONT_FACTOR: f64 = 1.24;
/// Height of letters in units. A chart is 920 units wide and shown at half of that or more.
const FONT_UNITS: f64 = 28.0;
/// Width of all charts, in units.
pub const WIDTH: u32 = 920;
const HEIGHT: u32 = 560;

/// One line.
pub struct Line {
    /// In the values of the axes, by ascending x.
    pub points: Vec<(f64, f64)>,
    /// Its colour and dashes.
    pub ink: Ink,
    /// How thick, in units.
    pub width: u32,
}

/// Lines over two axes; later lines are drawn over earlier ones.
pub struct Plot<'a> {
    /// What a reader is told who does not see it.
    pub label: String,
    /// The horizontal axis.
    pub x: &'a Axis,
    /// The vertical axis.
    pub y: &'a Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Plot<'_> {
    /// Draws it. Without any point, it says "no data".
    ///
    /// # Errors
    /// The drawing library cannot draw it.
    pub fn draw(&self) -> Result<String, String> {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
            self.draw_on(&area)
                .map_err(|error| format!("cannot draw a chart: {error}"))?;
        }
        Ok(finish(svg, &self.label, HEIGHT))
    }

    fn draw_on<'b>(
        &self,
        area: &DrawingArea<SVGBackend<'b>, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'b> as DrawingBackend>::ErrorType>> {
        let mut chart = ChartBuilder::on(area)
            .margin_top(24)
            .margin_right(48)
            .x_label_area_size(54)
            .y_label_area_size(118)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .bold_line_style(Ink::Grid.color().stroke_width(2))
            .light_line_style(TRANSPARENT)
            .axis_style(Ink::Text.color().stroke_width(2))
            .label_style(text())
            .draw()?;
        for line in &self.lines {
            let style = line.ink.color().stroke_width(line.width);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
        }
        if self.lines.iter().all(|line| line.points.is_empty()) {
            let middle = (WIDTH as i32 / 2 + 40, HEIGHT as i32 / 2 - 20);
            area.draw(&Text::new("no data", middle, text()))?;
        }
        area.present()
    }
}

/// The style of letters.
pub fn text<'a>() -> TextStyle<'a> {
    sized(FONT_UNITS)
}

/// Letters of another height.
pub fn sized<'a>(units: f64) -> TextStyle<'a> {
    ("sans-serif", units * FONT_FACTOR)
        .into_font()
        .color(&Ink::Text.color())
}

/// Dyes a drawing, and gives it the head that fits a page: sized by the page, and with a label.
pub fn finish(svg: String, label: &str, height: u32) -> String {
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let head = format!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\">",
        super::html::escape(label)
    );
    format!("{head}{}", dye(body.trim().to_owned()))
}
