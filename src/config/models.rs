//! What the configuration says of models and adapters.

use super::{ConfigError, ScrapeConfig, raw, whole};
use crate::scrape::models::MAX_NAME_BYTES;

/// Most patterns of adapters that may be loaded.
const MAX_LOADABLE: usize = 64;

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
    raw: raw::Models,
    scrape: Option<&ScrapeConfig>,
) -> Result<ModelsConfig, ConfigError> {
    let Some(scrape) = scrape else {
        let problem = "engines are asked through `scrape.cluster`: give `scrape`, too";
        return Err(ConfigError::new("models", problem));
    };
    let path = raw.path.unwrap_or_else(|| "/v1/models".into());
    if !path.starts_with('/') || path.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(ConfigError::new(
            "models.path",
            format!("`{path}` must be a path that starts with `/`"),
        ));
    }
    if raw.loadable.len() > MAX_LOADABLE {
        let problem = format!("at most {MAX_LOADABLE} names are allowed");
        return Err(ConfigError::new("models.loadable", problem));
    }
    for (at, pattern) in raw.loadable.iter().enumerate() {
        let beginning = pattern.strip_suffix('*').unwrap_or(pattern);
        if pattern.is_empty() || pattern.len() > MAX_NAME_BYTES || beginning.contains('*') {
            let problem =
                format!("must be a name, or its beginning and `*`, of 1 to {MAX_NAME_BYTES} bytes");
            return Err(ConfigError::new(format!("models.loadable[{at}]"), problem));
        }
    }
    let mut group = xxhash_rust::xxh64::Xxh64::new(0);
    group.update(scrape.cluster.as_bytes());
    group.update(&[0]);
    group.update(path.as_bytes());
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
        group: group.digest(),
    })
}
