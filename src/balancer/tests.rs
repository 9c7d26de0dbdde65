use super::*;
use crate::state::memory::MemoryStore;

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
        let (decision, reservation) = balancer.pick(&store, 0, 0, ask).unwrap();
        balancer.complete(&store, 0, reservation);
        decision.endpoints[0]
    };
    assert!((0..10).all(|_| picked("lora") == 0));
    assert!((0..2).map(|_| picked("m")).any(|endpoint| endpoint == 1));
    // Nobody lists it: any endpoint may say so in the engine's own words.
    picked("unheard of");
}

#[test]
fn a7_a_busy_engine_gets_nothing_while_an_equal_one_is_idle() {
    for policy in [
        "least_request",
        "least_outstanding_tokens",
        "power_of_two",
        "prefix_hash",
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
        assert_eq!(balancer.rates().is_some(), paced, "{policy}");
        assert_eq!(balancer.reads_index(0), indexed, "{policy}");
        for turn in 1..40 {
            if let Some(rates) = balancer.rates() {
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
