//! What the access log says of a decision is enough to take it again.

use crate::decision::{ask, change, chat, clients, explained, held, open, plugin, pools, with};
use crate::support::client::{Call, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::{Fleet, FleetOptions, patient};
use crate::support::mock::Mock;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use warmroute::account::{Account, AccountError, LISTED, Outcome, Replay, decide_again, find};
use warmroute::config::Config;
use warmroute::sim::profiles;

/// Envoy writes its access log every ten seconds.
const WRITTEN: Duration = Duration::from_secs(30);

/// A pool for each, with its name and model.
fn policies() -> Vec<(&'static str, Value)> {
    vec![
        ("expected_latency", json!({"name": "expected_latency"})),
        ("cache_aware", json!({"name": "cache_aware"})),
        (
            "by_time",
            json!({"name": "prefix_hash", "bound": "expected_time"}),
        ),
        (
            "prefix_hash",
            json!({"name": "prefix_hash", "load_factor": 1.0}),
        ),
        (
            "by_requests",
            json!({"name": "prefix_hash", "bound": "requests"}),
        ),
        ("power_of_two", json!({"name": "power_of_two"})),
        ("by_kv", json!({"name": "power_of_two", "load": "kv"})),
        ("round_robin", json!({"name": "round_robin"})),
        ("weighted", json!({"name": "weighted_round_robin"})),
        ("random", json!({"name": "random"})),
        ("least_request", json!({"name": "least_request"})),
        ("least_tokens", json!({"name": "least_outstanding_tokens"})),
    ]
}

fn all_policies(config: &mut EnvoyConfig) {
    pools(config, &policies());
}

fn logged(options: FleetOptions) -> FleetOptions {
    options.plugin(json!({"explain": {"response_header": true, "log_field": true}}))
}

/// The plugin configuration that `options` come to with these endpoints.
fn configuration(options: &FleetOptions, endpoints: &[SocketAddr]) -> Config {
    let shipped = EnvoyConfig::shipped(options.mode).unwrap();
    let mut config = shipped
        .endpoints(endpoints)
        .and_then(|config| config.plugin(&options.plugin))
        .unwrap();
    (options.adjust)(&mut config);
    let wasm = config.wasm().unwrap();
    let text = wasm["configuration"]["value"].as_str().unwrap();
    Config::parse(text.as_bytes()).unwrap()
}

/// The accounts in Envoy's access log as soon as there are so many.
async fn accounts(fleet: &Fleet, wanted: usize) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let log = fleet.envoy.access_log();
        let found: Vec<String> = log
            .lines()
            .filter_map(|line| find(line).unwrap())
            .filter(|account| account.ends_with("]}"))
            .collect();
        if found.len() >= wanted {
            return found;
        }
        let count = found.len();
        assert!(
            begun.elapsed() < WRITTEN,
            "{count} of {wanted} in {log:.2000}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn every_policy(mode: Mode, workers: u32) {
    let names: Vec<String> = policies()
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let scrape = json!({"cluster": "warmroute_scrape", "interval_ms": 200, "timeout_ms": 2_000});
    let mut options = logged(explained(mode, workers, 4))
        .plugin(json!({ "scrape": scrape }))
        .each_mock(|mock| {
            mock.adapters = names.clone();
            mock.profile = profiles::l4_fp8();
            mock.time_scale = 0.02;
        });
    options.adjust = all_policies;
    let given = (options.mode, options.plugin.clone());
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 40);
    let mut sent = BTreeMap::new();
    for round in 0..12_usize {
        let asking = clients.iter().zip(0_usize..).map(|(client, number)| {
            let model = &names[(number + round) % names.len()];
            let document = format!("document {} says ", number * round % 9).repeat(300);
            let text = format!("{document} question {number} of {round}");
            let body = with(chat(&text), json!({ "model": model }));
            ask(client, Call::chat(&body))
        });
        for pick in futures_util::future::join_all(asking).await {
            *sent.entry(pick.unwrap().pool).or_insert(0_usize) += 1;
        }
    }
    let addresses: Vec<SocketAddr> = fleet.mocks.iter().map(Mock::addr).collect();
    let mut options = FleetOptions::new(given.0, workers, 0).plugin(given.1);
    options.adjust = all_policies;
    let replay = Replay::new(&configuration(&options, &addresses));
    let mut seen = BTreeMap::new();
    let (mut reasons, mut warm, mut busy) = (BTreeSet::new(), 0, 0);
    for line in accounts(&fleet, 480).await {
        let account = Account::parse(&line).unwrap();
        assert!(replay.is_of(&account), "{line}");
        let outcome = replay.outcome(&account);
        assert_eq!(outcome, Ok(Outcome::logged(&account)), "{line}");
        reasons.insert(account.reason.clone());
        let candidates = || account.candidates.iter().map(|(_, candidate)| candidate);
        warm += usize::from(candidates().any(|one| one.matched_tokens > 0));
        busy += usize::from(candidates().any(|one| one.load.requests > 1));
        *seen.entry(account.pool).or_insert(0_usize) += 1;
    }
    assert_eq!(seen, sent);
    // They were decisions that could have been others.
    assert!(
        warm > 15 && busy > 300,
        "{warm} saw a match, {busy} a queue"
    );
    for reason in [
        "turn",
        "random",
        "less_loaded_of_two",
        "least_loaded",
        "home",
        "overflow",
    ] {
        assert!(reasons.contains(reason), "{reasons:?}");
    }
}

with_one_and_four_workers!(
    what_was_logged_under_load_is_decided_again: every_policy, OverrideHost, OriginalDst
);

async fn kv_caches(mode: Mode, workers: u32) {
    let scrape = json!({
        "cluster": "warmroute_scrape", "interval_ms": 200, "timeout_ms": 2_000, "stale_after_ms": 10_000,
    });
    let plugin = json!({ "scrape": scrape, "policy": {"name": "expected_latency"} });
    let options = logged(explained(mode, workers, 2))
        .plugin(plugin)
        .each_mock(|mock| {
            mock.profile = profiles::l4_fp8();
            mock.time_scale = 0.02;
        });
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 8);
    let text = "A prompt of some length. ".repeat(400);
    let (pick, stream) = open(&clients[0], held(chat(&text))).await.unwrap();
    // Long enough for every worker to hear of what has been scraped.
    const ASKED: usize = 40;
    for client in clients.iter().cycle().take(ASKED) {
        ask(client, Call::chat(&chat("Hello"))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let lines = accounts(&fleet, ASKED).await;
    drop(stream);
    let accounts = lines.iter().map(|line| Account::parse(line).unwrap());
    let last = accounts.max_by_key(|account| account.sequence).unwrap();
    assert_eq!(last.candidates.len(), 2);
    for (endpoint, seen) in &last.candidates {
        assert_eq!(seen.kv_tokens, profiles::l4_fp8().capacity_tokens());
        // What waits is waited for with all its prompt; the other one is idle.
        let waiting_tokens = match *endpoint == pick.endpoint {
            true => pick.cost.prefill_tokens,
            false => 0,
        };
        assert_eq!(seen.kv_used_tokens, waiting_tokens, "{endpoint}: {seen:?}");
    }
    assert!(pick.cost.prefill_tokens > 2_000, "{pick:?}");
}

with_one_and_four_workers!(
    what_engines_tell_of_their_kv_caches_is_logged: kv_caches, FilterState, OverrideHost
);

/// Endpoints that nobody serves: what is logged does not depend on who answers.
fn many(config: &mut EnvoyConfig, count: usize) {
    let mut endpoints = plugin(config)["endpoints"].as_array().unwrap().clone();
    let address = |host| json!({"address": format!("127.1.{}.{}:9", host / 250, host % 250 + 1)});
    endpoints.extend((1..count).map(address));
    let policy = json!({"name": "expected_latency"});
    change(config, &json!({ "endpoints": endpoints, "policy": policy }));
}

/// As an operator may have it whose logs are JSON.
fn in_json(config: &mut EnvoyConfig) {
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let manager = config.0.pointer_mut(manager).unwrap();
    let format = &mut manager["access_log"][0]["typed_config"]["log_format"];
    *format = json!({"json_format": {
        "path": "%REQ(:PATH)%",
        "decision": "%FILTER_STATE(wasm.warmroute:PLAIN)%",
        "status": "%RESPONSE_CODE%",
    }});
}

async fn large_pool(adjust: fn(&mut EnvoyConfig), count: usize) -> (Config, Vec<String>) {
    let mut options = FleetOptions::new(Mode::OriginalDst, 1, 1)
        .plugin(json!({"explain": {"log_field": true}, "health": patient()}));
    options.adjust = adjust;
    let given = (options.mode, options.plugin.clone());
    let fleet = Fleet::start(options).await;
    let client = fleet.client(Protocol::Http1);
    for number in 0..5 {
        let call = Call::chat(&chat(&format!("{number} says ").repeat(2_000)));
        client.send(call).await.unwrap();
        // Who refused it is tried again by then.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut options = FleetOptions::new(given.0, 1, 0).plugin(given.1);
    options.adjust = adjust;
    let config = configuration(&options, &[fleet.mocks[0].addr()]);
    assert_eq!(config.pools[0].pool.len(), count);
    (config, accounts(&fleet, 5).await)
}

#[tokio::test]
async fn three_hundred_endpoints_fit_into_a_line_of_json() {
    let adjust = |config: &mut EnvoyConfig| {
        many(config, 300);
        in_json(config);
    };
    let (config, accounts) = large_pool(adjust, 300).await;
    for line in accounts {
        let account = Account::parse(&line).unwrap();
        assert_eq!(account.candidates.len(), 300);
        let outcome = Replay::new(&config).outcome(&account);
        assert_eq!(outcome, Ok(Outcome::logged(&account)), "{line}");
    }
}

#[tokio::test]
async fn a_pool_too_large_for_a_line_says_so() {
    let (config, accounts) = large_pool(|config| many(config, 600), 600).await;
    for line in accounts {
        assert_eq!(
            decide_again(&config, &line),
            Err(AccountError::Incomplete { listed: LISTED })
        );
    }
}

/// The line of the largest pool is not the limit: Envoy cuts nothing.
#[tokio::test]
async fn envoy_cuts_no_line() {
    let adjust = |config: &mut EnvoyConfig| {
        let name = "a pool \u{e9} ".repeat(10_000);
        pools(config, &[(&name, json!({"name": "random"}))]);
    };
    let (config, accounts) = large_pool(adjust, 1).await;
    for line in accounts {
        assert!(line.len() > 100_000, "{} bytes", line.len());
        let account = Account::parse(&line).unwrap();
        let outcome = Replay::new(&config).outcome(&account);
        assert_eq!(outcome, Ok(Outcome::logged(&account)));
    }
}
