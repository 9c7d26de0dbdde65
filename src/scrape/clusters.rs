//! Envoy's answer to `/clusters?format=json`, read as it comes: the members of some clusters and what
//! Envoy thinks of them.
//!
//! The answer may be megabytes long, with thousands of other clusters: these are skipped, nothing is
//! built of them. The order of members of an object does not matter. Envoy 1.40 shows no metadata
//! there. EDS's `TIMEOUT` comes as `UNHEALTHY`, and whom EDS says nothing about as `HEALTHY`.

mod found;

pub use self::found::{Cluster, MAX_LOCALITY_BYTES, MAX_MEMBERS, MAX_WEIGHT, Member};

use std::fmt;

use self::found::Found;
use crate::health::Verdict;
use crate::request::json::{Kind, Sink, Take, Tokenizer};
use crate::request::number::whole;

/// Longest text that is taken, in bytes: names of clusters, addresses and parts of localities.
pub const MAX_NAME_BYTES: usize = 256;

/// Why an answer says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClustersError {
    /// It ends too early, or it is no JSON.
    Broken,
    /// It is JSON, but no list of clusters.
    NoClusters,
}

impl fmt::Display for ClustersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Broken => "the answer is cut off or no JSON; is its path /clusters?format=json?",
            Self::NoClusters => "the answer has no cluster_statuses",
        })
    }
}

impl std::error::Error for ClustersError {}

/// Reads one answer, in whatever pieces it comes.
pub struct ClustersReader<'a> {
    tokenizer: Tokenizer,
    reader: Reader<'a>,
}

impl<'a> ClustersReader<'a> {
    /// Looks for the clusters of these names.
    pub fn new(names: &'a [String]) -> Self {
        Self {
            tokenizer: Tokenizer::new(),
            reader: Reader::new(names),
        }
    }

    /// The next piece.
    pub fn push(&mut self, piece: &[u8]) {
        // All readers that are not in the way of requests share one copy of the tokenizer's code.
        self.tokenizer.push::<dyn Sink>(piece, &mut self.reader);
    }

    /// The answer is over: the clusters in the order in which their names were given, `None` where Envoy has no such
    /// cluster.
    ///
    /// # Errors
    ///
    /// It was not whole, or no answer of that kind: nothing of it counts.
    pub fn finish(self) -> Result<Vec<Option<Cluster>>, ClustersError> {
        if !self.tokenizer.is_done() {
            return Err(ClustersError::Broken);
        }
        if !self.reader.is_list {
            return Err(ClustersError::NoClusters);
        }
        Ok(self.reader.found.into_clusters())
    }
}

/// Where in the document the reader stands: inside which container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Outside,
    Top,
    Clusters,
    Cluster,
    Hosts,
    Host,
    Address,
    Socket,
    Health,
    Locality,
}

/// What the value of the last key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Nothing,
    /// A container that is read.
    Inner(Place),
    ClusterName,
    Ip,
    Port,
    Weight,
    Priority,
    EdsHealth,
    /// A flag that, if set, makes the verdict at least this bad.
    Flag(Verdict),
    /// Part of the locality: region, zone, sub-zone.
    Part(usize),
}

/// Follows the document, and hands on what is read.
struct Reader<'a> {
    place: Place,
    slot: Slot,
    text: Vec<u8>,
    text_is_whole: bool,
    is_list: bool,
    found: Found<'a>,
}

impl<'a> Reader<'a> {
    fn new(names: &'a [String]) -> Self {
        Self {
            place: Place::Outside,
            slot: Slot::Nothing,
            text: Vec::new(),
            text_is_whole: true,
            is_list: false,
            found: Found::new(names),
        }
    }

    /// The container that a value of this kind opens, if it is one to read.
    fn inner(&self, kind: Kind) -> Option<Place> {
        let inner = match (self.place, self.slot) {
            (Place::Outside, _) => Place::Top,
            (Place::Clusters, _) => Place::Cluster,
            (Place::Hosts, _) => Place::Host,
            (_, Slot::Inner(inner)) => inner,
            _ => return None,
        };
        let expected = match inner {
            Place::Clusters | Place::Hosts => Kind::Array,
            _ => Kind::Object,
        };
        (kind == expected && (inner != Place::Hosts || self.found.wants_hosts())).then_some(inner)
    }

    fn open(&mut self, place: Place) {
        match place {
            Place::Clusters => self.is_list = true,
            Place::Cluster => self.found.cluster_begins(),
            Place::Host => self.found.host_begins(),
            _ => {}
        }
        self.place = place;
        self.slot = Slot::Nothing;
    }

    fn parent(&self) -> Place {
        match self.place {
            Place::Outside | Place::Top => Place::Outside,
            Place::Clusters => Place::Top,
            Place::Cluster => Place::Clusters,
            Place::Hosts => Place::Cluster,
            Place::Host => Place::Hosts,
            Place::Address | Place::Health | Place::Locality => Place::Host,
            Place::Socket => Place::Address,
        }
    }

    fn text_is_over(&mut self) {
        let text = match self.text_is_whole {
            true => std::str::from_utf8(&self.text).unwrap_or_default(),
            false => "",
        };
        match self.slot {
            Slot::ClusterName => self.found.cluster_is_called(text),
            Slot::Ip => self.found.host.ip = text.parse().ok(),
            Slot::EdsHealth => self.judge(match text {
                "DRAINING" => Verdict::Draining,
                "UNHEALTHY" | "TIMEOUT" => Verdict::Unhealthy,
                "DEGRADED" => Verdict::Degraded,
                _ => Verdict::Healthy,
            }),
            Slot::Part(at) => {
                if let Some(part) = self.found.host.locality.get_mut(at) {
                    *part = text.to_owned();
                }
            }
            _ => {}
        }
    }

    /// The worst that is said counts.
    fn judge(&mut self, verdict: Verdict) {
        let host = &mut self.found.host;
        host.verdict = host.verdict.max(verdict);
    }
}

/// What each key is, and where it stands. A table: comparisons one by one would be larger.
const KEYS: [(Place, &str, Slot); 22] = [
    (Place::Top, "cluster_statuses", Slot::Inner(Place::Clusters)),
    (Place::Cluster, "name", Slot::ClusterName),
    (Place::Cluster, "host_statuses", Slot::Inner(Place::Hosts)),
    (Place::Host, "address", Slot::Inner(Place::Address)),
    (Place::Host, "health_status", Slot::Inner(Place::Health)),
    (Place::Host, "locality", Slot::Inner(Place::Locality)),
    (Place::Host, "weight", Slot::Weight),
    (Place::Host, "priority", Slot::Priority),
    (Place::Address, "socket_address", Slot::Inner(Place::Socket)),
    (Place::Socket, "address", Slot::Ip),
    (Place::Socket, "port_value", Slot::Port),
    (Place::Health, "eds_health_status", Slot::EdsHealth),
    // It left, but still passes its active check: Envoy keeps it until it fails.
    (
        Place::Health,
        "pending_dynamic_removal",
        Slot::Flag(Verdict::Draining),
    ),
    (
        Place::Health,
        "failed_active_degraded_check",
        Slot::Flag(Verdict::Degraded),
    ),
    (
        Place::Health,
        "failed_active_health_check",
        Slot::Flag(Verdict::Unhealthy),
    ),
    (
        Place::Health,
        "failed_outlier_check",
        Slot::Flag(Verdict::Unhealthy),
    ),
    (
        Place::Health,
        "pending_active_hc",
        Slot::Flag(Verdict::Unhealthy),
    ),
    (
        Place::Health,
        "excluded_via_immediate_hc_fail",
        Slot::Flag(Verdict::Unhealthy),
    ),
    (
        Place::Health,
        "active_hc_timeout",
        Slot::Flag(Verdict::Unhealthy),
    ),
    (Place::Locality, "region", Slot::Part(0)),
    (Place::Locality, "zone", Slot::Part(1)),
    (Place::Locality, "sub_zone", Slot::Part(2)),
];

fn slot_of(place: Place, key: &[u8]) -> Slot {
    let mut keys = KEYS.iter();
    let found = keys.find(|(at, name, _)| *at == place && name.as_bytes() == key);
    found.map_or(Slot::Nothing, |(_, _, slot)| *slot)
}

impl Sink for Reader<'_> {
    fn key(&mut self, key: &[u8]) {
        self.slot = slot_of(self.place, key);
    }

    fn begin(&mut self, kind: Kind) -> Take {
        if let Some(inner) = self.inner(kind) {
            self.open(inner);
            return Take::Read;
        }
        match (kind, self.slot) {
            (Kind::String, Slot::ClusterName | Slot::Ip | Slot::EdsHealth | Slot::Part(_)) => {
                self.text.clear();
                self.text_is_whole = true;
                Take::Read
            }
            _ => Take::Skip,
        }
    }

    fn bytes(&mut self, piece: &[u8]) {
        if self.text.len().saturating_add(piece.len()) > MAX_NAME_BYTES {
            self.text_is_whole = false;
        } else {
            self.text.extend_from_slice(piece);
        }
    }

    fn end(&mut self) {
        self.text_is_over();
    }

    fn scalar(&mut self, text: &[u8]) {
        match self.slot {
            Slot::Port => {
                self.found.host.port = whole(text).and_then(|port| u16::try_from(port).ok());
            }
            Slot::Weight => self.found.host.weight = whole(text),
            Slot::Priority => self.found.host.priority = whole(text),
            Slot::Flag(verdict) if text == b"true" => self.judge(verdict),
            _ => {}
        }
    }

    fn close(&mut self) {
        match self.place {
            Place::Host => self.found.host_is_over(),
            Place::Cluster => self.found.cluster_is_over(),
            _ => {}
        }
        self.place = self.parent();
        self.slot = Slot::Nothing;
    }
}

#[cfg(test)]
mod tests;
