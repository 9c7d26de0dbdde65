//! Set-ups: a host that shows no bodies, weights, pools, models, and every metric with its labels.

use crate::SETTLE;
use crate::decision::{Decision, ask, change, chat, clients, explained, held, open, plugin, with};
use crate::support::check::becomes;
use crate::support::client::{Call, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::Fleet;
use crate::waves::{counts, open_all};
use serde_json::json;
use std::time::{Duration, Instant};

fn hide_bodies(config: &mut EnvoyConfig) {
    let wasm = config.wasm().unwrap().as_object_mut().unwrap();
    let flag = wasm.remove("allow_on_headers_stop_iteration");
    assert_eq!(flag, Some(json!(true)));
}

async fn watchdog(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 3);
    options.adjust = hide_bodies;
    let fleet = Fleet::start(options).await;
    let mut sent = 0;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for text in ["short", &"long ".repeat(100_000)] {
            let call = Call::chat(&chat(text)).header("x-mock-echo", "1");
            let answer = tokio::time::timeout(SETTLE, client.send(call)).await;
            let answer = answer.expect("no hang").unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            let pick = Decision::parse(&answer.header("x-warmroute-decision")).unwrap();
            assert_eq!(pick.reason, "no_key");
            assert_eq!(pick.endpoint, answer.header("x-mock-endpoint"));
            sent += 1;
        }
        // Without a body there is nothing to wait for.
        let answer = client.send(Call::get("/v1/models")).await.unwrap();
        assert_eq!(answer.status, 200);
    }
    becomes(&fleet, "warmroute_watchdog_total", &[], f64::from(sent)).await;
    let unread = [("outcome", "unread")];
    becomes(&fleet, "warmroute_parse_total", &unread, f64::from(sent)).await;
    let log = fleet.envoy.log();
    let line = "allow_on_headers_stop_iteration: true";
    assert_eq!(log.matches(line).count(), sent as usize, "{log}");
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}

with_one_and_four_workers!(
    without_body_callbacks_the_watchdog_steers: watchdog, OriginalDst, FilterState
);

#[tokio::test]
async fn without_body_callbacks_the_watchdog_steers_by_ranked_list() {
    watchdog(Mode::OverrideHost, 4).await;
}

/// One endpoint is worth three others.
fn uneven(config: &mut EnvoyConfig, policy: &str) {
    let mut endpoints = plugin(config)["endpoints"].clone();
    endpoints[0]["weight"] = json!(3);
    change(
        config,
        &json!({ "endpoints": endpoints, "policy": {"name": policy} }),
    );
}

async fn weighted_load(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 2);
    options.adjust = |config| uneven(config, "least_request");
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 12);
    let calls = (0..80).map(|_| held(chat("All the same"))).collect();
    let opened = open_all(&clients, calls).await.unwrap();
    let counts = counts(opened.iter().map(|(pick, _)| pick));
    assert_eq!(counts[&fleet.endpoints()[0]], 60, "{counts:?}");
    assert_eq!(counts[&fleet.endpoints()[1]], 20, "{counts:?}");
}

with_one_and_four_workers!(
    weights_are_capacities: weighted_load, FilterState, OverrideHost
);

async fn weighted_turns(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 2);
    options.adjust = |config| uneven(config, "weighted_round_robin");
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 8);
    let mut picks = Vec::new();
    for (number, client) in (0..40).zip(clients.iter().cycle()) {
        let body = chat(&format!("Prompt {number}"));
        picks.push(ask(client, Call::chat(&body)).await.unwrap());
    }
    let counts = counts(&picks);
    assert_eq!(counts[&fleet.endpoints()[0]], 30, "{counts:?}");
    let sequences: Vec<u64> = picks.iter().map(|pick| pick.sequence).collect();
    let expected: Vec<u64> = (sequences[0]..).take(40).collect();
    assert_eq!(sequences, expected);
}

with_one_and_four_workers!(
    weighted_turns_are_taken_across_workers: weighted_turns, OriginalDst, FilterState
);

/// Two replicas for one model, two for another and its adapter, of which one serves another adapter.
fn two_pools(config: &mut EnvoyConfig) {
    let mut endpoints = plugin(config)["endpoints"].clone();
    endpoints[2]["models"] = json!(["large", "lora"]);
    endpoints[3]["models"] = json!(["large", "lora", "rare"]);
    let pools = json!([
        {"name": "large", "models": ["large", "lora", "rare"], "policy": {"name": "round_robin"},
         "endpoints": [endpoints[2], endpoints[3]]},
        {"name": "rest", "policy": {"name": "least_request"},
         "endpoints": [endpoints[0], endpoints[1]]},
    ]);
    change(
        config,
        &json!({ "endpoints": null, "policy": null, "pools": pools }),
    );
}

async fn models(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 4).each_mock(|mock| {
        mock.adapters = ["large", "lora", "rare"].map(str::to_owned).to_vec();
    });
    options.adjust = two_pools;
    let fleet = Fleet::start(options).await;
    let all = fleet.endpoints();
    let clients = clients(&fleet, 6);
    let expected: [(&str, &str, &str, &[usize]); 4] = [
        ("large", "large", "round_robin", &[2, 3]),
        ("lora", "large", "round_robin", &[2, 3]),
        ("rare", "large", "round_robin", &[3]),
        ("tiny", "rest", "least_request", &[0, 1]),
    ];
    for (model, pool, policy, endpoints) in expected {
        let mut picks = Vec::new();
        for (number, client) in (0..40).zip(clients.iter().cycle()) {
            let body = with(chat(&format!("Prompt {number}")), json!({"model": model}));
            picks.push(ask(client, Call::chat(&body)).await.unwrap());
        }
        for pick in &picks {
            assert_eq!((pick.pool.as_str(), pick.policy.as_str()), (pool, policy));
        }
        let seen: Vec<String> = counts(&picks).into_keys().collect();
        let mut expected: Vec<String> = endpoints.iter().map(|e| all[*e].clone()).collect();
        expected.sort();
        assert_eq!(seen, expected, "{model}");
    }
    // A model that nobody knows gets the engine's own answer.
    let unknown = with(chat("Hello"), json!({"model": "nobody"}));
    let answer = clients[0].send(Call::chat(&unknown)).await.unwrap();
    assert_eq!(answer.status, 404);
    assert_eq!(
        answer.json()["error"]["type"],
        "NotFoundError",
        "{}",
        answer.text()
    );
    let rare = [("endpoint", all[2].as_str())];
    // 20 of `large` and 20 of `lora`; none of `rare`.
    becomes(&fleet, "warmroute_picks_total", &rare, 40.0).await;
}

with_one_and_four_workers!(
    f4_pools_and_endpoints_by_model: models, OverrideHost, OriginalDst
);

fn retry_in_turn(config: &mut EnvoyConfig) {
    let policy = json!({"name": "prefix_hash"});
    let scrape = json!({"cluster": "warmroute_scrape", "interval_ms": 200, "timeout_ms": 2_000});
    change(config, &json!({ "policy": policy, "scrape": scrape }));
}

/// The metrics with `endpoint`, and the labels they have besides.
const OF_ENDPOINTS: [(&str, &[&str]); 18] = [
    ("warmroute_picks_total", &["policy", "reason"]),
    ("warmroute_overflow_total", &[]),
    ("warmroute_retries_total", &[]),
    ("warmroute_prompt_tokens_total", &[]),
    ("warmroute_cached_tokens_total", &[]),
    ("warmroute_output_tokens_total", &[]),
    ("warmroute_scrape_failures_total", &[]),
    ("warmroute_failures_total", &["kind"]),
    ("warmroute_inflight_requests", &[]),
    ("warmroute_inflight_prefill_tokens", &[]),
    ("warmroute_inflight_decode_tokens", &[]),
    ("warmroute_scrape_age_ms", &[]),
    ("warmroute_ttft_ms_bucket", &["le"]),
    ("warmroute_ttft_ms_sum", &[]),
    ("warmroute_endpoint_state", &["state"]),
    ("warmroute_e2e_ms_count", &[]),
    ("warmroute_e2e_ms_bucket", &["le"]),
    ("warmroute_tpot_ms_bucket", &["le"]),
];

async fn metrics(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 3);
    options.adjust = retry_in_turn;
    let mut fleet = Fleet::start(options).await;
    let endpoints = fleet.endpoints();
    let clients = clients(&fleet, 8);
    // The third refuses connections from here on: scrapes that fail.
    fleet.stop(2).await;
    // Hot enough to overflow, wherever the home of the one that half of them share is.
    let prompt = |number: usize| number % 2 * (number % 12);
    let calls = (0..60).map(|number| held(chat(&format!("Prompt {}", prompt(number)))));
    let opened = open_all(&clients, calls.collect()).await.unwrap();
    drop(opened);
    let body = with(
        chat("Hello"),
        json!({"stream": true, "max_tokens": 9, "stream_options": {"include_usage": true}}),
    );
    for number in 0..6 {
        let body = with(
            body.clone(),
            json!({"model": "tiny", "user": format!("{number}")}),
        );
        ask(&clients[0], Call::chat(&body)).await.unwrap();
    }
    let failing = Call::chat(&body).header("x-mock-fault", "status=500");
    let (_, stream) = open(&clients[1], failing).await.unwrap();
    assert_eq!(stream.finish().await.unwrap().status, 500);
    // Refused by whoever is asked, so that Envoy tries the next one.
    let refused = Call::chat(&body).header("x-mock-fault", "status=503");
    let (_, stream) = open(&clients[1], refused).await.unwrap();
    assert_eq!(stream.finish().await.unwrap().status, 503);
    let begun = Instant::now();
    let missing = loop {
        let stats = fleet.stats_now().await;
        let missing: Vec<&str> = OF_ENDPOINTS
            .into_iter()
            .filter(|(name, labels)| {
                let labelled = |sample: &crate::support::stats::Sample| {
                    let endpoint = sample.labels.get("endpoint");
                    endpoint.is_some_and(|endpoint| endpoints.contains(endpoint))
                        && labels
                            .iter()
                            .all(|label| sample.labels.contains_key(*label))
                };
                let samples: Vec<_> = stats.samples(name, &[]).collect();
                samples.is_empty() || !samples.into_iter().all(labelled)
            })
            .map(|(name, _)| name)
            .collect();
        // Histograms come with Envoy's next merge.
        if missing.is_empty() || begun.elapsed() > SETTLE {
            break missing;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(missing, [""; 0]);
    let stats = fleet.stats().await;
    let home = [("policy", "prefix_hash"), ("reason", "home")];
    assert!(stats.metric("warmroute_picks_total", &home) > 0.0);
    let complete = [("outcome", "complete")];
    becomes(&fleet, "warmroute_parse_total", &complete, 68.0).await;
    let server_error = [("kind", "server_error")];
    becomes(&fleet, "warmroute_failures_total", &server_error, 1.0).await;
    becomes(&fleet, "warmroute_output_tokens_total", &[], 54.0).await;
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}

with_one_and_four_workers!(
    every_metric_is_there_with_its_labels: metrics, OverrideHost, OverrideHost
);
