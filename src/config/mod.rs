//! The plugin configuration: JSON in, validated [`Config`] out.
//!
//! Parsing happens in two steps. `raw.rs` says which keys exist and of which type they are (serde,
//! strict: an unknown key is an error). This file turns that into types that cannot be wrong. Every
//! error names the JSON path of the value and what would have been allowed.

mod discovery;
mod health;
pub(crate) mod models;
mod policy;
mod pools;
mod raw;
mod responses;
mod saturation;

pub use self::responses::Responses;
pub use self::saturation::{Priority, Saturation, WHOLE_PERMILLE};

use std::fmt;

use self::discovery::discovery_of;
pub use self::discovery::{DiscoveryConfig, MAX_CLUSTERS};
pub use self::health::HealthConfig;
use self::health::health_of;
pub use self::models::ModelsConfig;
use self::models::models_of;
use self::pools::{model_decides, pools_of};
use crate::endpoint::Pool;
use crate::policy::PolicySpec;
use crate::request::ScanOptions;
use crate::tokens::TokenEstimator;

/// Most endpoints that one configuration may name, over all pools.
pub const MAX_ENDPOINTS: usize = 1_024;
/// Most pools.
pub const MAX_POOLS: usize = 64;
/// Most virtual points an endpoint may have on a ring.
pub const MAX_POINTS: u32 = 4_096;
/// Most routing-key sources of one `consistent_hash` policy.
pub const MAX_KEYS: usize = 8;

/// Least blocks that `index.max_blocks` may name.
pub const MIN_INDEX_BLOCKS: u32 = 1_024;
/// Most blocks that `index.max_blocks` may name: 64 MiB a worker.
pub const MAX_INDEX_BLOCKS: u32 = 1 << 22;

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// JSON path of the offending value, such as `pools[1].policy.load_factor`; `.` is the whole document.
    pub path: String,
    /// What is wrong with it, and what is allowed.
    pub problem: String,
}

impl ConfigError {
    fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
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

/// How the chosen endpoint is handed to Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteeringMode {
    /// Header `x-envoy-original-dst-host` on an `ORIGINAL_DST` cluster with `use_http_header`.
    OriginalDst,
    /// Filter state `envoy.network.transport_socket.original_dst_address`; no header at all.
    FilterState,
    /// Ranked list in `x-gateway-destination-endpoint`, for the `override_host` policy.
    OverrideHost,
    /// `x-envoy-original-dst-host` and `x-warmroute-next-dst`, for a composite cluster of two
    /// `ORIGINAL_DST` clusters: the second takes the retry.
    Composite,
}

impl SteeringMode {
    /// Retries that the shipped configuration of this mode has: each goes to another endpoint. 0 where all
    /// attempts would go to the same one.
    pub fn retries(self) -> usize {
        match self {
            Self::OriginalDst | Self::FilterState => 0,
            Self::OverrideHost => 2,
            Self::Composite => 1,
        }
    }
}

/// Where a `consistent_hash` policy looks for the routing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A request header, by its lower-case name.
    Header(String),
    /// A cookie, by its name.
    Cookie(String),
    /// A parsed body field: index into [`ScanOptions::key_fields`].
    Body(usize),
}

/// One pool: the endpoints, who may use it, and how it picks.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Unique name, shown in logs and decisions.
    pub name: String,
    /// Models and adapters routed here; empty means all that no other pool names.
    pub models: Vec<String>,
    /// The endpoints that the configuration names.
    pub pool: Pool,
    /// Clusters of Envoy whose members are endpoints too.
    pub clusters: Vec<String>,
    /// The algorithm.
    pub policy: PolicySpec,
    /// Key sources, first found wins; only `consistent_hash` has any.
    pub keys: Vec<KeySource>,
}

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

/// Where a Decision is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// Response header `x-warmroute-decision`.
    pub response_header: Toggle,
    /// Filter state `wasm.warmroute`, for access logs.
    pub log_field: Toggle,
}

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Toggle {
    /// Off, the default.
    #[default]
    Off,
    /// On.
    On,
}

/// What happens to requests that are not inference calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPaths {
    /// An endpoint is picked without looking at the body.
    Pick,
    /// The request passes untouched; the route must not need a destination.
    Pass,
}

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Hash of the text: VMs that share a store know by it who is configured alike.
    pub fingerprint: u64,
    /// How Envoy is told.
    pub steering: SteeringMode,
    /// At least one, each with at least one endpoint or cluster.
    pub pools: Vec<PoolConfig>,
    /// Absent: all endpoints are in the configuration.
    pub discovery: Option<DiscoveryConfig>,
    /// What the body scan keeps.
    pub scan: ScanOptions,
    /// Blocks that the prefix index of a worker holds, if a policy asks it.
    pub index_blocks: u32,
    /// How tokens are estimated.
    pub tokens: TokenEstimator,
    /// Most request bytes held back before a decision must be taken.
    pub hold_max_bytes: u64,
    /// How long a held request may wait for its first body callback.
    pub watchdog_ms: u64,
    /// Absent: no scraping.
    pub scrape: Option<ScrapeConfig>,
    /// Absent: engines are not asked what they serve.
    pub models: Option<ModelsConfig>,
    /// How much an endpoint may carry; absent: there is no limit.
    pub saturation: Option<Saturation>,
    /// When endpoints are taken out.
    pub health: HealthConfig,
    /// Where Decisions are shown.
    pub explain: Explain,
    /// What happens to answers.
    pub responses: Responses,
    /// Requests that are not inference calls.
    pub other_paths: OtherPaths,
}

impl Config {
    /// Parses and validates a plugin configuration.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let text = if json.iter().all(u8::is_ascii_whitespace) {
            b"{}".as_slice()
        } else {
            json
        };
        let mut reader = serde_json::Deserializer::from_slice(text);
        let raw: raw::Config = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            ConfigError::new(known_path(error.path()), error.inner().to_string())
        })?;
        reader
            .end()
            .map_err(|error| ConfigError::new(".", error.to_string()))?;
        Self::validate(raw, xxhash_rust::xxh64::xxh64(json, 0))
    }

    fn validate(raw: raw::Config, fingerprint: u64) -> Result<Self, ConfigError> {
        let raw::Config {
            steering,
            policy,
            endpoints,
            clusters,
            pools,
            discovery,
            prefix,
            index,
            tokens,
            hold,
            scrape,
            models,
            saturation,
            health,
            explain,
            responses,
            other_paths,
        } = raw;
        let scrape = scrape.map(scrape_of).transpose()?;
        let models = models.map(|models| models_of(models, scrape.as_ref()));
        let models = models.transpose()?;
        let mut fields = Vec::new();
        let pools = pools_of(policy, endpoints, clusters, pools, &mut fields)?;
        let discovery = discovery_of(discovery, &pools)?;
        let within = |path: &str, value: Option<raw::Whole>, default, lowest, highest| {
            whole(path, value, default, lowest, highest)
        };
        // Clients may write `model` behind the messages. Where it decides, more is worth holding.
        let default_hold = if models.is_some() || model_decides(&pools) {
            3_000_000
        } else {
            1_000_000
        };
        let indexed = pools.iter().any(|pool| pool.policy.reads_index());
        let index_blocks = within(
            "index.max_blocks",
            index.max_blocks,
            default_blocks(&pools),
            MIN_INDEX_BLOCKS,
            MAX_INDEX_BLOCKS,
        )?;
        let prefix_bytes = within("prefix.bytes", prefix.bytes, 1_024, 1, 1 << 20)?;
        let tokens = TokenEstimator {
            bytes_per_token_milli: thousandths(
                "tokens.bytes_per_token",
                tokens.bytes_per_token,
                4_000,
                100,
                100_000,
            )?,
            output_tokens: within(
                "tokens.output_tokens",
                tokens.output_tokens,
                256,
                1,
                1 << 24,
            )?,
            image_tokens: within(
                "tokens.image_tokens",
                tokens.image_tokens,
                1_024,
                0,
                1 << 24,
            )?,
        };
        Ok(Self {
            fingerprint,
            steering: match steering {
                raw::Steering::OriginalDst => SteeringMode::OriginalDst,
                raw::Steering::FilterState => SteeringMode::FilterState,
                raw::Steering::OverrideHost => SteeringMode::OverrideHost,
                raw::Steering::Composite => SteeringMode::Composite,
            },
            pools,
            discovery,
            scan: ScanOptions {
                prefix_bytes,
                block_bytes: crate::index::BLOCK_BYTES,
                max_blocks: if indexed { crate::index::MAX_BLOCKS } else { 0 },
                key_fields: fields,
            },
            index_blocks,
            tokens,
            hold_max_bytes: u64::from(within(
                "hold.max_bytes",
                hold.max_bytes,
                default_hold,
                1,
                1 << 30,
            )?),
            watchdog_ms: u64::from(within(
                "hold.watchdog_ms",
                hold.watchdog_ms,
                250,
                1,
                60_000,
            )?),
            models,
            saturation: saturation
                .map(|saturation| saturation::saturation_of(saturation, scrape.as_ref()))
                .transpose()?,
            health: health_of(health, scrape.as_ref(), fingerprint)?,
            scrape,
            explain: Explain {
                response_header: toggle(explain.response_header),
                log_field: toggle(explain.log_field),
            },
            responses: responses::responses_of(responses),
            other_paths: match other_paths {
                raw::OtherPaths::Pick => OtherPaths::Pick,
                raw::OtherPaths::Pass => OtherPaths::Pass,
            },
        })
    }
}

/// 32,768 blocks an endpoint of the pools that ask the index, which are two million tokens, within
/// 4 and 16 MiB a worker. How many endpoints are found nobody knows: then the most.
fn default_blocks(pools: &[PoolConfig]) -> u32 {
    let asking = pools.iter().filter(|pool| pool.policy.reads_index());
    let endpoints: usize = asking
        .map(|pool| match pool.clusters.is_empty() {
            true => pool.pool.len(),
            false => MAX_ENDPOINTS,
        })
        .sum();
    let blocks = u32::try_from(endpoints).unwrap_or(u32::MAX);
    blocks.saturating_mul(1 << 15).clamp(1 << 18, 1 << 20)
}

/// The path as far as it is known: a text that ends early or is no JSON at all ends it in `?`.
fn known_path(path: &serde_path_to_error::Path) -> String {
    let path = path.to_string();
    match path.trim_end_matches('?').trim_end_matches('.') {
        "" => ".".into(),
        known => known.into(),
    }
}

fn toggle(on: bool) -> Toggle {
    if on { Toggle::On } else { Toggle::Off }
}

fn scrape_of(raw: raw::Scrape) -> Result<ScrapeConfig, ConfigError> {
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

/// Where somebody answers: a path.
#[inline(never)]
fn path_of(key: &str, value: Option<String>, default: &str) -> Result<String, ConfigError> {
    let path = value.unwrap_or_else(|| default.to_owned());
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(path);
    }
    let problem = format!("`{path}` must be a path that starts with `/`");
    Err(ConfigError::new(key, problem))
}

// Copies in every caller would make the module larger.
#[inline(never)]
fn whole(
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
fn thousandths(
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

#[cfg(test)]
mod tests;
