//! Among the endpoints that serve an adapter: those that have it at hand, unless they are crowded.

/// How well an adapter is placed at an endpoint, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Affinity {
    /// It has requests there that run or wait.
    Active,
    /// It is loaded, and there is room for one more adapter in a batch.
    Loaded,
    /// There is room for it, or nothing is known.
    #[default]
    Room,
    /// As many adapters have requests there as fit into one batch.
    Full,
}

/// Requests that any endpoint may have above twice the mean: where little is going on, an adapter need
/// not move for every second request.
const SLACK_REQUESTS: u64 = 4;

/// Keeps the best placed of `candidates` and returns the others; `of` tells how well one is placed and how
/// many requests it has.
///
/// Who has more than twice the mean, and 4 on top, is not preferred, so that an adapter
/// which is in demand spreads. If only crowded and full ones are left, all stay: it is for the policy to
/// choose.
pub fn prefer<T: Copy>(candidates: &mut Vec<T>, of: impl Fn(&T) -> (Affinity, u32)) -> Vec<T> {
    let mut others = Vec::new();
    let (mut total, mut best, mut worst) = (0_u64, Affinity::Full, Affinity::Active);
    for candidate in candidates.iter() {
        let (affinity, requests) = of(candidate);
        total = total.saturating_add(u64::from(requests));
        best = best.min(affinity);
        worst = worst.max(affinity);
    }
    if best >= worst {
        return others;
    }
    let count = candidates.len() as u64;
    let bound = total
        .saturating_mul(2)
        .saturating_add(SLACK_REQUESTS * count);
    let bearable = |requests: u32| u64::from(requests).saturating_mul(count) <= bound;
    let uncrowded = candidates
        .iter()
        .map(&of)
        .filter(|(_, requests)| bearable(*requests));
    let best = uncrowded.map(|(affinity, _)| affinity).min();
    if let Some(best) = best.filter(|best| *best < Affinity::Full) {
        candidates.retain(|candidate| {
            let (affinity, requests) = of(candidate);
            let kept = affinity == best && bearable(requests);
            if !kept {
                others.push(*candidate);
            }
            kept
        });
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(candidates: &[(Affinity, u32)]) -> Vec<usize> {
        let mut left: Vec<usize> = (0..candidates.len()).collect();
        let others = prefer(&mut left, |at| candidates[*at]);
        assert_eq!(left.len() + others.len(), candidates.len());
        assert!(others.iter().all(|other| !left.contains(other)));
        left
    }

    use Affinity::{Active, Full, Loaded, Room};

    #[test]
    fn who_has_the_adapter_active_is_preferred_then_who_has_room() {
        assert_eq!(
            kept(&[(Room, 0), (Active, 3), (Loaded, 0), (Active, 1)]),
            [1, 3]
        );
        assert_eq!(kept(&[(Room, 0), (Loaded, 3), (Full, 0)]), [1]);
        assert_eq!(kept(&[(Full, 0), (Room, 3), (Full, 0)]), [1]);
        assert_eq!(kept(&[]), [0; 0]);
    }

    #[test]
    fn among_equals_nobody_is_left_out_however_crowded() {
        for affinity in [Active, Loaded, Room, Full] {
            assert_eq!(
                kept(&[(affinity, 100), (affinity, 0), (affinity, 0)]),
                [0, 1, 2]
            );
        }
    }

    #[test]
    fn a_hot_adapter_spills_to_where_there_is_room() {
        // Four endpoints, all requests at one of them: 8 = 2 * 2 + 4 is the most.
        assert_eq!(kept(&[(Active, 8), (Room, 0), (Room, 0), (Room, 0)]), [0]);
        assert_eq!(
            kept(&[(Active, 9), (Room, 0), (Room, 0), (Room, 0)]),
            [1, 2, 3]
        );
        assert_eq!(
            kept(&[(Active, 9), (Room, 0), (Full, 0), (Room, 0)]),
            [1, 3]
        );
        assert_eq!(
            kept(&[(Active, 10), (Active, 1), (Room, 0), (Room, 0)]),
            [1]
        );
        // Where everybody else is full it stays with the policy.
        assert_eq!(
            kept(&[(Active, 9), (Full, 0), (Full, 0), (Full, 0)]),
            [0, 1, 2, 3]
        );
    }

    proptest! {
        /// Somebody is always left, the order stays, and nobody preferred is more crowded than the bound.
        #[test]
        fn somebody_is_left(given in proptest::collection::vec((0_usize..4, any::<u32>()), 1..9)) {
            let given: Vec<_> = given
                .into_iter()
                .map(|(affinity, requests)| ([Active, Loaded, Room, Full][affinity], requests))
                .collect();
            let left = kept(&given);
            prop_assert!(!left.is_empty() && left.is_sorted());
            if left.len() < given.len() {
                let total: u64 = given.iter().map(|(_, requests)| u64::from(*requests)).sum();
                for at in left {
                    let requests = u64::from(given[at].1) * given.len() as u64;
                    prop_assert!(requests <= 2 * total + 4 * given.len() as u64);
                }
            }
        }
    }
}
