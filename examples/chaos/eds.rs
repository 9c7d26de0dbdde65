//! Discovery as operators have it: Envoy reads a cluster's members from a file that changes, and the
//! filter asks Envoy's admin interface for them.

use crate::replica::free_port;
use crate::support::config::{EnvoyConfig, Mode, set};
use crate::support::root;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// The cluster through which the filter reaches the admin interface.
const ADMIN: &str = "warmroute_admin";
const CLUSTERS: &str = "/static_resources/clusters";

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

/// The members of one cluster, in a file that Envoy watches. Dropping it removes the file.
#[derive(Debug)]
pub struct Eds {
    directory: PathBuf,
    members: Vec<(SocketAddr, Health)>,
    version: u64,
}

impl Eds {
    /// Writes the file with `members`, all healthy.
    pub fn new(members: &[SocketAddr]) -> Result<Self, String> {
        static WRITTEN: AtomicU32 = AtomicU32::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("target/e2e/eds-{}-{number}", std::process::id());
        let directory = root().join(name);
        fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let mut eds = Self {
            directory,
            members: Vec::new(),
            version: 0,
        };
        eds.members = members.iter().map(|m| (*m, Health::Healthy)).collect();
        eds.write()?;
        Ok(eds)
    }

    /// Says this of a member, which is added if it was not there.
    pub fn set(&mut self, member: SocketAddr, health: Health) -> Result<(), String> {
        self.members.retain(|(address, _)| *address != member);
        self.members.push((member, health));
        self.write()
    }

    /// Takes a member out.
    pub fn remove(&mut self, member: SocketAddr) -> Result<(), String> {
        self.members.retain(|(address, _)| *address != member);
        self.write()
    }

    /// Envoy sees only files that are moved into place.
    fn write(&mut self) -> Result<(), String> {
        self.version += 1;
        let new = self.directory.join("new.json");
        let text = response(&self.members, self.version).to_string();
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, self.file()))
            .map_err(|e| format!("{}: {e}", new.display()))
    }

    fn file(&self) -> PathBuf {
        self.directory.join("endpoints.json")
    }

    /// Lets `config` take its members from the file, and the filter from Envoy, which it asks every
    /// `interval_ms`.
    pub fn applied(
        &self,
        mut config: EnvoyConfig,
        mode: Mode,
        interval_ms: u32,
    ) -> Result<EnvoyConfig, String> {
        // Envoy takes nothing dynamic without a name of its own.
        let node = json!({"id": "chaos", "cluster": "chaos"});
        let top = config.0.as_object_mut();
        top.ok_or("no Envoy configuration")?
            .insert("node".to_owned(), node);
        let admin_port = free_port()?;
        set(
            &mut config.0,
            "/admin/address/socket_address/port_value",
            json!(admin_port),
        )?;
        let clusters = config.0.pointer_mut(CLUSTERS);
        let clusters = clusters
            .and_then(Value::as_array_mut)
            .ok_or("no clusters in the Envoy configuration")?;
        clusters.push(admin(admin_port));
        let name = match mode {
            Mode::OverrideHost => {
                let served = clusters
                    .iter_mut()
                    .find(|cluster| cluster["name"] == "vllm");
                self.fill(served.ok_or("no cluster vllm")?);
                "vllm"
            }
            _ => {
                let mut listed = json!({"name": "vllm_endpoints"});
                self.fill(&mut listed);
                clusters.push(listed);
                "vllm_endpoints"
            }
        };
        config.plugin(&json!({
            "endpoints": null,
            "clusters": [name],
            "discovery": {"cluster": ADMIN, "interval_ms": interval_ms},
        }))
    }

    fn fill(&self, cluster: &mut Value) {
        let source = json!({
            "path": self.file(),
            "watched_directory": {"path": self.directory},
        });
        let eds = json!({
            "service_name": "vllm",
            "eds_config": {"path_config_source": source, "resource_api_version": "V3"},
        });
        if let Some(cluster) = cluster.as_object_mut() {
            cluster.remove("load_assignment");
            cluster.insert("type".to_owned(), json!("EDS"));
            cluster.insert("eds_cluster_config".to_owned(), eds);
        }
    }
}

impl Drop for Eds {
    fn drop(&mut self) {
        // What stays behind is small, and in target/.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn response(members: &[(SocketAddr, Health)], version: u64) -> Value {
    let members: Vec<Value> = members
        .iter()
        .map(|(member, health)| {
            let mut entry = endpoint(*member);
            if let Some(fields) = entry.as_object_mut() {
                fields.insert("health_status".to_owned(), json!(health.name()));
            }
            entry
        })
        .collect();
    json!({
        "version_info": version.to_string(),
        "resources": [{
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": "vllm",
            "endpoints": [{"lb_endpoints": members}],
        }],
    })
}

fn admin(port: u16) -> Value {
    let member = endpoint(SocketAddr::from(([127, 0, 0, 1], port)));
    json!({
        "name": ADMIN,
        "type": "STATIC",
        "load_assignment": {"cluster_name": ADMIN, "endpoints": [{"lb_endpoints": [member]}]},
    })
}

fn endpoint(at: SocketAddr) -> Value {
    let address = json!({"address": at.ip().to_string(), "port_value": at.port()});
    json!({"endpoint": {"address": {"socket_address": address}}})
}
