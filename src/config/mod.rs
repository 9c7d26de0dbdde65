//! The plugin configuration: JSON in, validated [`Config`] out.
//!
//! Parsing happens in two steps. `raw.rs` says which keys exist and of which type they are (serde,
//! strict: an unknown key is an error). This file turns that into types that cannot be wrong; keys that
//! take some doing have a file of their own. Every error names the JSON path of the value and what
//! would have been allowed.

mod discovery;
mod error;
mod health;
mod index;
pub(crate) mod models;
mod policy;
mod pools;
mod raw;
mod responses;
mod saturation;
mod scrape;
mod tokens;
mod values;

pub use self::discovery::{DiscoveryConfig, MAX_CLUSTERS};
pub use self::error::ConfigError;
pub use self::health::HealthConfig;
pub use self::index::{MAX_INDEX_BLOCKS, MIN_INDEX_BLOCKS};
pub use self::models::ModelsConfig;
pub use self::responses::Responses;
pub use self::saturation::{Priority, Saturation, WHOLE_PERMILLE};
pub use self::scrape::ScrapeConfig;
pub use self::values::Toggle;

use self::discovery::discovery_of;
use self::error::known_path;
use self::health::health_of;
use self::index::index_blocks_of;
use self::models::models_of;
use self::pools::{model_decides, pools_of};
use self::responses::responses_of;
use self::saturation::saturation_of;
use self::scrape::scrape_of;
use self::tokens::tokens_of;
use self::values::{toggle, whole};
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

/// Where a Decision is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// Response header `x-warmroute-decision`.
    pub response_header: Toggle,
    /// Filter state `wasm.warmroute`, for access logs.
    pub log_field: Toggle,
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
        // Clients may write `model` behind the messages. Where it decides, more is worth holding.
        let default_hold = if models.is_some() || model_decides(&pools) {
            3_000_000
        } else {
            1_000_000
        };
        let indexed = pools.iter().any(|pool| pool.policy.reads_index());
        let index_blocks = index_blocks_of(index, &pools)?;
        let prefix_bytes = whole("prefix.bytes", prefix.bytes, 1_024, 1, 1 << 20)?;
        let tokens = tokens_of(tokens)?;
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
            hold_max_bytes: u64::from(whole(
                "hold.max_bytes",
                hold.max_bytes,
                default_hold,
                1,
                1 << 30,
            )?),
            watchdog_ms: u64::from(whole("hold.watchdog_ms", hold.watchdog_ms, 250, 1, 60_000)?),
            models,
            saturation: saturation
                .map(|saturation| saturation_of(saturation, scrape.as_ref()))
                .transpose()?,
            health: health_of(health, scrape.as_ref(), fingerprint)?,
            scrape,
            explain: Explain {
                response_header: toggle(explain.response_header),
                log_field: toggle(explain.log_field),
            },
            responses: responses_of(responses),
            other_paths: match other_paths {
                raw::OtherPaths::Pick => OtherPaths::Pick,
                raw::OtherPaths::Pass => OtherPaths::Pass,
            },
        })
    }
}

#[cfg(test)]
mod tests;
