//! llm-d's optimized baseline, "sticky until saturated", and its token load alone.
//!
//! Source: "Sticky until saturated: token-aware routing" on llm-d's blog, and the defaults of the
//! plugins `prefix-cache-affinity-filter` and `token-load-scorer`. Endpoints that were sent at least
//! 0.8 of the prompt's blocks are the only candidates, unless the best of them would begin its answer
//! more than 18 s later than the best of the others; that time is estimated from the prompt tokens
//! to compute there, at 15,928 tokens/s. Of the candidates, the one with the fewest tokens to
//! compute, those of this request included, gets it; ties by chance. The probability of exploring
//! elsewhere is zero as it ships.

use super::index::Index;
use super::ledger::Ledger;
use super::{Ask, PeerRouter, least};
use crate::sim::replica::Profile;

/// 0.8, as a fraction.
const AFFINITY: (u64, u64) = (8, 10);
const MAX_PENALTY_TOKENS: u64 = 18 * 15_928;

pub(super) struct Sticky {
    is_sticky: bool,
    index: Index,
    ledger: Ledger,
}

impl Sticky {
    pub(super) fn optimized_baseline(replicas: &[Profile]) -> Self {
        Self {
            is_sticky: true,
            ..Self::token_load(replicas)
        }
    }

    pub(super) fn token_load(replicas: &[Profile]) -> Self {
        Self {
            is_sticky: false,
            index: Index::new(replicas.iter().map(|profile| profile.blocks)),
            ledger: Ledger::new(replicas.len()),
        }
    }

    /// The endpoints to choose from, of those with these matches.
    fn candidates(&self, matched_blocks: &[u64], chain_blocks: u64) -> Vec<usize> {
        let all = 0..matched_blocks.len();
        let (share, of) = AFFINITY;
        let knows = |matched: u64| chain_blocks > 0 && matched * of >= chain_blocks * share;
        let known = matched_blocks.iter().map(|matched| knows(*matched));
        let (sticky, others): (Vec<_>, Vec<_>) = known.enumerate().partition(|(_, knows)| *knows);
        let queued_tokens = |group: &[(usize, bool)]| {
            let queued = group.iter();
            let queued = queued.map(|(endpoint, _)| self.ledger.of(*endpoint).prefill_tokens);
            queued.min()
        };
        let keeps = match (queued_tokens(&sticky), queued_tokens(&others)) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(here), Some(there)) => here <= there.saturating_add(MAX_PENALTY_TOKENS),
        };
        if self.is_sticky && keeps {
            sticky.into_iter().map(|(endpoint, _)| endpoint).collect()
        } else {
            all.collect()
        }
    }
}

impl PeerRouter for Sticky {
    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let endpoints = 0..self.ledger.loads().len();
        let matched: Vec<u64> = endpoints
            .map(|endpoint| u64::from(self.index.matched_blocks(endpoint, ask.chain)))
            .collect();
        let uncached_tokens = |endpoint: usize| {
            let matched = matched.get(endpoint).copied().unwrap_or(0);
            let cached_tokens = matched * u64::from(ask.block_tokens);
            ask.prompt_tokens().saturating_sub(cached_tokens)
        };
        let candidates = self.candidates(&matched, ask.chain.len() as u64);
        let loads = candidates.into_iter().map(|endpoint| {
            let queued_tokens = self.ledger.of(endpoint).prefill_tokens;
            (endpoint, queued_tokens + uncached_tokens(endpoint))
        });
        let endpoint = least(loads, ask.random);
        self.ledger
            .begin(ask.id, endpoint, uncached_tokens(endpoint));
        self.index.insert(endpoint, ask.chain);
        endpoint
    }

    fn first_token(&mut self, id: u32) {
        self.ledger.first_token(id);
    }

    fn finished(&mut self, id: u32) {
        self.ledger.finish(id);
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }
}
