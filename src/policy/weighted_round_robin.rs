//! `weighted_round_robin`: each endpoint as often as its weight says, evenly interleaved.

use std::sync::{Arc, Mutex};

use super::ring::gcd;
use super::{Candidate, Policy, RANKED, Ranking, Reason, View};

/// Longest cycle, in picks. More candidates than that take plain turns.
pub const MAX_CYCLE: u64 = 1024;

/// How many cycles are remembered: one for each set of eligible endpoints lately seen.
const REMEMBERED: usize = 8;

/// The weights that a cycle is made of: reduced by their greatest common divisor, then scaled down
/// in proportion, none below 1, if they add up to more than [`MAX_CYCLE`].
fn cycle_weights(weights: impl Iterator<Item = u64> + Clone) -> Vec<u64> {
    let divisor = weights.clone().fold(0, gcd).max(1);
    let reduced: Vec<u64> = weights
        .map(|weight| weight.checked_div(divisor).unwrap_or(1).max(1))
        .collect();
    let total = reduced
        .iter()
        .fold(0u64, |sum, &weight| sum.saturating_add(weight));
    if total <= MAX_CYCLE {
        return reduced;
    }
    // Rounding up to 1 adds at most one position for each candidate.
    let room = MAX_CYCLE.saturating_sub(u64::try_from(reduced.len()).unwrap_or(MAX_CYCLE));
    let scaled = reduced.iter().map(|&weight| {
        let wide = u128::from(weight)
            .saturating_mul(u128::from(room))
            .checked_div(u128::from(total));
        wide.and_then(|scaled| u64::try_from(scaled).ok())
            .unwrap_or(1)
            .max(1)
    });
    scaled.collect()
}

/// One cycle of smooth weighted round robin, as nginx does it: at every position each weight is added
/// to its candidate's credit; the largest credit (the first of equals) wins and pays the total.
///
/// Returns positions in `weights`; position `i` comes as often as its weight says, all of them
/// reduced by their greatest common divisor and bounded by [`MAX_CYCLE`].
pub fn smooth_schedule(weights: &[u32]) -> Vec<u32> {
    let weights = cycle_weights(weights.iter().map(|&weight| u64::from(weight.max(1))));
    let total = weights
        .iter()
        .fold(0u64, |sum, &weight| sum.saturating_add(weight));
    let mut credits = vec![0i64; weights.len()];
    let mut schedule = Vec::new();
    for _ in 0..total {
        let mut winner: Option<(i64, u32)> = None;
        for ((credit, &weight), index) in credits.iter_mut().zip(&weights).zip(0u32..) {
            *credit = credit.saturating_add_unsigned(weight);
            if winner.is_none_or(|(best, _)| *credit > best) {
                winner = Some((*credit, index));
            }
        }
        let Some((_, index)) = winner else { break };
        if let Some(credit) = credits.get_mut(index as usize) {
            *credit = credit.saturating_sub_unsigned(total);
        }
        schedule.push(index);
    }
    schedule
}

/// A cycle and the weights it belongs to.
#[derive(Clone, Debug)]
struct Cycle {
    weights: Vec<u32>,
    schedule: Arc<[u32]>,
}

/// Smooth weighted round robin by the pool's count of picks.
///
/// The place in the cycle follows from the count alone, so that all workers agree. The cycles are
/// remembered only to save computing them again.
#[derive(Debug, Default)]
pub struct WeightedRoundRobin {
    cycles: Mutex<Vec<Cycle>>,
}

impl WeightedRoundRobin {
    /// With no cycle computed yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn schedule(&self, candidates: &[Candidate]) -> Arc<[u32]> {
        let weights = candidates.iter().map(|candidate| candidate.weight);
        // Busy or poisoned: compute; the result is the same.
        let mut cycles = self.cycles.try_lock().ok();
        let known = cycles.as_ref().and_then(|cycles| {
            cycles
                .iter()
                .find(|cycle| cycle.weights.iter().copied().eq(weights.clone()))
        });
        if let Some(cycle) = known {
            return Arc::clone(&cycle.schedule);
        }
        let weights: Vec<u32> = weights.collect();
        let schedule: Arc<[u32]> = smooth_schedule(&weights).into();
        if let Some(cycles) = cycles.as_mut() {
            if cycles.len() >= REMEMBERED {
                cycles.remove(0);
            }
            cycles.push(Cycle {
                weights,
                schedule: Arc::clone(&schedule),
            });
        }
        schedule
    }
}

impl Policy for WeightedRoundRobin {
    fn name(&self) -> &'static str {
        "weighted_round_robin"
    }

    fn reads_body(&self) -> bool {
        false
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let schedule = self.schedule(view.candidates);
        let turns = u64::try_from(schedule.len()).ok()?;
        let start = usize::try_from(view.sequence.checked_rem(turns)?).ok()?;
        let (before, from) = schedule.split_at_checked(start)?;
        let wanted = RANKED.min(view.candidates.len());
        let mut endpoints = Vec::with_capacity(wanted);
        for &position in from.iter().chain(before) {
            let endpoint = view.candidates.get(position as usize)?.endpoint;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
            if endpoints.len() >= wanted {
                break;
            }
        }
        Ranking::plain(endpoints, Reason::Turn)
    }
}
