//! The first thing to run after a change: the shipped configurations carry a chat, in every steering
//! mode, with one worker and with four, over HTTP/1.1 and HTTP/2.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use support::check::{SETTLE, becomes, decided};
use support::client::{Answer, Call, HttpClient, Protocol};
use support::config::{EnvoyConfig, Mode};
use support::envoy::{EnvoyProcess, validate};
use support::fleet::{Fleet, FleetOptions};
use warmroute::account::{self, Account};

fn chat(stream: bool) -> Value {
    json!({
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "You answer in one sentence."},
            {"role": "user", "content": "Why is the sky blue?"}
        ],
        "max_tokens": 5,
        "stream": stream,
    })
}

async fn smoke(mode: Mode, workers: u32) {
    let options = FleetOptions::new(mode, workers, 4)
        .plugin(json!({ "explain": {"response_header": true, "log_field": true} }));
    let mut fleet = Fleet::start(options).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        whole_answer(&fleet, &client).await;
        streamed_answer(&fleet, &client).await;
        steering_headers_are_ignored(&fleet, &client).await;
    }
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    // Two chats and four with forged headers, per protocol.
    becomes(&fleet, "warmroute_picks_total", &[], 12.0).await;
    let picks = fleet.stats().await.metric("warmroute_picks_total", &[]);
    assert_eq!(picks, 12.0, "some came later");
    assert!(fleet.envoy.is_running());
}

async fn whole_answer(fleet: &Fleet, client: &HttpClient) {
    let answer = client.send(Call::chat(&chat(false))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["object"], "chat.completion");
    names_an_endpoint(fleet, &answer);
}

async fn streamed_answer(fleet: &Fleet, client: &HttpClient) {
    let answer = client.send(Call::chat(&chat(true))).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(
        answer
            .header("content-type")
            .starts_with("text/event-stream")
    );
    assert!(
        answer.text().ends_with("data: [DONE]\n\n"),
        "{}",
        answer.text()
    );
    names_an_endpoint(fleet, &answer);
}

fn names_an_endpoint(fleet: &Fleet, answer: &Answer) {
    let named = decided(&answer.headers, "endpoint");
    assert!(fleet.endpoints().contains(&named), "{:?}", answer.headers);
}

/// A client that names the admin port gets a replica's answer all the same.
async fn steering_headers_are_ignored(fleet: &Fleet, client: &HttpClient) {
    let admin = fleet.envoy.admin.to_string();
    for header in [
        "x-envoy-original-dst-host",
        "x-gateway-destination-endpoint",
    ] {
        let call = Call::chat(&chat(false))
            .header(header, &admin)
            .header(header, &admin);
        let answer = client.send(call).await.unwrap();
        assert_eq!(
            answer.json()["object"],
            "chat.completion",
            "{header}: {}",
            answer.text()
        );
        // Without a body, and on a path that exists at the admin interface.
        let answer = client
            .send(Call::get("/server_info").header(header, &admin))
            .await
            .unwrap();
        assert!(
            !answer.text().contains("hot_restart_version"),
            "{header}: {}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn original_dst_with_one_worker() {
    smoke(Mode::OriginalDst, 1).await;
}

#[tokio::test]
async fn original_dst_with_four_workers() {
    smoke(Mode::OriginalDst, 4).await;
}

#[tokio::test]
async fn filter_state_with_one_worker() {
    smoke(Mode::FilterState, 1).await;
}

#[tokio::test]
async fn filter_state_with_four_workers() {
    smoke(Mode::FilterState, 4).await;
}

#[tokio::test]
async fn override_host_with_one_worker() {
    smoke(Mode::OverrideHost, 1).await;
}

#[tokio::test]
async fn override_host_with_four_workers() {
    smoke(Mode::OverrideHost, 4).await;
}

#[tokio::test]
async fn composite_with_one_worker() {
    smoke(Mode::Composite, 1).await;
}

#[tokio::test]
async fn composite_with_four_workers() {
    smoke(Mode::Composite, 4).await;
}

#[tokio::test]
async fn plain_envoy_carries_a_chat_too() {
    let fleet = Fleet::start(FleetOptions::new(Mode::Plain, 1, 2)).await;
    let answer = fleet
        .client(Protocol::Http1)
        .send(Call::chat(&chat(false)))
        .await
        .unwrap();
    assert_eq!(answer.json()["object"], "chat.completion");
}

/// The log field that the shipped configurations ask for.
#[tokio::test]
async fn the_access_log_explains_each_pick() {
    for mode in Mode::STEERING {
        let options = FleetOptions::new(mode, 1, 2)
            .plugin(json!({ "explain": {"response_header": true, "log_field": true} }));
        let fleet = Fleet::start(options).await;
        let client = fleet.client(Protocol::Http1);
        let answer = client.send(Call::chat(&chat(false))).await.unwrap();
        let decision = answer.header("x-warmroute-decision");
        assert!(decision.starts_with("policy="), "{decision:?}");
        let ranked = decided(&answer.headers, "ranked");
        let begun = Instant::now();
        // Envoy writes it every ten seconds.
        let account = loop {
            let log = fleet.envoy.access_log();
            if let Some(account) = log.lines().find_map(|line| account::find(line).unwrap()) {
                break account;
            }
            assert!(begun.elapsed() < 3 * SETTLE, "no decision in {log:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let account = Account::parse(&account).unwrap();
        assert_eq!(account.ranked.join("|"), ranked);
    }
}

/// A configuration that says what nobody understands: Envoy does not start, and its log says where.
#[tokio::test]
async fn envoy_does_not_start_on_a_bad_plugin_configuration() {
    for (text, named) in [
        (r#"{"polcy": 1}"#, "polcy"),
        (
            r#"{"endpoints": [{"address": "10.0.0.1:80", "weight": "x"}]}"#,
            "endpoints[0].weight",
        ),
        ("", "endpoints"),
    ] {
        let shipped = EnvoyConfig::shipped(Mode::OriginalDst).unwrap();
        let config = shipped.plugin_text(text).unwrap();
        let started = EnvoyProcess::start(&config, 1).await;
        let why = started.map(|_| text).expect_err("Envoy started");
        assert!(why.contains("Envoy ended at its start"), "{why}");
        let line = format!("configuration refused: {named}: ");
        assert!(why.contains(&line), "no {line:?} in {why}");
    }
}

#[test]
fn envoy_accepts_every_shipped_configuration() {
    support::config::module().unwrap();
    let modes = [
        Mode::OriginalDst,
        Mode::FilterState,
        Mode::OverrideHost,
        Mode::Composite,
        Mode::Plain,
    ];
    let discovery = support::root().join("envoy/discovery.yaml");
    for file in modes.map(Mode::file).into_iter().chain([discovery]) {
        if let Err(why) = validate(&file) {
            panic!("{}: {why}", file.display());
        }
    }
}
