//! The mock replica against recorded answers of a real vLLM 0.32.0, and its faults.
#![cfg(not(target_arch = "wasm32"))]
// Helpers outside of test functions may fail as loudly as the tests they serve.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../examples/mock_vllm/server.rs"]
mod mock;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use mock::{Fault, Mock, MockOptions};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use warmroute::sim::replica::Profile;

/// Long enough for anything that must happen, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);
const CHAT: &str = "/v1/chat/completions";

// ---------------------------------------------------------------- a client

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    /// One entry for each write of the server, as far as they arrived apart.
    frames: Vec<Bytes>,
    /// The body ended before its end.
    broken: bool,
}

impl Reply {
    fn text(&self) -> String {
        String::from_utf8(self.frames.concat()).unwrap()
    }
    fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "mock");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap()
}

/// `Err` if the connection breaks before the headers are there.
async fn send(at: SocketAddr, request: Request<Full<Bytes>>) -> hyper::Result<Reply> {
    let stream = TcpStream::connect(at).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let exchange = async {
        let response = sender.send_request(request).await?;
        let (parts, mut body) = response.into_parts();
        let (mut frames, mut broken) = (Vec::new(), false);
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => frames.push(frame.into_data().unwrap()),
                Err(_) => broken = true,
            }
        }
        Ok(Reply {
            status: parts.status,
            headers: parts.headers,
            frames,
            broken,
        })
    };
    let reply = tokio::time::timeout(PATIENCE, exchange)
        .await
        .expect("an answer in time");
    driver.abort();
    reply
}

async fn post(mock: &Mock, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let headers = [&[("content-type", "application/json")], headers].concat();
    send(mock.addr(), request(Method::POST, path, &headers, body))
        .await
        .unwrap()
}

async fn get(mock: &Mock, path: &str) -> Reply {
    send(mock.addr(), request(Method::GET, path, &[], ""))
        .await
        .unwrap()
}

async fn start() -> Mock {
    let adapters = vec!["lora-a".to_owned(), "lora-b".to_owned()];
    let profile = Profile {
        block_tokens: 128,
        ..Profile::fast()
    };
    let options = MockOptions {
        adapters,
        max_model_len: 4_096,
        profile,
        ..MockOptions::default()
    };
    Mock::start(options).await.unwrap()
}

/// A replica on which nothing ends by itself within a test.
async fn start_slow() -> Mock {
    let profile = Profile {
        step_base_us: 20_000,
        ..Profile::fast()
    };
    let options = MockOptions {
        max_model_len: 1_000_000,
        profile,
        ..MockOptions::default()
    };
    Mock::start(options).await.unwrap()
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it did not come to pass"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

// ---------------------------------------------------------------- comparison

fn recorded(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vllm-0.32.0");
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// Same fields in the same order with the same types; arrays by their first element.
fn same_shape(path: &str, real: &Value, ours: &Value) {
    match (real, ours) {
        (Value::Object(real), Value::Object(ours)) => {
            let names =
                |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(real), names(ours), "fields of {path}");
            for (name, value) in real {
                same_shape(&format!("{path}.{name}"), value, &ours[name]);
            }
        }
        (Value::Array(real), Value::Array(ours)) => {
            assert_eq!(real.is_empty(), ours.is_empty(), "{path}");
            if let (Some(real), Some(ours)) = (real.first(), ours.first()) {
                same_shape(&format!("{path}[0]"), real, ours);
            }
        }
        (Value::Number(real), Value::Number(ours)) => {
            assert_eq!(real.is_f64(), ours.is_f64(), "{path}")
        }
        (Value::String(_), Value::String(_)) | (Value::Bool(_), Value::Bool(_)) => {}
        (Value::Null, Value::Null) => {}
        _ => panic!("{path}: {real} is not of the type of {ours}"),
    }
}

/// The names of all fields, in the order of the text.
fn field_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, from)) = rest.split_once('"') {
        let mut end = 0;
        let bytes = from.as_bytes();
        while bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        rest = &from[end + 1..];
        if rest.trim_start().starts_with(':') {
            names.push(&from[..end]);
        }
    }
    names
}

fn same_body(name: &str, ours: &str) {
    let real = recorded(name);
    same_shape(
        name,
        &serde_json::from_str(&real).unwrap(),
        &serde_json::from_str(ours).unwrap(),
    );
    let (real, ours) = (field_names(&real), field_names(ours));
    // A batch has as many choices here as there, so even repeated fields are in place.
    assert_eq!(real, ours, "order of fields in {name}");
}

/// Same status and same headers; values too where they are not about this very answer.
fn same_headers(name: &str, reply: &Reply) {
    let real = recorded(name);
    let mut lines = real.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    assert_eq!(status, reply.status.as_str(), "{name}");
    let real: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    let names: BTreeSet<&str> = real.iter().map(|(name, _)| *name).collect();
    let ours: BTreeSet<&str> = reply.headers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ours, "{name}");
    for (header, value) in real {
        match header {
            "date" => {}
            "content-length" => {
                assert_eq!(
                    reply.header(header),
                    Some(reply.text().len().to_string().as_str())
                );
            }
            _ => assert_eq!(reply.header(header), Some(value), "{header} in {name}"),
        }
    }
}

async fn compare(
    mock: &Mock,
    name: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let reply = post(mock, path, headers, body).await;
    same_headers(&format!("{name}.headers"), &reply);
    same_body(&format!("{name}.body"), &reply.text());
    reply
}

fn events(text: &str) -> Vec<&str> {
    assert!(text.ends_with("\n\n"), "{text:?}");
    text.trim_end_matches('\n').split("\n\n").collect()
}

async fn compare_stream(mock: &Mock, name: &str, path: &str, headers: &[(&str, &str)], body: &str) {
    let reply = post(mock, path, headers, body).await;
    same_headers(&format!("{name}.headers"), &reply);
    let (real, ours) = (recorded(&format!("{name}.body")), reply.text());
    let (real, ours) = (events(&real), events(&ours));
    assert_eq!(real.len(), ours.len(), "events of {name}");
    for (index, (real, ours)) in real.iter().zip(&ours).enumerate() {
        let real = real.strip_prefix("data: ").unwrap();
        let ours = ours.strip_prefix("data: ").unwrap();
        if real == "[DONE]" {
            assert_eq!(ours, real);
            continue;
        }
        let parse = |text| serde_json::from_str::<Value>(text).unwrap();
        same_shape(&format!("{name} #{index}"), &parse(real), &parse(ours));
        assert_eq!(field_names(real), field_names(ours), "{name} #{index}");
        let reason = |text| parse(text).pointer("/choices/0/finish_reason").cloned();
        assert_eq!(reason(real), reason(ours), "{name} #{index}");
    }
}

fn chat(model: &str, question: &str, max_tokens: u32, more: &str) -> String {
    let system = "You are terse. ".repeat(400);
    format!(
        r#"{{"model":"{model}","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{question}"}}],"max_tokens":{max_tokens}{more}}}"#
    )
}

fn short(max_tokens: u32, more: &str) -> String {
    format!(
        r#"{{"model":"tiny","messages":[{{"role":"user","content":"Say hello"}}],"max_tokens":{max_tokens}{more}}}"#
    )
}

fn cached(reply: &Reply) -> u64 {
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

// ---------------------------------------------------------------- like the recorded answers

#[tokio::test]
async fn chats_are_like_the_recorded_ones_and_share_what_vllm_shares() {
    let mock = start().await;
    let one = chat("tiny", "What is one?", 8, "");
    let two = chat("tiny", "What is two?", 8, "");
    let cold = compare(&mock, "chat_1_cold", CHAT, &[], &one).await;
    assert_eq!(cached(&cold), 0);
    let warm = compare(&mock, "chat_2_warm", CHAT, &[], &two).await;
    // 6,000 characters are 1,500 tokens: eleven blocks of 128.
    assert_eq!(cached(&warm), 1_408);
    let salted = chat("tiny", "What is two?", 8, r#","cache_salt":"mine""#);
    assert_eq!(
        cached(&compare(&mock, "chat_3_salt", CHAT, &[], &salted).await),
        0
    );
    let lora = compare(
        &mock,
        "chat_4_lora_cold",
        CHAT,
        &[],
        &chat("lora-a", "What is one?", 8, ""),
    )
    .await;
    assert_eq!(cached(&lora), 0);
    assert_eq!(lora.json()["model"], "lora-a");
    let lora = compare(
        &mock,
        "chat_5_lora_warm",
        CHAT,
        &[],
        &chat("lora-a", "What is two?", 8, ""),
    )
    .await;
    assert_eq!(cached(&lora), 1_408);
    let totals = mock.totals();
    assert_eq!((totals.requests, totals.in_flight), (5, 0));
    assert_eq!(
        (totals.cached_tokens, totals.output_tokens),
        (2 * 1_408, 40)
    );
    mock.stop().await;
}

#[tokio::test]
async fn streams_are_like_the_recorded_ones() {
    let mock = start().await;
    let usage = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let continuous =
        r#","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    compare_stream(&mock, "chat_stream", CHAT, &[], &short(8, usage)).await;
    compare_stream(
        &mock,
        "chat_stream_continuous",
        CHAT,
        &[],
        &short(4, continuous),
    )
    .await;
    compare_stream(
        &mock,
        "chat_stream_nousage",
        CHAT,
        &[],
        &short(4, r#","stream":true"#),
    )
    .await;
    let orca = [("endpoint-load-metrics-format", "TEXT")];
    compare_stream(
        &mock,
        "orca_stream_TEXT",
        CHAT,
        &orca,
        &short(4, r#","stream":true"#),
    )
    .await;
    let completion = format!(r#"{{"model":"tiny","prompt":"Once upon","max_tokens":4{usage}}}"#);
    compare_stream(
        &mock,
        "completion_stream",
        "/v1/completions",
        &[],
        &completion,
    )
    .await;
    mock.stop().await;
}

#[tokio::test]
async fn the_other_apis_are_like_the_recorded_ones() {
    let mock = start().await;
    let path = "/v1/completions";
    let prompt = |prompt: &str, tokens| {
        format!(r#"{{"model":"tiny","prompt":{prompt},"max_tokens":{tokens}}}"#)
    };
    compare(
        &mock,
        "completion",
        path,
        &[],
        &prompt(r#""Once upon a time""#, 8),
    )
    .await;
    let ids = compare(
        &mock,
        "completion_tokens",
        path,
        &[],
        &prompt("[5,6,7,8]", 4),
    )
    .await;
    assert_eq!(ids.json()["usage"]["prompt_tokens"], 4);
    let batch = compare(
        &mock,
        "completion_batch",
        path,
        &[],
        &prompt(r#"["one two","three"]"#, 4),
    )
    .await;
    assert_eq!(batch.json()["usage"]["completion_tokens"], 8);
    assert_eq!(batch.json()["choices"][1]["index"], 1);
    let input = r#"{"model":"tiny","input":"Say hello","max_output_tokens":8}"#;
    compare(&mock, "responses", "/v1/responses", &[], input).await;
    compare(
        &mock,
        "anthropic_messages",
        "/v1/messages",
        &[],
        &short(8, ""),
    )
    .await;
    let named = compare(
        &mock,
        "req_id",
        CHAT,
        &[("x-request-id", "my-req-123")],
        &short(2, ""),
    )
    .await;
    assert_eq!(named.json()["id"], "chatcmpl-my-req-123");
    for format in ["TEXT", "JSON", "BIN"] {
        let orca = [("endpoint-load-metrics-format", format)];
        compare(
            &mock,
            &format!("orca_chat_{format}"),
            CHAT,
            &orca,
            &short(4, ""),
        )
        .await;
        let name = format!("orca_completion_{format}");
        compare(&mock, &name, path, &orca, &prompt(r#""Once""#, 4)).await;
    }
    mock.stop().await;
}

#[tokio::test]
async fn small_endpoints_are_like_the_recorded_ones() {
    let mock = start().await;
    for (name, path) in [
        ("health", "/health"),
        ("ping", "/ping"),
        ("version", "/version"),
        ("load_idle", "/load"),
    ] {
        let reply = get(&mock, path).await;
        same_headers(&format!("{name}.headers"), &reply);
        assert_eq!(reply.text(), recorded(&format!("{name}.body")));
    }
    let models = get(&mock, "/v1/models").await;
    same_headers("models.headers", &models);
    same_body("models.body", &models.text());
    let ids: Vec<Value> = models.json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].clone())
        .collect();
    assert_eq!(ids, ["tiny", "lora-a", "lora-b"]);
    let text = r#"{"model":"tiny","prompt":"hello there, you"}"#;
    assert_eq!(
        compare(&mock, "tokenize", "/tokenize", &[], text)
            .await
            .json()["count"],
        4
    );
    compare(&mock, "tokenize_chat", "/tokenize", &[], &short(1, "")).await;
    compare(
        &mock,
        "detokenize",
        "/detokenize",
        &[],
        r#"{"model":"tiny","tokens":[1,2,3]}"#,
    )
    .await;
    mock.stop().await;
}

#[tokio::test]
async fn errors_are_the_recorded_ones() {
    let mock = start().await;
    let at_most = "x".repeat(4_096 * 4);
    let long = format!(r#"{{"model":"tiny","prompt":"{at_most}y","max_tokens":1}}"#);
    let long_stream = long.replace("}", r#","stream":true}"#);
    let completions = "/v1/completions";
    for (name, path, body) in [
        (
            "err_unknown_model",
            CHAT,
            short(1, "").replace("tiny", "nope"),
        ),
        (
            "err_bad_json",
            CHAT,
            r#"{"model":"tiny","messages":"#.to_owned(),
        ),
        ("err_no_messages", CHAT, r#"{"model":"tiny"}"#.to_owned()),
        ("err_too_long", completions, long),
        ("err_too_long_stream", completions, long_stream),
        ("err_too_long_maxtokens", CHAT, short(5_000, "")),
    ] {
        let reply = post(&mock, path, &[], &body).await;
        same_headers(&format!("{name}.headers"), &reply);
        assert_eq!(reply.text(), recorded(&format!("{name}.body")), "{name}");
    }
    let plain = request(
        Method::POST,
        CHAT,
        &[("content-type", "text/plain")],
        &short(1, ""),
    );
    let wrong_type = send(mock.addr(), plain).await.unwrap();
    for (name, reply) in [
        ("err_content_type", wrong_type),
        ("err_method", get(&mock, CHAT).await),
        ("err_404", get(&mock, "/v1/nothing").await),
    ] {
        same_headers(&format!("{name}.headers"), &reply);
        assert_eq!(reply.text(), recorded(&format!("{name}.body")), "{name}");
    }
    assert_eq!(mock.totals().output_tokens, 0);
    mock.stop().await;
}

/// `name{label,label}` of each series but the HTTP ones, whose labels are about the traffic.
fn series(page: &str) -> BTreeSet<String> {
    let lines = page
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("http_"));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let keys = labels
                .split("\",")
                .map(|label| label.split('=').next().unwrap());
            format!("{name}{:?}", keys.collect::<Vec<_>>())
        })
        .collect()
}

fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find(|line| {
        line.rsplit_once(' ')
            .is_some_and(|(name, _)| name == series)
    });
    line.unwrap_or_else(|| panic!("no {series}"))
        .rsplit_once(' ')
        .unwrap()
        .1
        .parse()
        .unwrap()
}

#[tokio::test]
async fn metrics_have_the_recorded_families_and_count() {
    let mock = start().await;
    let idle = get(&mock, "/metrics").await;
    same_headers("metrics_idle.headers", &idle);
    assert_eq!(series(&recorded("metrics_idle.body")), series(&idle.text()));
    for question in ["one", "two"] {
        post(&mock, CHAT, &[], &chat("lora-a", question, 8, "")).await;
    }
    let page = get(&mock, "/metrics").await.text();
    let real = recorded("metrics_after.body");
    assert_eq!(series(&real), series(&page));
    let comments = |page: &str| {
        page.lines()
            .filter(|line| line.starts_with('#'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let vllm = |lines: Vec<String>| {
        lines
            .into_iter()
            .filter(|line| line.contains(" vllm:"))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(vllm(comments(&real)), vllm(comments(&page)));
    let labels = r#"{engine="0",model_name="tiny"}"#;
    let of = |name: &str| value(&page, &format!("{name}{labels}"));
    assert_eq!(of("vllm:num_requests_running"), 0.0);
    assert_eq!(of("vllm:prefix_cache_hits_total"), 1_408.0);
    assert_eq!(of("vllm:generation_tokens_total"), 16.0);
    assert_eq!(of("vllm:time_to_first_token_seconds_count"), 2.0);
    assert_eq!(of("vllm:request_generation_tokens_sum"), 16.0);
    let bucket = |le| {
        format!(
            r#"vllm:request_generation_tokens_bucket{{engine="0",le="{le}",model_name="tiny"}}"#
        )
    };
    assert_eq!(
        (value(&page, &bucket("5.0")), value(&page, &bucket("10.0"))),
        (0.0, 2.0)
    );
    assert!(page.contains(r#"block_size="128""#) && page.contains(r#"num_gpu_blocks="65536""#));
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    assert!((now.as_secs_f64() - value(&page, "process_start_time_seconds")).abs() < 300.0);
    assert_eq!(
        value(
            &page,
            r#"http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}"#
        ),
        2.0
    );
    mock.stop().await;
}

#[tokio::test]
async fn gauges_show_the_load_while_it_is_there() {
    let profile = Profile {
        step_base_us: 20_000,
        max_running: 2,
        ..Profile::fast()
    };
    let options = MockOptions {
        profile,
        ..MockOptions::default()
    };
    let mock = Mock::start(options).await.unwrap();
    let body = short(5_000, "");
    let long = (0..5).map(|_| {
        let (at, body) = (mock.addr(), body.clone());
        tokio::spawn(async move {
            let request = request(
                Method::POST,
                CHAT,
                &[("content-type", "application/json")],
                &body,
            );
            let stream = TcpStream::connect(at).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.is_ok()
        })
    });
    let long: Vec<_> = long.collect();
    eventually(|| mock.gauges().running == 2 && mock.gauges().waiting == 3).await;
    let page = get(&mock, "/metrics").await.text();
    let labels = r#"{engine="0",model_name="tiny"}"#;
    assert_eq!(
        value(&page, &format!("vllm:num_requests_running{labels}")),
        2.0
    );
    assert_eq!(
        value(&page, &format!("vllm:num_requests_waiting{labels}")),
        3.0
    );
    assert!(value(&page, &format!("vllm:kv_cache_usage_perc{labels}")) > 0.0);
    assert_eq!(get(&mock, "/load").await.text(), r#"{"server_load":5}"#);
    long.iter().for_each(tokio::task::JoinHandle::abort);
    mock.stop().await;
}

// ---------------------------------------------------------------- leaving, watching

#[tokio::test]
async fn a_client_that_leaves_aborts_its_request() {
    let mock = start_slow().await;
    for stream in ["", r#","stream":true"#] {
        let aborted = mock.gauges().aborted;
        let body = short(100_000, stream);
        let connection = TcpStream::connect(mock.addr()).await.unwrap();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: mock\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut unsent = head.as_bytes();
        while !unsent.is_empty() {
            connection.writable().await.unwrap();
            let count = connection.try_write(unsent).unwrap_or(0);
            unsent = &unsent[count..];
        }
        eventually(|| mock.gauges().running == 1 && mock.totals().in_flight == 1).await;
        drop(connection);
        eventually(|| mock.gauges().running == 0).await;
        eventually(|| mock.totals().in_flight == 0).await;
        assert_eq!(mock.gauges().aborted, aborted + 1);
        assert_eq!(mock.gauges().kv_usage, 0.0);
    }
    mock.stop().await;
}

#[tokio::test]
async fn the_headers_of_a_stream_come_before_its_first_token() {
    let profile = Profile {
        step_base_us: 3_600_000_000,
        ..Profile::fast()
    };
    let mock = Mock::start(MockOptions {
        profile,
        ..MockOptions::default()
    })
    .await
    .unwrap();
    let headers = [("content-type", "application/json")];
    let request = request(Method::POST, CHAT, &headers, &short(4, r#","stream":true"#));
    let stream = TcpStream::connect(mock.addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    // The first step takes an hour; the headers do not.
    let response = tokio::time::timeout(PATIENCE, sender.send_request(request))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(mock.totals().output_tokens, 0);
    driver.abort();
    mock.stop().await;
}

#[tokio::test]
async fn an_answer_takes_the_time_of_the_model() {
    for (time_scale, least_ms) in [(1.0, 198), (0.5, 98)] {
        let profile = Profile {
            step_base_us: 20_000,
            ..Profile::fast()
        };
        let options = MockOptions {
            profile,
            time_scale,
            ..MockOptions::default()
        };
        let mock = Mock::start(options).await.unwrap();
        for stream in ["", r#","stream":true"#] {
            let started = tokio::time::Instant::now();
            post(&mock, CHAT, &[], &short(10, stream)).await;
            // Ten steps; no upper bound, as the machine may be busy.
            assert!(started.elapsed() >= Duration::from_millis(least_ms));
        }
        mock.stop().await;
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let options = MockOptions {
        keep_alive_ms: 50,
        ..MockOptions::default()
    };
    let mock = Mock::start(options).await.unwrap();
    let stream = TcpStream::connect(mock.addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    // A request may take as long as it likes.
    let slow = [
        ("content-type", "application/json"),
        ("x-mock-fault", "delay-headers=300"),
    ];
    let response = sender
        .send_request(request(Method::POST, CHAT, &slow, &short(2, "")))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body().collect().await.unwrap();
    let closed = tokio::time::timeout(PATIENCE, driver).await;
    assert!(closed.is_ok(), "the connection must be closed");
    mock.stop().await;
}

/// The ids under `key` in the answer to a chat with this text.
async fn token_ids(mock: &Mock, path: &str, key: &str, text: &str) -> Vec<u64> {
    let messages = serde_json::json!([{"role": "user", "content": text}]);
    let body = serde_json::json!({"model": "tiny", "messages": messages, "max_tokens": 3});
    let reply = post(mock, path, &[], &body.to_string()).await;
    assert_eq!(reply.status, StatusCode::OK);
    let ids = reply.json()[key].clone();
    serde_json::from_value(ids).unwrap()
}

#[tokio::test]
async fn equal_beginnings_have_equal_tokens_and_different_ones_do_not() {
    let mock = start().await;
    for (path, key) in [
        ("/tokenize", "tokens"),
        ("/v1/chat/completions/render", "token_ids"),
    ] {
        // Four bytes a token, and a header that is no multiple of it.
        let short = token_ids(&mock, path, key, &"warm ".repeat(40)).await;
        let long = token_ids(&mock, path, key, &"warm ".repeat(80)).await;
        let other = token_ids(&mock, path, key, &"cold ".repeat(40)).await;
        assert!(short.len() >= 50 && long.len() >= 100, "{path}");
        // The last tokens of the short one are those of its end.
        let shared = short.iter().zip(&long).take_while(|(a, b)| a == b).count();
        assert!(shared >= 50, "{path}: {shared} of {}", short.len());
        let shared = short.iter().zip(&other).take_while(|(a, b)| a == b).count();
        assert!(shared <= 3, "{path}: {shared}");
        assert!(long.iter().all(|id| *id < 128_000), "{path}");
    }
    mock.stop().await;
}

#[tokio::test]
async fn a_rendered_prompt_has_the_tokens_that_the_engine_counts() {
    let mock = start().await;
    let body = short(2, "");
    let rendered = post(&mock, "/v1/chat/completions/render", &[], &body)
        .await
        .json();
    let answered = post(&mock, CHAT, &[], &body).await.json();
    let count = rendered["token_ids"].as_array().unwrap().len();
    assert_eq!(answered["usage"]["prompt_tokens"], count);
    assert_eq!(rendered["model"], "tiny");
    assert_eq!(rendered["sampling_params"]["max_tokens"], 2);
    mock.stop().await;
}

#[tokio::test]
async fn calls_other_than_inference_are_counted_by_path() {
    let mock = start().await;
    assert!(mock.other_calls().is_empty());
    let body = short(2, "");
    post(&mock, CHAT, &[], &body).await;
    post(&mock, "/v1/chat/completions/render", &[], &body).await;
    post(&mock, "/mock/faults", &[], "").await;
    for path in ["/health", "/health", "/get_load", "/server_info"] {
        get(&mock, path).await;
    }
    let calls: Vec<(String, u64)> = mock.other_calls().into_iter().collect();
    let counted = [
        ("/health", 2),
        ("/v1/chat/completions/render", 1),
        ("others", 2),
    ];
    assert_eq!(calls, counted.map(|(path, calls)| (path.to_owned(), calls)));
    assert_eq!(mock.totals().requests, 1);
    mock.stop().await;
}

#[tokio::test]
async fn a_replica_that_tells_its_endpoint_does_so_in_streams_and_errors() {
    let mock = Mock::start(MockOptions {
        tells_endpoint: true,
        ..MockOptions::default()
    })
    .await
    .unwrap();
    let own = mock.addr().to_string();
    for body in [short(2, r#","stream":true"#), "no JSON".to_owned()] {
        let reply = post(&mock, CHAT, &[], &body).await;
        assert_eq!(reply.header("x-mock-endpoint"), Some(own.as_str()));
        assert_eq!(reply.header("x-mock-body-sha256"), None);
    }
    mock.stop().await;
}

#[tokio::test]
async fn what_arrived_can_be_seen_and_echoed() {
    let mock = start().await;
    let body = r#"{"model":"tiny","prompt":"abc"}"#;
    // Of the body, by sha256sum.
    let digest = "5780f89b6dbfc2beb39eb53d0cbeb006cc37e87c742a75227f7ce44b9ef0f9d9";
    let plain = post(
        &mock,
        "/v1/completions?a=b",
        &[("x-one", "1"), ("x-one", "2")],
        body,
    )
    .await;
    assert_eq!(plain.header("x-mock-endpoint"), None);
    let echo = post(&mock, "/v1/completions", &[("x-mock-echo", "1")], body).await;
    assert_eq!(
        echo.header("x-mock-endpoint"),
        Some(mock.addr().to_string().as_str())
    );
    let seen = mock.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        (seen[0].method.as_str(), seen[0].path.as_str()),
        ("POST", "/v1/completions?a=b")
    );
    let ones: Vec<_> = seen[0]
        .headers
        .iter()
        .filter(|(name, _)| name == "x-one")
        .collect();
    assert_eq!(
        (ones[0].1.as_slice(), ones[1].1.as_slice()),
        (&b"1"[..], &b"2"[..])
    );
    assert_eq!(seen[0].body_len, body.len() as u64);
    assert_eq!(
        echo.header("x-mock-body-sha256"),
        Some(seen[0].body_sha256.as_str())
    );
    assert_eq!(seen[0].body_sha256, digest);
    mock.stop().await;
}

#[tokio::test]
async fn large_and_strange_bodies_are_taken() {
    let mock = start().await;
    let picture = "A".repeat(20_000_000);
    let body = format!(
        r#"{{"model":"tiny","unknown":{{"a":[1,2]}},"max_tokens":1,"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{picture}"}}}},{{"type":"text","text":"what?"}}]}}]}}"#
    );
    let reply = post(&mock, CHAT, &[], &body).await;
    assert_eq!(reply.status, StatusCode::OK);
    let tokens = reply.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!((1_024..1_060).contains(&tokens), "{tokens}");
    assert_eq!(mock.seen()[0].body_len, body.len() as u64);
    mock.stop().await;
}

#[tokio::test]
async fn string_and_parts_are_the_same_prompt() {
    let mock = start().await;
    let text = "The same words. ".repeat(100);
    let string = format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let parts = format!(
        r#"{{"messages":[{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}]}}"#
    );
    assert_eq!(cached(&post(&mock, CHAT, &[], &string).await), 0);
    assert_eq!(cached(&post(&mock, CHAT, &[], &parts).await), 384);
    mock.stop().await;
}

#[tokio::test]
async fn speaks_http_2() {
    let mock = start().await;
    let stream = TcpStream::connect(mock.addr()).await.unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, TokioIo::new(stream))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let uri = format!("http://{}{CHAT}", mock.addr());
    let body = Full::new(Bytes::from(short(3, r#","stream":true"#)));
    let request = Request::post(uri)
        .header("content-type", "application/json")
        .body(body)
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.version(), hyper::Version::HTTP_2);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"));
    driver.abort();
    mock.stop().await;
}

// ---------------------------------------------------------------- faults

#[tokio::test]
async fn fault_status_and_retry_after() {
    let mock = start().await;
    let reply = post(
        &mock,
        CHAT,
        &[("x-mock-fault", "status=503, retry-after=7")],
        &short(4, ""),
    )
    .await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.header("retry-after"), Some("7"));
    same_shape(
        "error",
        &serde_json::from_str(&recorded("failure/nonstream_enginedeath.body")).unwrap(),
        &reply.json(),
    );
    assert_eq!(reply.json()["error"]["code"], 503);
    assert_eq!(mock.totals().output_tokens, 0);
    mock.stop().await;
}

#[tokio::test]
async fn faults_by_api_by_post_and_by_header_are_one() {
    let mock = start().await;
    mock.set_faults(vec![Fault::Status(500)]);
    assert_eq!(post(&mock, CHAT, &[], &short(4, "")).await.status, 500);
    assert_eq!(get(&mock, "/metrics").await.status, 500);
    // The request's own come on top.
    assert_eq!(
        post(
            &mock,
            CHAT,
            &[("x-mock-fault", "status=429")],
            &short(4, "")
        )
        .await
        .status,
        429
    );
    assert_eq!(
        post(&mock, "/mock/faults", &[], "status=502").await.status,
        200
    );
    assert_eq!(post(&mock, CHAT, &[], &short(4, "")).await.status, 502);
    assert_eq!(
        post(&mock, "/mock/faults", &[], "stattus=502").await.status,
        400
    );
    assert_eq!(post(&mock, CHAT, &[], &short(4, "")).await.status, 502);
    assert_eq!(post(&mock, "/mock/faults", &[], "").await.status, 200);
    assert_eq!(post(&mock, CHAT, &[], &short(4, "")).await.status, 200);
    mock.stop().await;
}

#[test]
fn the_fault_grammar() {
    let all = "status=503,retry-after=1,delay-headers=5,delay-first=6,reset=headers,reset=after:2,\
               stall=3,error-in-stream=500,json-error,usage=none,usage=split,usage=null-cached,chunk=1,\
               health=503,asleep";
    assert_eq!(Fault::parse_list(all).unwrap().len(), 15);
    assert_eq!(Fault::parse_list(" , ").unwrap(), []);
    assert_eq!(
        Fault::parse_list("reset=after:2").unwrap(),
        [Fault::ResetAfter(2)]
    );
    let after = Fault::parse_list("error-in-stream=500:2,error-in-stream=503").unwrap();
    assert_eq!(
        after,
        [Fault::ErrorInStreamAfter(500, 2), Fault::ErrorInStream(503)]
    );
    for bad in [
        "error-in-stream=500:",
        "status",
        "status=9",
        "status=x",
        "reset=2",
        "chunk=0",
        "usage=all",
        "json-error=1",
        "health=no",
        "asleep=1",
        "what",
    ] {
        assert!(Fault::parse_list(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn an_engine_that_is_unwell_or_sleeps_says_so() {
    let mock = start().await;
    let awake = |page: &str| page.contains("sleep_state=\"awake\"} 1");
    assert_eq!(get(&mock, "/health").await.status, 200);
    assert_eq!(
        get(&mock, "/is_sleeping").await.text(),
        r#"{"is_sleeping":false}"#
    );
    assert!(awake(&get(&mock, "/metrics").await.text()));
    mock.set_faults(Fault::parse_list("health=503,asleep").unwrap());
    assert_eq!(get(&mock, "/health").await.status, 503);
    assert_eq!(
        get(&mock, "/is_sleeping").await.text(),
        r#"{"is_sleeping":true}"#
    );
    let page = get(&mock, "/metrics").await.text();
    assert!(page.contains("sleep_state=\"awake\"} 0") && !awake(&page));
    assert_eq!(post(&mock, CHAT, &[], &short(4, "")).await.status, 200);
    mock.stop().await;
}

#[tokio::test]
async fn fault_delays() {
    let mock = start().await;
    for fault in ["delay-headers=150", "delay-first=150"] {
        for stream in ["", r#","stream":true"#] {
            let started = tokio::time::Instant::now();
            let reply = post(&mock, CHAT, &[("x-mock-fault", fault)], &short(4, stream)).await;
            assert_eq!(reply.status, StatusCode::OK);
            assert!(started.elapsed() >= Duration::from_millis(150), "{fault}");
        }
    }
    mock.stop().await;
}

#[tokio::test]
async fn fault_reset_before_the_headers() {
    let mock = start().await;
    let headers = [
        ("content-type", "application/json"),
        ("x-mock-fault", "reset=headers"),
    ];
    let error = send(
        mock.addr(),
        request(Method::POST, CHAT, &headers, &short(4, "")),
    )
    .await
    .err()
    .unwrap();
    let source = std::error::Error::source(&error).unwrap();
    let io = source.downcast_ref::<std::io::Error>().unwrap();
    assert_eq!(io.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(mock.totals().requests, 1);
    eventually(|| mock.totals().in_flight == 0).await;
    mock.stop().await;
}

#[tokio::test]
async fn fault_reset_in_the_middle() {
    let mock = start_slow().await;
    let fault = [("x-mock-fault", "reset=after:3")];
    let reply = post(&mock, CHAT, &fault, &short(100, r#","stream":true"#)).await;
    assert_eq!((reply.status, reply.broken), (StatusCode::OK, true));
    assert_eq!(events(&reply.text()).len(), 3);
    eventually(|| mock.totals().in_flight == 0 && mock.gauges().running == 0).await;
    let reply = post(&mock, CHAT, &fault, &short(2, "")).await;
    assert!(reply.broken && !reply.frames.is_empty());
    mock.stop().await;
}

#[tokio::test]
async fn fault_stall() {
    let mock = start().await;
    let headers = [
        ("content-type", "application/json"),
        ("x-mock-fault", "stall=2"),
    ];
    let request = request(Method::POST, CHAT, &headers, &short(8, r#","stream":true"#));
    let stream = TcpStream::connect(mock.addr()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let mut text = Vec::new();
    while text.windows(2).filter(|end| *end == b"\n\n").count() < 2 {
        let frame = body.frame().await.unwrap().unwrap();
        text.extend_from_slice(&frame.into_data().unwrap());
    }
    assert_eq!(events(&String::from_utf8(text).unwrap()).len(), 2);
    let more = tokio::time::timeout(Duration::from_millis(300), body.frame()).await;
    assert!(
        more.is_err(),
        "the stream must stay open and quiet: {more:?}"
    );
    assert_eq!(mock.totals().in_flight, 1);
    driver.abort();
    eventually(|| mock.totals().in_flight == 0).await;
    mock.stop().await;
}

#[tokio::test]
async fn fault_error_in_stream_is_what_a_dead_engine_sends() {
    let mock = start().await;
    let fault = [("x-mock-fault", "error-in-stream=500")];
    let reply = post(&mock, CHAT, &fault, &short(8, r#","stream":true"#)).await;
    same_headers("failure/stream_enginedeath.headers", &reply);
    let (real, ours) = (recorded("failure/stream_enginedeath.txt"), reply.text());
    let (real, ours) = (events(&real), events(&ours));
    assert_eq!(real[real.len() - 2..], ours[ours.len() - 2..]);
    assert_eq!(ours.len(), 4);
    let reply = post(&mock, CHAT, &fault, &short(8, "")).await;
    same_headers("failure/nonstream_enginedeath.headers", &reply);
    assert_eq!(reply.text(), recorded("failure/nonstream_enginedeath.body"));
    mock.stop().await;
}

#[tokio::test]
async fn fault_error_in_stream_of_503_is_a_refusal_in_the_first_event() {
    let mock = start().await;
    let stream = short(8, r#","stream":true"#);
    let fault = [("x-mock-fault", "error-in-stream=503")];
    let reply = post(&mock, CHAT, &fault, &stream).await;
    assert_eq!(reply.status, StatusCode::OK);
    let text = reply.text();
    assert_eq!(events(&text).len(), 2);
    let error = events(&text)[0].strip_prefix("data: ").unwrap();
    let error: Value = serde_json::from_str(error).unwrap();
    assert_eq!(error["error"]["code"], 503);
    assert_eq!(mock.totals().prompt_tokens, 0);
    let fault = [("x-mock-fault", "error-in-stream=500:5")];
    let text = post(&mock, CHAT, &fault, &stream).await.text();
    assert_eq!(events(&text).len(), 7);
    mock.stop().await;
}

#[tokio::test]
async fn a_full_queue_refuses_as_vllm_does() {
    let profile = Profile {
        step_base_us: 20_000,
        ..Profile::fast()
    };
    let options = MockOptions {
        profile,
        max_num_queued_reqs: Some(1),
        ..MockOptions::default()
    };
    let mock = Mock::start(options).await.unwrap();
    let at = mock.addr();
    let first = tokio::spawn(async move {
        let headers = [("content-type", "application/json")];
        send(at, request(Method::POST, CHAT, &headers, &short(5_000, ""))).await
    });
    eventually(|| mock.gauges().running == 1).await;
    let plain = post(&mock, CHAT, &[], &short(4, "")).await;
    assert_eq!(
        (plain.status.as_u16(), plain.header("retry-after")),
        (503, None)
    );
    let stream = post(&mock, CHAT, &[], &short(4, r#","stream":true"#)).await;
    assert_eq!(stream.status, StatusCode::OK);
    assert!(stream.text().starts_with(r#"data: {"error": {"#));
    assert!(stream.text().ends_with("data: [DONE]\n\n"));
    let page = get(&mock, "/metrics").await.text();
    let series =
        r#"vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}"#;
    assert_eq!(value(&page, series), 2.0);
    first.abort();
    mock.stop().await;
}

#[tokio::test]
async fn adapters_show_in_the_metrics() {
    let profile = Profile {
        step_base_us: 20_000,
        max_running: 1,
        ..Profile::fast()
    };
    let adapters = vec!["lora-a".to_owned(), "lora-b".to_owned()];
    let options = MockOptions {
        profile,
        adapters,
        ..MockOptions::default()
    };
    let mock = Mock::start(options).await.unwrap();
    let mut running = Vec::new();
    for (count, model) in [(1, "lora-a"), (2, "lora-b")] {
        let (at, body) = (mock.addr(), short(5_000, "").replace("tiny", model));
        running.push(tokio::spawn(async move {
            let headers = [("content-type", "application/json")];
            send(at, request(Method::POST, CHAT, &headers, &body)).await
        }));
        eventually(|| mock.totals().in_flight == count).await;
        eventually(|| mock.gauges().running + mock.gauges().waiting == count as u32).await;
    }
    eventually(|| mock.gauges().running == 1).await;
    let page = get(&mock, "/metrics").await.text();
    let labels = r#"{max_lora="2",running_lora_adapters="lora-a",waiting_lora_adapters="lora-b"}"#;
    assert!(value(&page, &format!("vllm:lora_requests_info{labels}")) > 1e9);
    running.iter().for_each(tokio::task::JoinHandle::abort);
    mock.stop().await;
}

#[tokio::test]
async fn choices_count_their_prompt_once() {
    let mock = start().await;
    let body = chat("tiny", "What?", 8, r#","n":3"#);
    let reply = post(&mock, CHAT, &[], &body).await;
    let json = reply.json();
    assert_eq!(json["choices"].as_array().unwrap().len(), 3);
    assert_eq!(json["usage"]["completion_tokens"], 24);
    assert!(json["usage"]["prompt_tokens"].as_u64().unwrap() < 1_600);
    assert_eq!(cached(&reply), 0);
    assert_eq!(cached(&post(&mock, CHAT, &[], &body).await), 1_408);
    let float = short(5, "").replace("\"max_tokens\":5", "\"max_tokens\":5.0");
    let float = post(&mock, CHAT, &[], &float).await.json();
    assert_eq!(float["usage"]["completion_tokens"], 5);
    mock.stop().await;
}

#[tokio::test]
async fn fault_json_error() {
    let mock = start().await;
    let fault = [("x-mock-fault", "json-error")];
    let reply = post(&mock, CHAT, &fault, &short(8, r#","stream":true"#)).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.json()["error"]["message"].is_string());
    mock.stop().await;
}

#[tokio::test]
async fn fault_usage() {
    let mock = start().await;
    let streamed = r#","stream":true,"stream_options":{"include_usage":true}"#;
    for (api, body) in [
        (CHAT, short(4, "")),
        (
            "/v1/completions",
            r#"{"prompt":"a","max_tokens":4}"#.to_owned(),
        ),
        ("/v1/messages", short(4, "")),
        ("/v1/responses", r#"{"input":"a"}"#.to_owned()),
    ] {
        let none = post(&mock, api, &[("x-mock-fault", "usage=none")], &body).await;
        assert_eq!(none.json()["usage"], Value::Null);
        let split = post(&mock, api, &[("x-mock-fault", "usage=split")], &body).await;
        assert!(split.json()["usage"].is_object());
        assert_eq!(split.frames.len(), 2, "{api}");
        let null = post(&mock, api, &[("x-mock-fault", "usage=null-cached")], &body)
            .await
            .json();
        let details = [
            "prompt_tokens_details",
            "input_tokens_details",
            "cache_read_input_tokens",
        ];
        assert_eq!(
            details
                .iter()
                .filter(|name| null["usage"].get(name) == Some(&Value::Null))
                .count(),
            1
        );
    }
    let none = post(
        &mock,
        CHAT,
        &[("x-mock-fault", "usage=none")],
        &short(4, streamed),
    )
    .await;
    assert!(!none.text().contains("usage") && none.text().contains("system_fingerprint"));
    let split = post(
        &mock,
        CHAT,
        &[("x-mock-fault", "usage=split")],
        &short(4, streamed),
    )
    .await;
    assert!(split.text().contains(r#""usage":{"prompt_tokens""#));
    assert!(
        split
            .frames
            .iter()
            .all(|frame| !String::from_utf8_lossy(frame).contains(r#""prompt_tokens""#))
    );
    let null = post(
        &mock,
        CHAT,
        &[("x-mock-fault", "usage=null-cached")],
        &short(4, streamed),
    )
    .await;
    assert!(null.text().contains(r#""prompt_tokens_details":null"#));
    mock.stop().await;
}

#[tokio::test]
async fn fault_chunk() {
    let mock = start().await;
    for stream in ["", r#","stream":true"#] {
        let reply = post(
            &mock,
            CHAT,
            &[("x-mock-fault", "chunk=7")],
            &short(4, stream),
        )
        .await;
        assert_eq!(reply.status, StatusCode::OK);
        assert!(!reply.broken && reply.frames.len() > 10);
    }
    let text = post(
        &mock,
        CHAT,
        &[("x-mock-fault", "chunk=1")],
        &short(4, r#","stream":true"#),
    )
    .await
    .text();
    assert_eq!(events(&text).last(), Some(&"data: [DONE]"));
    mock.stop().await;
}

#[tokio::test]
async fn drain_finishes_what_is_under_way_and_takes_nothing_new() {
    let mock = start_slow().await;
    let at = mock.addr();
    let body = short(30, r#","stream":true"#);
    let headers = [("content-type", "application/json")];
    let stream = tokio::spawn(send(at, request(Method::POST, CHAT, &headers, &body)));
    eventually(|| mock.totals().in_flight == 1).await;
    mock.drain().await;
    assert!(TcpStream::connect(at).await.is_err());
    let reply = stream.await.unwrap().unwrap();
    assert!(!reply.broken);
    assert!(
        reply.text().ends_with("data: [DONE]\n\n"),
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn wrong_metrics_on_demand() {
    let mock = start().await;
    mock.set_metrics(Some("vllm:num_requests_running NaN\n".to_owned()));
    assert_eq!(
        get(&mock, "/metrics").await.text(),
        "vllm:num_requests_running NaN\n"
    );
    post(&mock, "/mock/metrics", &[], "nonsense").await;
    assert_eq!(get(&mock, "/metrics").await.text(), "nonsense");
    mock.set_metrics(None);
    assert!(
        get(&mock, "/metrics")
            .await
            .text()
            .contains("vllm:num_requests_running{")
    );
    mock.stop().await;
}

#[tokio::test]
async fn stop_closes_everything() {
    let mock = start_slow().await;
    let at = mock.addr();
    let body = short(100_000, r#","stream":true"#);
    let running = tokio::spawn(async move {
        let headers = [("content-type", "application/json")];
        send(at, request(Method::POST, CHAT, &headers, &body)).await
    });
    eventually(|| mock.gauges().running == 1).await;
    mock.stop().await;
    assert!(TcpStream::connect(at).await.is_err());
    let reply = running.await.unwrap();
    assert!(reply.is_err() || reply.is_ok_and(|reply| reply.broken));
}

#[tokio::test]
async fn adapters_are_loaded_and_unloaded_while_it_runs() {
    let options = MockOptions {
        max_loras: Some(4),
        ..MockOptions::default()
    };
    let mock = Mock::start(options).await.unwrap();
    let sql = r#"{"lora_name":"sql","lora_path":"/adapters/sql"}"#;
    let (load, unload) = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter");
    let asked = chat("sql", "What is one?", 2, "");
    assert_eq!(post(&mock, CHAT, &[], &asked).await.status, 404);
    assert_eq!(mock.unknown_models(), 1);
    let loaded = post(&mock, load, &[], sql).await;
    assert_eq!(loaded.status, 200);
    assert_eq!(
        loaded.text(),
        "Success: LoRA adapter 'sql' added successfully."
    );
    assert_eq!(post(&mock, CHAT, &[], &asked).await.status, 200);
    let cards = get(&mock, "/v1/models").await.json();
    assert_eq!(cards["data"][1]["id"], "sql");
    assert_eq!(cards["data"][1]["parent"], "tiny");
    let page = get(&mock, "/metrics").await.text();
    assert!(
        page.contains(r#"vllm:lora_requests_info{max_lora="4","#),
        "{page}"
    );
    let again = post(&mock, load, &[], sql).await;
    assert_eq!(again.status, 400);
    assert_eq!(again.json()["error"]["type"], "InvalidUserInput");
    let nameless = post(&mock, load, &[], r#"{"lora_name":"law"}"#).await;
    assert_eq!(nameless.status, 400);
    assert_eq!(post(&mock, unload, &[], sql).await.status, 200);
    assert_eq!(post(&mock, unload, &[], sql).await.status, 404);
    assert_eq!(post(&mock, CHAT, &[], &asked).await.status, 404);
    assert_eq!(mock.unknown_models(), 2);
    mock.stop().await;
}

/// While a stopped replica's port is kept, nobody who asks for any port gets it: the system gives none that
/// it would not give by number without `SO_REUSEADDR`.
#[tokio::test]
async fn the_port_of_a_stopped_replica_stays_its_own() {
    let port = start().await.stop().await;
    let listen = port.address();
    let refused = TcpStream::connect(listen).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let taken = TcpSocket::new_v4().unwrap().bind(listen).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    let options = || MockOptions {
        listen,
        ..MockOptions::default()
    };
    let mock = Mock::start(options()).await.unwrap();
    assert_eq!(mock.addr(), listen);
    assert_eq!(get(&mock, "/health").await.status, 200);
    let twice = Mock::start(options()).await.map(|_| ()).unwrap_err();
    assert_eq!(twice.kind(), std::io::ErrorKind::AddrInUse);
}
