//! What the engines say of themselves, and what becomes of it: their load, and their restarts.

use std::collections::BTreeMap;

use super::Balancer;
use crate::endpoint::{EndpointId, MAX_KNOWN};
use crate::index::BLOCK_BYTES;
use crate::policy::Load;
use crate::state::Store;
use crate::state::snapshots::{self, Report};

/// An endpoint that refuses connections is forgotten once in so long, in milliseconds.
const FORGET_EVERY_MS: u64 = 1_000;

/// An endpoint as its engine last reported it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// The report still counts.
    pub(super) fresh: bool,
    /// Traffic that is not ours.
    pub(super) others: Load,
    pub(super) kv_usage_permille: u32,
    /// Size of the KV cache; 0 if unknown.
    pub(super) kv_tokens: u64,
    kv_reported_tokens: u64,
    /// What our requests there held at that moment.
    ours_held_tokens: u64,
}

impl Seen {
    /// KV cache that is in use or waited for now: as reported, with the context of `ours` in the place of
    /// what they held then, and with other people's prompts that wait. 0 if the size is unknown.
    pub(super) fn kv_used_tokens(&self, ours: Load) -> u64 {
        if self.kv_tokens == 0 {
            return 0;
        }
        self.kv_reported_tokens
            .saturating_add(ours.context_tokens)
            .saturating_sub(self.ours_held_tokens)
            .saturating_add(self.others.prefill_tokens)
    }
}

/// Endpoints that refused a connection: each once, however often it did.
#[derive(Debug, Default)]
pub(super) struct Outages {
    outages: Vec<Outage>,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    endpoint: EndpointId,
    forgotten_ms: u64,
    /// It has refused again since.
    again: bool,
}

impl Outage {
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.forgotten_ms) >= FORGET_EVERY_MS
    }
}

impl Outages {
    /// Whether what an endpoint holds is to be forgotten now that it refused a connection. If not, it
    /// is a little later.
    fn refused(&mut self, now_ms: u64, endpoint: EndpointId) -> bool {
        let mut outages = self.outages.iter_mut();
        match outages.find(|outage| outage.endpoint == endpoint) {
            Some(outage) if outage.is_over(now_ms) => {
                outage.forgotten_ms = now_ms;
                outage.again = false;
            }
            Some(outage) => {
                outage.again = true;
                return false;
            }
            None => {
                if self.outages.len() >= MAX_KNOWN {
                    self.outages.clear();
                }
                self.outages.push(Outage {
                    endpoint,
                    forgotten_ms: now_ms,
                    again: false,
                });
            }
        }
        true
    }

    /// One that has refused again since it was forgotten, if that is long enough ago.
    fn due(&mut self, now_ms: u64) -> Option<EndpointId> {
        let mut outages = self.outages.iter_mut();
        let outage = outages.find(|outage| outage.again && outage.is_over(now_ms))?;
        outage.again = false;
        outage.forgotten_ms = now_ms;
        Some(outage.endpoint)
    }
}

impl Balancer {
    /// Periodic work: heartbeat, dead VMs, and the engines' latest reports.
    pub fn tick<S: Store + ?Sized>(&mut self, store: &S, now_ms: u64) {
        self.ledger.tick(store, now_ms);
        self.catalogue.tick(store);
        self.board.refresh(store, now_ms);
        while let Some(endpoint) = self.outages.due(now_ms) {
            self.forget(store, endpoint);
        }
        if self.stale_after_ms > 0 {
            self.reports = snapshots::load(store, self.config.fingerprint)
                .into_iter()
                .map(|report| (report.endpoint, report))
                .collect();
            self.learn_sizes();
        }
    }

    /// Gives up what the store has of endpoints that nobody has named for long: lists of models, and reports.
    /// Once a minute is often enough.
    pub fn sweep<S: Store + ?Sized>(&self, store: &S, now_ms: u64) {
        let members = self.endpoints();
        let named = |endpoint| members.contains_key(&endpoint);
        self.catalogue.sweep(store, now_ms, &named);
        if self.stale_after_ms > 0 {
            snapshots::sweep(store, self.config.fingerprint, now_ms, &named);
        }
    }

    /// The configuration is gone: nothing of it stays in the store.
    pub fn close<S: Store + ?Sized>(&mut self, store: &S) {
        snapshots::clear(store, self.config.fingerprint);
        if let Some(index) = &mut self.index {
            index.clear(store);
        }
    }

    /// Takes an engine's report, asked for at `asked_ms`, for all workers. Says whether it shows that the engine was restarted
    /// since the last one; what was cached there is then forgotten. Of each restart one worker hears.
    pub fn reported<S: Store + ?Sized>(
        &mut self,
        store: &S,
        asked_ms: u64,
        report: Report,
    ) -> bool {
        let restarted = snapshots::merge(store, self.config.fingerprint, asked_ms, report);
        if restarted {
            self.forget(store, report.endpoint);
        }
        restarted
    }

    /// The endpoint refused a connection: nothing runs there, and what will has an empty cache.
    pub(super) fn refused<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
    ) {
        if self.index.is_some() && self.outages.refused(now_ms, endpoint) {
            self.forget(store, endpoint);
        }
    }

    /// Nothing is cached there any more.
    #[cold]
    fn forget<S: Store + ?Sized>(&mut self, store: &S, endpoint: EndpointId) {
        if let Some(index) = &mut self.index {
            index.forget(store, endpoint);
        }
    }

    /// What a fresh report tells of an endpoint besides our own requests; nothing without one.
    pub(super) fn seen(&self, id: EndpointId, now_ms: u64) -> Seen {
        let report = self.reports.get(&id);
        let Some(report) = report.filter(|one| one.is_fresh(now_ms, self.stale_after_ms)) else {
            return Seen::default();
        };
        let requests = report.others();
        let waiting = requests.min(report.waiting);
        let priced = |requests: u32, tokens: u64| u64::from(requests).saturating_mul(tokens);
        let used = report
            .kv_tokens
            .saturating_mul(u64::from(report.kv_usage_permille));
        Seen {
            fresh: true,
            others: Load {
                requests,
                waiting,
                prefill_tokens: priced(waiting, self.typical.prefill_tokens),
                decode_tokens: priced(requests, self.typical.decode_tokens),
                context_tokens: priced(requests, self.typical.context_tokens),
            },
            kv_usage_permille: report.kv_usage_permille,
            kv_tokens: report.kv_tokens,
            kv_reported_tokens: used / 1_000,
            ours_held_tokens: report.ours_held_tokens,
        }
    }

    /// Tells the index how large the engines' caches are.
    fn learn_sizes(&mut self) {
        let Some(index) = &mut self.index else {
            return;
        };
        for (id, report) in &self.reports {
            let bytes = self.config.tokens.text_bytes(report.kv_tokens);
            let blocks = bytes / u64::from(BLOCK_BYTES);
            index.size(*id, u32::try_from(blocks).unwrap_or(u32::MAX));
        }
    }

    /// The latest report on each endpoint, fresh or not.
    pub fn reports(&self) -> &BTreeMap<EndpointId, Report> {
        &self.reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_is_forgotten_once_a_second_and_once_more_after_the_last_time() {
        let mut outages = Outages::default();
        let (one, two) = (EndpointId(1), EndpointId(2));
        assert!(outages.refused(5_000, one) && outages.refused(5_001, two));
        assert!(!outages.refused(5_500, one) && !outages.refused(5_999, one));
        assert_eq!(outages.due(5_900), None);
        assert_eq!(outages.due(6_001), Some(one));
        assert_eq!(outages.due(6_001), None);
        assert!(!outages.refused(6_100, one), "not twice within a second");
        assert_eq!(outages.due(7_001), Some(one));
        assert_eq!(outages.due(9_000), None);
        assert!(outages.refused(9_001, one));
        // A clock that is set back holds nothing up.
        assert!(outages.refused(1_000, one));
    }
}
