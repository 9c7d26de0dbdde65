//! `power_of_two`: the less loaded of two endpoints drawn at random.

use std::cmp::Ordering;

use super::order::{Random, by_requests, by_tokens, fill, rank_by};
use super::queue_time::QueueTime;
use super::{Candidate, LoadKind, Policy, Ranking, Reason, View};

/// Draws two distinct candidates, each as likely as any other, and takes the one that carries less.
///
/// The retries are the other of the two, then one more at random.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerOfTwo {
    load: LoadKind,
}

impl PowerOfTwo {
    /// Compares by `load`.
    pub fn new(load: LoadKind) -> Self {
        Self { load }
    }
}

/// A share of the endpoint's own cache: the capacity is in it already.
fn by_kv(a: &Candidate, b: &Candidate) -> Ordering {
    a.kv_usage_permille
        .cmp(&b.kv_usage_permille)
        .then_with(|| by_requests(a, b))
}

/// Two distinct candidates, or the only one.
fn draw(candidates: &[Candidate], random: &mut Random) -> Option<Vec<Candidate>> {
    let count = u64::try_from(candidates.len()).ok()?;
    let first = usize::try_from(random.below(count)).ok()?;
    let mut drawn = vec![*candidates.get(first)?];
    if count > 1 {
        let other = usize::try_from(random.below(count.saturating_sub(1))).ok()?;
        let other = if other >= first {
            other.saturating_add(1)
        } else {
            other
        };
        drawn.push(*candidates.get(other)?);
    }
    Some(drawn)
}

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        "power_of_two"
    }

    fn reads_body(&self) -> bool {
        matches!(self.load, LoadKind::Tokens | LoadKind::ExpectedTime)
    }

    fn reads_pace(&self) -> bool {
        self.load == LoadKind::ExpectedTime
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let mut random = Random::new(view.random);
        let drawn = draw(view.candidates, &mut random)?;
        let reason = if drawn.len() > 1 {
            Reason::LessLoadedOfTwo
        } else {
            Reason::LeastLoaded
        };
        let mut endpoints = match self.load {
            LoadKind::Requests => rank_by(&drawn, &mut random, by_requests),
            LoadKind::Tokens => rank_by(&drawn, &mut random, by_tokens),
            LoadKind::Kv => rank_by(&drawn, &mut random, by_kv),
            LoadKind::ExpectedTime => {
                let queue = QueueTime::new(view);
                rank_by(&drawn, &mut random, |a, b| queue.order(a, b))
            }
        };
        fill(&mut endpoints, view.candidates, &mut random, |_, _| {
            Ordering::Equal
        });
        Ranking::plain(endpoints, reason)
    }
}
