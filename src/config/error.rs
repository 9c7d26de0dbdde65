//! Why a configuration was refused, and where.

use std::fmt;

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// JSON path of the offending value, such as `pools[1].policy.load_factor`; `.` is the whole document.
    pub path: String,
    /// What is wrong with it, and what is allowed.
    pub problem: String,
}

impl ConfigError {
    pub(super) fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// The path as far as it is known: a text that ends early or is no JSON at all ends it in `?`.
pub(super) fn known_path(path: &serde_path_to_error::Path) -> String {
    let path = path.to_string();
    match path.trim_end_matches('?').trim_end_matches('.') {
        "" => ".".into(),
        known => known.into(),
    }
}
