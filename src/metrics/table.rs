//! The metrics that the host knows: what they are called there, and when it is told of them.
//!
//! The host knows no labels: they stand in front of the name as `label=.=value;.;`, and the
//! `stats_tags` of the shipped configurations take them out again. Each metric is defined once and
//! its number kept.

use std::collections::BTreeMap;

use crate::endpoint::{Endpoint, EndpointId};

/// What a metric measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Has a value.
    Gauge,
    /// Gathers samples.
    Histogram,
}

/// The host's side of metrics.
pub trait Meter {
    /// Defines a metric, or finds it; `None` if the host refuses.
    fn define(&self, kind: MetricKind, name: &str) -> Option<u32>;
    /// Adds to a counter.
    fn increment(&self, id: u32, by: u64);
    /// Sets a gauge, or records a histogram's sample.
    fn record(&self, id: u32, value: u64);
}

/// Most endpoints whose names are kept, those that left included.
const MAX_NAMES: usize = 4_096;

/// A label and its value.
pub(super) type Label = (&'static str, &'static str);

/// In the place of a label that a metric does not have.
pub(super) const NO_LABEL: Label = ("", "");

/// Identifies a metric without building its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) endpoint: Option<EndpointId>,
    pub(super) labels: [Label; 2],
}

impl Key {
    /// With one label at most, but for the endpoint.
    pub(super) fn new(name: &'static str, endpoint: Option<EndpointId>, label: Label) -> Self {
        Self {
            name,
            endpoint,
            labels: [label, NO_LABEL],
        }
    }
}

/// A metric as the host knows it; without a number if the host refused to define it.
struct Defined {
    id: Option<u32>,
    /// What was counted since the last flush.
    pending: u64,
    /// What a gauge was last set to.
    told: Option<u64>,
}

/// When the host is told of a gauge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    /// When it changes.
    Changes,
    /// Although it may stay as it is.
    Again,
}

/// The metrics of one VM, and the names of the endpoints that they are about.
pub(super) struct Table<M> {
    meter: M,
    defined: BTreeMap<Key, Defined>,
    names: BTreeMap<EndpointId, String>,
}

impl<M: Meter> Table<M> {
    pub(super) fn new(meter: M) -> Self {
        Self {
            meter,
            defined: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    /// Whether the names of these endpoints can be kept, too.
    pub(super) fn has_room(&self, endpoints: &BTreeMap<EndpointId, &Endpoint>) -> bool {
        let new = endpoints.keys().filter(|id| !self.names.contains_key(id));
        self.names.len().saturating_add(new.count()) <= MAX_NAMES
    }

    /// Forgets all metrics and all names, and loses nothing: the host keeps the values, and finds a metric
    /// again by its name.
    pub(super) fn clear(&mut self) {
        self.flush();
        self.defined.clear();
        self.names.clear();
    }

    /// Learns the names of endpoints.
    pub(super) fn learn(&mut self, endpoints: &BTreeMap<EndpointId, &Endpoint>) {
        for (id, endpoint) in endpoints {
            let name = || endpoint.name().to_owned();
            self.names.entry(*id).or_insert_with(name);
        }
    }

    /// The names that are known.
    pub(super) fn names(&self) -> &BTreeMap<EndpointId, String> {
        &self.names
    }

    /// An endpoint as metrics call it.
    pub(super) fn name(&self, endpoint: EndpointId) -> &str {
        endpoint_name(&self.names, endpoint)
    }

    /// Adds to a counter. The host is told with the next flush.
    pub(super) fn count(&mut self, key: Key, by: u64) {
        let counter = self.metric(MetricKind::Counter, key);
        counter.pending = counter.pending.saturating_add(by);
    }

    /// Hands over what was counted.
    pub(super) fn flush(&mut self) {
        for counter in self.defined.values_mut() {
            if let (Some(id), 1..) = (counter.id, counter.pending) {
                self.meter.increment(id, counter.pending);
            }
            counter.pending = 0;
        }
    }

    /// Sets a gauge.
    pub(super) fn set(&mut self, key: Key, value: u64, tell: Tell) {
        let metric = self.metric(MetricKind::Gauge, key);
        let as_before = metric.told.replace(value) == Some(value);
        if let Some(id) = metric.id.filter(|_| tell == Tell::Again || !as_before) {
            self.meter.record(id, value);
        }
    }

    /// Tells the host a gauge's value or a histogram's sample, whatever it was told before.
    pub(super) fn record(&mut self, kind: MetricKind, key: Key, value: u64) {
        if let Some(id) = self.metric(kind, key).id {
            self.meter.record(id, value);
        }
    }

    fn metric(&mut self, kind: MetricKind, key: Key) -> &mut Defined {
        self.defined.entry(key).or_insert_with(|| Defined {
            id: self.meter.define(kind, &full_name(&key, &self.names)),
            pending: 0,
            told: None,
        })
    }
}

fn endpoint_name(names: &BTreeMap<EndpointId, String>, endpoint: EndpointId) -> &str {
    names.get(&endpoint).map_or("unknown", String::as_str)
}

fn full_name(key: &Key, names: &BTreeMap<EndpointId, String>) -> String {
    let endpoint = key
        .endpoint
        .map(|id| ("endpoint", endpoint_name(names, id)));
    let labels = key.labels.into_iter().filter(|label| *label != NO_LABEL);
    let mut full = String::with_capacity(128);
    for (label, value) in endpoint.into_iter().chain(labels) {
        for part in [label, "=.=", value, ";.;"] {
            full.push_str(part);
        }
    }
    full.push_str(key.name);
    full
}
