//! Pools whose members change.

use super::*;

fn endpoint(address: &str) -> Endpoint {
    Endpoint::new(address.parse().unwrap())
}

#[test]
fn configured_and_found_endpoints_are_one_pool_and_the_configured_entry_wins() {
    let json = r#"{"endpoints": [{"address": "10.0.0.2:80", "weight": 7}]}"#;
    let mut balancer = balancer(json, 1);
    let found = [endpoint("10.0.0.3:80"), endpoint("10.0.0.2:80")];
    assert!(balancer.adopt(0, &found));
    assert!(!balancer.adopt(0, &found), "nothing new");
    let weights = |balancer: &Balancer| -> Vec<(String, u32)> {
        let endpoints = balancer.pool(0).unwrap().pool.endpoints().iter();
        endpoints
            .map(|one| (one.name().into(), one.weight))
            .collect()
    };
    let both = [("10.0.0.2:80".to_owned(), 7), ("10.0.0.3:80".to_owned(), 1)];
    assert_eq!(weights(&balancer), both);
    assert!(balancer.adopt(0, &[]));
    assert_eq!(weights(&balancer), both[..1]);
    assert!(!balancer.adopt(1, &[]), "no such pool");
}

/// Case A4: what leaves with requests under way comes back with them, and ends at nothing.
#[test]
fn a4_an_endpoint_that_leaves_and_returns_keeps_its_load_and_ends_at_zero() {
    let json =
        r#"{"policy": {"name": "least_request"}, "endpoints": [{"address": "10.0.0.1:80"}]}"#;
    let mut balancer = balancer(json, 1);
    let (store, found) = (MemoryStore::new(), [endpoint("10.0.0.2:80")]);
    let (stays, leaves) = (endpoint("10.0.0.1:80").id(), found[0].id());
    balancer.adopt(0, &found);
    let mut held: Vec<_> = (0..4)
        .map(|random| balancer.pick(&store, 0, random, ASK).unwrap().1)
        .collect();
    balancer.adopt(0, &[]);
    for random in 0..3 {
        let (_, reservation) = balancer.pick(&store, 0, random, ASK).unwrap();
        assert_eq!(reservation.endpoint(), stays);
        held.push(reservation);
    }
    assert_eq!(balancer.totals(&store)[&leaves].requests, 2);
    balancer.adopt(0, &found);
    let (_, reservation) = balancer.pick(&store, 0, 0, ASK).unwrap();
    assert_eq!(reservation.endpoint(), leaves, "it carries 2, the other 5");
    held.push(reservation);
    for reservation in held {
        balancer.complete(&store, 0, reservation);
    }
    let totals = balancer.totals(&store);
    assert!(totals.values().all(Load::is_zero), "{totals:?}");
}

#[test]
fn who_served_and_left_is_charged_and_a_stranger_is_not() {
    let json = r#"{"endpoints": [{"address": "10.0.0.1:80"}]}"#;
    let mut balancer = balancer(json, 1);
    let (store, gone) = (MemoryStore::new(), endpoint("10.0.0.2:80"));
    let (_, reservation) = balancer.pick(&store, 0, 1, ASK).unwrap();
    let first = reservation.endpoint();
    let tried = [first, gone.id()];
    let reservation = balancer.served_by(&store, 0, reservation, 0, &tried, "10.9.9.9:80");
    assert_eq!(reservation.endpoint(), first);
    let reservation = balancer.served_by(&store, 0, reservation, 0, &tried, gone.name());
    assert_eq!(reservation.endpoint(), gone.id());
    balancer.complete(&store, 0, reservation);
    assert!(balancer.totals(&store).values().all(Load::is_zero));
}
