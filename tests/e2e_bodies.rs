//! Bodies of every kind through a real Envoy: they reach the replica byte by byte as they were sent,
//! and what the filter made of them is counted.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use support::check::{CASE_HEADER, SETTLE, at_rest, becomes, decided, seen, sha256, unharmed};
use support::client::{Answer, Call, HttpClient, Protocol, in_time};
use support::config::{EnvoyConfig, Mode, set};
use support::fleet::{Fleet, FleetOptions};
use support::stats::Stats;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";

/// One body, what the scanner makes of it, and what the replica answers.
struct Case {
    path: &'static str,
    body: Bytes,
    headers: Vec<(&'static str, Vec<u8>)>,
    outcome: &'static str,
    status: u16,
}

impl Case {
    fn new(path: &'static str, body: impl Into<Bytes>, outcome: &'static str, status: u16) -> Self {
        Self {
            path,
            body: body.into(),
            headers: Vec::new(),
            outcome,
            status,
        }
    }

    fn good(path: &'static str, body: &str) -> Self {
        Self::new(path, body.as_bytes().to_vec(), "complete", 200)
    }

    fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name, value.as_ref().to_vec()));
        self
    }

    fn call(&self) -> Call {
        let call = Call::post(self.path, self.body.clone());
        let headers = self.headers.iter();
        headers.fold(call, |call, (name, value)| call.header(name, value))
    }
}

async fn start(mode: Mode, workers: u32, plugin: Value) -> Fleet {
    let options = FleetOptions::new(mode, workers, 3)
        .plugin(json!({ "explain": {"response_header": true, "log_field": true} }))
        .plugin(plugin);
    Fleet::start(options).await
}

/// Sends `call`, and checks that exactly one replica got exactly `body` on exactly `path`.
async fn arrives(
    fleet: &Fleet,
    client: &HttpClient,
    call: Call,
    path: &str,
    body: &[u8],
) -> Answer {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let case = NUMBER
        .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        .to_string();
    let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
    let answer = client.send(call.header(CASE_HEADER, &case)).await;
    let answer = answer.unwrap_or_else(|why| panic!("{path} {shown}: {why}"));
    let arrived = seen(fleet, &case);
    assert_eq!(
        arrived.len(),
        1,
        "{path} {shown}: status {} {}",
        answer.status,
        answer.text()
    );
    let (replica, arrived) = &arrived[0];
    assert_eq!(arrived.path, path, "{shown}");
    assert_eq!(arrived.body_len, body.len() as u64, "{path} {shown}");
    assert_eq!(arrived.body_sha256, sha256(body), "{path} {shown}");
    assert_eq!(
        decided(&answer.headers, "endpoint"),
        fleet.endpoints()[*replica],
        "{path} {shown}"
    );
    answer
}

/// Sends it, and checks that it is counted under its outcome and no other.
async fn passes(fleet: &Fleet, client: &HttpClient, case: &Case) -> Answer {
    let shown = String::from_utf8_lossy(&case.body[..case.body.len().min(120)]).into_owned();
    let before = fleet.stats_now().await;
    let answer = arrives(fleet, client, case.call(), case.path, &case.body).await;
    assert_eq!(answer.status, case.status, "{shown}: {}", answer.text());
    let after = parsed_one_more(fleet, &before).await;
    let added = parsed(&after, case.outcome) - parsed(&before, case.outcome);
    assert_eq!(added, 1.0, "not {}: {shown}", case.outcome);
    answer
}

fn parsed(stats: &Stats, outcome: &str) -> f64 {
    stats.metric("warmroute_parse_total", &[("outcome", outcome)])
}

/// The metrics with one request more than in `before`, of which all requests have been counted.
async fn parsed_one_more(fleet: &Fleet, before: &Stats) -> Stats {
    let all = before.metric("warmroute_parse_total", &[]);
    becomes(fleet, "warmroute_parse_total", &[], all + 1.0).await
}

/// Runs all cases over HTTP/1.1 and HTTP/2.
async fn all_pass(mode: Mode, workers: u32, cases: Vec<Case>) {
    let mut fleet = start(mode, workers, json!({})).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for case in &cases {
            let answer = passes(&fleet, &client, case).await;
            if answer.status != 200 {
                // The engine's own error, not ours or Envoy's.
                assert!(!answer.json()["error"].is_null(), "{}", answer.text());
            }
            if ["malformed", "encoded", "unread"].contains(&case.outcome) {
                let shown = String::from_utf8_lossy(&case.body[..case.body.len().min(120)]);
                assert_eq!(decided(&answer.headers, "reason"), "no_key", "{shown}");
            }
        }
    }
    // Each was counted once, to the end.
    let stats = at_rest(&fleet).await;
    let sent = (Protocol::ALL.len() * cases.len()) as f64;
    assert_eq!(stats.metric("warmroute_parse_total", &[]), sent);
    unharmed(&mut fleet).await;
}

fn user(content: &str, more: &str) -> String {
    format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":{content}}}],"max_tokens":2{more}}}"#
    )
}

fn valid_for_vllm() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        r#", "stream": null"#,
        r#", "max_tokens": 5.0"#,
        r#", "response_format": {"type": "structural_tag", "structures": [], "triggers": []}"#,
        r#", "model": "tiny", "max_tokens": 3"#,
        r#", "logprobs": true, "top_logprobs": 25"#,
        r#", "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto""#,
        r#", "guided_json": {"type": "object"}, "vllm_xargs": {"a": [1, 2.50, -0, 1E5]}, "priority": -3"#,
        r#", "kv_transfer_params": {"do_remote_decode": true, "remote_block_ids": null}"#,
        " , \"spaces\" :\t[ 1 ,\r\n 2 ] , \"\\u00e4\" : \"\\/ é €\" ",
    ]
    .iter()
    .map(|more| Case::good(CHAT, &user("\"Hi\"", more)))
    .collect();
    cases.extend([
        Case::good(CHAT, r#"{"model":"tiny","messages":[{"role":"developer","content":"a"},{"role":"critic","content":"b","name":"x"},{"role":"tool","tool_call_id":"1","content":"c"}]}"#),
        Case::good(CHAT, &user(r#"[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},{"type":"text","text":"What?"}]"#, "")),
        Case::good(CHAT, &format!("\r\n\t {} \n\n", user("\"Hi\"", ""))),
        Case::good(RESPONSES, r#"{"model":"tiny","input":"Hi","store":false}"#),
        Case::good(MESSAGES, r#"{"model":"tiny","max_tokens":2,"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}"#),
    ]);
    cases
}

#[tokio::test]
async fn b1_b2_what_vllm_accepts_passes_untouched_original_dst() {
    all_pass(Mode::OriginalDst, 1, valid_for_vllm()).await;
}

#[tokio::test]
async fn b1_b2_what_vllm_accepts_passes_untouched_filter_state() {
    all_pass(Mode::FilterState, 4, valid_for_vllm()).await;
}

#[tokio::test]
async fn b1_b2_what_vllm_accepts_passes_untouched_override_host() {
    all_pass(Mode::OverrideHost, 4, valid_for_vllm()).await;
}

/// B3, H4, H6 and B4 look at the decision too.
async fn queries(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers, json!({})).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        let body = user("\"the same prompt\"", "");
        let plain = passes(&fleet, &client, &Case::good(CHAT, &body)).await;
        for path in [
            "/v1/chat/completions?beta=true",
            "/v1/chat/completions?",
            "/v1/chat/completions?a=/v1/models",
        ] {
            let asked = passes(&fleet, &client, &Case::good(path, &body)).await;
            assert_eq!(
                decided(&asked.headers, "key"),
                decided(&plain.headers, "key"),
                "{path}"
            );
            assert_ne!(decided(&asked.headers, "key"), "");
            assert_eq!(
                decided(&asked.headers, "endpoint"),
                decided(&plain.headers, "endpoint"),
                "{path}"
            );
        }
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    b3_a_query_changes_neither_path_nor_key: queries, OriginalDst, OriginalDst
);

async fn batches(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers, json!({})).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        // The price: prompt tokens (4 bytes each, or ids) and output tokens of each item.
        for (prompt, cost) in [
            (r#""once upon a time""#, "4+3"),
            (r#"["once upon a time","in a land far off"]"#, "9+6"),
            ("[1,2,3,4,5]", "5+3"),
            ("[[1,2,3],[4,5,6,7]]", "7+6"),
        ] {
            let body = format!(r#"{{"model":"tiny","prompt":{prompt},"max_tokens":3}}"#);
            let answer = passes(&fleet, &client, &Case::good(COMPLETIONS, &body)).await;
            assert_eq!(decided(&answer.headers, "cost"), cost, "{prompt}");
            assert_eq!(decided(&answer.headers, "key").len(), 16, "{prompt}");
            let choices = answer.json()["choices"].as_array().unwrap().len();
            assert_eq!(
                choices,
                if prompt.contains("],[") || prompt.starts_with("[\"") {
                    2
                } else {
                    1
                }
            );
        }
    }
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    b4_batches_of_strings_and_of_token_ids_are_read: batches, FilterState, FilterState
);

#[tokio::test]
async fn h4_nothing_to_hash_is_a_pick_by_load() {
    let mut fleet = start(Mode::OverrideHost, 1, json!({})).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for case in [
            Case::good(CHAT, &user("null", "")),
            Case::good(CHAT, &user("\"\"", "")),
            Case::good(CHAT, r#"{"model":"tiny","messages":[]}"#),
            Case::new(CHAT, &br#"{"model":"tiny"}"#[..], "complete", 400),
            Case::good(COMPLETIONS, r#"{"model":"tiny","prompt":""}"#),
            Case::good(COMPLETIONS, r#"{"model":"tiny","prompt":[]}"#),
        ] {
            let answer = passes(&fleet, &client, &case).await;
            let shown = String::from_utf8_lossy(&case.body);
            assert_eq!(decided(&answer.headers, "reason"), "no_key", "{shown}");
            assert_eq!(decided(&answer.headers, "key"), "", "{shown}");
        }
    }
    unharmed(&mut fleet).await;
}

async fn orders(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers, json!({})).await;
    let (a, b) = ("A".repeat(64), "B".repeat(64));
    let mut all = Vec::new();
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        let mut keys = Vec::new();
        for order in [vec![&a, &b], vec![&b, &a], vec![&a, &a, &b], vec![&b]] {
            let parts: Vec<Value> = order
                .iter()
                .map(|text| json!({"type": "text", "text": text}))
                .collect();
            let body = user(&Value::Array(parts).to_string(), "");
            let answer = passes(&fleet, &client, &Case::good(CHAT, &body)).await;
            keys.push(decided(&answer.headers, "key"));
        }
        let different: BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), 4, "{keys:?}");
        all.push(keys);
    }
    assert_eq!(all[0], all[1]);
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    h6_the_same_blocks_in_another_order_are_another_key: orders, OriginalDst, OriginalDst
);

fn not_to_be_read() -> Vec<Case> {
    let deep = 100_000;
    let arrays = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
    let objects = format!("{}1{}", "{\"a\":".repeat(deep), "}".repeat(deep));
    let mut invalid = br#"{"model":"tiny","messages":[{"role":"user","content":""#.to_vec();
    invalid.extend_from_slice(b"\xff\xfe\xc3 caf\xe9");
    invalid.extend_from_slice(br#""}]}"#);
    let whole = user("\"Hi\"", "");
    vec![
        Case::new(CHAT, &b"not json at all"[..], "malformed", 400),
        Case::new(CHAT, &b"\x00\xff\x80\r\n"[..], "malformed", 400),
        Case::new(CHAT, &b"[1,2,3]"[..], "malformed", 400),
        Case::new(CHAT, &b"{"[..], "malformed", 400),
        Case::new(CHAT, whole.as_bytes()[..whole.len() - 5].to_vec(), "malformed", 400),
        Case::new(CHAT, format!("{{\"messages\":{arrays}}}"), "complete", 400),
        Case::new(CHAT, format!("{{\"x\":{objects},\"messages\":[]}}"), "complete", 400),
        Case::new(CHAT, "[".repeat(deep), "malformed", 400),
        Case::new(CHAT, invalid, "complete", 400),
        Case::new(CHAT, user("\"\\ud800 and \\udc00\\ud800\"", ""), "complete", 400),
        // gzip of "{}", and something that only claims to be compressed.
        Case::new(CHAT, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00".to_vec(), "encoded", 400)
            .with("content-encoding", "gzip"),
        Case::new(CHAT, user("\"Hi\"", ""), "complete", 200).with("content-encoding", b"zstd, \xe9"),
        Case::new(CHAT, user("\"Hi\"", ""), "complete", 200).with("content-encoding", "identity"),
        Case::new(CHAT, Bytes::new(), "unread", 400),
    ]
}

#[tokio::test]
async fn b7_what_nobody_can_read_passes_original_dst() {
    all_pass(Mode::OriginalDst, 4, not_to_be_read()).await;
}

#[tokio::test]
async fn b7_what_nobody_can_read_passes_filter_state() {
    all_pass(Mode::FilterState, 1, not_to_be_read()).await;
}

#[tokio::test]
async fn b7_what_nobody_can_read_passes_override_host() {
    all_pass(Mode::OverrideHost, 1, not_to_be_read()).await;
}

/// A chat with an image of about `bytes` in it; the text comes first.
fn picture(bytes: usize) -> Bytes {
    let data: String = "iVBORw0KGgo/+8AAAANSUhEUg"
        .chars()
        .cycle()
        .take(bytes)
        .collect();
    let parts = format!(
        r#"[{{"type":"text","text":"What is it?"}},{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{data}"}}}}]"#
    );
    user(&parts, "").into()
}

fn pieces(body: &Bytes, size: usize) -> Vec<Bytes> {
    (0..body.len())
        .step_by(size)
        .map(|at| body.slice(at..body.len().min(at + size)))
        .collect()
}

/// The ways in which a body can come.
fn ways(path: &str, body: &Bytes) -> Vec<(&'static str, Call)> {
    let small = if body.len() > 5_000_000 { 60_000 } else { 700 };
    let instant = Duration::ZERO;
    let mut ways = vec![
        ("whole, with a length", Call::post(path, body.clone())),
        (
            "in small chunks",
            Call::trickle(path, pieces(body, small), instant),
        ),
        (
            "with trailers",
            Call::trickle(path, pieces(body, 50_000), instant).trailer("x-checksum", "0"),
        ),
    ];
    if body.len() < 5_000_000 {
        let slowly = pieces(body, body.len().div_ceil(12));
        ways.push((
            "slowly",
            Call::trickle(path, slowly.clone(), Duration::from_millis(15)),
        ));
        ways.push((
            "slowly, with trailers",
            Call::trickle(path, slowly.clone(), Duration::from_millis(15))
                .trailer("x-checksum", "0"),
        ));
        let mut call = Call::trickle(path, slowly, Duration::from_millis(15));
        call = call.header("content-length", body.len().to_string());
        ways.push(("slowly, with a length", call));
    }
    ways
}

fn pass_trailers(config: &mut EnvoyConfig) {
    let connection = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let connection = config.0.pointer_mut(connection).unwrap();
    connection["http_protocol_options"] = json!({ "enable_trailers": true });
    let options = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/explicit_http_config/http_protocol_options";
    let cluster = config
        .0
        .pointer_mut("/static_resources/clusters/0")
        .unwrap();
    set(cluster, options, json!({ "enable_trailers": true })).unwrap();
}

/// Bodies of these sizes, in every way they can come; with `hold.max_bytes` at `hold`.
async fn sizes(mode: Mode, workers: u32, hold: usize, adjust: fn(&mut EnvoyConfig)) {
    let mut options = FleetOptions::new(mode, workers, 3)
        .plugin(json!({ "explain": {"response_header": true, "log_field": true}, "hold": {"max_bytes": hold} }));
    options.adjust = adjust;
    let mut fleet = Fleet::start(options).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for size in [100_000, 1_200_000, 20_000_000] {
            let body = picture(size);
            for (way, call) in ways(CHAT, &body) {
                let shown = format!("{size} bytes {way} over {protocol:?}");
                let before = fleet.stats_now().await;
                let answer = arrives(&fleet, &client, call, CHAT, &body).await;
                assert_eq!(answer.status, 200, "{shown}: {}", answer.text());
                let after = parsed_one_more(&fleet, &before).await;
                let [complete, partial] = ["complete", "partial"]
                    .map(|outcome| parsed(&after, outcome) - parsed(&before, outcome));
                assert_eq!(complete + partial, 1.0, "{shown}");
                // A body that comes all at once may be there before its beginning is looked at.
                let in_pieces = way.starts_with("slowly") || size == 20_000_000;
                if body.len() <= hold || in_pieces {
                    assert_eq!(complete == 1.0, body.len() <= hold, "{shown}");
                }
                // Text and one picture, however much of it was read.
                // The limit of output tokens stands at the end.
                let cost = if complete == 1.0 {
                    "1027+2"
                } else {
                    "1027+256"
                };
                assert_eq!(decided(&answer.headers, "cost"), cost, "{shown}");
            }
        }
    }
    unharmed(&mut fleet).await;
}

#[tokio::test]
async fn b5_bodies_of_all_sizes_are_routed() {
    sizes(Mode::OriginalDst, 4, 1_000_000, |_| {}).await;
}

#[tokio::test]
async fn b5_a_decision_in_the_middle_of_the_body() {
    sizes(Mode::OverrideHost, 1, 10_000, |_| {}).await;
}

#[tokio::test]
async fn b5_trailers_that_envoy_passes_on() {
    sizes(Mode::FilterState, 4, 10_000, pass_trailers).await;
}

/// Around the limit of what is held, and around Envoy's own buffer limit of 1 MiB.
#[tokio::test]
async fn b5_no_length_near_the_limits_is_refused() {
    let mut fleet = start(Mode::OriginalDst, 1, json!({})).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        let limits = (999_800..1_000_000).step_by(3);
        for size in (960_000..1_100_000).step_by(10_007).chain(limits) {
            let body = picture(size);
            let answer =
                arrives(&fleet, &client, Call::post(CHAT, body.clone()), CHAT, &body).await;
            assert_eq!(answer.status, 200, "{size} bytes: {}", answer.text());
        }
    }
    unharmed(&mut fleet).await;
}

/// What is held and what comes next in one read together exceed Envoy's buffer limit of a connection.
async fn bursts(mode: Mode, hold: usize) {
    let mut fleet = start(mode, 1, json!({ "hold": {"max_bytes": hold} })).await;
    let body = picture(3_000_000);
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for first in [9_000, 200_000, 700_000, 990_000] {
            let halves = vec![body.slice(..first), body.slice(first..)];
            for pause_ms in [0, 5, 50] {
                let call = Call::trickle(CHAT, halves.clone(), Duration::from_millis(pause_ms));
                let answer = arrives(&fleet, &client, call, CHAT, &body).await;
                assert_eq!(
                    answer.status,
                    200,
                    "after {first} bytes and {pause_ms} ms: {}",
                    answer.text()
                );
            }
        }
    }
    unharmed(&mut fleet).await;
}

#[tokio::test]
async fn b5_a_burst_after_a_pause_is_not_refused_original_dst() {
    bursts(Mode::OriginalDst, 1_000_000).await;
}

#[tokio::test]
async fn b5_a_burst_after_a_pause_is_not_refused_filter_state() {
    bursts(Mode::FilterState, 10_000).await;
}

#[tokio::test]
async fn b5_a_burst_after_a_pause_is_not_refused_override_host() {
    bursts(Mode::OverrideHost, 1_000_000).await;
}

/// What is held of each counts against the windows of the one connection.
#[tokio::test]
async fn b5_many_uploads_at_once_on_one_connection() {
    let mut fleet = start(Mode::OverrideHost, 1, json!({})).await;
    let body = picture(1_300_000);
    let client = fleet.client(Protocol::Http2);
    let upload = |number: usize| {
        let call = Call::trickle(CHAT, pieces(&body, 90_000), Duration::from_millis(5));
        let (client, call) = (client.clone(), call.header(CASE_HEADER, number.to_string()));
        tokio::spawn(async move { client.send(call).await })
    };
    let uploads: Vec<_> = (10_000..10_040).map(upload).collect();
    for upload in uploads {
        assert_eq!(upload.await.unwrap().unwrap().status, 200);
    }
    let whole = sha256(&body);
    for number in 10_000..10_040 {
        let arrived = seen(&fleet, &number.to_string());
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].1.body_sha256, whole);
    }
    unharmed(&mut fleet).await;
}

/// curl and others ask first before they send a large body; the answer must come although the
/// request is held.
#[tokio::test]
async fn b5_a_client_that_waits_for_100_continue() {
    for mode in Mode::STEERING {
        let mut fleet = start(mode, 1, json!({})).await;
        let body = user("\"Hi\"", "");
        let mut stream = TcpStream::connect(fleet.envoy.listener).await.unwrap();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Type: application/json\r\n\
             {CASE_HEADER}: expect\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0; 25];
        let read = stream.read_exact(&mut first);
        tokio::time::timeout(SETTLE, read)
            .await
            .expect("an answer")
            .unwrap();
        assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = in_time(stream.read_to_string(&mut answer)).await;
        read.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(
            seen(&fleet, "expect")[0].1.body_sha256,
            sha256(body.as_bytes())
        );
        becomes(
            &fleet,
            "warmroute_parse_total",
            &[("outcome", "complete")],
            1.0,
        )
        .await;
        unharmed(&mut fleet).await;
    }
}

/// B6: the token counters say what the engine said, however it said it.
async fn usage(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers, json!({})).await;
    let mut tokens = Tokens::default();
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for fault in [
            "chunk=1",
            "chunk=7",
            "usage=split",
            "usage=split,chunk=3",
            "usage=null-cached",
            "usage=none",
            "",
        ] {
            for stream in [true, false] {
                tokens.grow(&fleet, &client, CHAT, stream, fault).await;
            }
            for path in [MESSAGES, RESPONSES] {
                tokens.grow(&fleet, &client, path, true, fault).await;
            }
        }
    }
    let stats = at_rest(&fleet).await;
    assert_eq!(Tokens::counted(&stats), tokens);
    assert!(stats.metric("warmroute_cached_tokens_total", &[]) > 0.0);
    unharmed(&mut fleet).await;
}

/// Tokens by counter and endpoint.
#[derive(Debug, Default, PartialEq)]
struct Tokens(BTreeMap<(&'static str, String), f64>);

impl Tokens {
    const COUNTERS: [&str; 3] = [
        "warmroute_prompt_tokens_total",
        "warmroute_cached_tokens_total",
        "warmroute_output_tokens_total",
    ];

    fn counted(stats: &Stats) -> Self {
        let mut counted = Self::default();
        for name in Self::COUNTERS {
            for sample in stats.samples(name, &[]) {
                counted.add(name, &sample.labels["endpoint"], sample.value);
            }
        }
        counted
    }

    fn add(&mut self, name: &'static str, endpoint: &str, tokens: f64) {
        if tokens != 0.0 {
            *self.0.entry((name, endpoint.to_owned())).or_default() += tokens;
        }
    }

    /// Sends one request more, and waits until what its answer says has been counted.
    async fn grow(
        &mut self,
        fleet: &Fleet,
        client: &HttpClient,
        path: &str,
        stream: bool,
        fault: &str,
    ) {
        let call = Call::post(path, question(path, stream).to_string());
        let answer = client
            .send(call.header("x-mock-fault", fault))
            .await
            .unwrap();
        let shown = format!("{path}, stream {stream}, {fault:?}: {}", answer.text());
        assert_eq!(answer.status, 200, "{shown}");
        let reported = reported(&answer, stream);
        let [_, cached, output] = reported;
        assert_eq!(output, if fault == "usage=none" { 0 } else { 6 }, "{shown}");
        if fault == "usage=null-cached" {
            assert_eq!(cached, 0, "{shown}");
        }
        let endpoint = decided(&answer.headers, "endpoint");
        for (name, tokens) in Self::COUNTERS.into_iter().zip(reported) {
            self.add(name, &endpoint, tokens as f64);
        }
        if fault == "usage=none" {
            assert_eq!(Self::counted(&at_rest(fleet).await), *self, "{shown}");
            return;
        }
        let begun = Instant::now();
        while Self::counted(&fleet.stats_now().await) != *self {
            if begun.elapsed() > SETTLE {
                let counted = Self::counted(&fleet.stats_now().await);
                panic!("{counted:?}, not {self:?}, after {shown}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A prompt that is long enough for two blocks, under one of three APIs.
fn question(path: &str, stream: bool) -> Value {
    let prompt = format!("{} of a prompt. ", "A bit".repeat(40));
    match path {
        RESPONSES => {
            json!({"model": "tiny", "max_output_tokens": 6, "stream": stream, "input": prompt})
        }
        _ => json!({
            "model": "tiny", "max_tokens": 6, "stream": stream,
            "stream_options": if stream && path == CHAT { json!({"include_usage": true}) } else { Value::Null },
            "messages": [{"role": "user", "content": prompt}],
        }),
    }
}

/// Tokens of the prompt, those of it that were cached, and tokens of the output, as the answer has
/// them in its last usage.
fn reported(answer: &Answer, stream: bool) -> [u64; 3] {
    let usages = |document: &Value| {
        let places = ["/usage", "/message/usage", "/response/usage"];
        let found = places.map(|place| document.pointer(place).cloned().unwrap_or_default());
        found.into_iter().find(|usage| !usage.is_null())
    };
    let text = answer.text();
    let usage = if stream {
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let documents = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
        documents.filter_map(|document| usages(&document)).next_back()
    } else {
        usages(&answer.json())
    };
    let usage = usage.unwrap_or_default();
    let figure = |places: &[&str]| {
        let mut found = places
            .iter()
            .filter_map(|place| usage.pointer(place)?.as_u64());
        found.next().unwrap_or(0)
    };
    [
        figure(&["/prompt_tokens", "/input_tokens"]),
        figure(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cache_read_input_tokens",
        ]),
        figure(&["/completion_tokens", "/output_tokens"]),
    ]
}

#[tokio::test]
async fn b6_usage_is_counted_however_it_comes_original_dst() {
    usage(Mode::OriginalDst, 1).await;
}

#[tokio::test]
async fn b6_usage_is_counted_however_it_comes_override_host() {
    usage(Mode::OverrideHost, 4).await;
}

/// Requests without a body to read, and headers that are hard to take.
async fn odd_requests(mode: Mode, workers: u32) {
    let policy =
        json!({"name": "consistent_hash", "keys": [{"header": "x-session-id"}, {"cookie": "sid"}]});
    let mut fleet = start(mode, workers, json!({ "policy": policy })).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for (method, path, status) in [
            ("GET", "/v1/models", 200),
            ("HEAD", "/v1/models", 405),
            ("OPTIONS", CHAT, 405),
            ("GET", CHAT, 405),
            ("PUT", CHAT, 405),
            ("DELETE", "/", 404),
            ("GET", "//v1/chat/completions", 404),
            ("GET", "/v1/chat/completions/", 404),
            ("POST", "/V1/CHAT/completions", 404),
            ("POST", "/unknown?path=%00%ff", 404),
            ("POST", "/tokenize", 400),
        ] {
            let answer = arrives(&fleet, &client, Call::method(method, path), path, b"").await;
            assert_eq!(answer.status, status, "{method} {path}");
        }
        hard_headers(&fleet, &client).await;
    }
    unharmed(&mut fleet).await;
}

async fn hard_headers(fleet: &Fleet, client: &HttpClient) {
    let body = user("\"Hi\"", "");
    let post = || Call::post(CHAT, body.clone());
    let long = "c=".to_owned() + &"x".repeat(40_000);
    let many = (0..70).fold(post(), |call, index| {
        call.header("x-many", index.to_string())
    });
    for call in [
        post().header("x-latin", b"caf\xe9 \xff\x80"),
        post().header("cookie", long.as_str()),
        post().header("cookie", b"\xff=\xfe; =; ;;; sid"),
        post().header("x-empty", "").header("cookie", ""),
        post().header("accept", "*/*; q=\"\u{e9}\""),
        many,
    ] {
        let answer = arrives(fleet, client, call, CHAT, body.as_bytes()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // Keys are bytes: each finds its own endpoint again.
    for session in [&b"\xff\xfe"[..], b"\xff", b"caf\xe9", b"caf\xc3\xa9"] {
        let mut keys = Vec::new();
        for name in ["x-session-id", "x-session-id", "cookie"] {
            let value = if name == "cookie" {
                [b"a=b; sid=", session].concat()
            } else {
                session.to_vec()
            };
            let answer = arrives(
                fleet,
                client,
                post().header(name, value),
                CHAT,
                body.as_bytes(),
            )
            .await;
            keys.push((
                decided(&answer.headers, "key"),
                decided(&answer.headers, "endpoint"),
            ));
        }
        assert_eq!(keys[0].0.len(), 16, "{keys:?}");
        assert_eq!(keys[0], keys[1]);
        assert_ne!(
            keys[0].0, keys[2].0,
            "a session and a cookie are no one key"
        );
    }
}

#[tokio::test]
async fn b7_odd_requests_original_dst() {
    odd_requests(Mode::OriginalDst, 1).await;
}

#[tokio::test]
async fn b7_odd_requests_filter_state() {
    odd_requests(Mode::FilterState, 4).await;
}

#[tokio::test]
async fn b7_odd_requests_override_host() {
    odd_requests(Mode::OverrideHost, 4).await;
}

/// With `other_paths: pass` Envoy decides about them: `override_host` falls back to its own policy,
/// and an ORIGINAL_DST cluster has no destination.
#[tokio::test]
async fn other_paths_pass_without_a_pick() {
    for (mode, status) in [
        (Mode::OverrideHost, 200),
        (Mode::OriginalDst, 503),
        (Mode::FilterState, 503),
    ] {
        let mut fleet = start(mode, 1, json!({ "other_paths": "pass" })).await;
        for protocol in Protocol::ALL {
            let client = fleet.client(protocol);
            let answer = client.send(Call::get("/v1/models")).await.unwrap();
            assert_eq!(answer.status, status, "{mode:?}");
            assert_eq!(answer.header("x-warmroute-decision"), "");
            // A body that nobody reads is not held either.
            let call = Call::trickle(
                "/tokenize",
                vec!["{\"prompt\":".into(), "\"abcd\"}".into()],
                Duration::from_millis(300),
            );
            assert_eq!(client.send(call).await.unwrap().status, status, "{mode:?}");
            let body = user("\"Hi\"", "");
            let answer = arrives(
                &fleet,
                &client,
                Call::post(CHAT, body.clone()),
                CHAT,
                body.as_bytes(),
            )
            .await;
            assert_eq!(answer.status, 200);
        }
        assert_eq!(
            at_rest(&fleet).await.metric("warmroute_picks_total", &[]),
            2.0
        );
        unharmed(&mut fleet).await;
    }
}
