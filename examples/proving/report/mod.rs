//! A study as a table for the terminal, as JSON and as one self-contained page.

mod axis;
mod bars;
mod cells;
mod compare;
mod distributions;
mod figures;
mod html;
mod ink;
mod json;
mod losses;
mod metric;
mod over_time;
mod pages;
mod plot;
mod runs;
mod series;
mod summary;
mod table;
#[cfg(test)]
mod tests;

use clap::Args;
use std::io::Write;
use std::path::{Path, PathBuf};
use warmroute::sim::record::Study;

/// Where a report goes besides the terminal.
#[derive(Args, Clone, Debug, Default)]
pub struct ReportArgs {
    /// Writes the report as one self-contained page to this file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes the figures as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl ReportArgs {
    /// Prints the table to stdout and writes the files that were asked for.
    ///
    /// # Errors
    /// A chart cannot be drawn, or a file cannot be written; the file is named, and what it held
    /// before is still there.
    pub fn write(&self, study: &Study) -> Result<(), String> {
        self.write_to(study, &mut std::io::stdout().lock())
    }

    /// The same with the table going elsewhere.
    ///
    /// # Errors
    /// As above.
    pub fn write_to(&self, study: &Study, out: &mut impl Write) -> Result<(), String> {
        out.write_all(table(study).as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| format!("cannot print the table: {error}"))?;
        if let Some(path) = &self.json {
            replace(path, &json(study))?;
        }
        if let Some(path) = &self.html {
            replace(path, &html(study)?)?;
        }
        Ok(())
    }
}

/// The comparison and all that went wrong, for a terminal.
pub fn table(study: &Study) -> String {
    table::render(study)
}

/// Summaries of all runs and their comparison; the keys carry the units.
pub fn json(study: &Study) -> String {
    json::render(study)
}

/// One page without anything from elsewhere: no script, no font, no image.
///
/// # Errors
/// A chart cannot be drawn.
pub fn html(study: &Study) -> Result<String, String> {
    html::render(study)
}

/// Writes a file whole or not at all.
fn replace(path: &Path, text: &str) -> Result<(), String> {
    let says = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let name = path
        .file_name()
        .ok_or_else(|| format!("cannot write {}: it names no file", path.display()))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to tell; this file may not even exist.
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(says)
}
