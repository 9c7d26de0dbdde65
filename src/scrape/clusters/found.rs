//! What is made of what is read: the members of the clusters that were asked for, within the limits.

use std::net::{IpAddr, SocketAddr};

use crate::health::Verdict;

/// Most members that one answer may have, over all clusters that are read; further ones are counted.
pub const MAX_MEMBERS: usize = 1_024;
/// Longest locality, in bytes; a longer one is cut.
pub const MAX_LOCALITY_BYTES: usize = 128;
/// Largest weight; a larger one counts as this.
pub const MAX_WEIGHT: u32 = 10_000;

/// One member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it listens.
    pub address: SocketAddr,
    /// Capacity relative to the others, 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// Level of failover: 0 comes first.
    pub priority: u32,
    /// `region/zone/sub_zone` without empty parts at the end; empty if Envoy was told none.
    pub locality: String,
    /// What Envoy thinks of it.
    pub verdict: Verdict,
}

/// One cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Its members, in Envoy's order.
    pub members: Vec<Member>,
    /// Members that have no address of their own: pipes, names, port 0.
    pub unusable: u32,
    /// Members beyond [`MAX_MEMBERS`].
    pub left_out: u32,
}

/// A host that is being read.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) ip: Option<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) weight: Option<u64>,
    pub(super) priority: Option<u64>,
    /// Region, zone, sub-zone.
    pub(super) locality: [String; 3],
    pub(super) verdict: Verdict,
}

/// Which cluster is being read. Envoy writes its name first, but nothing rests on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    NotYet,
    Wanted(usize),
    Other,
}

/// What was found so far, and the cluster that is being read.
pub(super) struct Found<'a> {
    names: &'a [String],
    named: Named,
    cluster: Cluster,
    pub(super) host: Host,
    clusters: Vec<Option<Cluster>>,
}

impl<'a> Found<'a> {
    /// Nothing yet of the clusters of these names.
    pub(super) fn new(names: &'a [String]) -> Self {
        Self {
            names,
            named: Named::NotYet,
            cluster: Cluster::default(),
            host: Host::default(),
            clusters: vec![None; names.len()],
        }
    }

    pub(super) fn cluster_begins(&mut self) {
        self.named = Named::NotYet;
        self.cluster = Cluster::default();
    }

    pub(super) fn cluster_is_called(&mut self, name: &str) {
        let wanted = self.names.iter().position(|wanted| wanted == name);
        self.named = wanted.map_or(Named::Other, Named::Wanted);
    }

    /// Whether the hosts of the cluster may be wanted.
    pub(super) fn wants_hosts(&self) -> bool {
        self.named != Named::Other
    }

    pub(super) fn host_begins(&mut self) {
        self.host = Host::default();
    }

    pub(super) fn host_is_over(&mut self) {
        let host = std::mem::take(&mut self.host);
        let address = host
            .ip
            .zip(host.port)
            .map(|(ip, port)| SocketAddr::new(ip, port))
            .filter(|address| address.port() != 0 && !address.ip().is_unspecified());
        let Some(address) = address else {
            self.cluster.unusable = self.cluster.unusable.saturating_add(1);
            return;
        };
        if self.cluster.members.len() >= MAX_MEMBERS {
            self.cluster.left_out = self.cluster.left_out.saturating_add(1);
            return;
        }
        let small = |value: Option<u64>, default| {
            value.map_or(default, |value| u32::try_from(value).unwrap_or(u32::MAX))
        };
        self.cluster.members.push(Member {
            address,
            weight: small(host.weight, 1).clamp(1, MAX_WEIGHT),
            priority: small(host.priority, 0),
            locality: locality(&host.locality),
            verdict: host.verdict,
        });
    }

    pub(super) fn cluster_is_over(&mut self) {
        let mut cluster = std::mem::take(&mut self.cluster);
        let Named::Wanted(index) = self.named else {
            return;
        };
        let found = self.clusters.iter().flatten();
        let before: usize = found.map(|cluster| cluster.members.len()).sum();
        let room = MAX_MEMBERS.saturating_sub(before);
        let over = cluster.members.len().saturating_sub(room);
        cluster.members.truncate(room);
        let over = u32::try_from(over).unwrap_or(u32::MAX);
        cluster.left_out = cluster.left_out.saturating_add(over);
        if let Some(place @ None) = self.clusters.get_mut(index) {
            *place = Some(cluster);
        }
    }

    /// The clusters in the order of their names.
    pub(super) fn into_clusters(self) -> Vec<Option<Cluster>> {
        self.clusters
    }
}

fn locality(parts: &[String; 3]) -> String {
    let mut text = parts.join("/");
    text.truncate(text.trim_end_matches('/').len());
    while text.len() > MAX_LOCALITY_BYTES {
        text.pop();
    }
    text
}
