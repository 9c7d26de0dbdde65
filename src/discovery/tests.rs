//! What becomes of answers: believed, kept from before, shared, and made endpoints of.

use super::*;
use crate::health::Signal;
use crate::scrape::clusters::Cluster;
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

type Answer = [Option<Cluster>; 3];

/// Asks at `now_ms`, and the answer comes 10 ms later.
fn news(discovery: &mut Discovery, store: &MemoryStore, now_ms: u64, answer: Answer) -> News {
    assert_eq!(discovery.due(now_ms), Ok(true));
    let news = discovery.answered(Ok(answer.into()));
    discovery.publish(store, now_ms + 10, &news);
    discovery.refresh(store);
    news
}

/// The same, and what is wrong with it.
fn hear(
    discovery: &mut Discovery,
    store: &MemoryStore,
    now_ms: u64,
    answer: Answer,
) -> Result<(), String> {
    news(discovery, store, now_ms, answer)
        .problem
        .map_or(Ok(()), Err)
}

fn problem(discovery: &mut Discovery, answer: Result<Answer, &str>) -> Option<String> {
    let answer = answer.map(Vec::from).map_err(str::to_owned);
    discovery.answered(answer).problem
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
    assert_eq!(problem(&mut asks, Ok(found())), None);
    let late = problem(&mut asks, Ok(found()));
    assert_eq!(late.as_deref(), Some("an answer that came too late"));
    // A clock that is set back holds nothing up.
    assert_eq!(asks.due(100), Ok(true));
}

#[test]
fn while_a_pool_is_empty_it_asks_more_often() {
    let store = MemoryStore::new();
    let mut asks = two();
    assert_eq!(asks.due(5_000), Ok(true));
    problem(&mut asks, Err("status 503")).unwrap();
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
    let broken = problem(&mut knows, Err("status 500"));
    assert_eq!(broken.as_deref(), Some("status 500"));
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
    hear(&mut knows, &store, 2_000, a(empty.clone())).unwrap_err();
    assert_eq!(names(&knows), ["10.0.0.1:80"]);
    hear(&mut knows, &store, 3_000, a(full)).unwrap();
    hear(&mut knows, &store, 4_000, a(empty.clone())).unwrap_err();
    assert_eq!(names(&knows), ["10.0.0.1:80"], "not twice in a row");
    hear(&mut knows, &store, 5_000, a(None)).unwrap_err();
    hear(&mut knows, &store, 6_000, a(empty.clone())).unwrap();
    assert!(names(&knows).is_empty(), "what says nothing does not count");
    // Empty as it is, it is confirmed with every answer.
    hear(&mut knows, &store, 7_000, a(empty)).unwrap();
    assert_eq!(knows.age_ms(7_010), 0);
}

#[test]
fn levels_of_failover_are_used_one_after_the_other_in_each_cluster() {
    use Verdict::{Degraded, Draining, Healthy, Unhealthy};
    type Members<'a> = &'a [(&'a str, Verdict, u32)];
    let members = |list: Members<'_>| {
        let members = list.iter().map(|(last, verdict, priority)| {
            member(&format!("10.0.0.{last}:80"), *verdict, *priority)
        });
        cluster(members.collect())
    };
    let cases: [(Members<'_>, Members<'_>, &str); 8] = [
        (&[], &[], ""),
        // Whoever is in the same level is the board's to judge.
        (
            &[("1", Healthy, 0), ("2", Draining, 0)],
            &[("3", Unhealthy, 0)],
            "1 2 3",
        ),
        (
            &[("1", Healthy, 1), ("2", Healthy, 0)],
            &[("3", Healthy, 2)],
            "2 3",
        ),
        (&[("1", Healthy, 1), ("2", Unhealthy, 0)], &[], "1 2"),
        (
            &[("1", Healthy, 1), ("2", Degraded, 0), ("3", Healthy, 2)],
            &[],
            "1 2",
        ),
        (&[("1", Unhealthy, 1), ("2", Degraded, 0)], &[], "2"),
        (
            &[("1", Degraded, 1), ("2", Draining, 0), ("3", Degraded, 2)],
            &[],
            "1 2",
        ),
        (&[("1", Unhealthy, 1), ("2", Draining, 0)], &[], "1 2"),
    ];
    for (a, b, expected) in cases {
        let store = MemoryStore::new();
        let mut knows = two();
        let answer = [members(a), members(b), cluster(vec![])];
        hear(&mut knows, &store, 1_000, answer).unwrap();
        let mut names = names(&knows);
        names.sort();
        let last = names
            .iter()
            .map(|name| &name["10.0.0.".len()..name.len() - 3]);
        assert_eq!(last.collect::<Vec<_>>().join(" "), expected);
    }
    let mut knows = two();
    hear(
        &mut knows,
        &MemoryStore::new(),
        1_000,
        [healthy(&["10.0.0.1:80"]), None, None],
    )
    .unwrap_err();
    assert_eq!(knows.endpoints(0)[0].weight, 2, "as Envoy says");
    assert!(knows.endpoints(1).is_empty());
}

fn id(address: &str) -> EndpointId {
    Endpoint::new(address.parse().unwrap()).id()
}

/// The signals about these addresses, in order.
fn about(news: &News, addresses: &[&str]) -> Vec<Vec<Signal>> {
    let of = |address: &&str| {
        let signals = news.signals.iter().filter(|(of, _)| *of == id(address));
        signals.map(|(_, signal)| *signal).collect()
    };
    addresses.iter().map(of).collect()
}

#[test]
fn it_is_told_who_came_who_left_and_the_worst_that_envoy_thinks() {
    use Verdict::{Degraded, Draining, Healthy, Unhealthy};
    const FIXED: &str = "10.0.0.9:80";
    let mut knows = discovery(
        r#"{"clusters": ["a", "b"], "endpoints": [{"address": "10.0.0.9:80"}],
            "discovery": {"cluster": "admin", "verdicts": ["v"]}}"#,
    );
    let store = MemoryStore::new();
    let all = [
        "10.0.0.1:80",
        "10.0.0.2:80",
        "10.0.0.3:80",
        FIXED,
        "10.0.0.7:80",
    ];
    let says = |verdict| vec![Signal::Envoy(verdict)];
    let answer = [
        healthy(&["10.0.0.1:80", "10.0.0.2:80"]),
        cluster(vec![member("10.0.0.2:80", Degraded, 0)]),
        cluster(vec![
            member("10.0.0.1:80", Unhealthy, 0),
            member(FIXED, Unhealthy, 0),
            member("10.0.0.7:80", Unhealthy, 0),
        ]),
    ];
    let first = news(&mut knows, &store, 1_000, answer);
    let expected = [
        says(Unhealthy),
        says(Degraded),
        vec![],
        says(Unhealthy),
        vec![],
    ];
    assert_eq!(about(&first, &all), expected, "at first nobody comes");
    // One came, one left one of its two clusters, and Envoy does not speak of the others any more.
    let answer = [
        cluster(vec![
            member("10.0.0.3:80", Draining, 0),
            member(FIXED, Healthy, 0),
        ]),
        healthy(&["10.0.0.2:80"]),
        cluster(vec![]),
    ];
    let second = news(&mut knows, &store, 2_000, answer);
    let came = vec![Signal::Came, Signal::Envoy(Draining)];
    let expected = [
        vec![Signal::Left],
        says(Healthy),
        came,
        says(Healthy),
        vec![],
    ];
    assert_eq!(about(&second, &all), expected);
    // What lacks a cluster says nothing of its members, and nothing of whom nobody speaks of.
    let third = news(
        &mut knows,
        &store,
        3_000,
        [None, healthy(&["10.0.0.2:80"]), None],
    );
    let expected = [vec![], says(Healthy), vec![], vec![], vec![]];
    assert_eq!(about(&third, &all), expected);
    // A configured endpoint neither comes nor leaves.
    let empty = || [cluster(vec![]), healthy(&["10.0.0.2:80"]), cluster(vec![])];
    let fourth = news(&mut knows, &store, 4_000, empty());
    assert!(about(&fourth, &all)[2].is_empty(), "not believed yet");
    let fifth = news(&mut knows, &store, 5_000, empty());
    let expected = [
        vec![],
        says(Healthy),
        vec![Signal::Left],
        says(Healthy),
        vec![],
    ];
    assert_eq!(about(&fifth, &all), expected);
    assert!(news(&mut knows, &store, 6_000, empty()).signals.len() == 2);
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
    let text = "7 members of cluster `a` are left out: there are more than 1024";
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
