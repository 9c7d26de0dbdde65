//! Who is left to pick from, by the model that a request names.

use super::*;
use crate::state::models::{Adapters, hash};

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
fn f4_a_request_goes_to_endpoints_that_list_its_model_and_to_no_other() {
    let mut gateway = Gateway::asking("");
    gateway.answered(1, 200, &list(&["base", "sql"]));
    gateway.answered(2, 200, &list(&["base"]));
    assert_eq!(gateway.used("sql", 9), [1], "the third has not said");
    gateway.answered(3, 200, &list(&["base", "sql"]));
    assert_eq!(gateway.used("sql", 9), [1, 3]);
    assert_eq!(gateway.used("base", 9), [1, 2, 3]);
    assert!(gateway.pick(None).is_ok());
}

#[test]
fn who_has_not_been_heard_is_asked_if_those_that_serve_the_model_may_not_be() {
    let mut gateway = Gateway::asking(r#", "saturation": {"max_requests": 2}"#);
    gateway.answered(1, 200, &list(&["base", "sql"]));
    gateway.answered(2, 200, &list(&["base"]));
    assert_eq!(gateway.used("sql", 2), [1]);
    assert_eq!(gateway.used("sql", 1), [3], "the first is at its limit");
    let mut gateway = Gateway::asking("");
    gateway.answered(1, 200, &list(&["base", "sql"]));
    gateway.answered(2, 200, &list(&["base"]));
    let refused = crate::health::Signal::Refused;
    gateway
        .balancer
        .heard(&gateway.store, 1_000, id(1), refused);
    assert_eq!(gateway.used("sql", 1), [3], "the first is dead");
}

#[test]
fn a_pool_that_has_not_been_heard_may_be_that_of_the_model() {
    let gateway = || {
        Gateway::new(
            r#""pools": [
            {"name": "a", "endpoints": [{"address": "10.0.0.1:80"}]},
            {"name": "b", "endpoints": [{"address": "10.0.0.2:80"}]}],
            "scrape": {"cluster": "c"}, "models": {}"#,
        )
    };
    let mut one = gateway();
    one.answered(1, 200, &list(&["base-a"]));
    assert_eq!(one.used("base-b", 1), [2]);
    one.answered(2, 200, &list(&["base-b"]));
    assert_eq!(one.pick(Some("base-c")).unwrap_err(), Refusal::UnknownModel);
}

#[test]
fn h2_a_model_that_nobody_serves_is_refused_once_all_have_said_what_they_serve() {
    let mut gateway = Gateway::asking("");
    assert_eq!(
        gateway.used("nobody", 9),
        [1, 2, 3],
        "nobody has said anything"
    );
    gateway.answered(1, 200, &list(&["base"]));
    gateway.answered(2, 200, &list(&["base"]));
    assert_eq!(gateway.used("nobody", 9), [3], "one has not");
    gateway.answered(3, 200, &list(&["base"]));
    assert_eq!(
        gateway.pick(Some("nobody")).unwrap_err(),
        Refusal::UnknownModel
    );
    let held = gateway.balancer.totals(&gateway.store);
    assert_eq!(held.values().map(|load| load.requests).sum::<u32>(), 18);
}

#[test]
fn h2_where_the_configuration_lists_models_the_others_are_refused_at_once() {
    let mut gateway = Gateway::new(
        r#""endpoints": [{"address": "10.0.0.1:80", "models": ["a"]},
            {"address": "10.0.0.2:80", "models": ["a", "b"]}]"#,
    );
    assert_eq!(gateway.used("b", 4), [2]);
    assert_eq!(gateway.pick(Some("c")).unwrap_err(), Refusal::UnknownModel);
    assert!(gateway.pick(None).is_ok());
    assert!(!gateway.balancer.reads_index(0) && gateway.balancer.reads_body());
    // One that serves anything serves the others.
    let mut gateway = Gateway::new(
        r#""endpoints": [{"address": "10.0.0.1:80", "models": ["a"]},
            {"address": "10.0.0.2:80"}]"#,
    );
    assert_eq!(gateway.used("c", 4), [2]);
    assert_eq!(gateway.used("a", 4), [1, 2]);
}

#[test]
fn the_pool_whose_endpoints_list_a_model_is_asked_for_it() {
    let mut gateway = Gateway::new(
        r#""pools": [
            {"name": "a", "models": ["base-a"], "endpoints": [{"address": "10.0.0.1:80"}]},
            {"name": "b", "endpoints": [{"address": "10.0.0.2:80"}]},
            {"name": "c", "endpoints": [{"address": "10.0.0.3:80", "models": ["fixed"]}]}],
            "scrape": {"cluster": "c"}, "models": {}"#,
    );
    gateway.answered(1, 200, &list(&["base-a", "sql", "both"]));
    gateway.answered(2, 200, &list(&["base-b", "both"]));
    for (model, endpoint) in [
        ("base-a", 1),
        ("sql", 1),
        ("base-b", 2),
        ("both", 2),
        ("fixed", 3),
    ] {
        assert_eq!(gateway.used(model, 2), [endpoint], "{model}");
    }
    assert_eq!(gateway.balancer.pool_for(Some("nobody")), 1);
    assert_eq!(gateway.balancer.pool_for(None), 1);
}

fn active(gateway: &mut Gateway, number: u8, names: &[&str]) {
    let mut hashes: Vec<u64> = names.iter().map(|name| hash(name.as_bytes())).collect();
    hashes.sort_unstable();
    let adapters = Adapters {
        max: Some(2),
        active: hashes.len() as u32,
        names: hashes,
    };
    let (store, at) = (&gateway.store, id(number));
    gateway
        .balancer
        .adapters_reported(store, 1_000, at, &adapters);
    let page = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n";
    let mut poller = crate::poller::Poller::new(
        crate::poller::questions(gateway.balancer.config()),
        800,
        [at],
    );
    let none = BTreeMap::new();
    poller.due(1_000, &none);
    let question = crate::poller::Question::Metrics;
    let answer = poller.answered((at, question), 1_000, 200, page, &none);
    let crate::poller::Answer::Report { report, .. } = answer else {
        panic!("{answer:?}");
    };
    gateway.balancer.reported(store, 1_000, report);
    gateway.balancer.tick(&gateway.store, 1_000);
}

#[test]
fn an_adapter_stays_where_it_is_active_until_that_is_crowded() {
    let mut gateway = Gateway::asking("");
    for number in [1, 2, 3] {
        gateway.answered(number, 200, &list(&["base", "sql", "chat"]));
    }
    active(&mut gateway, 1, &["chat", "law"]);
    active(&mut gateway, 2, &["sql"]);
    active(&mut gateway, 3, &["chat"]);
    // 3 endpoints: 12 = 2 * 12 / 3 + 4 is the most that one may have of all.
    assert_eq!(gateway.used("sql", 13), [2]);
    // The first is full of other adapters.
    assert_eq!(gateway.used("sql", 1), [3]);
    assert_eq!(
        gateway.used("base", 9),
        [1, 2, 3],
        "a base model goes anywhere"
    );
    // What was reported long ago says nothing any more.
    let ask = |balancer: &mut Balancer, store: &MemoryStore, now_ms| {
        let ask = Ask {
            model: Some("chat"),
            ..ASK
        };
        let (decision, _) = balancer.pick(store, now_ms, 7, ask).unwrap();
        assert_eq!(decision.attempts.len(), 3, "a retry may go to the others");
        decision.candidates.len()
    };
    let Gateway { store, balancer } = &mut gateway;
    assert_eq!(ask(balancer, store, 1_000), 2);
    assert_eq!(ask(balancer, store, 10_000), 3);
}
