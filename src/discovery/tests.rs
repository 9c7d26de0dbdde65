//! What becomes of answers: believed, kept from before, shared, and made endpoints of.

use super::*;
use crate::state::memory::MemoryStore;

fn discovery(config: &str) -> Discovery {
    let config = Config::parse(config.as_bytes()).unwrap();
    Discovery::new(&config, 0).unwrap()
}

/// One pool of clusters `a` and `b`; verdicts also from `v`.
fn two() -> Discovery {
    discovery(
        r#"{"clusters": ["a", "b"], "discovery": {"cluster": "admin", "verdicts": ["v", "a"]}}"#,
    )
}

fn member(address: &str, verdict: Verdict, priority: u32) -> Member {
    Member {
        address: address.parse().unwrap(),
        weight: 2,
        priority,
        locality: "r/z".into(),
        verdict,
    }
}

fn healthy(addresses: &[&str]) -> Option<Cluster> {
    let member = |address: &&str| member(address, Verdict::Healthy, 0);
    cluster(addresses.iter().map(member).collect())
}

fn cluster(members: Vec<Member>) -> Option<Cluster> {
    Some(Cluster {
        members,
        ..Cluster::default()
    })
}

/// Asks at `now_ms`, and the answer comes 10 ms later.
fn hear(
    discovery: &mut Discovery,
    store: &MemoryStore,
    now_ms: u64,
    answer: [Option<Cluster>; 3],
) -> Result<(), String> {
    assert_eq!(discovery.due(now_ms), Ok(true));
    let heard = discovery.answered(store, now_ms + 10, Ok(answer.into()));
    discovery.refresh(store);
    heard
}

fn names(discovery: &Discovery) -> Vec<String> {
    let endpoints = discovery.endpoints(0);
    endpoints.iter().map(|one| one.name().to_owned()).collect()
}

#[test]
fn it_asks_once_an_interval_and_gives_up_on_what_never_comes() {
    let store = MemoryStore::new();
    let mut asks = two();
    let found = || {
        [
            healthy(&["10.0.0.1:80"]),
            healthy(&["10.0.0.2:80"]),
            cluster(Vec::new()),
        ]
    };
    hear(&mut asks, &store, 5_000, found()).unwrap();
    assert_eq!(asks.due(5_999), Ok(false));
    assert_eq!(asks.due(6_000), Ok(true));
    assert_eq!(asks.due(7_600), Ok(false), "it still waits");
    assert_eq!(asks.due(7_601), Err("no answer".into()));
    assert_eq!(asks.due(7_601), Ok(true));
    asks.answered(&store, 7_610, Ok(found().into())).unwrap();
    let late = asks.answered(&store, 7_620, Ok(found().into()));
    assert_eq!(late, Err("an answer that came too late".into()));
    // A clock that is set back holds nothing up.
    assert_eq!(asks.due(100), Ok(true));
}

#[test]
fn while_a_pool_is_empty_it_asks_more_often() {
    let store = MemoryStore::new();
    let mut asks = two();
    assert_eq!(asks.due(5_000), Ok(true));
    asks.answered(&store, 5_010, Err("status 503".into()))
        .unwrap_err();
    assert_eq!(asks.due(5_199), Ok(false));
    let drains = vec![member("10.0.0.1:80", Verdict::Draining, 0)];
    let answer = [cluster(drains), cluster(Vec::new()), cluster(Vec::new())];
    hear(&mut asks, &store, 5_200, answer).unwrap();
    let found = [
        healthy(&["10.0.0.1:80"]),
        cluster(Vec::new()),
        cluster(Vec::new()),
    ];
    hear(&mut asks, &store, 5_400, found).unwrap();
    assert_eq!(asks.due(6_399), Ok(false), "one is enough");
    assert_eq!(asks.due(6_400), Ok(true));
}

#[test]
fn all_workers_know_what_one_has_heard_and_so_does_the_next_configuration() {
    let store = MemoryStore::new();
    let (mut one, mut other) = (two(), two());
    assert!(!other.refresh(&store));
    let answer = [
        healthy(&["10.0.0.1:80"]),
        healthy(&["[::1]:80"]),
        cluster(Vec::new()),
    ];
    hear(&mut one, &store, 1_000, answer.clone()).unwrap();
    assert!(other.refresh(&store) && !other.refresh(&store));
    assert_eq!(names(&other), ["10.0.0.1:80", "[::1]:80"]);
    hear(&mut one, &store, 2_000, answer).unwrap();
    assert!(!other.refresh(&store), "nothing new");
    assert_eq!(other.age_ms(2_510), 500);
    // Another configuration that asks at the same place, for some of it.
    let mut next = discovery(
        r#"{"policy": {"name": "random"}, "clusters": ["b"], "discovery": {"cluster": "admin"}}"#,
    );
    assert!(next.refresh(&store));
    assert_eq!(names(&next), ["[::1]:80"]);
    let mut elsewhere = discovery(r#"{"clusters": ["b"], "discovery": {"cluster": "other"}}"#);
    assert!(!elsewhere.refresh(&store));
}

#[test]
fn what_was_known_outlives_bad_answers_and_ages() {
    let store = MemoryStore::new();
    let mut knows = two();
    assert_eq!(knows.age_ms(700), 700, "from the start on");
    let good = || {
        [
            healthy(&["10.0.0.1:80"]),
            healthy(&["10.0.0.2:80"]),
            cluster(Vec::new()),
        ]
    };
    hear(&mut knows, &store, 1_000, good()).unwrap();
    let both = names(&knows);
    assert_eq!(both.len(), 2);

    assert_eq!(knows.due(2_000), Ok(true));
    let broken = knows.answered(&store, 2_010, Err("status 500".into()));
    assert_eq!(broken, Err("status 500".into()));
    // One cluster is gone: the other is as it says.
    let gone = [None, healthy(&["10.0.0.3:80"]), cluster(Vec::new())];
    let heard = hear(&mut knows, &store, 3_000, gone);
    assert_eq!(heard, Err("Envoy has no cluster `a`".into()));
    assert_eq!(names(&knows), ["10.0.0.1:80", "10.0.0.3:80"]);
    // There are members, but none that could be used.
    let pipes = Some(Cluster {
        unusable: 2,
        ..Cluster::default()
    });
    let heard = hear(&mut knows, &store, 4_000, [pipes, good()[1].clone(), None]);
    assert_eq!(
        heard,
        Err("Envoy has no cluster `v`".into()),
        "the last problem is told"
    );
    assert_eq!(names(&knows), both);
    assert_eq!(knows.age_ms(5_000), 3_990, "the oldest counts");
    // The same answers to a worker that does not hold the lease.
    let mut other = two();
    other.refresh(&store);
    assert_eq!(names(&other), both);
}

#[test]
fn a_pool_is_not_emptied_by_one_answer() {
    let store = MemoryStore::new();
    let mut knows = two();
    let a = |a: Option<Cluster>| [a, cluster(Vec::new()), cluster(Vec::new())];
    let (full, empty) = (healthy(&["10.0.0.1:80"]), cluster(Vec::new()));
    hear(&mut knows, &store, 1_000, a(full.clone())).unwrap();
    hear(&mut knows, &store, 2_000, a(empty.clone())).unwrap();
    assert_eq!(names(&knows), ["10.0.0.1:80"]);
    hear(&mut knows, &store, 3_000, a(full)).unwrap();
    hear(&mut knows, &store, 4_000, a(empty.clone())).unwrap();
    assert_eq!(names(&knows), ["10.0.0.1:80"], "not twice in a row");
    hear(&mut knows, &store, 5_000, a(None)).unwrap_err();
    hear(&mut knows, &store, 6_000, a(empty.clone())).unwrap();
    assert!(names(&knows).is_empty(), "what says nothing does not count");
    // Empty as it is, it is confirmed with every answer.
    hear(&mut knows, &store, 7_000, a(empty)).unwrap();
    assert_eq!(knows.age_ms(7_010), 0);
}

#[test]
fn who_may_be_picked() {
    use Verdict::{Degraded, Draining, Healthy, Unhealthy};
    let picked = |config: &str, a: &[(&str, Verdict, u32)], b: &[(&str, Verdict, u32)]| {
        let store = MemoryStore::new();
        let mut knows = discovery(config);
        let members = |list: &[(&str, Verdict, u32)]| {
            let members = list.iter().map(|(last, verdict, priority)| {
                member(&format!("10.0.0.{last}:80"), *verdict, *priority)
            });
            cluster(members.collect())
        };
        hear(
            &mut knows,
            &store,
            1_000,
            [members(a), members(b), cluster(vec![])],
        )
        .unwrap();
        let names = names(&knows);
        let last = names
            .iter()
            .map(|name| name["10.0.0.".len()..name.len() - 3].to_owned());
        last.collect::<Vec<_>>().join(" ")
    };
    let alone = r#"{"clusters": ["a", "b"], "discovery": {"cluster": "admin"}}"#;
    let beside = r#"{"clusters": ["a", "b"], "discovery": {"cluster": "admin"},
        "endpoints": [{"address": "10.0.0.9:80"}]}"#;
    for (a, b, expected) in [
        (
            &[("1", Healthy, 0), ("2", Draining, 0)][..],
            &[("3", Unhealthy, 0), ("4", Degraded, 0)][..],
            "1",
        ),
        (
            &[("1", Degraded, 0), ("2", Draining, 0)],
            &[("3", Unhealthy, 0)],
            "1",
        ),
        (
            &[("1", Unhealthy, 0), ("2", Draining, 0)],
            &[("3", Unhealthy, 1)],
            "1 3",
        ),
        (&[("1", Draining, 0)], &[], ""),
        (&[], &[], ""),
        // Levels of failover, of each cluster by itself.
        (
            &[("1", Healthy, 1), ("2", Healthy, 0), ("5", Healthy, 0)],
            &[("3", Healthy, 2)],
            "2 5 3",
        ),
        (&[("1", Healthy, 1), ("2", Unhealthy, 0)], &[], "1"),
    ] {
        assert_eq!(picked(alone, a, b), expected);
        let expected = if a[..].iter().chain(b).any(|one| one.1 < Unhealthy) {
            expected
        } else {
            ""
        };
        assert_eq!(picked(beside, a, b), expected, "somebody else is there");
    }
}

#[test]
fn endpoints_have_envoys_weight_and_the_worst_verdict() {
    let store = MemoryStore::new();
    let mut knows = two();
    let answer = [
        healthy(&["10.0.0.1:80", "10.0.0.2:80"]),
        cluster(vec![member("10.0.0.2:80", Verdict::Degraded, 0)]),
        cluster(vec![member("10.0.0.1:80", Verdict::Unhealthy, 0)]),
    ];
    hear(&mut knows, &store, 1_000, answer).unwrap();
    let endpoints = knows.endpoints(0);
    assert_eq!((endpoints.len(), endpoints[0].weight), (2, 2));
    assert!(knows.endpoints(1).is_empty());
    let id = |address: &str| Endpoint::new(address.parse().unwrap()).id();
    let mut expected = vec![
        (id("10.0.0.1:80"), Verdict::Unhealthy),
        (id("10.0.0.2:80"), Verdict::Degraded),
    ];
    expected.sort_by(|one, other| other.cmp(one));
    assert_eq!(knows.verdicts(), expected);
}

#[test]
fn members_that_are_left_out_are_told() {
    let store = MemoryStore::new();
    let mut knows = two();
    let many = Some(Cluster {
        left_out: 7,
        ..healthy(&["10.0.0.1:80"]).unwrap()
    });
    let heard = hear(
        &mut knows,
        &store,
        1_000,
        [many, cluster(vec![]), cluster(vec![])],
    );
    let text = "7 members of cluster `a` are left out, since there are more than 1024";
    assert_eq!(heard, Err(text.into()));
    assert_eq!(names(&knows), ["10.0.0.1:80"]);
}

#[test]
fn envoy_is_asked_for_what_is_wanted() {
    assert_eq!(
        two().path(),
        "/clusters?format=json&filter=%5E(a%7Cb%7Cv)%24"
    );
    let istio = discovery(
        r#"{"clusters": ["outbound|80||vllm.ns.svc"], "discovery": {"cluster": "admin", "path": "/clusters"}}"#,
    );
    assert_eq!(
        istio.path(),
        "/clusters?filter=%5E(outbound.80..vllm.ns.svc)%24"
    );
    let own = discovery(
        r#"{"clusters": ["a"], "discovery": {"cluster": "admin", "path": "/clusters?filter=x&format=json"}}"#,
    );
    assert_eq!(own.path(), "/clusters?filter=x&format=json");
}

#[test]
fn without_the_key_there_is_no_discovery() {
    let config = Config::parse(br#"{"endpoints": [{"address": "10.0.0.1:80"}]}"#).unwrap();
    assert!(Discovery::new(&config, 0).is_none());
}
