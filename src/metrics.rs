//! Events and totals as Envoy metrics: what is counted, and under which names.
//!
//! A call to the host costs as much as a good part of a pick, so counters are added up here and
//! handed over with every tick, and gauges are set when they change.

mod gauges;
mod table;

pub use self::table::{Meter, MetricKind};

use self::gauges::Gauges;
use self::table::{Key, Label, NO_LABEL, Table};
use crate::balancer::Balancer;
use crate::endpoint::EndpointId;
use crate::health::{State, Turn};
use crate::policy::Reason;
use crate::request::Scan;
use crate::session::{Answer, Event, Failure, reason_name};

/// The metrics of one VM.
pub struct Metrics<M> {
    table: Table<M>,
    gauges: Gauges,
}

impl<M: Meter> Metrics<M> {
    /// Knows the names of the balancer's endpoints.
    pub fn new(meter: M, balancer: &Balancer) -> Self {
        let mut metrics = Self {
            table: Table::new(meter),
            gauges: Gauges::default(),
        };
        metrics.follow(balancer);
        metrics
    }

    /// Learns the names of endpoints that came. Those that left keep theirs, as long as there is room: what
    /// they still carry is told until it is nothing.
    pub fn follow(&mut self, balancer: &Balancer) {
        let present = balancer.endpoints();
        if !self.table.has_room(&present) {
            self.table.clear();
            self.gauges.clear();
        }
        self.table.learn(&present);
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
            Event::WatchdogFired => self.labelled("warmroute_watchdog_total", None, NO_LABEL, 1),
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
        let picks = Key {
            name: "warmroute_picks_total",
            endpoint: Some(endpoint),
            labels: [("policy", policy), ("reason", reason_name(reason))],
        };
        self.table.count(picks, 1);
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
                let key = Key::new(name, Some(endpoint), NO_LABEL);
                self.table
                    .record(MetricKind::Histogram, key, time_us / 1_000);
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
        self.labelled("warmroute_discovery_failures_total", None, NO_LABEL, 1);
    }

    /// An endpoint as metrics call it.
    pub fn name(&self, endpoint: EndpointId) -> &str {
        self.table.name(endpoint)
    }

    /// An endpoint changed its state.
    pub fn turned(&mut self, turn: &Turn) {
        if turn.to == State::Ejected {
            let name = "warmroute_ejections_total";
            self.labelled(name, Some(turn.endpoint), ("cause", turn.why.name()), 1);
        }
    }

    /// Hands over what was counted.
    pub fn flush(&mut self) {
        self.table.flush();
    }

    fn count(&mut self, name: &'static str, endpoint: EndpointId, by: u64) {
        self.labelled(name, Some(endpoint), NO_LABEL, by);
    }

    fn labelled(
        &mut self,
        name: &'static str,
        endpoint: Option<EndpointId>,
        label: Label,
        by: u64,
    ) {
        self.table.count(Key::new(name, endpoint, label), by);
    }
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
