//! `expected_latency`: a prompt goes where its beginning has been computed, whichever worker it comes to,
//! and what an engine lost in a restart is known to be lost.

use crate::SETTLE;
use crate::decision::{Decision, ask, chat, clients, explained, open, until_idle, with};
use crate::support::check::{becomes, until_scraped_twice};
use crate::support::client::{Call, HttpClient};
use crate::support::config::Mode;
use crate::support::fleet::{Fleet, FleetOptions, patient};
use crate::support::mock::{Mock, MockOptions};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
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
    options.each_mock(warm)
}

fn warm(mock: &mut MockOptions) {
    mock.profile = profiles::l4_fp8();
    mock.time_scale = 0.1;
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

/// Where the replica is among all.
fn place_of(fleet: &Fleet, endpoint: &str) -> usize {
    let is_it = |mock: &Mock| mock.addr().to_string() == endpoint;
    fleet.mocks.iter().position(is_it).unwrap()
}

/// Ends a replica; its address, from now on nobody's.
async fn stop(fleet: &mut Fleet, endpoint: &str) -> SocketAddr {
    let place = place_of(fleet, endpoint);
    fleet.stop(place).await
}

/// Starts an empty replica at an address.
async fn start(fleet: &mut Fleet, listen: SocketAddr) {
    let mut options = MockOptions {
        listen,
        ..MockOptions::default()
    };
    warm(&mut options);
    fleet.mocks.push(Mock::start(options).await.unwrap());
}

/// Asks once about a document everywhere, and says where it is; all workers know it then.
async fn warmed(clients: &[HttpClient], document: &str) -> String {
    let first = asked(&clients[0], document, 0).await;
    for (question, client) in clients.iter().enumerate() {
        let again = asked(client, document, question + 1).await;
        assert!(again.matched_tokens[&first.endpoint] > 4_600, "{again:?}");
    }
    first.endpoint
}

/// Asks about a document until the endpoint is one of those that the pick is made among.
async fn as_candidate(
    client: &HttpClient,
    document: &str,
    question: usize,
    endpoint: &str,
) -> Decision {
    let begun = Instant::now();
    loop {
        let pick = asked(client, document, question).await;
        if pick.matched_tokens.contains_key(endpoint) {
            return pick;
        }
        assert!(begun.elapsed() < SETTLE, "{endpoint} is out: {pick:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the next picks of all workers take the endpoint to hold of `document`, which is nothing until
/// one of them goes there.
async fn is_forgotten(clients: &[HttpClient], document: &str, endpoint: &str) {
    // Until all workers know that it is back.
    tokio::time::sleep(Duration::from_millis(400)).await;
    for (question, client) in clients.iter().enumerate() {
        let pick = as_candidate(client, document, 100 + question, endpoint).await;
        assert_eq!(pick.matched_tokens[endpoint], 0, "{pick:?}");
        if pick.endpoint == endpoint {
            break;
        }
    }
}

fn scraped(mode: Mode, workers: u32) -> FleetOptions {
    let scrape = json!({"cluster": "warmroute_scrape", "interval_ms": 200, "timeout_ms": 2_000});
    fleet(mode, workers).plugin(json!({ "scrape": scrape }))
}

async fn restarted(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(scraped(mode, workers)).await;
    let clients = clients(&fleet, 8);
    let documents: Vec<String> = (0..8).map(document).collect();
    let mut homes = Vec::new();
    for document in &documents {
        homes.push(warmed(&clients, document).await);
    }
    let mut restarts = BTreeMap::new();
    for (document, home) in documents.iter().zip(&homes) {
        // The counters that a restart sets back have been read.
        until_scraped_twice(&fleet.mocks[place_of(&fleet, home)]).await;
        let address = stop(&mut fleet, home).await;
        start(&mut fleet, address).await;
        let count = restarts.entry(home).or_insert(0.0);
        *count += 1.0;
        let labels = [("endpoint", home.as_str())];
        becomes(&fleet, "warmroute_engine_restarts_total", &labels, *count).await;
        is_forgotten(&clients, document, home).await;
        // And nobody else lost anything.
        let others = documents
            .iter()
            .zip(&homes)
            .filter(|(_, other)| !restarts.contains_key(other));
        for (document, other) in others {
            let pick = asked(&clients[0], document, 50).await;
            assert!(pick.matched_tokens[other] > 4_600, "{pick:?}");
        }
    }
}

with_one_and_four_workers!(
    an_engine_whose_counters_went_back_holds_nothing: restarted, OverrideHost, OriginalDst
);

async fn refused(mode: Mode, workers: u32) {
    let options = fleet(mode, workers).plugin(json!({ "health": patient() }));
    let mut fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 8);
    let document = document(0);
    let home = warmed(&clients, &document).await;
    let address = stop(&mut fleet, &home).await;
    // Long enough for Envoy to see that its connections are closed.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let body = about(&document, "Is anybody there?");
    let (pick, stream) = open(&clients[1], Call::chat(&body)).await.unwrap();
    assert_eq!(pick.endpoint, home);
    assert_eq!(stream.finish().await.unwrap().status, 503);
    start(&mut fleet, address).await;
    is_forgotten(&clients, &document, &home).await;
}

with_one_and_four_workers!(
    an_engine_that_refused_a_connection_holds_nothing: refused, OriginalDst, FilterState
);

/// Returns when all workers know that these rest.
async fn until_resting(fleet: &Fleet, endpoints: &[String]) {
    for endpoint in endpoints {
        let labels = [("endpoint", endpoint.as_str()), ("state", "resting")];
        becomes(fleet, "warmroute_endpoint_state", &labels, 1.0).await;
    }
    // The other workers know a tick later.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

async fn unreachable(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(scraped(mode, workers)).await;
    let clients = clients(&fleet, 8);
    let document = document(0);
    let home = warmed(&clients, &document).await;
    stop(&mut fleet, &home).await;
    // Nobody has sent it a request since, but its metrics are asked for.
    until_resting(&fleet, std::slice::from_ref(&home)).await;
    let body = about(&document, "Is anybody there?");
    let (pick, _) = open(&clients[1], Call::chat(&body)).await.unwrap();
    assert!(!pick.matched_tokens.contains_key(&home), "{pick:?}");
    // Now nobody is left, and all of them are the last resort.
    let others = fleet.endpoints();
    for endpoint in &others {
        stop(&mut fleet, endpoint).await;
    }
    until_resting(&fleet, &others).await;
    let (pick, _) = open(&clients[2], Call::chat(&body)).await.unwrap();
    assert_eq!(pick.matched_tokens[&home], 0, "{pick:?}");
}

with_one_and_four_workers!(
    an_engine_whose_metrics_are_refused_holds_nothing: unreachable, FilterState, OverrideHost
);
