//! `scrape`: when and from where engine metrics are read.

use super::values::{path_of, whole};
use super::{ConfigError, raw};

/// When and from where engine metrics are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrapeConfig {
    /// Envoy cluster that reaches an endpoint named by `x-envoy-original-dst-host`.
    pub cluster: String,
    /// Path of the engine's metrics.
    pub path: String,
    /// Time between two scrapes of one endpoint.
    pub interval_ms: u64,
    /// How long one scrape may take.
    pub timeout_ms: u64,
    /// Age at which a snapshot no longer counts.
    pub stale_after_ms: u64,
}

pub(super) fn scrape_of(raw: raw::Scrape) -> Result<ScrapeConfig, ConfigError> {
    if raw.cluster.is_empty() {
        return Err(ConfigError::new(
            "scrape.cluster",
            "must name an Envoy cluster",
        ));
    }
    let path = path_of("scrape.path", raw.path, "/metrics")?;
    let interval_ms = whole("scrape.interval_ms", raw.interval_ms, 1_000, 100, 3_600_000)?;
    let timeout_ms = whole(
        "scrape.timeout_ms",
        raw.timeout_ms,
        interval_ms.min(800),
        10,
        60_000,
    )?;
    let stale_after_ms = whole(
        "scrape.stale_after_ms",
        raw.stale_after_ms,
        interval_ms.saturating_mul(5),
        100,
        u32::MAX,
    )?;
    if stale_after_ms < interval_ms {
        let problem = format!("must not be below scrape.interval_ms ({interval_ms})");
        return Err(ConfigError::new("scrape.stale_after_ms", problem));
    }
    Ok(ScrapeConfig {
        cluster: raw.cluster,
        path,
        interval_ms: u64::from(interval_ms),
        timeout_ms: u64::from(timeout_ms),
        stale_after_ms: u64::from(stale_after_ms),
    })
}
