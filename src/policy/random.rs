//! `random`: chance, in proportion to the weights.

use std::cmp::Ordering;

use super::order::{Random, rank_by};
use super::{Policy, Ranking, Reason, View};

/// Draws endpoints in proportion to their weights; the retries are drawn from the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct RandomPick;

impl Policy for RandomPick {
    fn name(&self) -> &'static str {
        "random"
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let mut random = Random::new(view.random);
        let endpoints = rank_by(view.candidates, &mut random, |_, _| Ordering::Equal);
        Ranking::plain(endpoints, Reason::Random)
    }
}
