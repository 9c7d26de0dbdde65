//! The key `health`: when an endpoint is taken out, and what engines are asked of it.

use super::values::{path_of, thousandths, whole};
use super::{ConfigError, ScrapeConfig, raw};
use crate::health::Settings;

/// When an endpoint is taken out, and what engines are asked of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthConfig {
    /// The rules.
    pub settings: Settings,
    /// Where an engine says whether it is well; asked as often as its metrics. `None`: nobody asks.
    pub path: Option<String>,
    /// Where it says whether it sleeps; asked as often.
    pub sleep_path: Option<String>,
}

pub(super) fn health_of(
    raw: raw::Health,
    scrape: Option<&ScrapeConfig>,
    fingerprint: u64,
) -> Result<HealthConfig, ConfigError> {
    let most_ms = 3_600_000;
    let failures = whole("health.failures", raw.failures, 3, 1, 1_000_000)?;
    let rest_ms = whole("health.rest_ms", raw.rest_ms, 1_000, 1, most_ms)?;
    let longest = rest_ms.max(60_000);
    let max_rest_ms = whole(
        "health.max_rest_ms",
        raw.max_rest_ms,
        longest,
        rest_ms,
        most_ms,
    )?;
    let kv_full_ms = whole("health.kv_full_ms", raw.kv_full_ms, 10_000, 0, most_ms)?;
    let path = raw.path.as_deref().unwrap_or(match scrape {
        Some(_) => "/health",
        None => "",
    });
    let asked = |key: &str, path: &str| match (path, scrape) {
        ("", _) => Ok(None),
        (path, Some(_)) => path_of(key, None, path).map(Some),
        (_, None) => Err(ConfigError::new(
            key,
            "needs `scrape`, by whose cluster engines are asked",
        )),
    };
    Ok(HealthConfig {
        settings: Settings {
            failures,
            rest_ms: u64::from(rest_ms),
            max_rest_ms: u64::from(max_rest_ms),
            kv_full_permille: thousandths("health.kv_full", raw.kv_full, 980, 1, 1_000)?,
            kv_full_ms: u64::from(kv_full_ms),
            scraped_ms: scrape.map(told_ms),
            // A part of it is enough to tell a few apart.
            configuration: fingerprint as u32,
        },
        path: asked("health.path", path)?,
        sleep_path: asked("health.sleep_path", raw.sleep_path.as_deref().unwrap_or(""))?,
    })
}

/// How long what engines say counts: as long as their figures do, and never so short that it runs out before
/// they were asked again.
fn told_ms(scrape: &ScrapeConfig) -> u64 {
    let renewed_ms = scrape.interval_ms.saturating_mul(2);
    let renewed_ms = renewed_ms.saturating_add(scrape.timeout_ms);
    scrape.stale_after_ms.max(renewed_ms)
}
