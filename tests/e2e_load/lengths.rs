//! What prompts and outputs are expected to come to approaches what the engine reports of them.

use crate::SETTLE;
use crate::decision::{chat, clients, explained, open, until_idle, with};
use crate::support::client::{Call, HttpClient};
use crate::support::config::Mode;
use crate::support::fleet::Fleet;
use serde_json::json;

/// Tokens of the prompt and of the output, as expected and as reported.
struct Seen {
    expected: [u64; 2],
    reported: [u64; 2],
}

/// Asks with 8,000 bytes of text that nobody has seen, and no limit.
async fn asked(client: &HttpClient, number: usize) -> Seen {
    let text = format!("item {number:05} of it ").repeat(445);
    let mut body = with(
        chat(""),
        json!({"messages": [{"role": "user", "content": text}]}),
    );
    body.as_object_mut().unwrap().remove("max_tokens");
    let (pick, stream) = open(client, Call::chat(&body)).await.unwrap();
    let answer = stream.finish().await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let usage = &answer.json()["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap();
    Seen {
        expected: [pick.cost.prefill_tokens, pick.cost.decode_tokens],
        reported: [count("prompt_tokens"), count("completion_tokens")],
    }
}

async fn learned(mode: Mode, workers: u32) {
    // The mock's tokens have four bytes.
    let options = explained(mode, workers, 3).plugin(json!({
        "policy": {"name": "expected_latency"},
        "tokens": {"bytes_per_token": 2.5, "output_tokens": 400},
    }));
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 6);
    let first = asked(&clients[0], 0).await;
    assert_eq!(first.expected[1], 400);
    assert!(first.expected[0] > first.reported[0] * 3 / 2);
    // Each worker learns from its own answers.
    let mut number = 1;
    for _ in 0..70 {
        for client in &clients {
            asked(client, number).await;
            number += 1;
        }
    }
    for client in &clients {
        let Seen { expected, reported } = asked(client, number).await;
        number += 1;
        for (expected, reported) in expected.into_iter().zip(reported) {
            let error = expected.abs_diff(reported);
            assert!(
                error * 20 <= reported + 20,
                "{expected} expected, {reported} reported"
            );
        }
    }
    until_idle(&clients[0], &chat("probe"), SETTLE)
        .await
        .unwrap();
}

with_one_and_four_workers!(
    estimates_approach_what_the_engine_reports: learned, FilterState, OverrideHost
);
