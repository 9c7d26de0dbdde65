//! What the engines say of themselves: their load, the size of their caches, and their restarts.

use std::collections::BTreeMap;

use super::Balancer;
use crate::endpoint::EndpointId;
use crate::index::BLOCK_BYTES;
use crate::policy::Load;
use crate::state::Store;
use crate::state::snapshots::{self, Report};

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

impl Balancer {
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
    pub(super) fn learn_sizes(&mut self) {
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
