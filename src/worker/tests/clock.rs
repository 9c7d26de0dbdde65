//! What a worker does with its configuration, with every tick and at its end.

use super::*;
use crate::health::Signal;
use crate::scrape::Life;
use crate::state::snapshots::Report;

const SCRAPED: &str = r#", "scrape": {"cluster": "engines"}, "health": {"path": ""}"#;

#[test]
fn a_configuration_that_cannot_be_used_is_refused_and_the_log_says_why() {
    let fake = Fake::default();
    fake.buffer_is(Buffer::PluginConfiguration, br#"{"endpoint": []}"#);
    assert!(Worker::configured(fake.clone(), PLUGIN, 16).is_none());
    let lines = fake.lines.take();
    assert!(
        lines.len() == 1 && lines[0].starts_with("error: configuration refused: endpoint"),
        "{lines:?}"
    );
    assert_eq!(fake.read.take(), [(Buffer::PluginConfiguration, 0, 16)]);
    // Nothing is no configuration either, and is not asked for.
    assert!(Worker::configured(fake.clone(), PLUGIN, 0).is_none());
    assert_eq!(fake.read.take(), []);
}

#[test]
fn one_worker_asks_for_all_until_it_stops() {
    let fake = Fake::default();
    let twin = fake.twin();
    let (mut one, mut other) = (one(&fake, SCRAPED), one(&twin, SCRAPED));
    assert_ne!(one.id, other.id);
    one.tick_after(100);
    other.tick_after(100);
    assert_eq!(
        (fake.asked.borrow().len(), twin.asked.borrow().len()),
        (1, 0)
    );
    other.tick_after(1_999);
    assert_eq!(twin.asked.borrow().len(), 0);
    other.tick_after(1);
    assert_eq!(twin.asked.borrow().len(), 1);
}

#[test]
fn workers_of_other_configurations_have_a_leader_of_their_own() {
    let fake = Fake::default();
    let twin = fake.twin();
    let mut one = one(&fake, SCRAPED);
    let mut other = super::one(&twin, &format!("{SCRAPED}, \"explain\": {{}}"));
    one.tick_after(100);
    other.tick_after(100);
    assert_eq!(
        (fake.asked.borrow().len(), twin.asked.borrow().len()),
        (1, 1)
    );
}

#[test]
fn a_turn_is_told_once_and_counted() {
    let fake = Fake::default();
    let mut worker = one(&fake, "");
    let now_ms = fake.now_ns.get() / 1_000_000;
    for _ in 0..20 {
        let balancer = &mut worker.vm.balancer;
        balancer.heard(&fake, now_ms, id(ONE), Signal::Failed);
    }
    worker.tick();
    worker.tick();
    let line = format!("info: endpoint {ONE}: ready -> ejected (failures)");
    assert_eq!(fake.lines.take(), [line]);
    let name = format!("endpoint=.={ONE};.;cause=.=failures;.;warmroute_ejections_total");
    assert_eq!(fake.metric(&name), 1);
}

#[test]
fn gauges_are_those_of_the_end() {
    let fake = Fake::default();
    let mut worker = one(&fake, r#", "policy": {"name": "random"}"#);
    let name = format!("endpoint=.={ONE};.;warmroute_inflight_requests");
    fake.header_is(Headers::Request, ":method", "POST");
    fake.header_is(Headers::Request, ":path", "/v1/chat/completions");
    let mut stream = Stream::new(7);
    stream.request_headers(&mut worker, Rest::Open);
    worker.tick();
    assert_eq!(fake.metric(&name), 1);
    stream.closed(&mut worker);
    worker.close();
    assert_eq!(fake.metric(&name), 0);
}

#[test]
fn nothing_of_a_configuration_stays_behind() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    worker.tick();
    worker.answer(0, 200, b"vllm:num_requests_running 3\n");
    let known = |worker: &Worker<Fake>| worker.vm.balancer.reports().len();
    assert_eq!(known(&one(&fake.twin(), SCRAPED)), 1);
    worker.close();
    assert_eq!(known(&one(&fake.twin(), SCRAPED)), 0);
}

#[test]
fn what_is_known_of_who_left_is_swept_once_a_minute() {
    let fake = Fake::default();
    let mut worker = one(&fake, SCRAPED);
    worker.tick();
    let long_ago = Report {
        endpoint: id("10.9.9.9:80"),
        at_ms: fake.now_ns.get() / 1_000_000 - 900_000,
        running: 1,
        waiting: 0,
        kv_usage_permille: 0,
        ours: 0,
        ours_held_tokens: 0,
        kv_tokens: 0,
        life: Life::default(),
    };
    let balancer = &mut worker.vm.balancer;
    balancer.reported(&fake, long_ago.at_ms, long_ago);
    let is_known = |worker: &Worker<Fake>| {
        let reports = worker.vm.balancer.reports();
        reports.contains_key(&long_ago.endpoint)
    };
    for _ in 0..600 {
        worker.tick_after(100);
        assert!(is_known(&worker), "read before it is swept");
    }
    worker.tick_after(100);
    assert!(!is_known(&worker));
}
