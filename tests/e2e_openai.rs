//! OpenAI's own Python client through Envoy: chats whole and streamed, the list of models, errors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use serde_json::{Value, json};
use std::process::{Command, Stdio};
use support::check::{becomes, unharmed};
use support::config::Mode;
use support::fleet::{Fleet, FleetOptions};
use support::{python, root};

/// What the script prints.
async fn run_client(fleet: &Fleet) -> Value {
    let python = python().unwrap_or_else(|why| panic!("{why}"));
    let base = format!("http://{}/v1", fleet.envoy.listener);
    let run = move || {
        let script = root().join("tests/openai_chat.py");
        let command = Command::new(&python)
            .arg(script)
            .arg(base)
            .stdin(Stdio::null())
            .output();
        command.unwrap_or_else(|e| panic!("{}: {e}", python.display()))
    };
    // The replicas live on this thread's runtime and must go on.
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}", errors.trim());
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn openai_client(mode: Mode, workers: u32) {
    let options = FleetOptions::new(mode, workers, 2)
        .plugin(json!({ "explain": {"response_header": true, "log_field": false} }))
        .each_mock(|mock| mock.adapters = vec!["lora-a".to_owned()]);
    let mut fleet = Fleet::start(options).await;
    let got = run_client(&fleet).await;

    assert_eq!(got["models"], json!(["tiny", "lora-a"]));
    let whole = &got["whole"];
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "tiny");
    assert_eq!(whole["role"], "assistant");
    assert_eq!(whole["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion"], 7);
    let prompt_tokens = whole["usage"]["prompt"].as_u64().unwrap();
    assert!(prompt_tokens > 10);
    assert_eq!(whole["usage"]["total"], prompt_tokens + 7);
    assert_ne!(whole["content"], "");

    let streamed = &got["streamed"];
    for same in ["content", "finish_reason", "usage"] {
        assert_eq!(streamed[same], whole[same], "{same}");
    }
    assert_eq!(streamed["several_chunks"], true);

    let unknown = &got["unknown_model"];
    assert_eq!(unknown["status"], 404);
    let message = unknown["message"].as_str().unwrap();
    assert!(message.contains("`nobody` does not exist"), "{message}");
    assert_eq!(
        got["error_in_stream"],
        json!({ "code": 500, "kind": "APIError" })
    );
    let decision = got["decision"].as_str().unwrap();
    // Read and understood: what goes by load alone has no key.
    assert!(
        decision.starts_with("policy=expected_latency;reason=") && decision.contains(";key="),
        "{decision}"
    );

    // The three good chats; the list of models was picked for as well, but has no body to read.
    becomes(
        &fleet,
        "warmroute_output_tokens_total",
        &[],
        7.0 + 7.0 + 1.0,
    )
    .await;
    becomes(
        &fleet,
        "warmroute_parse_total",
        &[("outcome", "complete")],
        5.0,
    )
    .await;
    becomes(&fleet, "warmroute_picks_total", &[], 6.0).await;
    unharmed(&mut fleet).await;
}

#[tokio::test]
async fn openai_client_original_dst() {
    openai_client(Mode::OriginalDst, 1).await;
}

#[tokio::test]
async fn openai_client_filter_state() {
    openai_client(Mode::FilterState, 4).await;
}

#[tokio::test]
async fn openai_client_override_host() {
    openai_client(Mode::OverrideHost, 4).await;
}
