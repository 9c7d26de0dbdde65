use super::*;
use crate::scrape::Life;
use crate::state::memory::MemoryStore;
use crate::state::snapshots;
use crate::tokens::Usage;
use proptest::prelude::*;

fn balancer(config: &str, vm: u64) -> Balancer {
    Balancer::new(Rc::new(Config::parse(config.as_bytes()).unwrap()), vm)
}

fn ask(pool: usize) -> Ask<'static> {
    Ask {
        pool,
        model: None,
        key: None,
        blocks: &[],
        cost: Load {
            requests: 1,
            prefill_tokens: 100,
            decode_tokens: 50,
            ..Load::default()
        },
        share_permille: 1_000,
    }
}

const TWO: &str = r#"[{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80"}]"#;

fn report(endpoint: &str, at_ms: u64, waiting: u32, ours: u32) -> Report {
    Report {
        endpoint: Endpoint::new(endpoint.parse().unwrap()).id(),
        at_ms,
        running: 0,
        waiting,
        kv_usage_permille: 0,
        ours,
        ours_held_tokens: 0,
        kv_tokens: 0,
        life: Life::default(),
    }
}

#[test]
fn models_find_their_pool() {
    let config = format!(
        r#"{{"pools": [
            {{"name": "a", "models": ["x", "y"], "endpoints": {TWO}}},
            {{"name": "b", "endpoints": {TWO}}},
            {{"name": "c", "models": ["z"], "endpoints": {TWO}}}]}}"#
    );
    let balancer = balancer(&config, 1);
    assert_eq!(balancer.pool_for(Some("y")), 0);
    assert_eq!(balancer.pool_for(Some("z")), 2);
    assert_eq!(balancer.pool_for(Some("unheard of")), 1);
    assert_eq!(balancer.pool_for(None), 1);
    assert!(balancer.reads_body());
}

#[test]
fn f4_only_endpoints_that_serve_the_model_are_candidates() {
    let config = r#"{"policy": {"name": "round_robin"}, "endpoints": [
        {"address": "10.0.0.1:80", "models": ["m", "lora"]}, {"address": "10.0.0.2:80", "models": ["m"]}]}"#;
    let (mut balancer, store) = (balancer(config, 1), MemoryStore::new());
    let mut picked = |model: &'static str| {
        let ask = Ask {
            model: Some(model),
            ..ask(0)
        };
        let (decision, reservation) = balancer.pick(&store, 0, 0, ask)?;
        balancer.complete(&store, 0, reservation);
        Ok(decision.endpoints[0])
    };
    assert!((0..10).all(|_| picked("lora") == Ok(0)));
    assert!(
        (0..2)
            .map(|_| picked("m"))
            .any(|endpoint| endpoint == Ok(1))
    );
    // No endpoint may be asked for what none of them serves.
    assert_eq!(picked("unheard of"), Err(Refusal::UnknownModel));
}

#[test]
fn a7_a_busy_engine_gets_nothing_while_an_equal_one_is_idle() {
    for policy in [
        "least_request",
        "least_outstanding_tokens",
        "power_of_two",
        "prefix_hash",
        "expected_latency",
    ] {
        let config = format!(
            r#"{{"policy": {{"name": "{policy}"}}, "endpoints": {TWO}, "scrape": {{"cluster": "c"}}}}"#
        );
        let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
        let group = balancer.config().fingerprint;
        snapshots::save(
            &store,
            group,
            &[
                report("10.0.0.1:80", 1_000, 12, 0),
                report("10.0.0.2:80", 1_000, 0, 0),
            ],
        );
        balancer.tick(&store, 1_100);
        for _ in 0..5 {
            let (decision, reservation) = balancer.pick(&store, 1_200, 3, ask(0)).unwrap();
            assert_eq!(decision.endpoints[0], 1, "{policy}");
            balancer.complete(&store, 1_200, reservation);
        }
    }
}

#[test]
fn m3_a_report_ages_out() {
    let config = format!(
        r#"{{"policy": {{"name": "least_request"}}, "endpoints": {TWO}, "scrape": {{"cluster": "c", "stale_after_ms": 5000}}}}"#
    );
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    let group = balancer.config().fingerprint;
    snapshots::save(&store, group, &[report("10.0.0.1:80", 1_000, 12, 2)]);
    balancer.tick(&store, 1_100);
    let (decision, fresh) = balancer.pick(&store, 6_000, 3, ask(0)).unwrap();
    assert_eq!(
        decision.candidates[0].load.requests, 10,
        "waiting less ours"
    );
    let (decision, stale) = balancer.pick(&store, 6_001, 3, ask(0)).unwrap();
    assert_eq!(decision.candidates[0].load.requests, 0);
    balancer.complete(&store, 6_002, fresh);
    balancer.complete(&store, 6_002, stale);
}

#[test]
fn h10_idle_endpoints_share_what_has_no_prefix() {
    for policy in [
        "least_request",
        "least_outstanding_tokens",
        "prefix_hash",
        "expected_latency",
        "consistent_hash",
    ] {
        let keys = if policy == "consistent_hash" {
            r#", "keys": [{"body": "user"}]"#
        } else {
            ""
        };
        let config = format!(r#"{{"policy": {{"name": "{policy}"{keys}}}, "endpoints": {TWO}}}"#);
        let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
        let mut first = 0;
        for turn in 0..450_u64 {
            let random = xxhash_rust::xxh64::xxh64(&turn.to_le_bytes(), 1);
            let (decision, reservation) = balancer.pick(&store, turn, random, ask(0)).unwrap();
            first += u32::from(decision.endpoints[0] == 0);
            balancer.complete(&store, turn, reservation);
        }
        assert!((180..=270).contains(&first), "{policy}: {first} of 450");
    }
}

#[test]
fn an_endpoint_of_two_pools_has_one_load() {
    let config = format!(
        r#"{{"policy": {{"name": "least_request"}}, "pools": [
            {{"name": "a", "models": ["x"], "endpoints": {TWO}}}, {{"name": "b", "endpoints": {TWO}}}]}}"#
    );
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    let (one, held) = balancer.pick(&store, 0, 1, ask(0)).unwrap();
    let (two, also_held) = balancer.pick(&store, 0, 1, ask(1)).unwrap();
    assert_ne!(one.endpoints[0], two.endpoints[0]);
    assert_eq!((one.sequence, two.sequence), (0, 0));
    balancer.complete(&store, 0, held);
    balancer.complete(&store, 0, also_held);
}

#[test]
fn a_restart_is_forgotten_by_all_workers_and_told_to_one_of_them() {
    let config = format!(
        r#"{{"policy": {{"name": "expected_latency"}}, "endpoints": {TWO}, "scrape": {{"cluster": "c"}}}}"#
    );
    let store = MemoryStore::new();
    let mut workers: Vec<Balancer> = (1..=4).map(|vm| balancer(&config, vm)).collect();
    let blocks: Vec<u64> = (1..=40).collect();
    let cost = Load {
        prefill_tokens: 4_000,
        ..ask(0).cost
    };
    let ask = Ask {
        blocks: &blocks,
        cost,
        ..ask(0)
    };
    let matched_blocks = |worker: &mut Balancer| -> Vec<u32> {
        let (decision, reservation) = worker.pick(&store, 1_000, 0, ask).unwrap();
        worker.complete(&store, 1_000, reservation);
        let candidates = decision.candidates.iter();
        candidates.map(|one| one.matched_blocks).collect()
    };
    let counted = |endpoint: &str, prompt_tokens| Report {
        life: Life {
            prompt_tokens: Some(prompt_tokens),
            ..Life::default()
        },
        ..report(endpoint, 1_000, 0, 0)
    };
    let (first, second) = ("10.0.0.1:80", "10.0.0.2:80");
    for endpoint in [first, second] {
        let endpoint = Endpoint::new(endpoint.parse().unwrap()).id();
        workers[2].sent(&store, endpoint, &blocks);
    }
    assert!(!workers[0].reported(&store, 2_000, counted(first, 900)));
    assert_eq!(matched_blocks(&mut workers[1]), [40, 40]);
    // The lease has gone to another worker, which has not even read what the third one sent.
    assert!(workers[3].reported(&store, 2_000, counted(first, 10)));
    for worker in &mut workers {
        assert_eq!(matched_blocks(worker), [0, 40]);
    }
    // And on to the next: it tells nothing again, and what was sent since then is there.
    let endpoint = Endpoint::new(first.parse().unwrap()).id();
    workers[2].sent(&store, endpoint, &blocks);
    assert!(!workers[0].reported(&store, 2_000, counted(first, 20)));
    for worker in &mut workers {
        assert_eq!(matched_blocks(worker), [40, 40]);
    }
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
            ..ask(0)
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

const LATENCY: &str = r#""policy": {"name": "expected_latency"}"#;

/// A prompt of 8,000 tokens that nobody has seen, and 100 of output.
fn long() -> Ask<'static> {
    Ask {
        cost: Load {
            requests: 1,
            waiting: 1,
            prefill_tokens: 8_000,
            decode_tokens: 100,
            context_tokens: 8_100,
        },
        ..ask(0)
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

#[test]
fn the_index_believes_an_engine_to_hold_what_its_report_says_it_can() {
    let config = format!(r#"{{{LATENCY}, "endpoints": {TWO}, "scrape": {{"cluster": "c"}}}}"#);
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    // At four bytes a token, 100 blocks of the index.
    let told = Report {
        kv_tokens: 6_400,
        ..report("10.0.0.1:80", 1_000, 0, 0)
    };
    snapshots::save(&store, balancer.config().fingerprint, &[told]);
    balancer.tick(&store, 1_000);
    let ids: Vec<EndpointId> = balancer.endpoints().into_keys().collect();
    let first: Vec<u64> = (1..=20).collect();
    let mut matched = |given: std::ops::Range<u64>| {
        let given: Vec<u64> = given.collect();
        for id in &ids {
            balancer.sent(&store, *id, &given);
        }
        let ask = Ask {
            blocks: &first,
            ..ask(0)
        };
        let (decision, held) = balancer.pick(&store, 1_100, 0, ask).unwrap();
        balancer.complete(&store, 1_100, held);
        let candidates = decision.candidates.iter();
        candidates.map(|one| one.matched_blocks).collect::<Vec<_>>()
    };
    assert_eq!(matched(1..21), [20, 20]);
    assert_eq!(matched(1_000..1_090), [20, 20]);
    // It is given a quarter more than its size; who tells none is taken to hold everything.
    assert_eq!(matched(2_000..2_060), [0, 20]);
}

/// Its load is always nothing and its cache always empty, which must not make it everybody's choice.
#[test]
fn who_refuses_connections_gets_no_more_than_a_share() {
    let config = format!(
        r#"{{{LATENCY}, "endpoints": [{{"address": "10.0.0.1:80"}}, {{"address": "10.0.0.2:80"}},
            {{"address": "10.0.0.3:80"}}]}}"#
    );
    let (mut balancer, store) = (balancer(&config, 1), MemoryStore::new());
    let mut refused = 0;
    for turn in 0..300_u64 {
        let now_ms = 1_000 + turn * 100;
        let blocks: Vec<u64> = (1..=30).map(|block| turn * 1_000 + block).collect();
        let ask = Ask {
            blocks: &blocks,
            ..long()
        };
        let (_, held) = balancer.pick(&store, now_ms, turn, ask).unwrap();
        let endpoint = held.endpoint();
        balancer.sent(&store, endpoint, &blocks);
        if Some(endpoint) == balancer.endpoint(0, 1).map(Endpoint::id) {
            balancer.refused(&store, now_ms, endpoint);
            refused += 1;
        }
        balancer.complete(&store, now_ms, held);
        balancer.tick(&store, now_ms);
    }
    assert!((50..=120).contains(&refused), "{refused} of 300");
}
