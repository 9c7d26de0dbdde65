//! Endpoints in a file, as Envoy's endpoint discovery service would send them.

use super::config::member;
use super::root;
use serde_json::{Value, json};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file in a directory of its own, which Envoy watches.
#[derive(Debug)]
pub struct EdsFile {
    path: PathBuf,
}

impl EdsFile {
    /// A file that says of the shipped cluster `vllm_endpoints` that it has these healthy members.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn new(members: &[SocketAddr]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let directory = format!("target/e2e/eds-{}-{number}", std::process::id());
        let directory = root().join(directory);
        fs::create_dir_all(&directory).expect("a directory for endpoints");
        let path = directory.join("endpoints.json");
        let file = Self { path };
        file.set(members);
        file
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on these, all healthy.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn set(&self, members: &[SocketAddr]) {
        let members: Vec<Value> = members.iter().map(member).collect();
        self.write(json!([{"lb_endpoints": members}]));
    }

    /// From now on these, each with its `health_status`.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn set_with_health(&self, members: &[(SocketAddr, &str)]) {
        let with_health = |(address, health): &(SocketAddr, &str)| {
            let mut member = member(address);
            member["health_status"] = json!(health);
            member
        };
        let members: Vec<Value> = members.iter().map(with_health).collect();
        self.write(json!([{"lb_endpoints": members}]));
    }

    /// From now on these localities with their endpoints. The file is moved into its place, so that Envoy never
    /// reads half of it.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn write(&self, localities: Value) {
        let assignment = json!({
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": "vllm_endpoints",
            "endpoints": localities,
        });
        let fresh = self.path.with_extension("fresh");
        fs::write(&fresh, json!({"resources": [assignment]}).to_string()).expect("written");
        fs::rename(&fresh, &self.path).expect("moved");
    }
}
