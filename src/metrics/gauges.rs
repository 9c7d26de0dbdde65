//! The gauges: what endpoints carry, which state they are in, and how old is what is known.

use std::collections::{BTreeMap, BTreeSet};

use super::Metrics;
use super::table::{Key, Label, Meter, MetricKind, NO_LABEL, Table, Tell};
use crate::balancer::Balancer;
use crate::endpoint::EndpointId;
use crate::health::State;
use crate::policy::Load;

/// Who sets gauges does so with every tick. After a longer break, in milliseconds, another VM may have set
/// them.
const BREAK_MS: u64 = 1_000;
/// A gauge that stays as it is is set again once in so many ticks, 10 s, in case another VM has set it.
const TELL_AGAIN_TICKS: u64 = 100;

/// What is on show, and since when.
#[derive(Default)]
pub(super) struct Gauges {
    /// Whose gauges may be other than 0.
    shown: BTreeSet<EndpointId>,
    /// When gauges were last set, in milliseconds.
    set_ms: u64,
    ticks: u64,
}

impl Gauges {
    /// Takes nobody to be on show any more.
    pub(super) fn clear(&mut self) {
        self.shown.clear();
    }
}

impl<M: Meter> Metrics<M> {
    /// How long ago the members of all pools were known for certain, in milliseconds.
    pub fn discovery_age(&mut self, age_ms: u64) {
        let key = Key::new("warmroute_discovery_age_ms", None, NO_LABEL);
        self.table.record(MetricKind::Gauge, key, age_ms);
    }

    /// Sets the gauges, which are the same for the whole Envoy, so that one VM does it for all. Those of an
    /// endpoint that left go to 0 with the last that it holds.
    pub fn gauges(
        &mut self,
        balancer: &Balancer,
        totals: &BTreeMap<EndpointId, Load>,
        now_ms: u64,
    ) {
        let Self { table, gauges } = self;
        let present = balancer.endpoints();
        let after_break = now_ms.abs_diff(gauges.set_ms) > BREAK_MS;
        gauges.set_ms = now_ms;
        gauges.ticks = gauges.ticks.wrapping_add(1);
        if after_break {
            // Whom the other VM had on show may have left since.
            gauges.shown.extend(table.names().keys());
        }
        let busy = totals.iter().filter(|(_, load)| !load.is_zero());
        let shown = present.keys().chain(busy.map(|(id, _)| id));
        gauges
            .shown
            .extend(shown.filter(|id| table.names().contains_key(id)));
        for id in std::mem::take(&mut gauges.shown) {
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
            let turn = gauges.ticks.wrapping_add(id.0 % TELL_AGAIN_TICKS);
            let tell = match after_break || turn.is_multiple_of(TELL_AGAIN_TICKS) {
                true => Tell::Again,
                false => Tell::Changes,
            };
            let mut endpoint = OfEndpoint { table, id, tell };
            endpoint.load(load);
            endpoint.state(state);
            if let Some(age_ms) = age_ms {
                endpoint.set("warmroute_scrape_age_ms", NO_LABEL, age_ms);
            }
            if present.contains_key(&id) || !load.is_zero() {
                gauges.shown.insert(id);
            }
        }
    }
}

/// The gauges of one endpoint.
struct OfEndpoint<'a, M> {
    table: &'a mut Table<M>,
    id: EndpointId,
    tell: Tell,
}

impl<M: Meter> OfEndpoint<'_, M> {
    fn load(&mut self, load: Load) {
        let requests = u64::from(load.requests);
        self.set("warmroute_inflight_requests", NO_LABEL, requests);
        let (prefill, decode) = (load.prefill_tokens, load.decode_tokens);
        self.set("warmroute_inflight_prefill_tokens", NO_LABEL, prefill);
        self.set("warmroute_inflight_decode_tokens", NO_LABEL, decode);
    }

    /// Sets 1 for the state that it is in, and 0 for those that it is not in.
    fn state(&mut self, state: Option<State>) {
        for one in State::ALL {
            let value = u64::from(state == Some(one));
            self.set("warmroute_endpoint_state", ("state", one.name()), value);
        }
    }

    fn set(&mut self, name: &'static str, label: Label, value: u64) {
        let key = Key::new(name, Some(self.id), label);
        self.table.set(key, value, self.tell);
    }
}
