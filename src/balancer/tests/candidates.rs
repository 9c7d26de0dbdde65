//! What a pick sees of endpoints: loads, queues, caches and paces.

use proptest::prelude::*;

use super::*;
use crate::balancer::candidates::queue_tokens;
use crate::rates::Pace;
use crate::tokens::Usage;

#[test]
fn m3_a_report_ages_out() {
    let config = format!(
        r#"{{"policy": {{"name": "least_request"}}, "endpoints": {TWO}, "scrape": {{"cluster": "c", "stale_after_ms": 5000}}}}"#
    );
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    let group = balancer.config().fingerprint;
    snapshots::save(&store, group, &[report("10.0.0.1:80", 1_000, 12, 2)]);
    balancer.tick(&store, 1_100);
    let (decision, fresh) = balancer.pick(&store, 6_000, 3, ASK).unwrap();
    assert_eq!(
        decision.candidates[0].load.requests, 10,
        "waiting less ours"
    );
    let (decision, stale) = balancer.pick(&store, 6_001, 3, ASK).unwrap();
    assert_eq!(decision.candidates[0].load.requests, 0);
    balancer.complete(&store, 6_002, fresh);
    balancer.complete(&store, 6_002, stale);
}

#[test]
fn paces_are_learned_for_whoever_reads_them_and_the_index_is_kept_for_whoever_asks_it() {
    for (policy, paced, indexed) in [
        (r#""prefix_hash", "bound": "expected_time""#, true, false),
        (r#""power_of_two", "load": "expected_time""#, true, false),
        (r#""expected_latency""#, true, true),
        (r#""cache_aware""#, false, true),
        (r#""prefix_hash""#, false, false),
    ] {
        let config = format!(r#"{{"policy": {{"name": {policy}}}, "endpoints": {TWO}}}"#);
        let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
        let slow = balancer.endpoint(0, 1).unwrap().id();
        assert_eq!(balancer.rates(0).is_some(), paced, "{policy}");
        assert_eq!(balancer.reads_index(0), indexed, "{policy}");
        for turn in 1..40 {
            if let Some(rates) = balancer.rates(0) {
                rates.first_token(slow, turn * 100, turn * 100_000);
            }
        }
        let blocks = [11, 12, 13];
        let belief = balancer.sent(&store, slow, &blocks);
        balancer.correct(slow, &belief, 0, &Usage::default());
        let ask = Ask {
            blocks: &blocks,
            ..ASK
        };
        let (decision, held) = balancer.pick(&store, 0, 1, ask).unwrap();
        balancer.complete(&store, 0, held);
        let [fast, slow] = decision.candidates[..] else {
            panic!("{policy}: {:?}", decision.candidates);
        };
        assert_eq!(slow.pace != Pace::default(), paced, "{policy}");
        assert_eq!(
            slow.pace.prefill_us(1_000) > fast.pace.prefill_us(1_000),
            paced,
            "{policy}"
        );
        let known = (slow.matched_blocks, slow.given_blocks);
        assert_eq!(known, if indexed { (3, 3) } else { (0, 0) }, "{policy}");
    }
}

/// An endpoint that computes ten tokens of prompts in a millisecond and takes one for an output token.
fn ten_tokens_a_ms() -> Pace {
    Pace {
        prefill_us_per_1k_tokens: 100_000,
        token_us: 1_000,
        token_us_per_1k_context: 0,
        ..Pace::default()
    }
}

#[test]
fn a_queue_shrinks_with_the_clock_unless_it_is_stuck() {
    let queued = |load, elapsed_ms| {
        queue_tokens(
            &ten_tokens_a_ms(),
            load,
            1_000_u64.saturating_add_signed(elapsed_ms),
            1_000,
        )
    };
    let waiting = Load {
        requests: 2,
        waiting: 2,
        prefill_tokens: 4_000,
        ..Load::default()
    };
    assert_eq!(queued(waiting, 0), 4_000);
    assert_eq!(queued(waiting, 100), 3_000);
    assert_eq!(queued(waiting, 500), 0);
    // Half as long again as all of it should take, and two steps.
    assert_eq!(queued(waiting, 602), 0);
    assert_eq!(queued(waiting, 603), 4_000);
    // A clock that is set back takes nothing off.
    assert_eq!(queued(waiting, -500), 4_000);
    // Nobody is known to wait: what is left is not being computed.
    let nobody = Load {
        waiting: 0,
        ..waiting
    };
    assert_eq!(queued(nobody, 100), 4_000);
}

proptest! {
    #[test]
    fn a_queue_is_never_longer_than_the_load_and_only_shrinks_until_it_is_stuck(
        prefill_tokens in 0_u64..200_000, waiting in 0_u32..50, context_tokens in any::<u64>(),
        times in proptest::collection::vec(any::<u32>(), 2..20), prefill_us_per_1k_tokens in any::<u32>(),
    ) {
        let mut pace = ten_tokens_a_ms();
        pace.prefill_us_per_1k_tokens = prefill_us_per_1k_tokens;
        let load = Load { requests: waiting, waiting, prefill_tokens, context_tokens, ..Load::default() };
        let mut times = times;
        times.sort_unstable();
        let queued: Vec<u64> = times
            .iter()
            .map(|now_ms| queue_tokens(&pace, load, u64::from(*now_ms), 0))
            .collect();
        for pair in queued.windows(2) {
            prop_assert!(pair[1] <= pair[0] || pair[1] == prefill_tokens, "{queued:?}");
        }
        prop_assert!(queued.iter().all(|tokens| *tokens <= prefill_tokens));
    }
}

#[test]
fn picks_see_queues_shrink_and_first_tokens_start_them_anew() {
    let config = format!(r#"{{{LATENCY}, "endpoints": [{{"address": "10.0.0.1:80"}}]}}"#);
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    let (_, mut first) = balancer.pick(&store, 1_000, 0, long()).unwrap();
    // Nothing has been learned: 8 tokens a millisecond.
    let (decision, second) = balancer.pick(&store, 1_200, 0, long()).unwrap();
    let seen = decision.candidates[0];
    assert_eq!(
        (seen.load.prefill_tokens, seen.queue_tokens),
        (8_000, 6_400)
    );
    balancer.prefill_done(&store, 2_000, &mut first);
    let (decision, third) = balancer.pick(&store, 2_100, 0, long()).unwrap();
    let seen = decision.candidates[0];
    assert_eq!(
        (seen.load.prefill_tokens, seen.queue_tokens),
        (8_000, 7_200)
    );
    // No first token for far longer than 16,000 tokens take.
    let (decision, fourth) = balancer.pick(&store, 9_000, 0, long()).unwrap();
    let seen = decision.candidates[0];
    assert_eq!(
        (seen.load.prefill_tokens, seen.queue_tokens),
        (16_000, 16_000)
    );
    for held in [first, second, third, fourth] {
        balancer.complete(&store, 9_000, held);
    }
}

#[test]
fn the_fill_of_a_kv_cache_is_as_reported_with_what_has_changed_since() {
    let config = format!(
        r#"{{{LATENCY}, "endpoints": [{{"address": "10.0.0.1:80"}}],
            "scrape": {{"cluster": "c", "stale_after_ms": 5000}}}}"#
    );
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    let seen = |balancer: &mut Balancer, now_ms| {
        let (decision, held) = balancer.pick(&store, now_ms, 0, long()).unwrap();
        let seen = decision.candidates[0];
        (held, (seen.kv_tokens, seen.kv_used_tokens))
    };
    let (before, unknown) = seen(&mut balancer, 900);
    let (other, still_unknown) = seen(&mut balancer, 900);
    assert_eq!([unknown, still_unknown], [(0, 0); 2], "no report, no fill");
    balancer.complete(&store, 900, other);
    let told = Report {
        kv_tokens: 100_000,
        kv_usage_permille: 300,
        running: 1,
        ours: 1,
        ours_held_tokens: 100,
        ..report("10.0.0.1:80", 1_000, 0, 0)
    };
    snapshots::save(&store, balancer.config().fingerprint, &[told]);
    balancer.tick(&store, 1_000);
    // The prompt of the one that the report counts still waits, and holds nothing yet.
    let (mut second, fill) = seen(&mut balancer, 1_000);
    assert_eq!(fill, (100_000, 30_000 + 8_000));
    let (waiting, fill) = seen(&mut balancer, 1_000);
    assert_eq!(fill, (100_000, 30_000 + 8_000 + 8_100), "each counts once");
    balancer.complete(&store, 1_000, waiting);
    balancer.complete(&store, 1_000, before);
    balancer.prefill_done(&store, 1_000, &mut second);
    // One has gone, one as large has come and been computed.
    let (third, fill) = seen(&mut balancer, 1_100);
    assert_eq!(fill, (100_000, 30_000 + 8_000));
    balancer.complete(&store, 1_200, second);
    balancer.complete(&store, 1_200, third);
    let (held, fill) = seen(&mut balancer, 6_000);
    assert_eq!(fill, (100_000, 30_000 - 100));
    let (stale, fill) = seen(&mut balancer, 6_001);
    assert_eq!(fill, (0, 0), "a stale report says nothing");
    balancer.complete(&store, 6_001, held);
    balancer.complete(&store, 6_001, stale);
}
