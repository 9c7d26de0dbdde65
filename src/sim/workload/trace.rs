//! What the readers of traces have in common: limits, and errors that say where and what.

use std::fmt;

/// Most requests of a trace.
pub(super) const MAX_REQUESTS: usize = 1_000_000;
/// Most tokens of a prompt or an output.
pub(super) const MAX_TOKENS: u32 = 10_000_000;
/// Latest arrival after the first: about 30 years.
pub(super) const MAX_ARRIVAL_US: u64 = 1_000_000_000_000_000;

/// Why a trace cannot be read. Displayed as `file:line: problem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// Name of the file, as given to the reader.
    pub file: String,
    /// Line, from 1; 0 if the problem is of the whole file.
    pub line: u64,
    /// Column, what was expected, and what was found.
    pub problem: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.problem),
            line => write!(f, "{}:{line}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for TraceError {}

/// `column: expected …, found …`, with a long find shortened.
pub(super) fn unexpected(column: &str, expected: &str, found: &str) -> String {
    const SHOWN: usize = 40;
    // A quoted field may hold line ends, and an error is one line.
    let plain = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    let mut shown: String = found.chars().take(SHOWN).map(plain).collect();
    if found.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    if shown.is_empty() {
        shown.push_str("nothing");
    }
    format!("{column}: expected {expected}, found {shown}")
}
