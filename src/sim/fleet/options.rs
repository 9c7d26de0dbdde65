//! What a simulated fleet consists of.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use serde_json::{Value, json};

use super::gateway::Gateway;
use crate::config::{Config, ConfigError};
use crate::random::Random;
use crate::sim::peers::PeerKind;
use crate::sim::replica::Profile;

/// Every policy by its name in the configuration, the classics first.
pub const POLICIES: [&str; 10] = [
    "round_robin",
    "random",
    "weighted_round_robin",
    "least_request",
    "least_outstanding_tokens",
    "power_of_two",
    "consistent_hash",
    "prefix_hash",
    "expected_latency",
    "cache_aware",
];

/// The `policy` of a plugin configuration, with what it needs in order to work at all: a session id
/// from a header for `consistent_hash`, which has nothing to hash without.
pub fn policy(name: &str) -> Value {
    match name {
        "consistent_hash" => json!({"name": name, "keys": [{"header": "x-session-id"}]}),
        _ => json!({ "name": name }),
    }
}

/// How the gateways come to know what a request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// From the workload's numbers: fast. Routing keys are equal where those of the text would be,
    /// but hash to other places on a ring.
    #[default]
    Numbers,
    /// From the chat body that a replay sends, by the scanner: every pick is that of a real gateway
    /// that sees the same load. The model is called [`Reading::MODEL`].
    Bodies,
}

impl Reading {
    /// What a replay calls the model.
    pub const MODEL: &'static str = "tiny";
}

/// How the gateways come to know how fast the replicas are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paces {
    /// From answers, as in Envoy.
    #[default]
    Learned,
    /// From the profiles, before the first request; answers are learned from all the same.
    Told,
}

/// A fleet, and the seed of all its chances.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// One for each endpoint; at most 1,000.
    pub replicas: Vec<Profile>,
    /// Address of each endpoint, in ascending order, on which rings depend; empty for made-up ones.
    pub addresses: Vec<SocketAddr>,
    /// Capacity weight of each endpoint; empty if all are alike.
    pub weights: Vec<u32>,
    /// The `policy` of the plugin configuration.
    pub policy: Value,
    /// The `prefix.bytes` of the plugin configuration; `None` for its default.
    pub prefix_bytes: Option<u32>,
    /// How requests are read.
    pub reading: Reading,
    /// How the replicas' speeds are known; only `expected_latency` asks.
    pub paces: Paces,
    /// Another project's router, one instance in place of the gateways: policy, weights, gateways,
    /// workers and interval then mean nothing.
    pub peer: Option<PeerKind>,
    /// Envoys, which share nothing but the replicas.
    pub gateways: u32,
    /// Worker threads of each Envoy.
    pub workers: u32,
    /// How often each gateway asks each replica for its metrics; 0 for never.
    pub scrape_interval_ms: u64,
    /// Replicas that lose their cache at a time, in microseconds after the beginning: index and time.
    /// Gateways see a later start of the process in the replica's metrics.
    pub restarts: Vec<(u32, u64)>,
    /// Which gateway and worker a request comes to, and the policies' own chances.
    pub seed: u64,
}

impl FleetOptions {
    /// `replicas` under `policy` behind one Envoy with two workers.
    pub fn new(replicas: Vec<Profile>, policy: Value) -> Self {
        Self {
            replicas,
            addresses: Vec::new(),
            weights: Vec::new(),
            policy,
            prefix_bytes: None,
            reading: Reading::Numbers,
            paces: Paces::Learned,
            peer: None,
            gateways: 1,
            workers: 2,
            scrape_interval_ms: 1_000,
            restarts: Vec::new(),
            seed: 1,
        }
    }

    /// The policy as reports call it: its name, with its settings if it has any of its own.
    pub fn label(&self) -> String {
        let name = self.policy.get("name").and_then(Value::as_str);
        if let Some(peer) = self.peer {
            return peer.name().to_owned();
        }
        match name {
            Some(name) if policy(name) == self.policy => name.to_owned(),
            _ => self.policy.to_string(),
        }
    }

    /// Names of the endpoints, in the order of the replicas.
    pub(super) fn endpoints(&self) -> Vec<String> {
        if !self.addresses.is_empty() {
            return self.addresses.iter().map(SocketAddr::to_string).collect();
        }
        let address = |number: u32| {
            let [_, _, high, low] = number.to_be_bytes();
            SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), 8_000)
        };
        let count = u32::try_from(self.replicas.len()).unwrap_or(u32::MAX);
        (1..=count)
            .map(|number| address(number).to_string())
            .collect()
    }

    /// The gateways; none if a peer is in their place.
    pub(super) fn gateways(&self) -> Result<Vec<Gateway>, FleetError> {
        const MOST: u32 = 1_000;
        let within = |what, count| match count {
            1..=MOST => Ok(()),
            _ => Err(FleetError::Count { what, count }),
        };
        within(
            "replicas",
            u32::try_from(self.replicas.len()).unwrap_or(u32::MAX),
        )?;
        if !self.addresses.is_empty()
            && (self.addresses.len() != self.replicas.len() || !self.addresses.is_sorted())
        {
            return Err(FleetError::Addresses);
        }
        if self.peer.is_some() {
            return Ok(Vec::new());
        }
        within("gateways", self.gateways)?;
        within("workers", self.workers)?;
        let config = Rc::new(Config::parse(self.config().to_string().as_bytes())?);
        let mut random = Random::new(!self.seed);
        let gateway = |_| {
            let mut gateway = Gateway::new(&config, self.workers, random.bits());
            if self.paces == Paces::Told {
                gateway.tell_paces(&self.replicas);
            }
            gateway
        };
        Ok((0..self.gateways).map(gateway).collect())
    }

    fn config(&self) -> Value {
        let weight = |index: usize| self.weights.get(index).copied().unwrap_or(1);
        let endpoints: Vec<Value> = self
            .endpoints()
            .iter()
            .enumerate()
            .map(|(index, address)| json!({"address": address, "weight": weight(index)}))
            .collect();
        let mut config = json!({"endpoints": endpoints, "policy": self.policy});
        if let (Some(bytes), Some(config)) = (self.prefix_bytes, config.as_object_mut()) {
            config.insert("prefix".to_owned(), json!({ "bytes": bytes }));
        }
        if self.scrape_interval_ms > 0
            && let Some(config) = config.as_object_mut()
        {
            let scrape = json!({"cluster": "replicas", "interval_ms": self.scrape_interval_ms});
            config.insert("scrape".to_owned(), scrape);
        }
        config
    }
}

/// Why a fleet cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetError {
    /// None of something, or too many.
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u32,
    },
    /// Not one address for each replica, or not in ascending order.
    Addresses,
    /// The policy, or something else that goes into the plugin configuration.
    Config(ConfigError),
    /// A request waits for one that comes later, or for itself.
    Order {
        /// Its index.
        request: u32,
        /// The index it waits for.
        after: u32,
    },
}

impl From<ConfigError> for FleetError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { what, count } => write!(f, "{count} {what}: 1 to 1,000 are possible"),
            Self::Addresses => write!(f, "addresses: one for each replica, in ascending order"),
            Self::Config(error) => write!(f, "{error}"),
            Self::Order { request, after } => {
                write!(f, "request {request} cannot wait for request {after}")
            }
        }
    }
}

impl std::error::Error for FleetError {}
