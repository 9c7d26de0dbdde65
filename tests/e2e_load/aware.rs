//! `cache_aware`, and loads in time: what was sent where decides, whichever worker a prompt comes to,
//! and who is slow shows in the answers.

use crate::SETTLE;
use crate::decision::{Decision, ask, chat, clients, explained, held, until_idle, with};
use crate::support::check::becomes;
use crate::support::client::{Call, HttpClient};
use crate::support::config::Mode;
use crate::support::fleet::{Fleet, FleetOptions};
use crate::waves::open_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use warmroute::sim::profiles;

/// A prompt of 1,900 bytes and a question, which is more than seven blocks of its own.
fn about(document: usize, question: usize) -> Value {
    let document = format!("document {document:04} says ").repeat(100);
    with(
        chat(""),
        json!({"messages": [
            {"role": "system", "content": document},
            {"role": "user", "content": format!("Question {question}: why?")},
        ]}),
    )
}

async fn asked(client: &HttpClient, document: usize, question: usize) -> Decision {
    ask(client, Call::chat(&about(document, question)))
        .await
        .unwrap()
}

async fn longest_match(mode: Mode, workers: u32) {
    let policy = json!({"name": "cache_aware", "preset": "sglang_router", "imbalance_requests": 4});
    let options = explained(mode, workers, 3).plugin(json!({ "policy": policy }));
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 8);
    let mut homes = BTreeSet::new();
    for document in 0..6 {
        let first = asked(&clients[document], document, 0).await;
        assert_eq!(first.policy, "cache_aware");
        assert_eq!(first.reason, "no_match", "document {document}");
        for (question, client) in clients.iter().enumerate() {
            let again = asked(client, document, question + 1).await;
            assert_eq!(again.reason, "longest_match", "document {document}");
            assert_eq!(again.endpoint, first.endpoint, "document {document}");
        }
        homes.insert(first.endpoint);
    }
    // The smallest tree takes what nobody knows: six documents on three endpoints.
    assert_eq!(homes.len(), 3, "{homes:?}");
    // Five requests are more than four above none: the sixth leaves the warm endpoint.
    let calls = (0..6).map(|question| held(about(0, question)));
    let mut opened = Vec::new();
    for call in calls {
        opened.extend(open_all(&clients[..1], vec![call]).await.unwrap());
    }
    let reasons: Vec<&str> = opened
        .iter()
        .map(|(pick, _)| pick.reason.as_str())
        .collect();
    assert_eq!(reasons[..5], ["longest_match"; 5]);
    assert_eq!(reasons[5], "imbalanced");
    assert_ne!(opened[5].0.endpoint, opened[0].0.endpoint);
    drop(opened);
    until_idle(&clients[0], &chat("probe"), SETTLE)
        .await
        .unwrap();
    let matched = [("policy", "cache_aware"), ("reason", "longest_match")];
    becomes(&fleet, "warmroute_picks_total", &matched, 53.0).await;
}

with_one_and_four_workers!(
    the_longest_match_decides_while_load_is_in_balance: longest_match, OriginalDst, OverrideHost
);

/// One replica of three is eight times slower than the others.
fn uneven(mode: Mode, workers: u32, policy: &Value) -> FleetOptions {
    let mut options = explained(mode, workers, 3).plugin(json!({ "policy": policy }));
    for (mock, slower_permille) in options.mocks.iter_mut().zip([8_000, 1_000, 1_000]) {
        mock.profile = profiles::l4_fp8().slowed(slower_permille);
        mock.time_scale = 0.1;
    }
    options
}

/// A prompt of 1,650 tokens like no other.
fn fresh(number: usize) -> Value {
    chat(&format!("prompt {number:04} has much to say ").repeat(220))
}

/// An answer that shows how fast its endpoint is.
async fn learn(client: &HttpClient, number: usize) -> Decision {
    let usage = json!({"stream": true, "stream_options": {"include_usage": true}});
    let body = with(fresh(number), usage);
    ask(client, Call::chat(&body)).await.unwrap()
}

async fn time(mode: Mode, workers: u32) {
    for policy in [
        json!({"name": "prefix_hash", "bound": "expected_time"}),
        json!({"name": "power_of_two", "load": "expected_time"}),
    ] {
        let fleet = Fleet::start(uneven(mode, workers, &policy)).await;
        let clients = clients(&fleet, 8);
        // Each worker learns from its own answers.
        for round in 0..10 * workers as usize {
            let learning = clients.iter().zip(round * clients.len()..);
            let learning = learning.map(|(client, number)| learn(client, number));
            for pick in futures_util::future::join_all(learning).await {
                assert_eq!(pick.policy, policy["name"]);
            }
        }
        let calls = (0..48).map(|number| held(fresh(9_000 + number)));
        let opened = open_all(&clients, calls.collect()).await.unwrap();
        let slow = &fleet.endpoints()[0];
        let on_slow = opened.iter().filter(|(pick, _)| pick.endpoint == *slow);
        // A third would be 16; by speed it would be three, once that is known.
        let on_slow = on_slow.count();
        assert!(on_slow <= 12, "{on_slow} of 48 by {policy}");
        drop(opened);
        fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    }
}

with_one_and_four_workers!(
    who_is_slow_is_found_out_and_gets_less: time, FilterState, OriginalDst
);
