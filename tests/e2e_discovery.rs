//! Endpoints that come, go and drain while requests are under way, as a real Envoy tells of them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

#[path = "e2e_discovery/admin.rs"]
mod admin;
#[path = "e2e_discovery/composite.rs"]
mod composite;
#[path = "e2e_discovery/gauges.rs"]
mod gauges;
#[path = "e2e_discovery/setup.rs"]
mod setup;

use admin::{Admin, Behaviour};
use gauges::Gauges;
use serde_json::{Value, json};
use setup::{Discovering, INTERVAL, Options, chat, fleet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::check::{CASE_HEADER, SETTLE, at_rest, becomes, decided, sha256, unharmed};
use support::client::{Answer, Call, Protocol};
use support::config::{EnvoyConfig, member};
use support::fleet::patient;
use support::mock::{Fault, Mock};
use tokio::task::JoinSet;

const EJECTIONS: &str = "warmroute_ejections_total";
/// What Envoy and all workers need to follow: two intervals.
const FOLLOWED: Duration = Duration::from_millis(2 * INTERVAL);

/// Envoy may take its time: a reading that is late is none that fails.
fn patient_discovery() -> Value {
    json!({ "discovery": {"cluster": "warmroute_admin", "verdicts": ["vllm"], "timeout_ms": 10_000} })
}

async fn follow_the_file(workers: u32) {
    let mut options = fleet(3);
    options.plugin = patient_discovery();
    let mut one = options.start(workers).await;
    let [a, b, c] = one.names();
    let took = one.picks_are(&[&a, &b, &c], FOLLOWED).await;
    println!(
        "known {} ms after the start with {workers} workers",
        took.as_millis()
    );
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..2 {
        one.eds.set(&one.addresses([0, 1]));
        took[0].push(one.picks_are(&[&a, &b], FOLLOWED).await);
        one.eds.set(&one.addresses([1, 2]));
        took[1].push(one.picks_are(&[&b, &c], FOLLOWED).await);
        one.eds.set(&one.addresses([0, 1, 2]));
        took[2].push(one.picks_are(&[&a, &b, &c], FOLLOWED).await);
    }
    println!("followed within {took:?} with {workers} workers");
    // Who leaves, who is exchanged, who comes.
    for took in took {
        follows(&took);
    }
    let stats = one.fleet.stats().await;
    assert_eq!(stats.metric("warmroute_discovery_failures_total", &[]), 0.0);
    assert!(stats.has("warmroute_discovery_age_ms"));
    one.known_within(FOLLOWED).await;
    unharmed(&mut one.fleet).await;
}

/// What is read too seldom, or read too slowly, is late every time; on a busy machine it may be late once.
fn follows(took: &[Duration]) {
    assert!(took.iter().any(|took| *took < FOLLOWED), "{took:?}");
}

with_one_and_four_workers!(picks_follow_a_file_within_two_intervals: follow_the_file);

/// A cluster of addresses, one of names, and endpoints of the configuration beside them.
async fn mixed(workers: u32) {
    let mut options = fleet(3);
    options.plugin = json!({ "clusters": ["fixed", "named"] });
    options.adjust = |config, addresses| {
        let shipped = config.0["static_resources"]["clusters"]
            .as_array_mut()
            .unwrap();
        let of = |name: &str, kind: &str, member: Value| {
            json!({
                "name": name, "type": kind, "connect_timeout": "1s", "dns_lookup_family": "V4_ONLY",
                "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [member]}]},
            })
        };
        let mut by_name = member(&addresses[1]);
        by_name["endpoint"]["address"]["socket_address"]["address"] = json!("localhost");
        by_name["load_balancing_weight"] = json!(5);
        shipped.push(of("fixed", "STATIC", member(&addresses[0])));
        shipped.push(of("named", "STRICT_DNS", by_name));
        // The last one is in the filter's configuration.
        let listed = json!([{"address": addresses[2].to_string()}]);
        *config = config
            .clone()
            .plugin(&json!({ "endpoints": listed }))
            .unwrap();
    };
    let mut one = options.start(workers).await;
    let [a, b, c] = one.names();
    one.picks_are(&[&a, &b, &c], FOLLOWED).await;
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(clusters_of_every_kind_and_endpoints_of_the_configuration_are_one_pool: mixed);

/// What was known stays, whatever is wrong with the admin interface.
async fn bad_admin(workers: u32) {
    let admin = Admin::start().await;
    let mut options = fleet(2);
    options.admin = Some(admin.address());
    let mut one = options.start(workers).await;
    let [a, b] = one.names();
    admin.tells(&one.addresses([0, 1]));
    one.picks_are(&[&a, &b], FOLLOWED).await;
    let mut counted = one.failures().await;
    for behaviour in [
        Behaviour::Status(500),
        Behaviour::Status(503),
        Behaviour::Body("<html>not that page</html>".into()),
        Behaviour::Body(String::new()),
        Behaviour::Body("{}".into()),
        Behaviour::Body(r#"{"cluster_statuses": [{"name": "other"}]}"#.into()),
        Behaviour::Cut,
        Behaviour::Silent,
        Behaviour::Hangup,
    ] {
        let text = format!("{behaviour:?}");
        admin.set(behaviour);
        let begun = Instant::now();
        while one.failures().await < counted + 2.0 {
            assert!(begun.elapsed() < SETTLE, "{text} is not counted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let age = one
            .fleet
            .stats()
            .await
            .metric("warmroute_discovery_age_ms", &[]);
        assert!(age > INTERVAL as f64, "{text}: {age} ms");
        one.picks_are(&[&a, &b], FOLLOWED).await;
        admin.tells(&one.addresses([0, 1]));
        one.known_within(FOLLOWED + Duration::from_secs(1)).await;
        counted = one.failures().await;
    }
    assert!(
        one.fleet
            .envoy
            .log()
            .contains("discovery through cluster `warmroute_admin`: status 500")
    );
    // One answer without members is not believed, two are.
    admin.tells_once(&[]).await;
    one.picks_are(&[&a, &b], FOLLOWED).await;
    admin.tells(&one.addresses([1]));
    one.picks_are(&[&b], FOLLOWED).await;
    admin.tells(&[]);
    one.answers_are(503, 2 * FOLLOWED).await;
    admin.tells(&one.addresses([0]));
    one.picks_are(&[&a], FOLLOWED).await;
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(a_bad_admin_interface_takes_no_endpoint_away: bad_admin);

/// An Envoy of a mesh knows thousands of clusters, and an old one knows no filter: megabytes.
#[tokio::test]
async fn a_list_of_thousands_of_clusters_is_read_as_well() {
    let admin = Admin::start().await;
    let bytes = admin.has_others(3_000);
    assert!(bytes > 3_000_000, "{bytes}");
    let mut options = fleet(2);
    options.plugin = patient_discovery();
    options.admin = Some(admin.address());
    let mut one = options.start(4).await;
    let [a, b] = one.names();
    let mut took = [Duration::ZERO; 3];
    for (took, members) in took.iter_mut().zip([[0, 1], [0, 0], [1, 1]]) {
        admin.tells(&one.addresses(members));
        let expected = members.map(|at| [&a, &b][at]);
        *took = one.picks_are(&expected, FOLLOWED).await;
    }
    // The first found nobody there, when Envoy is asked more often.
    follows(&took[1..]);
    assert_eq!(one.failures().await, 0.0);
    unharmed(&mut one.fleet).await;
}

/// What comes is asked for its metrics, like those that were there before, and then gets requests.
async fn scraped(workers: u32) {
    let mut options = fleet(2);
    options.plugin = json!({
        "scrape": {"cluster": "warmroute_scrape", "interval_ms": 300, "timeout_ms": 2_000},
    });
    let mut one = options.start(workers).await;
    let [a, b] = one.names();
    one.eds.set(&one.addresses([0]));
    one.picks_are(&[&a], FOLLOWED).await;
    one.eds.set(&one.addresses([0, 1]));
    one.picks_are(&[&a, &b], 2 * FOLLOWED).await;
    let begun = Instant::now();
    for name in [&a, &b] {
        let label = [("endpoint", name.as_str())];
        loop {
            let stats = one.fleet.stats().await;
            let age = stats.samples("warmroute_scrape_age_ms", &label).next();
            if age.is_some_and(|age| age.value < 1_500.0) {
                break;
            }
            assert!(begun.elapsed() < SETTLE, "{name}: {age:?}");
        }
    }
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(who_comes_is_scraped_and_then_gets_requests: scraped);

/// Who drains, is unhealthy or leaves gets nothing new, and what it has ends well.
async fn streams_end_well(workers: u32) {
    let mut one = fleet(2).streams_last(6).start(workers).await;
    let [a, b] = one.names();
    let addresses = one.addresses([0, 1]);
    let [first, second] = [addresses[0], addresses[1]];
    one.eds.set(&addresses);
    one.picks_are(&[&a, &b], FOLLOWED).await;
    for change in ["DRAINING", "UNHEALTHY", "TIMEOUT", "gone"] {
        let stream = one.open_stream_on(&a).await;
        match change {
            "gone" => one.eds.set(&[second]),
            health => one
                .eds
                .set_with_health(&[(first, health), (second, "HEALTHY")]),
        }
        one.picks_are(&[&b], FOLLOWED).await;
        let held = one.inflight(&a).await;
        assert_eq!(held, 1.0, "{change}: the stream is still there");
        let answer = stream.finish().await.unwrap();
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{change}");
        one.eds.set(&addresses);
        one.picks_are(&[&a, &b], FOLLOWED).await;
    }
    // Nor if nobody else is there.
    one.eds
        .set_with_health(&[(first, "UNHEALTHY"), (second, "DRAINING")]);
    one.answers_are(503, FOLLOWED).await;
    one.eds.set(&addresses);
    one.picks_are(&[&a, &b], FOLLOWED).await;
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(who_drains_or_leaves_gets_nothing_new_and_its_streams_end_well: streams_end_well);

/// Case A4.
async fn leaves_and_returns(workers: u32) {
    let mut one = fleet(2).streams_last(12).start(workers).await;
    let [a, b] = one.names();
    let addresses = one.addresses([0, 1]);
    one.eds.set(&addresses);
    one.picks_are(&[&a, &b], FOLLOWED).await;
    let gauges = Gauges::watch(one.fleet.envoy.admin);
    let mut streams = Vec::new();
    for round in 0..3 {
        streams.push(one.open_stream_on(&a).await);
        one.eds.set(&addresses[1..]);
        one.picks_are(&[&b], FOLLOWED).await;
        let under_way = streams.len() as f64;
        assert_eq!(one.inflight(&a).await, under_way, "round {round}");
        if round == 1 {
            // One ends while its endpoint is away, and one client leaves.
            drop(streams.pop());
            streams.pop().unwrap().finish().await.unwrap();
            let begun = Instant::now();
            while one.inflight(&a).await != 0.0 {
                assert!(begun.elapsed() < SETTLE, "{} held", one.inflight(&a).await);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        one.eds.set(&addresses);
        one.picks_are(&[&a, &b], FOLLOWED).await;
    }
    for stream in streams {
        stream.finish().await.unwrap();
    }
    one.fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    gauges.never_wrapped().await;
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(a4_an_endpoint_that_leaves_and_returns_ends_at_zero: leaves_and_returns);

/// Envoy starts before it knows an endpoint, and a pool becomes empty and full again.
async fn nobody_yet(workers: u32) {
    let options = fleet(1);
    let mut one = options.start_with(workers, &[]).await;
    let [a] = one.names();
    let answer = one
        .fleet
        .client(Protocol::Http1)
        .send(Call::chat(&chat(0)))
        .await
        .unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.header("x-warmroute-reason"), "no_endpoint");
    // While there is nobody, Envoy is asked more often.
    one.is_read_in_a_hurry().await;
    one.eds.set(&one.addresses([0]));
    one.picks_are(&[&a], Duration::from_millis(INTERVAL)).await;
    one.eds.set(&[]);
    one.answers_are(503, 2 * FOLLOWED).await;
    one.is_read_in_a_hurry().await;
    one.eds.set(&one.addresses([0]));
    one.picks_are(&[&a], Duration::from_millis(INTERVAL)).await;
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(a_pool_may_be_empty_at_first: nobody_yet);

/// Levels of failover: the second level only if nobody of the first is healthy.
#[tokio::test]
async fn a_level_of_failover_is_used_when_the_one_before_it_is_not() {
    let mut one = fleet(2).start(1).await;
    let [a, b] = one.names();
    let addresses = one.addresses([0, 1]);
    let levels = |health: &str| {
        let mut first = member(&addresses[0]);
        first["health_status"] = json!(health);
        json!([
            {"priority": 0, "locality": {"region": "near"}, "lb_endpoints": [first]},
            {"priority": 1, "locality": {"region": "far"}, "lb_endpoints": [member(&addresses[1])]},
        ])
    };
    one.eds.write(levels("HEALTHY"));
    one.picks_are(&[&a], FOLLOWED).await;
    one.eds.write(levels("UNHEALTHY"));
    one.picks_are(&[&b], FOLLOWED).await;
    one.eds.write(levels("HEALTHY"));
    one.picks_are(&[&a], FOLLOWED).await;
    unharmed(&mut one.fleet).await;
}

/// Whom Envoy's outlier detection ejects in the cluster that carries the requests. The filter's own breaker never
/// opens here, so that the verdict is Envoy's alone.
#[tokio::test]
async fn who_envoy_ejects_gets_nothing_new_until_it_is_let_back() {
    let mut options = fleet(2);
    options.plugin = json!({ "health": {"failures": 1_000_000} });
    let mut one = options.start(1).await;
    let [a, b] = one.names();
    one.picks_are(&[&a, &b], FOLLOWED).await;
    one.fleet.mocks[0].set_faults(Fault::parse_list("reset=headers").unwrap());
    one.picks_are(&[&b], 2 * FOLLOWED).await;
    one.fleet.mocks[0].set_faults(Vec::new());
    // Envoy lets it back after five seconds.
    let took = one.picks_are(&[&a, &b], SETTLE).await;
    assert!(took > Duration::from_secs(1), "it was out for {took:?}");
    unharmed(&mut one.fleet).await;
}

/// Whom Envoy's own health checks find unwell. Nothing is scraped, so that nobody else asks.
async fn active_checks(workers: u32) {
    let mut options = fleet(2);
    options.adjust = |config, _| {
        let every = "0.2s";
        config.cluster("vllm_endpoints").unwrap()["health_checks"] = json!([{
            "timeout": "10s", "interval": every, "no_traffic_interval": every,
            "unhealthy_interval": every, "unhealthy_threshold": 1, "healthy_threshold": 1,
            "http_health_check": {"path": "/health"},
        }]);
    };
    let mut one = options.start(workers).await;
    let [a, b] = one.names();
    one.picks_are(&[&a, &b], 2 * FOLLOWED).await;
    // Before the first check Envoy trusts nobody, which may have been seen.
    let labels = [("endpoint", a.as_str()), ("cause", "envoy")];
    let before = at_rest(&one.fleet).await.metric(EJECTIONS, &labels);
    for fault in [vec![Fault::Health(503)], Vec::new()] {
        let well = fault.is_empty();
        one.fleet.mocks[0].set_faults(fault);
        let expected: &[&String] = if well { &[&a, &b] } else { &[&b] };
        one.picks_are(expected, 2 * FOLLOWED).await;
        let state = if well { "ready" } else { "ejected" };
        let labels = [("endpoint", a.as_str()), ("state", state)];
        becomes(&one.fleet, "warmroute_endpoint_state", &labels, 1.0).await;
    }
    becomes(&one.fleet, EJECTIONS, &labels, before + 1.0).await;
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(who_fails_envoys_health_checks_gets_nothing_until_it_passes: active_checks);

/// Who drains is neither the first choice nor the one after it.
async fn composite_retries(workers: u32) {
    let mut options = fleet(3);
    options.plugin = json!({ "health": patient() });
    options.adjust = |config, _| composite::steers(config);
    let mut one = options.start(workers).await;
    let [a, b, c] = one.names();
    one.picks_are(&[&a, &b, &c], FOLLOWED).await;
    let addresses = one.addresses([0, 1, 2]);
    let [first, second, third] = [addresses[0], addresses[1], addresses[2]];
    one.eds
        .set_with_health(&[(first, "HEALTHY"), (second, "HEALTHY"), (third, "DRAINING")]);
    one.picks_are(&[&a, &b], FOLLOWED).await;
    one.fleet.mocks[0].set_faults(vec![Fault::ResetHeaders]);
    let seen = |at: usize| one.fleet.mocks[at].seen().len();
    let before = [seen(0), seen(1), seen(2)];
    for number in 0..40 {
        let client = one.fleet.client(Protocol::Http1);
        let answer = client.send(Call::chat(&chat(number))).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let line = answer.header("x-warmroute-decision");
        assert!(!line.contains(&c), "{line}");
    }
    assert!(seen(0) > before[0], "nobody was tried elsewhere");
    assert_eq!(seen(1) - before[1], 40, "each is answered by the one left");
    assert_eq!(seen(2), before[2], "the one that drains got something new");
    unharmed(&mut one.fleet).await;
}

with_one_and_four_workers!(who_drains_is_no_second_choice_either_composite: composite_retries);

/// No client reaches the admin interface through the filter, with endpoints from anywhere.
#[tokio::test]
async fn nobody_is_steered_to_who_is_no_member() {
    let mut one = fleet(2).start(1).await;
    let [a, b] = one.names();
    one.eds.set(&one.addresses([0]));
    one.picks_are(&[&a], FOLLOWED).await;
    let seen = one.fleet.mocks[1].seen().len();
    let client = one.fleet.client(Protocol::Http1);
    let admin = one.fleet.envoy.admin.to_string();
    for (header, value) in [
        ("x-envoy-original-dst-host", admin.as_str()),
        ("x-envoy-original-dst-host", b.as_str()),
        ("x-gateway-destination-endpoint", b.as_str()),
    ] {
        let call = Call::get("/v1/models").header(header, value);
        let answer = client.send(call).await.unwrap();
        assert_eq!(
            answer.json()["data"][0]["id"],
            "tiny",
            "{header}: {}",
            answer.text()
        );
        assert_eq!(decided(&answer.headers, "endpoint"), a);
    }
    assert_eq!(one.fleet.mocks[1].seen().len(), seen);
    unharmed(&mut one.fleet).await;
}

/// A fleet that is full is not taken for a dead one: what engines answer ejects nobody, and each client gets
/// its engine's own words, also once Envoy had the time to eject and the filter to hear of it.
#[tokio::test]
async fn a_full_fleet_is_not_ejected() {
    let mut one = fleet(2).start(1).await;
    let [a, b] = one.names();
    one.picks_are(&[&a, &b], FOLLOWED).await;
    for mock in &one.fleet.mocks {
        mock.set_faults(vec![Fault::Status(503)]);
    }
    let client = one.fleet.client(Protocol::Http1);
    let begun = Instant::now();
    let mut refused = 0;
    while begun.elapsed() < 2 * FOLLOWED {
        let answer = client.send(Call::chat(&chat(refused))).await.unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(answer.header("x-warmroute-reason"), "");
        refused += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(
        refused > 40,
        "{refused} are not five in a row an engine and second"
    );
    for mock in &one.fleet.mocks {
        mock.set_faults(Vec::new());
    }
    let answer = client.send(Call::chat(&chat(0))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    unharmed(&mut one.fleet).await;
}

/// A chat of 200 KB that carries what its body hashes to.
fn long_call(number: usize) -> Call {
    let mut body = chat(number);
    body["messages"][0]["content"] = json!("long ".repeat(40_000));
    let hash = sha256(body.to_string().as_bytes());
    Call::chat(&body).header(CASE_HEADER, &hash)
}

/// Three tries to be there before it is too late to wait, for a busy machine.
const TRIES: usize = 3;
/// Of the two seconds that requests wait after a worker's start, what may be over when the list comes.
const IN_TIME: Duration = Duration::from_millis(1_200);

/// Whether all these calls are answered, where Envoy's list comes `after` them, and each gets to an engine as it
/// was sent. `None` if the list came too late.
async fn all_arrive(
    mut options: Options,
    workers: u32,
    calls: Vec<Call>,
    after: Duration,
) -> Option<()> {
    let sent = calls.len();
    let admin = Admin::start().await;
    admin.set(Behaviour::Hangup);
    options.admin = Some(admin.address());
    let mut one = options.start(workers).await;
    let started = Instant::now();
    let mut coming = JoinSet::new();
    for (call, protocol) in calls.into_iter().zip(Protocol::ALL.iter().cycle()) {
        let client = one.fleet.client(*protocol);
        coming.spawn(async move { client.send(call).await.unwrap().status });
    }
    tokio::time::sleep(after).await;
    assert!(one.fleet.mocks.iter().all(|mock| mock.seen().is_empty()));
    admin.tells(&one.addresses([0, 1]));
    if started.elapsed() > IN_TIME {
        return None;
    }
    assert_eq!(coming.join_all().await, vec![200; sent]);
    let seen: Vec<_> = one.fleet.mocks.iter().flat_map(Mock::seen).collect();
    assert_eq!(seen.len(), sent);
    for seen in seen {
        let mut headers = seen.headers.iter();
        let (_, hash) = headers.find(|(name, _)| name == CASE_HEADER).unwrap();
        assert_eq!(seen.body_sha256.as_bytes(), hash);
    }
    unharmed(&mut one.fleet).await;
    Some(())
}

/// Who comes before it is known which endpoints there are waits for that, with its body.
async fn first_come(workers: u32) {
    for policy in ["round_robin", "prefix_hash"] {
        let mut tries = 0;
        loop {
            let mut options = fleet(2);
            options.plugin = json!({ "policy": {"name": policy} });
            let calls = (0..16).map(long_call).collect();
            let after = Duration::from_millis(200);
            if all_arrive(options, workers, calls, after).await.is_some() {
                break;
            }
            tries += 1;
            assert!(tries < TRIES, "the list never came in time");
        }
    }
}

with_one_and_four_workers!(requests_wait_for_the_first_list: first_come);

/// The same, in ten pieces over a second.
fn long_call_in_pieces(number: usize) -> Call {
    let mut body = chat(number);
    body["messages"][0]["content"] = json!("long ".repeat(40_000));
    let body = body.to_string().into_bytes();
    let hash = sha256(&body);
    let pieces = body.chunks(body.len().div_ceil(10));
    let pieces = pieces.map(|piece| piece.to_vec().into()).collect();
    let pause = Duration::from_millis(100);
    Call::trickle("/v1/chat/completions", pieces, pause).header(CASE_HEADER, &hash)
}

/// A body of which only a part was there when the list came gets to the engine whole, and once.
async fn amid_a_body(adjust: fn(&mut EnvoyConfig, &[SocketAddr])) {
    for _ in 0..TRIES {
        let mut options = fleet(2);
        options.adjust = adjust;
        let calls = (0..8).map(long_call_in_pieces).collect();
        let after = Duration::from_millis(400);
        if all_arrive(options, 1, calls, after).await.is_some() {
            return;
        }
    }
    panic!("the list never came in time");
}

#[tokio::test]
async fn a_body_that_is_not_yet_whole_is_whole_in_the_end() {
    amid_a_body(|_, _| {}).await;
}

/// Where Envoy keeps the body for a second try.
#[tokio::test]
async fn a_body_that_is_not_yet_whole_is_whole_in_the_end_composite() {
    amid_a_body(|config, _| composite::steers(config)).await;
}

/// As Envoy was before it minded what was added to a body that was held.
#[tokio::test]
async fn a_body_that_is_not_yet_whole_is_whole_in_the_end_on_an_older_envoy() {
    amid_a_body(|config, _| {
        let guard = "envoy.reloadable_features.filter_manager_forward_added_data_on_continue";
        config.0["layered_runtime"] =
            json!({"layers": [{"name": "old", "static_layer": {guard: false}}]});
    })
    .await;
}

/// Asks so many times at once, while Envoy's list is not there; it comes if `members` are some. The answers and
/// how long they took.
async fn crowd(
    one: &Discovering,
    admin: &Admin,
    members: &[SocketAddr],
) -> Vec<(Answer, Duration)> {
    let client = one.fleet.client(Protocol::Http2);
    let mut coming = JoinSet::new();
    for number in 0..CROWD {
        let client = client.clone();
        coming.spawn(async move {
            let begun = Instant::now();
            let answer = client.send(Call::chat(&chat(number))).await.unwrap();
            (answer, begun.elapsed())
        });
    }
    if !members.is_empty() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        admin.tells(members);
    }
    coming.join_all().await
}

/// More than may be let go at once.
const CROWD: usize = 600;

/// Whether they came in time to wait.
fn waited(answers: &[(Answer, Duration)]) -> bool {
    let long = |(_, took): &&(Answer, Duration)| *took > Duration::from_millis(200);
    answers.iter().filter(long).count() > CROWD / 2
}

/// However many are refused at once, the filter lives on.
#[tokio::test]
async fn a_crowd_that_waited_in_vain_is_refused() {
    for _ in 0..TRIES {
        let admin = Admin::start().await;
        admin.set(Behaviour::Silent);
        let mut options = fleet(1);
        options.admin = Some(admin.address());
        let mut one = options.start(1).await;
        let answers = crowd(&one, &admin, &[]).await;
        for (answer, _) in &answers {
            let reason = answer.header("x-warmroute-reason");
            assert_eq!((answer.status, reason.as_str()), (503, "no_endpoint"));
        }
        admin.tells(&one.addresses([0]));
        let [a] = one.names();
        one.picks_are(&[&a], FOLLOWED).await;
        unharmed(&mut one.fleet).await;
        if waited(&answers) {
            return;
        }
    }
    panic!("nobody came in time");
}

/// However many are let go at once, even where each then comes to the filter again.
#[tokio::test]
async fn a_crowd_that_waited_goes_without_body_callbacks_too() {
    for _ in 0..TRIES {
        let admin = Admin::start().await;
        admin.set(Behaviour::Hangup);
        let mut options = fleet(1);
        options.admin = Some(admin.address());
        options.adjust = |config, _| {
            let wasm = config.wasm().unwrap().as_object_mut().unwrap();
            wasm.remove("allow_on_headers_stop_iteration").unwrap();
        };
        let mut one = options.start(1).await;
        let answers = crowd(&one, &admin, &one.addresses([0])).await;
        assert!(!one.fleet.envoy.log().contains("call stack"));
        let failed = answers.iter().filter(|(answer, _)| answer.status != 200);
        let failed = failed.count();
        unharmed(&mut one.fleet).await;
        if waited(&answers) && failed == 0 {
            return;
        }
    }
    panic!("nobody came in time, or some were lost");
}
