//! Exact comparison of loads, and fair choice among equals.

use std::cmp::Ordering;

use super::{Candidate, Load, RANKED};
pub(super) use crate::random::Random;

/// Compares `load / capacity` of two candidates without division.
pub(super) fn per_capacity(a: &Candidate, b: &Candidate, load: impl Fn(&Load) -> u64) -> Ordering {
    // Two 64-bit factors always fit into 128 bits.
    let left = u128::from(load(&a.load)).wrapping_mul(u128::from(b.capacity()));
    let right = u128::from(load(&b.load)).wrapping_mul(u128::from(a.capacity()));
    left.cmp(&right)
}

/// Requests per capacity, then tokens per capacity.
#[inline(never)]
pub(super) fn by_requests(a: &Candidate, b: &Candidate) -> Ordering {
    per_capacity(a, b, |load| u64::from(load.requests))
        .then_with(|| per_capacity(a, b, Load::tokens))
}

/// Tokens per capacity, then requests per capacity.
#[inline(never)]
pub(super) fn by_tokens(a: &Candidate, b: &Candidate) -> Ordering {
    per_capacity(a, b, Load::tokens)
        .then_with(|| per_capacity(a, b, |load| u64::from(load.requests)))
}

/// The best [`RANKED`] candidates by `order`, best first; see [`fill`].
pub(super) fn rank_by(
    candidates: &[Candidate],
    random: &mut Random,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) -> Vec<u32> {
    let mut ranked = Vec::with_capacity(RANKED);
    fill(&mut ranked, candidates, random, order);
    ranked
}

/// Appends the best of the other candidates until [`RANKED`] are named or none is left.
///
/// Equals are drawn from in proportion to their capacity, so that no position in the pool is
/// favoured and idle endpoints share by what they can carry.
pub(super) fn fill(
    ranked: &mut Vec<u32>,
    candidates: &[Candidate],
    random: &mut Random,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    fill_by(ranked, candidates, random, &order);
}

/// Not generic: the module would hold it once for each order.
#[inline(never)]
fn fill_by(
    ranked: &mut Vec<u32>,
    candidates: &[Candidate],
    random: &mut Random,
    order: &dyn Fn(&Candidate, &Candidate) -> Ordering,
) {
    while ranked.len() < RANKED {
        let Some(best) = best_of(candidates, ranked, random, order) else {
            return;
        };
        ranked.push(best);
    }
}

fn best_of(
    candidates: &[Candidate],
    taken: &[u32],
    random: &mut Random,
    order: &dyn Fn(&Candidate, &Candidate) -> Ordering,
) -> Option<u32> {
    let mut best: Option<&Candidate> = None;
    let mut tied: u64 = 0;
    for candidate in candidates
        .iter()
        .filter(|candidate| !taken.contains(&candidate.endpoint))
    {
        match best.map_or(Ordering::Less, |best| order(candidate, best)) {
            Ordering::Less => {
                best = Some(candidate);
                tied = candidate.capacity();
            }
            Ordering::Equal => {
                // Weighted reservoir sampling: after the last of the equals, each is held with the
                // probability capacity / sum of capacities.
                tied = tied.saturating_add(candidate.capacity());
                if random.below(tied) < candidate.capacity() {
                    best = Some(candidate);
                }
            }
            Ordering::Greater => {}
        }
    }
    best.map(|candidate| candidate.endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(endpoint: u32, weight: u32, requests: u32) -> Candidate {
        Candidate {
            endpoint,
            weight,
            load: Load {
                requests,
                ..Load::default()
            },
            ..Candidate::default()
        }
    }

    #[test]
    fn fractions_compare_exactly_at_the_ends_of_their_range() {
        let requests = |load: &Load| u64::from(load.requests);
        let (a, b) = (
            candidate(0, u32::MAX, u32::MAX),
            candidate(1, u32::MAX - 1, u32::MAX - 1),
        );
        assert_eq!(per_capacity(&a, &b, requests), Ordering::Equal);
        let c = candidate(2, u32::MAX, u32::MAX - 1);
        assert_eq!(per_capacity(&c, &a, requests), Ordering::Less);
        assert_eq!(
            per_capacity(&candidate(0, 3, 1), &candidate(1, 2, 1), requests),
            Ordering::Less
        );
    }

    #[test]
    fn equals_are_drawn_in_proportion_to_their_capacity() {
        let candidates = [candidate(0, 1, 0), candidate(1, 3, 0), candidate(2, 9, 1)];
        let mut first = [0u32; 3];
        let mut random = Random::new(7);
        for _ in 0..4000 {
            let ranked = rank_by(&candidates, &mut random, by_requests_only);
            first[ranked[0] as usize] += 1;
            assert_eq!(ranked[2], 2);
        }
        assert!((900..1100).contains(&first[0]), "{first:?}");
        assert_eq!(first[2], 0);
    }

    fn by_requests_only(a: &Candidate, b: &Candidate) -> Ordering {
        a.load.requests.cmp(&b.load.requests)
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::new(1);
        assert_eq!(random.below(0), 0);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 140), "{seen:?}");
    }
}
