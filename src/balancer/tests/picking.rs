//! Where picks go, and what they hold.

use super::*;

#[test]
fn f4_only_endpoints_that_serve_the_model_are_candidates() {
    let config = r#"{"policy": {"name": "round_robin"}, "endpoints": [
        {"address": "10.0.0.1:80", "models": ["m", "lora"]}, {"address": "10.0.0.2:80", "models": ["m"]}]}"#;
    let (mut balancer, store) = (balancer(config, 1), MemoryStore::new());
    let mut picked = |model: &'static str| {
        let ask = Ask {
            model: Some(model),
            ..ASK
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
            let (decision, reservation) = balancer.pick(&store, 1_200, 3, ASK).unwrap();
            assert_eq!(decision.endpoints[0], 1, "{policy}");
            balancer.complete(&store, 1_200, reservation);
        }
    }
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
            let (decision, reservation) = balancer.pick(&store, turn, random, ASK).unwrap();
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
    let (one, held) = balancer.pick(&store, 0, 1, ASK).unwrap();
    let (two, also_held) = balancer.pick(&store, 0, 1, Ask { pool: 1, ..ASK }).unwrap();
    assert_ne!(one.endpoints[0], two.endpoints[0]);
    assert_eq!((one.sequence, two.sequence), (0, 0));
    balancer.complete(&store, 0, held);
    balancer.complete(&store, 0, also_held);
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
