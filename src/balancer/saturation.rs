//! Who carries as much as it may.

use super::Refusal;
use crate::config::{Saturation, WHOLE_PERMILLE};
use crate::policy::Candidate;

/// Leaves those that are below all limits, of which the request may use `share_permille`.
///
/// The loads are those that the reservation will be made on, so that no limit in requests or waiting is ever
/// passed, however many workers race. A limit in tokens is passed by the request that reaches it: one that
/// is larger than the limit must go somewhere.
///
/// # Errors
/// [`Refusal::Saturated`] if nobody is left.
pub(super) fn keep(
    candidates: &mut Vec<Candidate>,
    limits: &Saturation,
    share_permille: u32,
) -> Result<(), Refusal> {
    retain(candidates, limits, share_permille);
    match candidates.is_empty() {
        true => Err(Refusal::Saturated {
            retry_after_ms: limits.retry_after_ms,
        }),
        false => Ok(()),
    }
}

/// Leaves those that are below all limits, if anybody.
pub(super) fn retain(candidates: &mut Vec<Candidate>, limits: &Saturation, share_permille: u32) {
    candidates.retain(|candidate| has_room(candidate, limits, share_permille));
}

fn has_room(candidate: &Candidate, limits: &Saturation, share_permille: u32) -> bool {
    let below = |carried: u64, limit: Option<u64>| {
        let part = |limit: u64| limit.saturating_mul(u64::from(share_permille));
        limit.is_none_or(|limit| carried.saturating_mul(u64::from(WHOLE_PERMILLE)) < part(limit))
    };
    let load = candidate.load;
    let kv_permille = match candidate.kv_tokens {
        0 => u64::from(candidate.kv_usage_permille),
        size => candidate.kv_used_tokens.saturating_mul(1_000) / size,
    };
    below(u64::from(load.requests), limits.max_requests.map(u64::from))
        && below(load.tokens(), limits.max_tokens)
        && below(u64::from(load.waiting), limits.max_waiting.map(u64::from))
        && below(kv_permille, limits.max_kv_permille.map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Load;
    use proptest::prelude::*;

    fn carrying(requests: u32, waiting: u32, tokens: u64, kv_permille: u32) -> Candidate {
        Candidate {
            load: Load {
                requests,
                waiting,
                prefill_tokens: tokens,
                ..Load::default()
            },
            kv_usage_permille: kv_permille,
            ..Candidate::default()
        }
    }

    #[test]
    fn each_limit_counts_by_itself_and_lower_priorities_reach_it_first() {
        let limits = Saturation {
            max_requests: Some(8),
            max_tokens: Some(1_000),
            max_waiting: Some(4),
            max_kv_permille: Some(900),
            ..Saturation::default()
        };
        let room = |candidate, share| has_room(&candidate, &limits, share);
        for (candidate, all, half) in [
            (carrying(0, 0, 0, 0), true, true),
            (carrying(3, 1, 499, 449), true, true),
            (carrying(4, 0, 0, 0), true, false),
            (carrying(7, 0, 0, 0), true, false),
            (carrying(8, 0, 0, 0), false, false),
            (carrying(0, 2, 0, 0), true, false),
            (carrying(0, 4, 0, 0), false, false),
            (carrying(0, 0, 500, 0), true, false),
            (carrying(0, 0, 1_000, 0), false, false),
            (carrying(0, 0, 0, 450), true, false),
            (carrying(0, 0, 0, 900), false, false),
        ] {
            assert_eq!((room(candidate, 1_000), room(candidate, 500)), (all, half));
            assert!(!room(candidate, 0), "a share of nothing is nothing");
        }
        let sized = Candidate {
            kv_tokens: 1_000,
            kv_used_tokens: 900,
            ..carrying(0, 0, 0, 0)
        };
        assert!(
            !room(sized, 1_000),
            "what has changed since the report counts"
        );
    }

    proptest! {
        #[test]
        fn without_limits_everybody_has_room_and_with_them_any_figures_are_harmless(
            requests: u32, waiting: u32, tokens: u64, kv: u32, share in 0..=1_000_u32,
            limits in (any::<Option<u32>>(), any::<Option<u64>>(), any::<Option<u32>>()),
        ) {
            let candidate = carrying(requests, waiting, tokens, kv);
            prop_assert!(has_room(&candidate, &Saturation::default(), share));
            let limits = Saturation {
                max_requests: limits.0,
                max_tokens: limits.1,
                max_waiting: limits.2,
                retry_after_ms: 7,
                ..Saturation::default()
            };
            let mut candidates = vec![candidate];
            let kept = keep(&mut candidates, &limits, share);
            prop_assert_eq!(kept.is_ok(), !candidates.is_empty());
        }
    }
}
