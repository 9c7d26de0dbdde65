//! `least_outstanding_tokens`: the fewest prefill and decode tokens to come, per weight.

use super::order::{Random, by_tokens, rank_by};
use super::{Policy, Ranking, Reason, View};

/// Argmin of tokens / weight. Where that is equal fewer requests / weight win, then chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastOutstandingTokens;

impl Policy for LeastOutstandingTokens {
    fn name(&self) -> &'static str {
        "least_outstanding_tokens"
    }

    fn reads_body(&self) -> bool {
        true
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let endpoints = rank_by(view.candidates, &mut Random::new(view.random), by_tokens);
        Ranking::plain(endpoints, Reason::LeastLoaded)
    }
}
