//! Endpoints and pools: what a policy picks from.
//!
//! A [`Pool`] is sorted by address and holds each address once, so that every Envoy that is given
//! the same set, in whatever order, builds the same ring and breaks ties alike.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// Stable identity of an endpoint in shared state: the xxHash64 of its canonical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

impl EndpointId {
    /// That of the endpoint with this canonical address, `IP:port`.
    pub fn of(address: &str) -> Self {
        Self(xxhash_rust::xxh64::xxh64(address.as_bytes(), 0))
    }
}

/// Most endpoints that anything learned is kept of, those that left included.
pub(crate) const MAX_KNOWN: usize = 4_096;

/// What is known of one endpoint, to be changed. Of too many, everything is forgotten: endpoints that left are
/// told from others by nothing here, and what matters is soon learned again.
pub(crate) fn known<V: Default>(all: &mut BTreeMap<EndpointId, V>, id: EndpointId) -> &mut V {
    if all.len() >= MAX_KNOWN && !all.contains_key(&id) {
        all.clear();
    }
    all.entry(id).or_default()
}

/// One model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `IP:port` as Envoy wants it; IPv6 in brackets.
    pub address: SocketAddr,
    /// Capacity relative to the other endpoints of the pool; at least 1.
    pub weight: u32,
    /// Models and adapters that this endpoint serves; empty means any.
    pub models: Vec<String>,
    /// Free text for the people who read the configuration; nothing depends on it.
    pub labels: BTreeMap<String, String>,
    id: EndpointId,
    text: String,
}

impl Endpoint {
    /// An endpoint of weight 1 that serves any model.
    pub fn new(address: SocketAddr) -> Self {
        let text = address.to_string();
        Self {
            address,
            weight: 1,
            models: Vec::new(),
            labels: BTreeMap::new(),
            id: EndpointId::of(&text),
            text,
        }
    }

    /// Identity in shared state.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// The canonical address, as it is written into headers, metrics and logs.
    pub fn name(&self) -> &str {
        &self.text
    }

    /// Whether requests for `model` may go here. A request whose model is unknown may go anywhere.
    pub fn serves(&self, model: Option<&str>) -> bool {
        self.models.is_empty()
            || model.is_none_or(|model| self.models.iter().any(|served| served == model))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The endpoints that one rule picks from: sorted by address, each address once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    endpoints: Vec<Endpoint>,
}

impl Pool {
    /// Sorts and deduplicates. Of two entries with one address the first given wins.
    pub fn new(mut endpoints: Vec<Endpoint>) -> Self {
        endpoints.sort_by_key(|endpoint| endpoint.address);
        endpoints.dedup_by_key(|endpoint| endpoint.address);
        Self { endpoints }
    }

    /// All endpoints, in the order of their addresses.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The endpoint at `index`, as candidates name it.
    pub fn get(&self, index: u32) -> Option<&Endpoint> {
        self.endpoints.get(index as usize)
    }

    /// How many endpoints there are.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether the pool holds nothing.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str) -> Endpoint {
        Endpoint::new(address.parse().unwrap())
    }

    #[test]
    fn a_pool_is_the_same_whatever_order_it_is_given_in() {
        let one = Pool::new(vec![
            endpoint("10.0.0.2:80"),
            endpoint("[::1]:80"),
            endpoint("10.0.0.1:80"),
        ]);
        let two = Pool::new(vec![
            endpoint("[::1]:80"),
            endpoint("10.0.0.1:80"),
            endpoint("10.0.0.2:80"),
            endpoint("10.0.0.1:80"),
        ]);
        assert_eq!(one, two);
        assert_eq!(one.len(), 3);
        assert_eq!(one.endpoints()[2].name(), "[::1]:80");
    }

    #[test]
    fn what_is_known_of_endpoints_does_not_grow_without_end() {
        let mut all = BTreeMap::new();
        for id in 0..2 * MAX_KNOWN as u64 {
            *known(&mut all, EndpointId(id)) = id;
            assert!(all.len() <= MAX_KNOWN && all[&EndpointId(id)] == id);
        }
        let last = EndpointId(2 * MAX_KNOWN as u64 - 1);
        assert_eq!(*known(&mut all, last), last.0, "who is known stays known");
    }

    #[test]
    fn an_endpoint_without_a_model_list_serves_everything() {
        let mut only = endpoint("10.0.0.1:80");
        assert!(only.serves(Some("m")));
        only.models = vec!["a".into()];
        assert!(only.serves(Some("a")) && only.serves(None) && !only.serves(Some("m")));
    }
}
