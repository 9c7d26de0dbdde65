//! What becomes of an engine's report: restarts, and the size of its cache.

use super::*;

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
        ..ASK.cost
    };
    let ask = Ask {
        blocks: &blocks,
        cost,
        ..ASK
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
            ..ASK
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
