//! The keys of the configuration and their JSON types; what the values mean is checked one level up.
//!
//! The README's table of keys is held against these types by a test.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A whole number, also when it is written `5.0`: a protobuf `Struct` knows only doubles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub(super) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WholeVisitor;
        impl Visitor<'_> for WholeVisitor {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, not negative")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Whole, E> {
                Ok(Whole(value))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Whole, E> {
                if value >= 0.0 && value.fract() == 0.0 && value < 9.0e15 {
                    return Ok(Whole(value as u64));
                }
                Err(E::invalid_value(de::Unexpected::Float(value), &self))
            }
        }
        deserializer.deserialize_any(WholeVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) steering: Steering,
    pub(super) policy: Option<Policy>,
    pub(super) endpoints: Option<Vec<Endpoint>>,
    #[serde(default)]
    pub(super) clusters: Vec<String>,
    pub(super) pools: Option<Vec<Pool>>,
    pub(super) discovery: Option<Discovery>,
    #[serde(default)]
    pub(super) prefix: Prefix,
    #[serde(default)]
    pub(super) index: Index,
    #[serde(default)]
    pub(super) tokens: Tokens,
    #[serde(default)]
    pub(super) hold: Hold,
    pub(super) scrape: Option<Scrape>,
    pub(super) models: Option<super::models::Raw>,
    pub(super) saturation: Option<super::saturation::Raw>,
    #[serde(default)]
    pub(super) health: Health,
    #[serde(default)]
    pub(super) explain: Explain,
    #[serde(default)]
    pub(super) responses: super::responses::Raw,
    #[serde(default)]
    pub(super) other_paths: OtherPaths,
}

#[derive(serde::Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(super) enum Steering {
    #[default]
    OriginalDst,
    FilterState,
    OverrideHost,
    Composite,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) weight: Option<Whole>,
    #[serde(default)]
    pub(super) models: Vec<String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pool {
    pub(super) name: String,
    #[serde(default)]
    pub(super) models: Vec<String>,
    pub(super) policy: Option<Policy>,
    pub(super) endpoints: Option<Vec<Endpoint>>,
    #[serde(default)]
    pub(super) clusters: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Discovery {
    pub(super) cluster: String,
    pub(super) path: Option<String>,
    pub(super) interval_ms: Option<Whole>,
    pub(super) timeout_ms: Option<Whole>,
    #[serde(default)]
    pub(super) verdicts: Vec<String>,
}

#[derive(serde::Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum PolicyName {
    RoundRobin,
    Random,
    WeightedRoundRobin,
    LeastRequest,
    LeastOutstandingTokens,
    PowerOfTwo,
    ConsistentHash,
    PrefixHash,
    ExpectedLatency,
    CacheAware,
}

impl PolicyName {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::WeightedRoundRobin => "weighted_round_robin",
            Self::LeastRequest => "least_request",
            Self::LeastOutstandingTokens => "least_outstanding_tokens",
            Self::PowerOfTwo => "power_of_two",
            Self::ConsistentHash => "consistent_hash",
            Self::PrefixHash => "prefix_hash",
            Self::ExpectedLatency => "expected_latency",
            Self::CacheAware => "cache_aware",
        }
    }
}

/// One flat object for all algorithms, so that serde can name the path of a bad value; which keys
/// go with which `name` is checked afterwards.
#[derive(serde::Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    pub(super) name: PolicyName,
    pub(super) load: Option<LoadKind>,
    pub(super) keys: Option<Vec<Key>>,
    pub(super) load_factor: Option<f64>,
    pub(super) bound: Option<Measure>,
    pub(super) points: Option<Whole>,
    /// Text: an enumeration would make the module 4 kB larger.
    pub(super) preset: Option<String>,
    pub(super) match_threshold: Option<f64>,
    pub(super) imbalance_requests: Option<Whole>,
    pub(super) imbalance_ratio: Option<f64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            name: PolicyName::ExpectedLatency,
            load: None,
            keys: None,
            load_factor: None,
            bound: None,
            points: None,
            preset: None,
            match_threshold: None,
            imbalance_requests: None,
            imbalance_ratio: None,
        }
    }
}

impl Policy {
    /// The parameters that are present.
    pub(super) fn given(&self) -> Vec<&'static str> {
        [
            ("load", self.load.is_some()),
            ("keys", self.keys.is_some()),
            ("load_factor", self.load_factor.is_some()),
            ("bound", self.bound.is_some()),
            ("points", self.points.is_some()),
            ("preset", self.preset.is_some()),
            ("match_threshold", self.match_threshold.is_some()),
            ("imbalance_requests", self.imbalance_requests.is_some()),
            ("imbalance_ratio", self.imbalance_ratio.is_some()),
        ]
        .into_iter()
        .filter_map(|(key, present)| present.then_some(key))
        .collect()
    }
}

#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub(super) enum LoadKind {
    Requests,
    Tokens,
    Kv,
    ExpectedTime,
}

#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub(super) enum Measure {
    Requests,
    Tokens,
    ExpectedTime,
}

#[derive(serde::Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Key {
    pub(super) header: Option<String>,
    pub(super) cookie: Option<String>,
    pub(super) body: Option<String>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Prefix {
    pub(super) bytes: Option<Whole>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Index {
    pub(super) max_blocks: Option<Whole>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Tokens {
    pub(super) bytes_per_token: Option<f64>,
    pub(super) output_tokens: Option<Whole>,
    pub(super) image_tokens: Option<Whole>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Hold {
    pub(super) max_bytes: Option<Whole>,
    pub(super) watchdog_ms: Option<Whole>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scrape {
    pub(super) cluster: String,
    pub(super) path: Option<String>,
    pub(super) interval_ms: Option<Whole>,
    pub(super) timeout_ms: Option<Whole>,
    pub(super) stale_after_ms: Option<Whole>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Health {
    pub(super) failures: Option<Whole>,
    pub(super) rest_ms: Option<Whole>,
    pub(super) max_rest_ms: Option<Whole>,
    pub(super) path: Option<String>,
    pub(super) sleep_path: Option<String>,
    pub(super) kv_full: Option<f64>,
    pub(super) kv_full_ms: Option<Whole>,
}

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Explain {
    #[serde(default)]
    pub(super) response_header: bool,
    #[serde(default)]
    pub(super) log_field: bool,
}

#[derive(serde::Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub(super) enum OtherPaths {
    #[default]
    Pick,
    Pass,
}
