//! `least_request`: the fewest requests under way, per weight.

use super::order::{Random, by_requests, rank_by};
use super::{Policy, Ranking, Reason, View};

/// Argmin of requests / weight. Where that is equal fewer tokens / weight win, then chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastRequest;

impl Policy for LeastRequest {
    fn name(&self) -> &'static str {
        "least_request"
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let endpoints = rank_by(view.candidates, &mut Random::new(view.random), by_requests);
        Ranking::plain(endpoints, Reason::LeastLoaded)
    }
}
