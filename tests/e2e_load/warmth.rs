//! `expected_latency`: a prompt goes where its beginning has been computed, whichever worker it comes to.

use crate::SETTLE;
use crate::decision::{Decision, ask, chat, clients, explained, until_idle, with};
use crate::support::client::{Call, HttpClient};
use crate::support::config::Mode;
use crate::support::fleet::{Fleet, FleetOptions};
use crate::support::mock::Mock;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use warmroute::sim::profiles;

/// 19,000 bytes, which are 4,750 tokens, and none of them those of another `number`.
fn document(number: usize) -> String {
    format!("document {number:04} says ").repeat(1_000)
}

fn about(document: &str, question: &str) -> Value {
    with(
        chat(""),
        json!({"messages": [
            {"role": "system", "content": document},
            {"role": "user", "content": question},
        ]}),
    )
}

/// Replicas that take 68 ms for a document.
fn fleet(mode: Mode, workers: u32) -> FleetOptions {
    let options =
        explained(mode, workers, 4).plugin(json!({"policy": {"name": "expected_latency"}}));
    options.each_mock(|mock| {
        mock.profile = profiles::l4_fp8();
        mock.time_scale = 0.1;
    })
}

async fn asked(client: &HttpClient, document: &str, question: usize) -> Decision {
    let body = about(document, &format!("Question {question}: why?"));
    ask(client, Call::chat(&body)).await.unwrap()
}

fn cached_tokens(fleet: &Fleet) -> u64 {
    fleet
        .mocks
        .iter()
        .map(Mock::totals)
        .map(|totals| totals.cached_tokens)
        .sum()
}

async fn stays_warm(mode: Mode, workers: u32) {
    let fleet = Fleet::start(fleet(mode, workers)).await;
    let clients = clients(&fleet, 8);
    let mut homes = BTreeSet::new();
    for number in 0..6 {
        let document = document(number);
        let first = asked(&clients[number], &document, 0).await;
        assert_eq!(first.policy, "expected_latency");
        assert!(first.cost.prefill_tokens > 4_700, "{first:?}");
        for (question, client) in clients.iter().enumerate() {
            let again = asked(client, &document, question + 1).await;
            assert_eq!(
                again.endpoint, first.endpoint,
                "document {number}: {again:?}"
            );
            // All but the question and the beginning of a block is known to be there.
            assert!(again.cost.prefill_tokens < 150, "{again:?}");
        }
        homes.insert(first.endpoint);
    }
    assert!(homes.len() > 1, "all documents went to {homes:?}");
    // 48 of 54 documents were found.
    let cached = cached_tokens(&fleet);
    assert!(cached > 48 * 4_600, "{cached}");
    until_idle(&clients[0], &chat("probe"), SETTLE)
        .await
        .unwrap();
}

with_one_and_four_workers!(
    a_prompt_goes_where_its_beginning_is_warm: stays_warm, OverrideHost, OriginalDst
);
