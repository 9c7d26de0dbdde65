//! The endpoints of a pool as a pick sees them: what is known of each, and what it carries.

use super::Balancer;
use super::decision::Ask;
use super::engines::Seen;
use super::pools::PoolState;
use crate::endpoint::{Endpoint, EndpointId};
use crate::index::{BLOCK_BYTES, Match, PrefixIndex};
use crate::models::{Affinity, Catalogue, Serves, Wanted};
use crate::policy::{Candidate, Load};
use crate::rates::Pace;
use crate::state::Store;
use crate::state::ledger::Carried;
use crate::tokens::TokenEstimator;

/// What is known about an endpoint besides its load.
#[derive(Default)]
pub(super) struct Known {
    matched: Match,
    matched_tokens: u64,
    given_blocks: u32,
    pace: Pace,
    seen: Seen,
    pub(super) serves: Serves,
    pub(super) affinity: Affinity,
}

impl Known {
    /// What engines say of who serves the model, and where an adapter is at hand.
    fn look_up_model(
        &mut self,
        catalogue: &Catalogue,
        endpoint: &Endpoint,
        id: EndpointId,
        wanted: &Wanted<'_>,
    ) {
        self.serves = catalogue.serves(endpoint, wanted);
        if self.seen.fresh {
            self.affinity = catalogue.affinity(id, wanted);
        }
    }

    /// How much of the prompt the endpoint is believed to hold.
    fn look_up_prompt(
        &mut self,
        index: &PrefixIndex,
        id: EndpointId,
        ask: &Ask<'_>,
        text: TokenEstimator,
    ) {
        self.matched = index.longest_match(id, ask.blocks);
        let bytes = u64::from(self.matched.blocks) * u64::from(BLOCK_BYTES);
        self.matched_tokens = text.text_tokens(bytes).min(ask.cost.prefill_tokens);
        self.given_blocks = index.given_blocks(id);
    }
}

/// What is known about the endpoint of a candidate.
pub(super) fn known_of<'a>(candidate: &Candidate, known: &'a [Known]) -> Option<&'a Known> {
    known.get(usize::try_from(candidate.endpoint).ok()?)
}

impl Balancer {
    /// What is known about the endpoints of the pool, in their order; `None` if there is no such pool.
    ///
    /// Who does not ask does not pay: paces and the index are looked into only for policies that read them.
    pub(super) fn known<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        ask: &Ask<'_>,
    ) -> Option<Vec<Known>> {
        let state = self.pools.get(ask.pool)?;
        let seen = |id: &EndpointId| Known {
            seen: self.seen(*id, now_ms),
            ..Known::default()
        };
        let mut known: Vec<Known> = state.ids.iter().map(seen).collect();
        if state.policy.reads_pace() {
            let paces = self.rates.paces(&state.ids);
            for (known, pace) in known.iter_mut().zip(paces) {
                known.pace = pace;
            }
        }
        if let Some(wanted) = self.catalogue.wanted(ask.model) {
            let endpoints = state.config.pool.endpoints().iter().zip(&state.ids);
            for (known, (endpoint, id)) in known.iter_mut().zip(endpoints) {
                known.look_up_model(&self.catalogue, endpoint, *id, &wanted);
            }
        }
        let index = self.index.as_mut();
        if let Some(index) = index.filter(|_| state.policy.reads_index()) {
            let index = index.latest(store);
            let text = self.learned.text_estimator(&self.config.tokens, ask.model);
            for (known, id) in known.iter_mut().zip(&state.ids) {
                known.look_up_prompt(index, *id, ask, text);
            }
        }
        Some(known)
    }
}

/// All endpoints of the pool as a policy may see them.
pub(super) fn all(
    state: &PoolState,
    carried: &[Carried],
    known: &[Known],
    now_ms: u64,
) -> Vec<Candidate> {
    let endpoints = state.config.pool.endpoints().iter().zip(0_u32..);
    let facts = carried.iter().zip(known);
    let candidate = |((endpoint, index), (ours, known)): ((&Endpoint, u32), (&Carried, &Known))| {
        let seen = &known.seen;
        let load = ours.load.plus(seen.others);
        Candidate {
            endpoint: index,
            weight: endpoint.weight.max(1),
            load,
            other_requests: seen.others.requests,
            kv_usage_permille: seen.kv_usage_permille,
            matched_blocks: known.matched.blocks,
            matched_tokens: known.matched_tokens,
            matched_age_permille: known.matched.age_permille,
            given_blocks: known.given_blocks,
            queue_tokens: match state.policy.reads_pace() {
                true => queue_tokens(&known.pace, load, now_ms, ours.moved_ms),
                false => load.prefill_tokens,
            },
            kv_tokens: seen.kv_tokens,
            kv_used_tokens: seen.kv_used_tokens(ours.load),
            pace: known.pace,
        }
    };
    endpoints.zip(facts).map(candidate).collect()
}

/// Prompt tokens that are computed before a new one, without what should be done by now.
///
/// An engine whose queue has not moved for much longer than it should take waits for something else,
/// for space above all: then nothing is taken off.
pub(super) fn queue_tokens(pace: &Pace, load: Load, now_ms: u64, moved_ms: u64) -> u64 {
    let elapsed_us = now_ms.saturating_sub(moved_ms).saturating_mul(1_000);
    let patience_us = pace.prefill_us(load.prefill_tokens).saturating_mul(3) / 2;
    let steps_us = pace.output_us(load.context_tokens).saturating_mul(2);
    if load.waiting == 0 || elapsed_us > patience_us.saturating_add(steps_us) {
        return load.prefill_tokens;
    }
    load.prefill_tokens
        .saturating_sub(pace.prefill_tokens(elapsed_us))
}
