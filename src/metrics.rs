//! Events and totals as Envoy metrics: their names, and when the host is told.
//!
//! The host knows no labels: they stand in front of the name as `label=.=value;.;`, and the
//! `stats_tags` of the shipped configurations take them out again. Each metric is defined once and
//! its number kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::balancer::Balancer;
use crate::endpoint::EndpointId;
use crate::health::{State, Turn};
use crate::policy::{Load, Reason};
use crate::request::Scan;
use crate::session::{Answer, Event, Failure, reason_name};

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
/// Who sets gauges does so with every tick. After a longer break, in milliseconds, another VM may have set
/// them.
const BREAK_MS: u64 = 1_000;
/// A gauge that stays as it is is set again once in so many ticks, 10 s, in case another VM has set it.
const TELL_AGAIN_TICKS: u64 = 100;

/// Identifies a defined metric without building its name.
type Key = (&'static str, Option<EndpointId>, &'static str, &'static str);

/// A metric as the host knows it; without a number if the host refused to define it.
struct Defined {
    id: Option<u32>,
    /// What was counted since the last flush.
    pending: u64,
    /// What a gauge was last set to.
    told: Option<u64>,
}

/// The metrics of one VM.
///
/// A call to the host costs as much as a good part of a pick, so counters are added up here and
/// handed over with every tick, and gauges are set when they change.
pub struct Metrics<M> {
    meter: M,
    defined: BTreeMap<Key, Defined>,
    names: BTreeMap<EndpointId, String>,
    /// Whose gauges may be other than 0.
    shown: BTreeSet<EndpointId>,
    /// When gauges were last set, in milliseconds.
    gauges_ms: u64,
    gauge_ticks: u64,
    /// Gauges are set although they stay as they are.
    tell_again: bool,
}

impl<M: Meter> Metrics<M> {
    /// Knows the names of the balancer's endpoints.
    pub fn new(meter: M, balancer: &Balancer) -> Self {
        let mut metrics = Self {
            meter,
            defined: BTreeMap::new(),
            names: BTreeMap::new(),
            shown: BTreeSet::new(),
            gauges_ms: 0,
            gauge_ticks: 0,
            tell_again: false,
        };
        metrics.follow(balancer);
        metrics
    }

    /// Learns the names of endpoints that came. Those that left keep theirs, as long as there is room: what
    /// they still carry is told until it is nothing.
    pub fn follow(&mut self, balancer: &Balancer) {
        let present = balancer.endpoints();
        let new = present.keys().filter(|id| !self.names.contains_key(id));
        if self.names.len().saturating_add(new.count()) > MAX_NAMES {
            // The host keeps the values, and finds a metric again by its name.
            self.flush();
            self.defined.clear();
            self.names.clear();
            self.shown.clear();
        }
        for (id, endpoint) in present {
            let name = || endpoint.name().to_owned();
            self.names.entry(id).or_insert_with(name);
        }
    }

    /// Counts one event.
    pub fn event(&mut self, event: Event) {
        match event {
            Event::Parsed(scan) => self.labelled(
                "warmroute_parse_total",
                None,
                ("outcome", scan_name(scan)),
                1,
            ),
            Event::Picked {
                policy,
                endpoint,
                reason,
            } => self.picked(policy, endpoint, reason),
            Event::Retried { endpoint, retries } => {
                self.count("warmroute_retries_total", endpoint, retries)
            }
            Event::Replied(kind) => self.labelled(
                "warmroute_local_replies_total",
                None,
                ("kind", kind.name()),
                1,
            ),
            Event::WatchdogFired => self.labelled("warmroute_watchdog_total", None, ("", ""), 1),
            Event::Failed { endpoint, failure } => {
                self.labelled(
                    "warmroute_failures_total",
                    Some(endpoint),
                    ("kind", failure_name(failure)),
                    1,
                );
            }
            Event::Answered(answer) => self.answered(&answer),
        }
    }

    fn picked(&mut self, policy: &'static str, endpoint: EndpointId, reason: Reason) {
        let key = (
            "warmroute_picks_total",
            Some(endpoint),
            policy,
            reason_name(reason),
        );
        self.add(key, 1, |names| {
            let labels = [
                ("endpoint", endpoint_name(names, endpoint)),
                ("policy", policy),
                ("reason", reason_name(reason)),
            ];
            full_name("warmroute_picks_total", &labels)
        });
        if reason == Reason::Overflow {
            self.count("warmroute_overflow_total", endpoint, 1);
        }
    }

    fn answered(&mut self, answer: &Answer) {
        let endpoint = answer.endpoint;
        let times = [
            ("warmroute_ttft_ms", answer.ttft_us),
            ("warmroute_e2e_ms", answer.e2e_us),
            ("warmroute_tpot_ms", answer.tpot_us),
        ];
        for (name, time_us) in times {
            if let Some(time_us) = time_us {
                let kind = MetricKind::Histogram;
                self.record(kind, name, Some(endpoint), ("", ""), time_us / 1_000);
            }
        }
        if let Some(usage) = answer.usage {
            self.count(
                "warmroute_prompt_tokens_total",
                endpoint,
                usage.prompt_tokens,
            );
            self.count(
                "warmroute_cached_tokens_total",
                endpoint,
                usage.cached_tokens.unwrap_or(0),
            );
            self.count(
                "warmroute_output_tokens_total",
                endpoint,
                usage.completion_tokens,
            );
        }
    }

    /// An engine was restarted.
    pub fn restarted(&mut self, endpoint: EndpointId) {
        self.count("warmroute_engine_restarts_total", endpoint, 1);
    }

    /// A scrape came to nothing.
    pub fn scrape_failed(&mut self, endpoint: EndpointId) {
        self.count("warmroute_scrape_failures_total", endpoint, 1);
    }

    /// Envoy's list of clusters was not read, or lacks one.
    pub fn discovery_failed(&mut self) {
        self.labelled("warmroute_discovery_failures_total", None, ("", ""), 1);
    }

    /// How long ago the members of all pools were known for certain, in milliseconds.
    pub fn discovery_age(&mut self, age_ms: u64) {
        let name = "warmroute_discovery_age_ms";
        self.record(MetricKind::Gauge, name, None, ("", ""), age_ms);
    }

    /// Sets the gauges, which are the same for the whole Envoy, so that one VM does it for all. Those of an
    /// endpoint that left go to 0 with the last that it holds.
    pub fn gauges(
        &mut self,
        balancer: &Balancer,
        totals: &BTreeMap<EndpointId, Load>,
        now_ms: u64,
    ) {
        let present = balancer.endpoints();
        let after_break = now_ms.abs_diff(self.gauges_ms) > BREAK_MS;
        self.gauges_ms = now_ms;
        self.gauge_ticks = self.gauge_ticks.wrapping_add(1);
        if after_break {
            // Whom the other VM had on show may have left since.
            self.shown.extend(self.names.keys().copied());
        }
        let busy = totals.iter().filter(|(_, load)| !load.is_zero());
        let shown = present.keys().chain(busy.map(|(id, _)| id));
        let names = &self.names;
        self.shown
            .extend(shown.filter(|id| names.contains_key(id)).copied());
        for id in std::mem::take(&mut self.shown) {
            let load = totals.get(&id).copied().unwrap_or_default();
            let (state, age_ms) = match present.contains_key(&id) {
                true => (
                    Some(balancer.state(id, now_ms).0),
                    balancer.reports().get(&id).map(|one| one.age_ms(now_ms)),
                ),
                // It is on its way out until it has finished what it has.
                false => (
                    Some(State::Draining).filter(|_| load.requests > 0),
                    balancer.config().scrape.as_ref().map(|_| 0),
                ),
            };
            // Not all in the same tick.
            let turn = self.gauge_ticks.wrapping_add(id.0 % TELL_AGAIN_TICKS);
            self.tell_again = after_break || turn.is_multiple_of(TELL_AGAIN_TICKS);
            self.load(id, load);
            self.state(id, state);
            if let Some(age_ms) = age_ms {
                self.gauge("warmroute_scrape_age_ms", id, age_ms);
            }
            if present.contains_key(&id) || !load.is_zero() {
                self.shown.insert(id);
            }
        }
    }

    fn load(&mut self, id: EndpointId, load: Load) {
        self.gauge("warmroute_inflight_requests", id, u64::from(load.requests));
        self.gauge("warmroute_inflight_prefill_tokens", id, load.prefill_tokens);
        self.gauge("warmroute_inflight_decode_tokens", id, load.decode_tokens);
    }

    /// An endpoint as metrics call it.
    pub fn name(&self, endpoint: EndpointId) -> &str {
        endpoint_name(&self.names, endpoint)
    }

    /// An endpoint changed its state.
    pub fn turned(&mut self, turn: &Turn) {
        if turn.to == State::Ejected {
            let name = "warmroute_ejections_total";
            self.labelled(name, Some(turn.endpoint), ("cause", turn.why.name()), 1);
        }
    }

    /// Sets 1 for the state that an endpoint is in, and 0 for those that it is not in.
    fn state(&mut self, endpoint: EndpointId, state: Option<State>) {
        for one in State::ALL {
            let label = ("state", one.name());
            let value = u64::from(state == Some(one));
            self.set("warmroute_endpoint_state", endpoint, label, value);
        }
    }

    fn count(&mut self, name: &'static str, endpoint: EndpointId, by: u64) {
        self.labelled(name, Some(endpoint), ("", ""), by);
    }

    fn labelled(
        &mut self,
        name: &'static str,
        endpoint: Option<EndpointId>,
        label: (&'static str, &'static str),
        by: u64,
    ) {
        self.add((name, endpoint, label.0, label.1), by, |names| {
            let endpoint = endpoint.map(|endpoint| ("endpoint", endpoint_name(names, endpoint)));
            let label = Some(label).filter(|label| !label.0.is_empty());
            let labels: Vec<(&str, &str)> = endpoint.into_iter().chain(label).collect();
            full_name(name, &labels)
        });
    }

    fn add(
        &mut self,
        key: Key,
        by: u64,
        name: impl FnOnce(&BTreeMap<EndpointId, String>) -> String,
    ) {
        let counter = self.defined.entry(key).or_insert_with(|| Defined {
            id: self.meter.define(MetricKind::Counter, &name(&self.names)),
            pending: 0,
            told: None,
        });
        counter.pending = counter.pending.saturating_add(by);
    }

    /// Hands over what was counted.
    pub fn flush(&mut self) {
        for counter in self.defined.values_mut() {
            if let (Some(id), 1..) = (counter.id, counter.pending) {
                self.meter.increment(id, counter.pending);
            }
            counter.pending = 0;
        }
    }

    fn gauge(&mut self, name: &'static str, endpoint: EndpointId, value: u64) {
        self.set(name, endpoint, ("", ""), value);
    }

    /// Sets a gauge, if that changes anything.
    fn set(
        &mut self,
        name: &'static str,
        endpoint: EndpointId,
        label: (&'static str, &'static str),
        value: u64,
    ) {
        let again = self.tell_again;
        let metric = self.metric(MetricKind::Gauge, name, Some(endpoint), label);
        let as_before = metric.told.replace(value) == Some(value);
        if let Some(id) = metric.id.filter(|_| again || !as_before) {
            self.meter.record(id, value);
        }
    }

    fn record(
        &mut self,
        kind: MetricKind,
        name: &'static str,
        endpoint: Option<EndpointId>,
        label: (&'static str, &'static str),
        value: u64,
    ) {
        if let Some(id) = self.metric(kind, name, endpoint, label).id {
            self.meter.record(id, value);
        }
    }

    fn metric(
        &mut self,
        kind: MetricKind,
        name: &'static str,
        endpoint: Option<EndpointId>,
        label: (&'static str, &'static str),
    ) -> &mut Defined {
        let key = (name, endpoint, label.0, label.1);
        self.defined.entry(key).or_insert_with(|| {
            let label = Some(label).filter(|label| !label.0.is_empty());
            let endpoint = endpoint.map(|id| ("endpoint", endpoint_name(&self.names, id)));
            let labels: Vec<(&str, &str)> = endpoint.into_iter().chain(label).collect();
            Defined {
                id: self.meter.define(kind, &full_name(name, &labels)),
                pending: 0,
                told: None,
            }
        })
    }
}

fn endpoint_name(names: &BTreeMap<EndpointId, String>, endpoint: EndpointId) -> &str {
    names.get(&endpoint).map_or("unknown", String::as_str)
}

fn full_name(name: &str, labels: &[(&str, &str)]) -> String {
    let mut full = String::with_capacity(128);
    for (label, value) in labels {
        for part in [label, "=.=", value, ";.;"] {
            full.push_str(part);
        }
    }
    full.push_str(name);
    full
}

fn scan_name(scan: Scan) -> &'static str {
    match scan {
        Scan::Complete => "complete",
        Scan::Unread => "unread",
        Scan::Partial => "partial",
        Scan::Malformed => "malformed",
        Scan::Encoded => "encoded",
    }
}

fn failure_name(failure: Failure) -> &'static str {
    match failure {
        Failure::Unreachable => "unreachable",
        Failure::ServerError => "server_error",
        Failure::Overloaded => "overloaded",
        Failure::BrokenStream => "broken_stream",
        Failure::StreamError => "stream_error",
        Failure::Replaced => "replaced",
    }
}

#[cfg(test)]
mod tests;
