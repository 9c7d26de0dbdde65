//! Case F8: an engine refuses a streamed request inside a 200. With `responses.hold_headers` the client
//! gets a status; without it, and with anything else, what the engine sent.

use super::{Blamed, CHAT, chat, faulty, inflight_becomes};
use crate::support::check::{SETTLE, at_rest, decided, unharmed};
use crate::support::client::{Answer, Call, HttpClient, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::envoy::EnvoyProcess;
use crate::support::fleet::{Fleet, FleetOptions};
use crate::support::stats::Stats;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What takes so long never ends by itself, on whatever machine.
const HANGS: Duration = Duration::from_secs(20);

fn plugin(hold: bool) -> Value {
    json!({
        "responses": {"hold_headers": hold},
        // Endpoints that fail on purpose are to be picked all the same.
        "health": {"failures": 1_000_000},
        "explain": {"response_header": true},
    })
}

async fn start(mode: Mode, workers: u32, hold: bool) -> Fleet {
    Fleet::start(FleetOptions::new(mode, workers, 3).plugin(plugin(hold))).await
}

/// A stream of each API, with a fault.
fn calls(fault: &str) -> [Call; 4] {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let body = |rest: Value| {
        let mut body = json!({"model": "tiny", "max_tokens": 8, "stream": true});
        body.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        body.to_string()
    };
    let calls = [
        Call::post(CHAT, body(json!({ "messages": messages.clone() }))),
        Call::post("/v1/completions", body(json!({"prompt": "Hello"}))),
        Call::post("/v1/messages", body(json!({ "messages": messages }))),
        Call::post("/v1/responses", body(json!({"input": "Hello"}))),
    ];
    calls.map(|call| call.header("x-mock-fault", fault))
}

/// The document of the first event that has one.
fn first_document(stream: &str) -> Value {
    let mut documents = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(documents.next().unwrap()).unwrap()
}

/// Refusals come first under all APIs but Responses, which announces itself.
async fn refusals(mode: Mode, workers: u32, hold: bool) {
    let mut fleet = start(mode, workers, hold).await;
    let mut blamed = Blamed::default();
    let mut replies = 0.0;
    let cases = [
        ("error-in-stream=503", 503, Some("overloaded")),
        ("error-in-stream=503,chunk=1", 503, Some("overloaded")),
        ("error-in-stream=429", 503, Some("overloaded")),
        ("error-in-stream=500:0", 500, Some("stream_error")),
        ("error-in-stream=502:0", 502, Some("stream_error")),
        ("error-in-stream=400:0", 400, None),
    ];
    for (protocol, (fault, status, kind)) in Protocol::ALL
        .into_iter()
        .flat_map(|protocol| cases.map(|case| (protocol, case)))
    {
        let client = fleet.client(protocol);
        let direct = HttpClient::new(fleet.mocks[0].addr(), Protocol::Http1);
        for call in calls(fault) {
            let shown = format!("{fault} over {protocol:?}: {call:?}");
            let engine = direct.send(call.clone()).await.unwrap();
            assert_eq!(engine.status, 200, "{shown}");
            let answer = client
                .send(call)
                .await
                .unwrap_or_else(|why| panic!("{shown}: {why}"));
            let document = first_document(&engine.text());
            let is_error = document["error"].is_object() || document["type"] == "error";
            if hold && is_error {
                replies += 1.0;
                assert_eq!(answer.status, status, "{shown}");
                assert_eq!(answer.header("content-type"), "application/json", "{shown}");
                assert_eq!(answer.json(), document, "{shown}");
                let retry_after = if status == 503 { "1" } else { "" };
                assert_eq!(answer.header("retry-after"), retry_after, "{shown}");
                assert_eq!(answer.header("x-warmroute-reason"), "stream_error");
            } else {
                assert_eq!(answer.status, 200, "{shown}");
                assert_eq!(answer.header("content-type"), engine.header("content-type"));
                assert_eq!(first_document(&answer.text()), document, "{shown}");
                assert_eq!(answer.text().lines().last(), engine.text().lines().last());
            }
            if let Some(kind) = kind {
                let endpoint = decided(&answer.headers, "endpoint");
                blamed.one(&fleet, &endpoint, kind).await;
            }
        }
    }
    // All but Responses, if the option is on.
    assert!(
        replies == 0.0 || (hold && replies >= 36.0),
        "{replies} replies"
    );
    let stats = at_rest(&fleet).await;
    let labels = [("kind", "stream_error")];
    assert_eq!(
        stats.metric("warmroute_local_replies_total", &labels),
        replies
    );
    assert_eq!(stats.metric("warmroute_failures_total", &[]), 40.0);
    blamed.nobody_else(&fleet).await;
    unharmed(&mut fleet).await;
}

async fn refusals_held(mode: Mode, workers: u32) {
    refusals(mode, workers, true).await;
}

async fn refusals_not_held(mode: Mode, workers: u32) {
    refusals(mode, workers, false).await;
}

with_one_and_four_workers!(f8_held_a_refusal_inside_a_200_becomes_a_status: refusals_held, OriginalDst, OverrideHost);
with_one_and_four_workers!(f8_without_holding_a_refusal_passes_as_it_is: refusals_not_held, OverrideHost, OriginalDst);

/// What is no refusal goes on as it came, and at once: from the first event on nothing is kept back.
async fn everything_else(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers, true).await;
    let mut blamed = Blamed::default();
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for call in calls("usage=split").into_iter().chain(calls("chunk=1")) {
            let answer = client.send(call).await.unwrap();
            assert_eq!(answer.status, 200);
            assert!(
                answer
                    .header("content-type")
                    .starts_with("text/event-stream")
            );
            let ends = ["[DONE]", "message_stop", "response.completed"];
            assert!(
                ends.iter().any(|end| answer.text().contains(end)),
                "{}",
                answer.text()
            );
        }
        // The headers wait for the first event, and it does not wait for the second.
        let begun = Instant::now();
        let call = faulty(1, true, "delay-first=400,stall=3");
        let mut answer = client.open(call).await.unwrap();
        assert!(
            begun.elapsed() >= Duration::from_millis(380),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(answer.status, 200);
        let mut text = String::new();
        while text.matches("\n\n").count() < 3 {
            text += &String::from_utf8_lossy(&answer.next().await.unwrap().unwrap());
        }
        drop(answer);
        inflight_becomes(&fleet, &[], 0.0).await;
        // F9: an error later on passes too.
        let answer = client
            .send(faulty(1, true, "error-in-stream=500:3"))
            .await
            .unwrap();
        assert_eq!(answer.status, 200);
        assert!(answer.text().contains("\"error\"") && answer.text().ends_with("data: [DONE]\n\n"));
        let endpoint = decided(&answer.headers, "endpoint");
        blamed.one(&fleet, &endpoint, "stream_error").await;
        // F7, and answers that are not streamed.
        for (stream, fault, status, kind) in [
            (true, "json-error", 200, Some("stream_error")),
            (true, "status=404", 404, None),
            (true, "status=503,retry-after=7", 503, Some("overloaded")),
            (false, "", 200, None),
            (false, "error-in-stream=400", 400, None),
        ] {
            let answer = client.send(faulty(3, stream, fault)).await.unwrap();
            assert_eq!(answer.status, status, "{fault}");
            assert_eq!(answer.header("x-warmroute-reason"), "", "{fault}");
            if let Some(kind) = kind {
                let endpoint = decided(&answer.headers, "endpoint");
                blamed.one(&fleet, &endpoint, kind).await;
            }
        }
    }
    blamed.nobody_else(&fleet).await;
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(f8_held_everything_else_passes_unchanged: everything_else, OriginalDst, FilterState);

/// Without a first event: an endpoint that goes, a client that goes.
async fn nothing_hangs(mode: Mode, workers: u32) {
    let mut fleet = start(mode, workers, true).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        let begun = Instant::now();
        let broken = client.send(faulty(1, true, "reset=after:0")).await;
        assert!(broken.is_err() || broken.is_ok_and(|answer| answer.status >= 500));
        // It would hang for ever.
        assert!(begun.elapsed() < HANGS, "{:?}", begun.elapsed());
        let leaving = client.open(faulty(1, true, "stall=0"));
        let left = tokio::time::timeout(Duration::from_millis(300), leaving).await;
        assert!(left.is_err(), "headers came before the first event");
        inflight_becomes(&fleet, &[], 0.0).await;
    }
    let stats = at_rest(&fleet).await;
    let labels = [("kind", "broken_stream")];
    assert_eq!(stats.metric("warmroute_failures_total", &labels), 2.0);
    assert_eq!(stats.metric("warmroute_failures_total", &[]), 2.0);
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(f8_held_nothing_hangs_without_a_first_event: nothing_hangs, OriginalDst, OverrideHost);

/// A policy that needs no body still finds out whether headers may be held; and where they may not,
/// because the flag is missing, they are not.
#[tokio::test]
async fn f8_headers_are_held_only_where_bodies_come_all_the_same() {
    for flag in [true, false] {
        let mut options = FleetOptions::new(Mode::OriginalDst, 1, 2).plugin(plugin(true));
        options = options.plugin(json!({ "policy": {"name": "round_robin"} }));
        if !flag {
            options.adjust = |config| {
                let wasm = config.wasm().unwrap().as_object_mut().unwrap();
                assert!(wasm.remove("allow_on_headers_stop_iteration").is_some());
            };
        }
        let fleet = Fleet::start(options).await;
        let client = fleet.client(Protocol::Http1);
        let mut took = Vec::new();
        for number in 0..3 {
            let begun = Instant::now();
            let answer = client
                .send(faulty(number, true, "error-in-stream=503"))
                .await
                .unwrap();
            assert_eq!(answer.status, if flag { 503 } else { 200 });
            took.push(begun.elapsed());
            let answer = client.send(Call::chat(&chat(number, true))).await.unwrap();
            assert!(answer.text().ends_with("data: [DONE]\n\n"));
        }
        // None waits for ever, and each for the watchdog at most: the machine may be busy for once.
        assert!(took.iter().all(|took| *took < HANGS), "{took:?}");
        let least = took.iter().min().unwrap();
        assert!(*least < Duration::from_secs(2), "{took:?}");
        fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    }
}

/// An engine that sends these bytes after the headers of a stream, and closes.
async fn scripted(bytes: Vec<u8>) -> std::net::SocketAddr {
    async fn serve(mut visitor: TcpStream, bytes: Vec<u8>) -> std::io::Result<()> {
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            visitor.read_buf(&mut request).await?;
        }
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                     trailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n";
        visitor.write_all(head).await?;
        // So that it comes by itself.
        tokio::time::sleep(Duration::from_millis(50)).await;
        visitor.write_all(&bytes).await?;
        visitor.shutdown().await
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((visitor, _)) = listener.accept().await {
            tokio::spawn(serve(visitor, bytes.clone()));
        }
    });
    address
}

fn with_trailers(config: &mut EnvoyConfig) {
    let options = json!({"http_protocol_options": {"enable_trailers": true}});
    let place = "/static_resources/clusters/0/typed_extension_protocol_options\
                 /envoy.extensions.upstreams.http.v3.HttpProtocolOptions/explicit_http_config";
    crate::support::config::set(&mut config.0, place, options).unwrap();
}

/// The answer to a chat, of an engine that sends this body and then `trailers`.
async fn answered(body: &[u8], trailers: &str, protocol: Protocol) -> (Answer, Stats) {
    let mut bytes = Vec::new();
    if !body.is_empty() {
        bytes.extend(format!("{:x}\r\n", body.len()).into_bytes());
        bytes.extend(body);
        bytes.extend(b"\r\n");
    }
    bytes.extend(format!("0\r\n{trailers}\r\n").into_bytes());
    let engine = scripted(bytes).await;
    let config = EnvoyConfig::shipped(Mode::OriginalDst).unwrap();
    let config = config.endpoints(&[engine]).unwrap();
    let config = config.plugin(&json!({ "scrape": null })).unwrap();
    let mut config = config.plugin(&plugin(true)).unwrap();
    with_trailers(&mut config);
    let envoy = EnvoyProcess::start(&config, 1).await.unwrap();
    let fleet = Fleet::new(envoy, Vec::new());
    let answer = fleet
        .client(protocol)
        .send(Call::chat(&chat(1, true)))
        .await;
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    (answer.unwrap(), fleet.stats().await)
}

#[tokio::test]
async fn f8_held_streams_that_end_without_an_event_end() {
    let long = format!(
        "data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n",
        "x".repeat(100_000)
    );
    let error = "data: {\"error\":{\"message\":\"full\",\"code\":503}}";
    let cases = [
        ("", "", 200),
        (": waiting\n\n: waiting\n\n", "", 200),
        ("event: ping\n\n", "x-end: 1\r\n", 200),
        ("data: {\"choices\":[{\"text\":\"Hi\"}]}", "", 200),
        ("{\"choices\":[{\"text\":\"no events at all\"}]}", "", 200),
        ("neither\nnor", "x-end: 1\r\n", 200),
        (long.as_str(), "", 200),
        (error, "", 503),
        (error, "x-end: 1\r\n", 503),
    ];
    for (number, (body, trailers, status)) in cases.into_iter().enumerate() {
        let protocol = Protocol::ALL[number % 2];
        let (answer, stats) = answered(body.as_bytes(), trailers, protocol).await;
        let shown = &body[..body.len().min(60)];
        assert_eq!(answer.status, status, "{shown:?}");
        let expected = if status == 200 { body } else { &body[6..] };
        assert!(
            answer.text() == expected,
            "{shown:?} came as {:?}",
            answer.text()
        );
        let overloads = stats.metric("warmroute_failures_total", &[("kind", "overloaded")]);
        assert_eq!(overloads, f64::from(u8::from(status == 503)), "{shown:?}");
    }
}
