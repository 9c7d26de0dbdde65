//! `saturation`: how much an endpoint may carry, and who is turned away first.

use std::collections::BTreeMap;

use super::raw::Whole;
use super::values::{thousandths, whole};
use super::{ConfigError, ScrapeConfig};

/// Most priorities with a share.
const MAX_SHARES: usize = 32;
/// The whole of a limit, in thousandths.
pub const WHOLE_PERMILLE: u32 = 1_000;

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    max_requests: Option<Whole>,
    max_tokens: Option<Whole>,
    max_waiting: Option<Whole>,
    max_kv: Option<f64>,
    retry_after_s: Option<Whole>,
    priority: Option<RawPriority>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPriority {
    header: String,
    shares: BTreeMap<String, f64>,
}

/// What one endpoint may carry. A limit that is absent is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saturation {
    /// Requests, those of others included.
    pub max_requests: Option<u32>,
    /// Outstanding prefill and decode tokens.
    pub max_tokens: Option<u64>,
    /// Requests whose first token has not come.
    pub max_waiting: Option<u32>,
    /// Share of the KV cache in use, in thousandths.
    pub max_kv_permille: Option<u32>,
    /// When a client that is turned away shall try again, in milliseconds.
    pub retry_after_ms: u64,
    /// Who may use only a part of the limits.
    pub priority: Option<Priority>,
}

/// Where a request's priority stands, and what each may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Priority {
    /// Request header, in lower case.
    pub header: String,
    /// Shares of the limits by the header's value, in thousandths. Any other value may use all.
    pub shares_permille: BTreeMap<String, u32>,
}

impl Priority {
    /// The share of the limits that a request with this value of the header may use, in thousandths.
    pub fn share_permille(&self, value: Option<&[u8]>) -> u32 {
        let value = value.and_then(|value| std::str::from_utf8(value).ok());
        let share = value.and_then(|value| self.shares_permille.get(value.trim()));
        share.copied().unwrap_or(WHOLE_PERMILLE)
    }
}

pub(super) fn saturation_of(
    raw: Raw,
    scrape: Option<&ScrapeConfig>,
) -> Result<Saturation, ConfigError> {
    if raw.max_kv.is_some() && scrape.is_none() {
        let problem = "needs `scrape`, by which it is known";
        return Err(ConfigError::new("saturation.max_kv", problem));
    }
    let limit = |name: &str, value: Option<Whole>, highest: u32| {
        let path = format!("saturation.{name}");
        value
            .map(|value| whole(&path, Some(value), 1, 1, highest))
            .transpose()
    };
    let max_tokens = limit("max_tokens", raw.max_tokens, 1 << 30)?;
    let max_kv_permille = raw
        .max_kv
        .map(|kv| thousandths("saturation.max_kv", Some(kv), 1_000, 1, 1_000))
        .transpose()?;
    let retry_after_s = whole("saturation.retry_after_s", raw.retry_after_s, 1, 1, 3_600)?;
    Ok(Saturation {
        max_requests: limit("max_requests", raw.max_requests, 1_000_000)?,
        max_tokens: max_tokens.map(u64::from),
        max_waiting: limit("max_waiting", raw.max_waiting, 1_000_000)?,
        max_kv_permille,
        retry_after_ms: u64::from(retry_after_s).saturating_mul(1_000),
        priority: raw.priority.map(priority_of).transpose()?,
    })
}

fn priority_of(raw: RawPriority) -> Result<Priority, ConfigError> {
    if raw.header.is_empty() {
        let path = "saturation.priority.header";
        return Err(ConfigError::new(path, "must not be empty"));
    }
    if raw.shares.is_empty() || raw.shares.len() > MAX_SHARES {
        let problem = format!("must hold between 1 and {MAX_SHARES} priorities");
        return Err(ConfigError::new("saturation.priority.shares", problem));
    }
    let mut shares_permille = BTreeMap::new();
    for (value, share) in raw.shares {
        let path = format!("saturation.priority.shares.{value}");
        let share = thousandths(&path, Some(share), 1_000, 0, WHOLE_PERMILLE)?;
        shares_permille.insert(value, share);
    }
    Ok(Priority {
        header: raw.header.to_ascii_lowercase(),
        shares_permille,
    })
}
