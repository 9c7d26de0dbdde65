//! Endpoints that fail, clients that leave, Envoy's own answers, and clients that try to steer:
//! what the client sees, what is counted, and that nothing stays reserved.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

#[path = "e2e_failures/held.rs"]
mod held;

use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::check::{
    CASE_HEADER, SETTLE, at_rest, becomes, decided, inflight_becomes, second_choice, seen, unharmed,
};
use support::client::{Answer, Call, HttpClient, Protocol, Streaming, in_time};
use support::config::{EnvoyConfig, Mode, set};
use support::fleet::{Fleet, FleetOptions, patient};
use support::stats::Stats;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CHAT: &str = "/v1/chat/completions";
const ORIGINAL_DST: &str = "x-envoy-original-dst-host";
const OVERRIDE: &str = "x-gateway-destination-endpoint";
const NEXT_DST: &str = "x-warmroute-next-dst";
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

fn options(mode: Mode, workers: u32) -> FleetOptions {
    FleetOptions::new(mode, workers, 3)
        .plugin(json!({ "explain": {"response_header": true, "log_field": true} }))
        .plugin(json!({ "health": patient() }))
}

async fn start(mode: Mode, workers: u32) -> Fleet {
    Fleet::start(options(mode, workers)).await
}

/// With health as it is when nothing is said of it.
async fn start_as_shipped(mode: Mode, workers: u32) -> Fleet {
    Fleet::start(options(mode, workers).plugin(json!({ "health": {} }))).await
}

async fn start_adjusted(mode: Mode, plugin: Value, adjust: fn(&mut EnvoyConfig)) -> Fleet {
    let mut options = options(mode, 1).plugin(plugin);
    options.adjust = adjust;
    Fleet::start(options).await
}

/// Replicas behind `prefix_hash`, where a chat has one home, whatever happened before.
async fn start_by_prefix(mode: Mode, workers: u32) -> Fleet {
    Fleet::start(options(mode, workers).plugin(by_prefix())).await
}

fn by_prefix() -> Value {
    json!({ "policy": {"name": "prefix_hash"} })
}

/// A chat of its own key, so that they are spread.
fn chat(number: usize, stream: bool) -> Value {
    json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": format!("Prompt number {number}")}],
        "max_tokens": 8,
        "stream": stream,
        "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null },
    })
}

fn faulty(number: usize, stream: bool, fault: &str) -> Call {
    Call::chat(&chat(number, stream)).header("x-mock-fault", fault)
}

async fn failures(fleet: &Fleet, labels: &[(&str, &str)]) -> f64 {
    at_rest(fleet)
        .await
        .metric("warmroute_failures_total", labels)
}

/// The failures that should have been counted so far, by endpoint and kind.
#[derive(Default)]
struct Blamed(BTreeMap<(String, String), f64>);

impl Blamed {
    /// Waits for one more failure, of `kind` and of `endpoint`.
    async fn one(&mut self, fleet: &Fleet, endpoint: &str, kind: &str) {
        *self.0.entry((endpoint.into(), kind.into())).or_default() += 1.0;
        let all = self.0.values().sum();
        let stats = becomes(fleet, "warmroute_failures_total", &[], all).await;
        assert_eq!(Self::counted(&stats).0, self.0, "after {kind}");
    }

    /// What Envoy's metrics say.
    fn counted(stats: &Stats) -> Self {
        let mut counted = Self::default();
        for sample in stats.samples("warmroute_failures_total", &[]) {
            let label = |name: &str| sample.labels[name].clone();
            let of = counted.0.entry((label("endpoint"), label("kind")));
            *of.or_default() += sample.value;
        }
        counted.0.retain(|_, count| *count != 0.0);
        counted
    }

    /// All that Envoy tried, where it tries the next one: those before the last were given up.
    async fn tried(&mut self, mode: Mode, fleet: &Fleet, answer: &Answer, kind: &'static str) {
        let ranked = decided(&answer.headers, "ranked");
        let ranked: Vec<&str> = ranked.split('|').collect();
        let attempts = match mode {
            Mode::OverrideHost => 3,
            Mode::Composite => 2,
            _ => 1,
        };
        // Those that were given up before are spared for a while.
        let attempts = ranked.len().min(attempts);
        for given_up in &ranked[..attempts - 1] {
            let replaced = (given_up.to_string(), "replaced".into());
            *self.0.entry(replaced).or_default() += 1.0;
        }
        self.one(fleet, ranked[attempts - 1], kind).await;
    }

    async fn nobody_else(&self, fleet: &Fleet) {
        assert_eq!(Self::counted(&at_rest(fleet).await).0, self.0);
    }
}

/// Envoy kept connections to replica `index`, which ends: returns when Envoy has noticed.
async fn kill_connected(fleet: &mut Fleet, index: usize) -> String {
    let closed = |stats: &Stats| {
        let cluster = [("envoy_cluster_name", "vllm")];
        stats.metric("envoy_cluster_upstream_cx_destroy_remote", &cluster)
    };
    let before = closed(&fleet.stats_now().await);
    let address = kill(fleet, index).await;
    let begun = Instant::now();
    while closed(&fleet.stats_now().await) == before {
        assert!(begun.elapsed() < SETTLE, "Envoy has not noticed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    address
}

/// Ends replica `index`; its address stays in the configuration.
async fn kill(fleet: &mut Fleet, index: usize) -> String {
    fleet.stop(index).await.to_string()
}

/// The number of a chat whose first choice is `endpoint`, found with the fleet whole.
async fn chat_for(client: &HttpClient, endpoint: &str) -> usize {
    for number in 0..500 {
        let answer = client.send(Call::chat(&chat(number, false))).await.unwrap();
        if decided(&answer.headers, "endpoint") == endpoint {
            return number;
        }
    }
    panic!("no prompt has {endpoint} as its home");
}

async fn client_errors(mode: Mode, workers: u32) {
    let mut fleet = start_as_shipped(mode, workers).await;
    let clients = Protocol::ALL.map(|protocol| fleet.client(protocol));
    let chats = (0..300).zip(clients.iter().cycle());
    for (number, client) in chats {
        let (stream, bad) = (number / 2 % 2 == 0, number < 100);
        let call = match bad {
            true => faulty(number, stream, "status=400"),
            false => Call::chat(&chat(number, stream)),
        };
        let answer = client.send(call).await.unwrap();
        let expected = if bad { 400 } else { 200 };
        assert_eq!(answer.status, expected, "{number}: {}", answer.text());
    }
    assert_eq!(failures(&fleet, &[]).await, 0.0);
    unharmed(&mut fleet).await;
}

in_every_mode!(f1_client_errors_are_no_reason_to_refuse_anything: client_errors);

/// With a ranked list Envoy goes on to the next endpoint, and the client sees nothing of it.
async fn models_with_failover(mode: Mode, workers: u32) {
    let mut fleet = start_as_shipped(mode, workers).await;
    let dead = kill(&mut fleet, 1).await;
    let mut met = 0.0;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for _ in 0..30 {
            let answer = client.send(Call::get("/v1/models")).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["data"][0]["id"], "tiny");
            met += f64::from(u8::from(decided(&answer.headers, "endpoint") == dead));
        }
    }
    let stats = at_rest(&fleet).await;
    assert!(met >= 1.0, "the dead endpoint was never picked");
    assert_eq!(stats.metric("warmroute_retries_total", &[]), met);
    assert_eq!(
        stats.metric("warmroute_retries_total", &[("endpoint", &dead)]),
        0.0
    );
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f3_the_list_of_models_is_there_while_an_endpoint_is_down:
    models_with_failover, OverrideHost, OverrideHost
);

/// Without retries, what is picked is what answers: a 503 exactly if the dead endpoint was picked,
/// each counted, and everything else is served.
async fn models_without_failover(mode: Mode, workers: u32) {
    let mut fleet = start_as_shipped(mode, workers).await;
    let dead = kill(&mut fleet, 1).await;
    let mut failed = 0.0;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for _ in 0..30 {
            let answer = client.send(Call::get("/v1/models")).await.unwrap();
            let met = decided(&answer.headers, "endpoint") == dead;
            let expected = if met { 503 } else { 200 };
            assert_eq!(answer.status, expected, "{}", answer.text());
            failed += f64::from(u8::from(met));
        }
    }
    assert!((1.0..50.0).contains(&failed), "{failed} of 60");
    let labels = [("kind", "unreachable"), ("endpoint", dead.as_str())];
    let stats = at_rest(&fleet).await;
    for labels in [&labels[..], &[]] {
        assert_eq!(stats.metric("warmroute_failures_total", labels), failed);
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f3_without_failover_only_the_dead_endpoints_share_fails_original_dst:
    models_without_failover, OriginalDst, OriginalDst
);
with_one_and_four_workers!(
    f3_without_failover_only_the_dead_endpoints_share_fails_filter_state:
    models_without_failover, FilterState, FilterState
);

/// F2: the first choice is dead; the next of the list serves, and is the one that is charged.
#[tokio::test]
async fn f2_a_dead_first_choice_is_replaced_and_the_server_is_charged() {
    let mut fleet = start_by_prefix(Mode::OverrideHost, 1).await;
    let client = fleet.client(Protocol::Http1);
    let victim = fleet.endpoints()[1].clone();
    let number = chat_for(&client, &victim).await;
    let before = at_rest(&fleet).await;
    assert_eq!(kill_connected(&mut fleet, 1).await, victim);
    let answer = client
        .send(Call::chat(&chat(number, true)).header(CASE_HEADER, "dead"))
        .await
        .unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(decided(&answer.headers, "endpoint"), victim);
    let next = second_choice(&answer.headers);
    let served = seen(&fleet, "dead");
    assert_eq!(served.len(), 1);
    assert_eq!(fleet.endpoints()[served[0].0], next);
    let after = at_rest(&fleet).await;
    let added = |name: &str, endpoint: &str| {
        let labels = [("endpoint", endpoint)];
        after.metric(name, &labels) - before.metric(name, &labels)
    };
    assert_eq!(added("warmroute_retries_total", &next), 1.0);
    assert_eq!(added("warmroute_output_tokens_total", &next), 8.0);
    assert_eq!(added("warmroute_output_tokens_total", &victim), 0.0);

    // Large bodies too, also those that still stream when the choice is made.
    for bytes in [500_000, 2_000_000, 3_500_000] {
        let mut body = chat(number, false);
        body["user"] = "u".repeat(bytes).into();
        for protocol in Protocol::ALL {
            let answer = fleet
                .client(protocol)
                .send(Call::chat(&body))
                .await
                .unwrap();
            assert_eq!(
                decided(&answer.headers, "endpoint"),
                victim,
                "{bytes} bytes"
            );
            assert_eq!(
                answer.status,
                200,
                "{bytes} bytes over {protocol:?}: {}",
                answer.text()
            );
        }
    }

    // While it runs, the load stands where it runs.
    let mut running = client.open(faulty(number, true, "stall=3")).await.unwrap();
    running.next().await.unwrap().unwrap();
    inflight_becomes(&fleet, &[("endpoint", &next)], 1.0).await;
    inflight_becomes(&fleet, &[("endpoint", &victim)], 0.0).await;
    drop(running);
    unharmed(&mut fleet).await;
}

#[tokio::test]
async fn a_dead_endpoint_is_a_503_where_there_is_no_failover() {
    for mode in [Mode::OriginalDst, Mode::FilterState] {
        let mut fleet = start_by_prefix(mode, 4).await;
        let mut blamed = Blamed::default();
        let client = fleet.client(Protocol::Http1);
        let victim = fleet.endpoints()[2].clone();
        let number = chat_for(&client, &victim).await;
        kill_connected(&mut fleet, 2).await;
        for stream in [false, true] {
            let answer = client
                .send(Call::chat(&chat(number, stream)))
                .await
                .unwrap();
            assert_eq!(
                (answer.status, decided(&answer.headers, "endpoint")),
                (503, victim.clone())
            );
            blamed.one(&fleet, &victim, "unreachable").await;
        }
        assert_eq!(
            at_rest(&fleet).await.metric("warmroute_retries_total", &[]),
            0.0
        );
        blamed.nobody_else(&fleet).await;
        unharmed(&mut fleet).await;
    }
}

fn retry_any_5xx(config: &mut EnvoyConfig) {
    let route =
        format!("{MANAGER}/route_config/virtual_hosts/0/routes/0/route/retry_policy/retry_on");
    set(&mut config.0, &route, json!("5xx")).unwrap();
}

/// A retry that the route's owner asked for, with a body of every size that may be sent twice.
#[tokio::test]
async fn f2_a_refusal_is_retried_at_the_next_of_the_list() {
    let mut fleet = start_adjusted(Mode::OverrideHost, by_prefix(), retry_any_5xx).await;
    let client = fleet.client(Protocol::Http2);
    let first = client.send(Call::chat(&chat(1, false))).await.unwrap();
    let home = decided(&first.headers, "endpoint");
    let refusing = fleet
        .mocks
        .iter()
        .find(|mock| mock.addr().to_string() == home)
        .unwrap();
    refusing.set_faults(support::mock::Fault::parse_list("status=503").unwrap());
    let mut retries = 0.0;
    for bytes in [10, 100_000, 400_000] {
        let mut body = chat(1, false);
        // After the prompt and the model, so that the key stays.
        body["user"] = "u".repeat(bytes).into();
        let call = Call::chat(&body).header(CASE_HEADER, bytes.to_string());
        let answer = client.send(call).await.unwrap();
        assert_eq!(answer.status, 200, "{bytes} bytes: {}", answer.text());
        assert_eq!(decided(&answer.headers, "endpoint"), home);
        let tries: Vec<_> = seen(&fleet, &bytes.to_string());
        assert_eq!(tries.len(), 2, "{bytes} bytes");
        assert_eq!(tries[0].1.body_sha256, tries[1].1.body_sha256);
        let next = second_choice(&answer.headers);
        retries += 1.0;
        becomes(
            &fleet,
            "warmroute_retries_total",
            &[("endpoint", &next)],
            retries,
        )
        .await;
    }
    unharmed(&mut fleet).await;
}

/// The stream must break for the client too; `None` from `next` would be a clean end.
async fn breaks(mut stream: Streaming) {
    loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return,
            None => panic!("a clean end"),
        }
    }
}

async fn broken_streams(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers).await;
    let mut blamed = Blamed::default();
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for (stream, fault) in [
            (true, "reset=after:3"),
            (true, "reset=after:0"),
            (false, "reset=after:1"),
        ] {
            let answer = client.open(faulty(7, stream, fault)).await.unwrap();
            assert_eq!(answer.status, 200);
            let endpoint = decided(&answer.headers, "endpoint");
            breaks(answer).await;
            blamed.one(&fleet, &endpoint, "broken_stream").await;
        }
        // Before any response, the client gets Envoy's 503.
        let answer = client.send(faulty(7, true, "reset=headers")).await.unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
        blamed.tried(mode, &fleet, &answer, "unreachable").await;
    }
    blamed.nobody_else(&fleet).await;
    unharmed(&mut fleet).await;
}

#[tokio::test]
async fn f6_a_broken_stream_is_broken_for_the_client_original_dst() {
    broken_streams(Mode::OriginalDst, 4).await;
}

#[tokio::test]
async fn f6_a_broken_stream_is_broken_for_the_client_filter_state() {
    broken_streams(Mode::FilterState, 1).await;
}

#[tokio::test]
async fn f6_a_broken_stream_is_broken_for_the_client_override_host() {
    broken_streams(Mode::OverrideHost, 1).await;
}

/// The whole process goes, not one connection.
#[tokio::test]
async fn f6_an_endpoint_that_dies_in_mid_stream() {
    let mut fleet = start_by_prefix(Mode::OverrideHost, 1).await;
    let mut blamed = Blamed::default();
    let client = fleet.client(Protocol::Http1);
    let victim = fleet.endpoints()[0].clone();
    let number = chat_for(&client, &victim).await;
    let mut answer = client.open(faulty(number, true, "stall=3")).await.unwrap();
    answer.next().await.unwrap().unwrap();
    kill(&mut fleet, 0).await;
    breaks(answer).await;
    blamed.one(&fleet, &victim, "broken_stream").await;
    blamed.nobody_else(&fleet).await;
    unharmed(&mut fleet).await;
}

/// What the engine says goes through as it is: compared with what it says without Envoy.
async fn answers_pass(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers).await;
    let mut blamed = Blamed::default();
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for (stream, fault, kind) in [
            (true, "json-error", Some("stream_error")),
            (true, "status=400", None),
            (true, "status=404", None),
            (false, "status=413", None),
            (true, "status=503,retry-after=7", Some("overloaded")),
            (false, "status=429,retry-after=1", Some("overloaded")),
            (true, "status=500", Some("server_error")),
            (false, "status=502", Some("server_error")),
            (false, "error-in-stream=500", Some("server_error")),
        ] {
            let answer = client.send(faulty(3, stream, fault)).await.unwrap();
            let direct = HttpClient::new(fleet.mocks[0].addr(), Protocol::Http1);
            let direct = direct.send(faulty(3, stream, fault)).await.unwrap();
            same(&answer, &direct, fault);
            match kind {
                // What may succeed elsewhere is tried there; here it fails everywhere.
                Some("overloaded") => blamed.tried(mode, &fleet, &answer, "overloaded").await,
                Some(kind) => {
                    let endpoint = decided(&answer.headers, "endpoint");
                    blamed.one(&fleet, &endpoint, kind).await;
                }
                None => {}
            }
        }
    }
    let retries = match mode {
        Mode::OverrideHost => 8.0,
        Mode::Composite => 4.0,
        _ => 0.0,
    };
    assert_eq!(
        at_rest(&fleet).await.metric("warmroute_retries_total", &[]),
        retries
    );
    blamed.nobody_else(&fleet).await;
    unharmed(&mut fleet).await;
}

in_every_mode!(f7_answers_of_the_engine_pass_unchanged: answers_pass);

fn same(answer: &Answer, direct: &Answer, fault: &str) {
    assert_eq!(answer.status, direct.status, "{fault}");
    assert_eq!(answer.text(), direct.text(), "{fault}");
    for name in ["content-type", "retry-after", "content-length"] {
        assert_eq!(answer.header(name), direct.header(name), "{fault}: {name}");
    }
}

async fn errors_in_streams(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers).await;
    let mut blamed = Blamed::default();
    let clients = Protocol::ALL.map(|protocol| fleet.client(protocol));
    let faults = [
        ("error-in-stream=500", "stream_error"),
        ("error-in-stream=500,chunk=1", "stream_error"),
        ("error-in-stream=503", "overloaded"),
    ];
    for ((fault, kind), client) in faults
        .into_iter()
        .cycle()
        .zip(clients.iter().cycle())
        .take(6)
    {
        let answer = client.send(faulty(1, true, fault)).await.unwrap();
        assert_eq!(answer.status, 200);
        assert!(answer.text().contains("\"error\""), "{}", answer.text());
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
        blamed
            .one(&fleet, &decided(&answer.headers, "endpoint"), kind)
            .await;
    }
    // Envoy merges histograms every five seconds: all seven requests are in, or one.
    let good = Call::chat(&chat(1, true));
    assert_eq!(clients[0].send(good).await.unwrap().status, 200);
    let begun = Instant::now();
    let counts = loop {
        let stats = fleet.stats_now().await;
        let counts =
            ["ttft", "e2e"].map(|name| stats.metric(&format!("warmroute_{name}_ms_count"), &[]));
        if counts.iter().all(|count| *count > 0.0) || begun.elapsed() > Duration::from_secs(30) {
            break counts;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(counts, [1.0, 1.0]);
    blamed.nobody_else(&fleet).await;
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f9_an_error_inside_a_200_is_no_success: errors_in_streams, OriginalDst, OriginalDst
);

/// Where a client may leave.
const PHASES: [&str; 5] = [
    "body held",
    "body passing",
    "waiting for headers",
    "waiting for the first event",
    "in the stream",
];

fn leaving(phase: &str, number: usize) -> Call {
    let halves = |body: String| {
        let at = body.len() / 2;
        vec![
            Bytes::from(body[..at].to_owned()),
            Bytes::from(body[at..].to_owned()),
        ]
    };
    let late = Duration::from_secs(60);
    match phase {
        "body held" => Call::trickle(CHAT, halves(chat(number, true).to_string()), late),
        "body passing" => {
            let mut body = chat(number, true);
            body["messages"][0]["content"] = "long ".repeat(8_000).into();
            Call::trickle(CHAT, halves(body.to_string()), late)
        }
        "waiting for headers" => faulty(number, true, "delay-headers=60000"),
        "waiting for the first event" => faulty(number, true, "delay-first=60000"),
        _ => faulty(number, true, "stall=3"),
    }
}

async fn clients_leave(mode: Mode, workers: u32) {
    let options = options(mode, workers).plugin(json!({ "hold": {"max_bytes": 5_000} }));
    let mut fleet = Fleet::start(options).await;
    for protocol in Protocol::ALL {
        for phase in PHASES {
            let client = fleet.client(protocol);
            let stays = |number: usize| {
                let (client, call) = (client.clone(), leaving(phase, number));
                tokio::spawn(async move {
                    let mut answer = client.open(call).await?;
                    while let Some(piece) = answer.next().await {
                        piece?;
                    }
                    Ok::<_, String>(())
                })
            };
            let tasks: Vec<_> = (0..20).map(stays).collect();
            let expected = if phase == "body held" { 0.0 } else { 20.0 };
            if phase == "body held" {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            inflight_becomes(&fleet, &[], expected).await;
            for task in &tasks {
                assert!(!task.is_finished(), "{phase}");
                task.abort();
            }
            for task in tasks {
                let _ = task.await;
            }
            drop(client);
            fleet
                .inflight_is_zero_within(SETTLE)
                .await
                .unwrap_or_else(|why| panic!("{phase} over {protocol:?}: {why}"));
        }
    }
    // No endpoint is to blame.
    assert_eq!(failures(&fleet, &[]).await, 0.0);
    unharmed(&mut fleet).await;
}

#[tokio::test]
async fn clients_leave_in_every_phase_original_dst() {
    clients_leave(Mode::OriginalDst, 1).await;
}

#[tokio::test]
async fn clients_leave_in_every_phase_filter_state() {
    clients_leave(Mode::FilterState, 4).await;
}

#[tokio::test]
async fn clients_leave_in_every_phase_override_host() {
    clients_leave(Mode::OverrideHost, 4).await;
}

fn short_timeout(config: &mut EnvoyConfig) {
    let route = format!("{MANAGER}/route_config/virtual_hosts/0/routes/0/route/timeout");
    set(&mut config.0, &route, json!("1.5s")).unwrap();
}

/// An upstream timeout is the endpoint's failure: it gave no answer in time, or no end.
#[tokio::test]
async fn an_endpoint_that_hangs_past_the_upstream_timeout() {
    for mode in Mode::STEERING {
        let mut fleet = start_adjusted(mode, json!({}), short_timeout).await;
        let mut blamed = Blamed::default();
        for protocol in Protocol::ALL {
            let client = fleet.client(protocol);
            let answer = client
                .send(faulty(1, true, "delay-headers=60000"))
                .await
                .unwrap();
            assert_eq!(answer.status, 504, "{}", answer.text());
            blamed
                .one(&fleet, &decided(&answer.headers, "endpoint"), "unreachable")
                .await;

            let answer = client.open(faulty(1, true, "stall=3")).await.unwrap();
            let endpoint = decided(&answer.headers, "endpoint");
            breaks(answer).await;
            blamed.one(&fleet, &endpoint, "broken_stream").await;
        }
        blamed.nobody_else(&fleet).await;
        unharmed(&mut fleet).await;
    }
}

fn no_room(config: &mut EnvoyConfig) {
    let limits = "/static_resources/clusters/0/circuit_breakers/thresholds/0/max_requests";
    set(&mut config.0, limits, json!(0)).unwrap();
}

fn abort_by_another_filter(config: &mut EnvoyConfig) {
    let filters = config
        .0
        .pointer_mut(&format!("{MANAGER}/http_filters"))
        .unwrap();
    let fault = json!({
        "name": "envoy.filters.http.fault",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 503, "percentage": {"numerator": 100}},
        },
    });
    filters.as_array_mut().unwrap().insert(1, fault);
}

/// Envoy's own answers are nobody's failure, and nothing stays reserved.
#[tokio::test]
async fn answers_of_envoy_itself_blame_no_endpoint() {
    let adjustments: [fn(&mut EnvoyConfig); 2] = [no_room, abort_by_another_filter];
    for (index, adjust) in adjustments.into_iter().enumerate() {
        let mut fleet = start_adjusted(Mode::STEERING[index], json!({}), adjust).await;
        for protocol in Protocol::ALL {
            let client = fleet.client(protocol);
            for number in 0..10 {
                let answer = client.send(Call::chat(&chat(number, true))).await.unwrap();
                assert_eq!(answer.status, 503, "{}", answer.text());
            }
        }
        becomes(&fleet, "warmroute_picks_total", &[], 20.0).await;
        let stats = at_rest(&fleet).await;
        let found: Vec<_> = stats.samples("warmroute_failures_total", &[]).collect();
        assert!(found.is_empty(), "{found:?}");
        unharmed(&mut fleet).await;
    }
}

fn short_idle(config: &mut EnvoyConfig) {
    set(
        &mut config.0,
        &format!("{MANAGER}/stream_idle_timeout"),
        json!("0.4s"),
    )
    .unwrap();
}

/// A held body that never ends: Envoy's idle timeout answers, and nothing was ever picked.
#[tokio::test]
async fn a_held_request_that_times_out() {
    let mut fleet = start_adjusted(Mode::FilterState, json!({}), short_idle).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        let answer = client.send(leaving("body held", 1)).await.unwrap();
        assert_eq!(answer.status, 408, "{}", answer.text());
    }
    assert_eq!(
        at_rest(&fleet).await.metric("warmroute_picks_total", &[]),
        0.0
    );
    unharmed(&mut fleet).await;
}

// Security.

/// Listens, and counts who comes.
async fn decoy() -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let visits = Arc::new(AtomicU32::new(0));
    let counted = visits.clone();
    tokio::spawn(async move {
        while let Ok((mut visitor, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = visitor
                .write_all(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\ndecoy",
                )
                .await;
        }
    });
    (address, visits)
}

fn without_early_mutation(config: &mut EnvoyConfig) {
    let manager = config
        .0
        .pointer_mut(MANAGER)
        .unwrap()
        .as_object_mut()
        .unwrap();
    assert!(manager.remove("early_header_mutation_extensions").is_some());
}

fn shipped(_: &mut EnvoyConfig) {}

/// Calls that carry somebody's wish, in all ways that HTTP has.
fn wishes(to: &str, case: &str) -> Vec<Call> {
    let body = chat(5, false).to_string();
    let starts = || {
        [
            Call::post(CHAT, body.clone()),
            Call::get("/v1/models"),
            Call::get("/server_info"),
            Call::method("HEAD", "/"),
            Call::post("/unknown", "{}"),
            Call::post(CHAT, ""),
        ]
    };
    let mut calls = Vec::new();
    for name in [ORIGINAL_DST, OVERRIDE, NEXT_DST] {
        for value in [to.to_owned(), format!("{to},{to}"), format!(" {to} , {to}")] {
            calls.extend(starts().map(|call| call.header(name, &value)));
        }
        calls.extend(starts().map(|call| call.header(name, "").header(name, to).header(name, to)));
    }
    calls.extend(starts().map(|call| call.header(ORIGINAL_DST, to).header(OVERRIDE, to)));
    let halves = || {
        vec![
            Bytes::from(body[..20].to_owned()),
            Bytes::from(body[20..].to_owned()),
        ]
    };
    let to: &'static str = to.to_owned().leak();
    for name in [ORIGINAL_DST, OVERRIDE, NEXT_DST] {
        let call = Call::trickle(CHAT, halves(), Duration::from_millis(5));
        calls.push(call.trailer(name, to).header(name, to));
    }
    calls
        .into_iter()
        .map(|call| call.header(CASE_HEADER, case))
        .collect()
}

/// Header names in mixed case, and a wish that Envoy drops what the filter sets as if it were of
/// this connection alone: only HTTP/1.1 can carry them.
async fn mixed_case(envoy: SocketAddr, to: &str) -> String {
    let body = chat(5, false).to_string();
    let mut stream = TcpStream::connect(envoy).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: a\r\nX-Envoy-Original-Dst-Host: {to}\r\nX-ENVOY-ORIGINAL-DST-HOST: {to}\r\n\
         X-Gateway-Destination-Endpoint: {to}\r\nx-gateway-destination-ENDPOINT:{to}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n{CASE_HEADER}: wish\r\n\
         Connection: close, {ORIGINAL_DST}, {OVERRIDE}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = in_time(stream.read_to_end(&mut answer)).await;
    read.unwrap().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Whatever a client writes: nobody but members is reached, and the choice stays the filter's.
async fn clients_cannot_steer(mode: Mode, other_paths: &str, adjust: fn(&mut EnvoyConfig)) {
    let (decoy, visits) = decoy().await;
    let mut plugin = by_prefix();
    plugin["other_paths"] = json!(other_paths);
    let mut fleet = start_adjusted(mode, plugin, adjust).await;
    let admin = fleet.envoy.admin;
    let honest = fleet
        .client(Protocol::Http1)
        .send(Call::chat(&chat(5, false)))
        .await
        .unwrap();
    let home = decided(&honest.headers, "endpoint");
    let member = fleet
        .endpoints()
        .into_iter()
        .find(|endpoint| *endpoint != home)
        .unwrap();
    let targets = [decoy.to_string(), admin.to_string(), member.clone()];
    for (to, protocol) in targets
        .iter()
        .flat_map(|to| Protocol::ALL.map(|protocol| (to, protocol)))
    {
        let client = fleet.client(protocol);
        for call in wishes(to, "wish") {
            let shown = format!("{call:?}");
            let answer = client
                .send(call)
                .await
                .unwrap_or_else(|why| panic!("{shown}: {why}"));
            let text = answer.text();
            assert!(
                text != "decoy" && !text.contains("hot_restart_version"),
                "{shown}: {text}"
            );
            if text.contains("chat.completion") {
                assert_eq!(decided(&answer.headers, "endpoint"), home, "{shown}");
            }
        }
    }
    for to in &targets {
        let answer = mixed_case(fleet.envoy.listener, to).await;
        assert!(answer.contains(&format!("endpoint={home};")), "{answer}");
        assert!(answer.contains("chat.completion"), "{answer}");
    }
    assert_eq!(visits.load(Ordering::Relaxed), 0, "the decoy was visited");
    steering_headers_name_members(&fleet, mode);
    chats_went_home(&fleet, &home);
    unharmed(&mut fleet).await;
}

/// What came out at the other side: at most one steering header, and it is ours.
fn steering_headers_name_members(fleet: &Fleet, mode: Mode) {
    let (ours, most): (&[&str], usize) = match mode {
        Mode::OriginalDst => (&[ORIGINAL_DST], 1),
        Mode::OverrideHost => (&[OVERRIDE], 1),
        Mode::Composite => (&[ORIGINAL_DST, NEXT_DST], 1),
        // No header steers, and none that could is left.
        Mode::FilterState | Mode::Plain => (&[ORIGINAL_DST], 0),
    };
    let requests = seen(fleet, "wish");
    for (name, (_, request)) in ours.iter().flat_map(|name| {
        let requests = requests.iter();
        requests.map(move |request| (name, request))
    }) {
        let copies: Vec<_> = request
            .headers
            .iter()
            .filter(|(header, _)| header == name)
            .collect();
        assert!(copies.len() <= most, "{copies:?}");
        for (_, value) in copies {
            let value = String::from_utf8_lossy(value);
            for named in value.split(',') {
                assert!(
                    fleet.endpoints().iter().any(|endpoint| endpoint == named),
                    "{value}"
                );
            }
        }
    }
}

fn chats_went_home(fleet: &Fleet, home: &str) {
    let requests = seen(fleet, "wish");
    let chats = requests
        .iter()
        .filter(|(_, request)| request.path == CHAT && request.body_len > 0);
    let mut count = 0;
    for (replica, _) in chats {
        assert_eq!(fleet.endpoints()[*replica], home);
        count += 1;
    }
    // For each target, in mixed case and over each protocol.
    assert_eq!(count, 3 * (1 + 2 * 16), "chats that arrived");
}

/// `name: mode, Envoy's own removal when all paths are picked for, and when the others pass`.
macro_rules! clients_cannot_steer {
    ($($name:ident: $mode:ident, $pick:ident, $pass:ident;)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                clients_cannot_steer(Mode::$mode, "pick", $pick).await;
                clients_cannot_steer(Mode::$mode, "pass", $pass).await;
            }
        )*
    };
}

clients_cannot_steer! {
    clients_cannot_steer_original_dst: OriginalDst, shipped, shipped;
    clients_cannot_steer_past_the_filter_alone_original_dst:
        OriginalDst, without_early_mutation, without_early_mutation;
    clients_cannot_steer_filter_state: FilterState, shipped, without_early_mutation;
    clients_cannot_steer_override_host: OverrideHost, shipped, shipped;
    clients_cannot_steer_composite: Composite, shipped, shipped;
    clients_cannot_steer_past_the_filter_alone_composite:
        Composite, without_early_mutation, without_early_mutation;
    clients_cannot_steer_past_the_filter_alone_override_host:
        OverrideHost, without_early_mutation, without_early_mutation;
}
