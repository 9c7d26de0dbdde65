//! Members that change: in a file that Envoy watches, and that the filter hears of by discovery.

use crate::support::config::{EnvoyConfig, Mode};
use crate::support::eds::EdsFile;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The shipped cluster whose members are in the file.
const LISTED: &str = "vllm_endpoints";
/// The shipped cluster through which the filter reaches Envoy's admin interface.
const ADMIN: &str = "warmroute_admin";

/// What the file says of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    Healthy,
    /// It finishes what it has.
    Draining,
}

impl Health {
    fn name(self) -> &'static str {
        match self {
            Self::Healthy => "HEALTHY",
            Self::Draining => "DRAINING",
        }
    }
}

/// The members of one cluster.
#[derive(Debug)]
pub struct Eds {
    file: EdsFile,
    members: Vec<(SocketAddr, Health)>,
}

impl Eds {
    /// These, all healthy.
    pub fn new(members: &[SocketAddr]) -> Self {
        Self {
            file: EdsFile::new(members),
            members: members.iter().map(|m| (*m, Health::Healthy)).collect(),
        }
    }

    /// Says this of a member, which is added if it was not there.
    pub fn set(&mut self, member: SocketAddr, health: Health) {
        self.members.retain(|(address, _)| *address != member);
        self.members.push((member, health));
        self.write();
    }

    /// Takes a member out.
    pub fn remove(&mut self, member: SocketAddr) {
        self.members.retain(|(address, _)| *address != member);
        self.write();
    }

    fn write(&self) {
        let named = self.members.iter();
        let named: Vec<_> = named.map(|(at, health)| (*at, health.name())).collect();
        self.file.set_with_health(&named);
    }

    /// The shipped configuration of `mode` with these members, for which the filter asks every
    /// `interval_ms`.
    pub fn config(&self, mode: Mode, interval_ms: u32) -> Result<EnvoyConfig, String> {
        let discovery = EnvoyConfig::discovery(&self.file)?;
        let (config, cluster) = match mode {
            Mode::OverrideHost => (with_members_of(discovery, mode)?, "vllm"),
            _ => (discovery, LISTED),
        };
        config.plugin(&json!({
            "endpoints": null,
            "clusters": [cluster],
            "discovery": {"cluster": ADMIN, "interval_ms": interval_ms, "verdicts": ["vllm"]},
        }))
    }
}

/// The configuration of `mode`, whose cluster `vllm` has the members of the one with discovery.
fn with_members_of(mut discovery: EnvoyConfig, mode: Mode) -> Result<EnvoyConfig, String> {
    let admin = discovery.cluster(ADMIN)?.clone();
    let listed = discovery.cluster(LISTED)?;
    let mut source = listed.get("eds_cluster_config").cloned();
    let source = source.as_mut().and_then(Value::as_object_mut);
    let source = source.ok_or("the shipped cluster of endpoints has no file")?;
    source.insert("service_name".to_owned(), json!(LISTED));
    let mut config = EnvoyConfig::shipped(mode)?;
    let served = config.cluster("vllm")?.as_object_mut();
    let served = served.ok_or("the cluster vllm is no object")?;
    served.remove("load_assignment");
    served.insert("type".to_owned(), json!("EDS"));
    served.insert("eds_cluster_config".to_owned(), json!(source));
    let clusters = config.0.pointer_mut("/static_resources/clusters");
    clusters
        .and_then(Value::as_array_mut)
        .ok_or("no clusters in the Envoy configuration")?
        .push(admin);
    // Envoy takes nothing dynamic without a name of its own.
    let top = config.0.as_object_mut();
    let top = top.ok_or("the Envoy configuration is no object")?;
    let node = discovery.0.pointer("/node").cloned();
    top.insert("node".to_owned(), node.unwrap_or_default());
    config.admin_port_of(&discovery)?;
    Ok(config)
}
