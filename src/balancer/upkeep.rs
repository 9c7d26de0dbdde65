//! What is done now and then, and when a configuration is gone.

use super::Balancer;
use crate::state::Store;
use crate::state::snapshots;

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
}
