//! Single values, each within its limits.

use super::{ConfigError, raw};

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Toggle {
    /// Off, the default.
    #[default]
    Off,
    /// On.
    On,
}

pub(super) fn toggle(on: bool) -> Toggle {
    if on { Toggle::On } else { Toggle::Off }
}

/// Where somebody answers: a path.
#[inline(never)]
pub(super) fn path_of(
    key: &str,
    value: Option<String>,
    default: &str,
) -> Result<String, ConfigError> {
    let path = value.unwrap_or_else(|| default.to_owned());
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(path);
    }
    let problem = format!("`{path}` must be a path that starts with `/`");
    Err(ConfigError::new(key, problem))
}

// Copies in every caller would make the module larger.
#[inline(never)]
pub(super) fn whole(
    path: &str,
    value: Option<raw::Whole>,
    default: u32,
    lowest: u32,
    highest: u32,
) -> Result<u32, ConfigError> {
    let value = value.map_or(u64::from(default), |whole| whole.0);
    u32::try_from(value)
        .ok()
        .filter(|value| (lowest..=highest).contains(value))
        .ok_or_else(|| {
            ConfigError::new(
                path,
                format!("must be between {lowest} and {highest}, not {value}"),
            )
        })
}

/// A decimal figure kept as whole thousandths, so that decisions never depend on floating point.
#[inline(never)]
pub(super) fn thousandths(
    path: &str,
    value: Option<f64>,
    default: u32,
    lowest: u32,
    highest: u32,
) -> Result<u32, ConfigError> {
    let Some(value) = value else {
        return Ok(default);
    };
    let scaled = (value * 1_000.0).round();
    if scaled >= f64::from(lowest) && scaled <= f64::from(highest) {
        // The range check makes the cast exact.
        return Ok(scaled as u32);
    }
    let (lowest, highest) = (f64::from(lowest) / 1_000.0, f64::from(highest) / 1_000.0);
    Err(ConfigError::new(
        path,
        format!("must be between {lowest} and {highest}, not {value}"),
    ))
}
