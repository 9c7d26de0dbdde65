//! Discovery: where Envoy is asked for its clusters, and which of them are wanted.

use super::values::{path_of, whole};
use super::{ConfigError, PoolConfig, raw};
use crate::scrape::clusters::MAX_NAME_BYTES;

/// Most clusters that all pools may name together, and most whose verdicts may be taken.
pub const MAX_CLUSTERS: usize = 64;
/// Longest interval and longest timeout, in milliseconds: verdicts count for [`VERDICT_MS`](crate::health::VERDICT_MS)
/// after they were last said, and must be said again before.
const MAX_WAIT_MS: u32 = 20_000;

/// When and from where Envoy's list of clusters is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// Envoy cluster that reaches Envoy's own admin interface.
    pub cluster: String,
    /// Path of the list, as JSON. Without a query parameter `filter`, one is added that lets pass what is wanted.
    pub path: String,
    /// Time between two readings.
    pub interval_ms: u64,
    /// How long one reading may take.
    pub timeout_ms: u64,
    /// Clusters whose members are not used, but whose verdicts on endpoints of the pools count.
    pub verdicts: Vec<String>,
}

/// A list of clusters that may be empty.
#[inline(never)]
pub(super) fn clusters_of(path: &str, names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    if names.len() > MAX_CLUSTERS {
        let problem = format!(
            "{} clusters; at most {MAX_CLUSTERS} are allowed",
            names.len()
        );
        return Err(ConfigError::new(path, problem));
    }
    for (at, name) in names.iter().enumerate() {
        let before = names.get(..at).unwrap_or_default();
        if name.is_empty() || name.len() > MAX_NAME_BYTES || before.contains(name) {
            return Err(ConfigError::new(
                format!("{path}[{at}]"),
                format!("must be unique, not empty and no longer than {MAX_NAME_BYTES} bytes"),
            ));
        }
    }
    Ok(names)
}

/// Both or neither: clusters to look for, and where to look.
#[inline(never)]
pub(super) fn discovery_of(
    raw: Option<raw::Discovery>,
    pools: &[PoolConfig],
) -> Result<Option<DiscoveryConfig>, ConfigError> {
    let named = pools.iter().map(|pool| pool.clusters.len());
    let named: usize = named.sum();
    let Some(raw) = raw else {
        if named > 0 {
            let problem = "missing: `clusters` needs to know where Envoy's admin interface is";
            return Err(ConfigError::new("discovery", problem));
        }
        return Ok(None);
    };
    if named > MAX_CLUSTERS {
        let problem = format!("{named} clusters; at most {MAX_CLUSTERS} are allowed");
        return Err(ConfigError::new("pools", problem));
    }
    let verdicts = clusters_of("discovery.verdicts", raw.verdicts)?;
    if named == 0 && verdicts.is_empty() {
        let problem = "asks for nothing: give a pool `clusters`, or name `verdicts`";
        return Err(ConfigError::new("discovery", problem));
    }
    if raw.cluster.is_empty() {
        let problem = "must name an Envoy cluster";
        return Err(ConfigError::new("discovery.cluster", problem));
    }
    let path = path_of("discovery.path", raw.path, "/clusters?format=json")?;
    let interval = "discovery.interval_ms";
    let interval_ms = whole(interval, raw.interval_ms, 1_000, 100, MAX_WAIT_MS)?;
    let (timeout, most) = ("discovery.timeout_ms", interval_ms.min(800));
    let timeout_ms = whole(timeout, raw.timeout_ms, most, 10, MAX_WAIT_MS)?;
    Ok(Some(DiscoveryConfig {
        cluster: raw.cluster,
        path,
        interval_ms: u64::from(interval_ms),
        timeout_ms: u64::from(timeout_ms),
        verdicts,
    }))
}
