//! `models`: how engines are asked what they serve.

use super::raw::Whole;
use super::values::{path_of, whole};
use super::{ConfigError, ScrapeConfig};
use crate::scrape::models::MAX_NAME_BYTES;
use crate::state::models::hash;

/// Most patterns of adapters that may be loaded.
const MAX_LOADABLE: usize = 64;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    path: Option<String>,
    interval_ms: Option<Whole>,
    #[serde(default)]
    loadable: Vec<String>,
}

/// How engines are asked what they serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelsConfig {
    /// Path of the engine's list.
    pub path: String,
    /// Time between two questions to one endpoint.
    pub interval_ms: u64,
    /// Adapters that engines load when they are asked for: names, or beginnings with `*` behind them.
    pub loadable: Vec<String>,
    /// Who asks the same engines in the same way shares the answers.
    pub group: u64,
}

impl ModelsConfig {
    /// Whether engines load the adapter when it is asked for.
    pub fn is_loadable(&self, name: &str) -> bool {
        self.loadable
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == pattern,
            })
    }
}

#[inline(never)]
pub(super) fn models_of(
    raw: Raw,
    scrape: Option<&ScrapeConfig>,
) -> Result<ModelsConfig, ConfigError> {
    let Some(scrape) = scrape else {
        let problem = "engines are asked through `scrape.cluster`: give `scrape`, too";
        return Err(ConfigError::new("models", problem));
    };
    let path = path_of("models.path", raw.path, "/v1/models")?;
    let is_name = |pattern: &String| {
        let beginning = pattern.strip_suffix('*').unwrap_or(pattern);
        (1..=MAX_NAME_BYTES).contains(&pattern.len()) && !beginning.contains('*')
    };
    if raw.loadable.len() > MAX_LOADABLE || !raw.loadable.iter().all(is_name) {
        let problem = "must be at most 64 names, or beginnings and `*`, of 1 to 256 bytes";
        return Err(ConfigError::new("models.loadable", problem));
    }
    let group = hash(format!("{} {path}", scrape.cluster).as_bytes());
    Ok(ModelsConfig {
        path,
        interval_ms: u64::from(whole(
            "models.interval_ms",
            raw.interval_ms,
            5_000,
            100,
            3_600_000,
        )?),
        loadable: raw.loadable,
        group,
    })
}
