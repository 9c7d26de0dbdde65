//! Models and adapters through a real Envoy: who gets which request, what is answered where nobody serves
//! it, and the gateway's own list. Tests are named by their case.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[macro_use]
mod support;

use futures_util::StreamExt;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use support::check::{SETTLE, becomes, unharmed, until_scraped_twice};
use support::client::{Answer, Call, HttpClient, Protocol};
use support::config::{EnvoyConfig, Mode};
use support::fleet::{Fleet, FleetOptions};
use support::mock::Mock;
use warmroute::sim::replica::Profile;

/// Between two questions for an engine's models.
const INTERVAL: Duration = Duration::from_millis(1_000);
/// A tick later all workers know what one of them has read; on a busy machine.
const LAG: Duration = Duration::from_millis(300);

/// What each of four replicas serves besides the base model.
const ADAPTERS: [&[&str]; 4] = [&["sql", "law"], &["sql"], &["chat"], &["law"]];

fn serving(model: &str) -> BTreeSet<usize> {
    let has = |at: &usize| model == "tiny" || ADAPTERS[*at].contains(&model);
    (0..ADAPTERS.len()).filter(has).collect()
}

fn options(mode: Mode, workers: u32) -> FleetOptions {
    let mut options = FleetOptions::new(mode, workers, ADAPTERS.len());
    for (mock, adapters) in options.mocks.iter_mut().zip(ADAPTERS) {
        mock.adapters = adapters.iter().map(|name| (*name).to_owned()).collect();
        mock.tells_endpoint = true;
    }
    options
}

/// As [`options`], with engines that are asked what they serve.
fn asking(mode: Mode, workers: u32) -> FleetOptions {
    let interval_ms = INTERVAL.as_millis() as u64;
    options(mode, workers).plugin(json!({
        "scrape": {
            "cluster": "warmroute_scrape",
            "interval_ms": 200,
            "timeout_ms": 2_000,
            "stale_after_ms": 10_000,
        },
        "models": {"interval_ms": interval_ms},
    }))
}

fn chat(model: &str, text: &str) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 2,
    })
}

async fn ids(client: &HttpClient) -> Vec<String> {
    let answer = client.send(Call::get("/v1/models")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let list = answer.json();
    assert_eq!(list["object"], "list");
    let cards = list["data"].as_array().unwrap().iter();
    cards
        .map(|card| card["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits until all workers know what all engines serve.
async fn known(fleet: &Fleet) {
    let begun = Instant::now();
    let client = fleet.client(Protocol::Http1);
    while ids(&client).await != ["tiny", "chat", "law", "sql"] {
        assert!(begun.elapsed() < SETTLE, "the lists are not known");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The other workers read the same within a tick.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

/// Sends `count` chats for the models in turn and returns which replicas answered for which.
async fn send(fleet: &Fleet, count: usize, models: &[&str]) -> BTreeMap<String, BTreeSet<usize>> {
    let clients: Vec<HttpClient> = (0..32)
        .map(|at| fleet.client(Protocol::ALL[at % 2]))
        .collect();
    let calls = (0..count).map(|number| {
        let model = models[number % models.len()].to_owned();
        let client = clients[number % clients.len()].clone();
        async move {
            let body = chat(&model, &format!("Prompt {}", number % 97));
            let answer = client.send(Call::chat(&body)).await.unwrap();
            assert_eq!(answer.status, 200, "{model}: {}", answer.text());
            (model, answer.header("x-mock-endpoint"))
        }
    });
    let all = fleet.endpoints();
    let mut used: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    let mut answers = futures_util::stream::iter(calls).buffer_unordered(64);
    while let Some((model, endpoint)) = answers.next().await {
        let at = all.iter().position(|one| *one == endpoint).unwrap();
        used.entry(model).or_default().insert(at);
    }
    used
}

/// 10,000 requests go to who serves their model, and to all of those.
async fn each_to_its_own(fleet: &mut Fleet) {
    let models = ["sql", "law", "chat", "tiny"];
    let used = send(fleet, 10_000, &models).await;
    for model in models {
        assert_eq!(used[model], serving(model), "{model}");
    }
    let wrong: u64 = fleet.mocks.iter().map(|mock| mock.unknown_models()).sum();
    assert_eq!(wrong, 0, "adapter_wrong_endpoint");
    let sent: u64 = fleet.mocks.iter().map(|mock| mock.totals().requests).sum();
    assert_eq!(sent, 10_000);
    unharmed(fleet).await;
}

async fn by_engines(mode: Mode, workers: u32) {
    let options = asking(mode, workers).plugin(json!({ "policy": {"name": "round_robin"} }));
    let mut fleet = Fleet::start(options).await;
    known(&fleet).await;
    each_to_its_own(&mut fleet).await;
}

with_one_and_four_workers!(
    f4_adapters_go_where_engines_list_them: by_engines, FilterState, OriginalDst
);

fn listed(config: &mut EnvoyConfig) {
    let wasm = config.wasm().unwrap();
    let text = wasm.pointer_mut("/configuration/value").unwrap();
    let mut plugin: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    for (at, adapters) in ADAPTERS.iter().enumerate() {
        let models: Vec<&str> = ["tiny"].iter().chain(*adapters).copied().collect();
        plugin["endpoints"][at]["models"] = json!(models);
    }
    *text = Value::String(plugin.to_string());
}

async fn by_configuration(mode: Mode, workers: u32) {
    let mut options = options(mode, workers).plugin(json!({ "policy": {"name": "least_request"} }));
    options.adjust = listed;
    let mut fleet = Fleet::start(options).await;
    each_to_its_own(&mut fleet).await;
    is_refused(&fleet, "nobody").await;
}

with_one_and_four_workers!(
    f4_adapters_go_where_the_configuration_lists_them: by_configuration, OverrideHost, OriginalDst
);

/// The model is refused in the words of each API, at once, and the connection goes on.
async fn is_refused(fleet: &Fleet, model: &str) {
    let at_once = |took: &[Duration]| {
        took[took.len() / 2] < Duration::from_millis(100)
            && took[took.len() - 1] < Duration::from_millis(1_000)
    };
    let mut took = refusals(fleet, model).await;
    let mut replies = took.len();
    // The machine may be busy for once.
    if !at_once(&took) {
        println!("once more: {took:?}");
        took = refusals(fleet, model).await;
        replies += took.len();
    }
    assert!(at_once(&took), "{took:?}");
    let kind = [("kind", "unknown_model")];
    becomes(
        fleet,
        "warmroute_local_replies_total",
        &kind,
        replies as f64,
    )
    .await;
}

/// Asks for it over both protocols, on four paths, whole and streamed. How long each of the 16 refusals took,
/// ascending.
async fn refusals(fleet: &Fleet, model: &str) -> Vec<Duration> {
    let message = format!("The model `{model}` does not exist.");
    let error = json!({ "error": {
        "message": message, "type": "NotFoundError", "param": "model", "code": 404,
    }});
    let of_anthropic = json!({
        "type": "error",
        "error": {"type": "not_found_error", "message": message},
    });
    let mut took = Vec::new();
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for (path, expected) in [
            ("/v1/chat/completions", &error),
            ("/v1/completions", &error),
            ("/v1/responses", &error),
            ("/v1/messages", &of_anthropic),
        ] {
            for stream in [false, true] {
                let mut body = chat(model, &"Why? ".repeat(2_000));
                body["stream"] = json!(stream);
                let begun = Instant::now();
                let answer = client
                    .send(Call::post(path, body.to_string()))
                    .await
                    .unwrap();
                took.push(begun.elapsed());
                assert_eq!(
                    (answer.status, answer.json()),
                    (404, expected.clone()),
                    "{path}"
                );
                assert_eq!(answer.header("x-warmroute-reason"), "unknown_model");
                assert_eq!(answer.header("content-type"), "application/json");
            }
            let answer = client.send(Call::chat(&chat("tiny", "Still there?"))).await;
            assert_eq!(answer.unwrap().status, 200);
        }
    }
    took.sort();
    assert_eq!(took.len(), 16);
    took
}

async fn unknown(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(asking(mode, workers)).await;
    known(&fleet).await;
    is_refused(&fleet, "nobody").await;
    let wrong: u64 = fleet.mocks.iter().map(|mock| mock.unknown_models()).sum();
    assert_eq!(wrong, 0);
    // A request that names no model goes anywhere, as does one whose body is none.
    let client = fleet.client(Protocol::Http1);
    let nameless = json!({"messages": [{"role": "user", "content": "?"}], "max_tokens": 2});
    assert_eq!(
        client.send(Call::chat(&nameless)).await.unwrap().status,
        200
    );
    let broken = client.send(Call::post("/v1/chat/completions", "{")).await;
    assert_eq!(broken.unwrap().status, 400);
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    h2_an_unknown_model_is_refused_at_once: unknown, OriginalDst, OverrideHost
);

async fn retried(mode: Mode, workers: u32) {
    let options = asking(mode, workers).plugin(json!({ "policy": {"name": "round_robin"} }));
    let mut fleet = Fleet::start(options).await;
    known(&fleet).await;
    let all = fleet.endpoints();
    // One of the two that serve it is gone, and Envoy learns that from the requests.
    fleet.stop(0).await;
    let client = fleet.client(Protocol::Http2);
    for number in 0..50 {
        let call = Call::chat(&chat("sql", &format!("Prompt {number}")));
        let answer = client.send(call).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-mock-endpoint"), all[1]);
    }
    // Of what nobody else serves no other is asked.
    fleet.stop(1).await;
    for number in 0..50 {
        let call = Call::chat(&chat("chat", &format!("Prompt {number}")));
        let answer = client.send(call).await.unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    let wrong: u64 = fleet.mocks.iter().map(|mock| mock.unknown_models()).sum();
    assert_eq!(wrong, 0);
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}

with_one_and_four_workers!(
    f4_a_retry_stays_among_those_that_serve_the_model: retried, OverrideHost, Composite
);

/// When a change at a replica has to be known: two intervals after it, if by then the replica was asked twice
/// for its list and all workers had time to hear of it.
struct Due<'a> {
    mock: &'a Mock,
    asked_before: u64,
    earliest: Instant,
    asked_twice: Option<Instant>,
}

impl<'a> Due<'a> {
    /// Of a change that was made just now.
    fn after_change(mock: &'a Mock) -> Self {
        Self {
            mock,
            asked_before: questions(mock),
            earliest: Instant::now() + 2 * INTERVAL,
            asked_twice: None,
        }
    }

    fn is_before(&mut self, time: Instant) -> bool {
        if self.asked_twice.is_none() && questions(self.mock) >= self.asked_before + 2 {
            self.asked_twice = Some(Instant::now());
        }
        let heard = self.asked_twice.map(|asked| asked + LAG);
        time >= self.earliest && heard.is_some_and(|heard| time >= heard)
    }
}

/// How often the replica was asked for its list.
fn questions(mock: &Mock) -> u64 {
    let calls = mock.other_calls();
    calls.get("/v1/models").copied().unwrap_or_default()
}

/// Loads or unloads an adapter at one replica.
async fn change<'a>(fleet: &'a Fleet, at: usize, what: &str, adapter: &str) -> Due<'a> {
    let engine = HttpClient::new(fleet.mocks[at].addr(), Protocol::Http1);
    let body = json!({"lora_name": adapter, "lora_path": "/adapters"}).to_string();
    let path = format!("/v1/{what}_lora_adapter");
    let answer = engine.send(Call::post(&path, body)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    Due::after_change(&fleet.mocks[at])
}

/// Asks until the answer is as wanted, and returns it. None that was asked for after `due` may be otherwise.
async fn until(
    client: &HttpClient,
    model: &str,
    mut due: Due<'_>,
    is_wanted: impl Fn(&Answer) -> bool,
) -> Answer {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let answer = client.send(Call::chat(&chat(model, "Hello"))).await;
        let answer = answer.unwrap();
        if is_wanted(&answer) {
            return answer;
        }
        let (since, text) = (begun.elapsed(), answer.text());
        assert!(!due.is_before(asked) && since < SETTLE, "{since:?}: {text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn loaded(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(asking(mode, workers)).await;
    known(&fleet).await;
    let client = fleet.client(Protocol::Http1);
    let answer = client.send(Call::chat(&chat("new", "Hello"))).await;
    assert_eq!(answer.unwrap().status, 404);
    let due = change(&fleet, 2, "load", "new").await;
    let answer = until(&client, "new", due, |answer| answer.status == 200).await;
    assert_eq!(answer.header("x-mock-endpoint"), fleet.endpoints()[2]);
    tokio::time::sleep(LAG).await;
    assert_eq!(
        send(&fleet, 200, &["new"]).await["new"],
        BTreeSet::from([2])
    );
    assert_eq!(ids(&client).await, ["tiny", "chat", "law", "new", "sql"]);
    let due = change(&fleet, 2, "unload", "new").await;
    // The refusal is the engine's own until it was asked again.
    until(&client, "new", due, |answer| {
        answer.status == 404 && answer.header("x-warmroute-reason") == "unknown_model"
    })
    .await;
    unharmed(&mut fleet).await;
}

with_one_and_four_workers!(
    f4_an_adapter_that_is_loaded_is_served_within_two_intervals: loaded, OverrideHost, FilterState
);

async fn list(mode: Mode, workers: u32) {
    let mut fleet = Fleet::start(asking(mode, workers)).await;
    known(&fleet).await;
    let client = fleet.client(Protocol::Http1);
    let before = client.send(Call::get("/v1/models")).await.unwrap();
    assert_eq!(before.header("content-type"), "application/json");
    assert_eq!(before.header("x-warmroute-reason"), "models");
    assert_eq!(before.json()["data"][0]["parent"], json!(null));
    assert_eq!(before.json()["data"][1]["parent"], "tiny");
    // The replica that alone has one of them is gone.
    fleet.stop(2).await;
    tokio::time::sleep(2 * INTERVAL + Duration::from_millis(300)).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        for _ in 0..20 {
            let after = client.send(Call::get("/v1/models?limit=20")).await.unwrap();
            assert_eq!((after.status, after.json()), (200, before.json()));
        }
        let card = client.send(Call::get("/v1/models/law")).await.unwrap();
        assert_eq!(
            (card.status, &card.json()),
            (200, &before.json()["data"][2])
        );
        let nobody = client.send(Call::get("/v1/models/nobody")).await.unwrap();
        let error = &nobody.json()["error"];
        assert_eq!((nobody.status, error["code"].as_u64()), (404, Some(404)));
        assert_eq!(error["message"], "The model `nobody` does not exist.");
    }
    // What is asked otherwise is for an engine to answer.
    let head = client
        .send(Call::method("HEAD", "/v1/models"))
        .await
        .unwrap();
    assert_eq!(
        (head.status, head.header("x-warmroute-reason").as_str()),
        (405, "")
    );
    let stats = fleet.stats().await;
    let listed = stats.metric("warmroute_local_replies_total", &[("kind", "models")]);
    assert!(listed >= 43.0, "{listed}");
    assert!(fleet.envoy.is_running());
}

with_one_and_four_workers!(
    f3_the_models_are_listed_while_an_endpoint_is_down: list, OriginalDst, FilterState
);

/// Four replicas on which a request lasts as long as it is wanted, with room for two adapters each.
async fn placed(mode: Mode, workers: u32) {
    let profile = Profile {
        step_base_us: 20_000,
        ..Profile::fast()
    };
    let options = asking(mode, workers)
        .plugin(json!({ "policy": {"name": "least_request"} }))
        .each_mock(|mock| {
            mock.adapters = ["sql", "law", "chat"].map(str::to_owned).to_vec();
            mock.max_loras = Some(2);
            mock.profile = profile.clone();
        });
    let fleet = Fleet::start(options).await;
    known(&fleet).await;
    let client = fleet.client(Protocol::Http2);
    let open = async |model: &str, number: usize| {
        let mut body = chat(model, &format!("Prompt {number}"));
        body["max_tokens"] = json!(3_000);
        body["stream"] = json!(true);
        let stream = client.open(Call::chat(&body)).await.unwrap();
        assert_eq!(stream.status, 200);
        (stream.header("x-mock-endpoint"), stream)
    };
    let mut streams = vec![open("sql", 0).await];
    let home = streams[0].0.clone();
    // The engine's metrics show it with the next reading, which all workers have a tick later.
    let shown = async |endpoint: &str| {
        let mut mocks = fleet.mocks.iter();
        let mock = mocks.find(|mock| mock.addr().to_string() == endpoint);
        until_scraped_twice(mock.unwrap()).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    shown(&home).await;
    for number in 1..4 {
        streams.push(open("sql", number).await);
    }
    let used = |streams: &[(String, _)]| -> BTreeSet<String> {
        streams
            .iter()
            .map(|(endpoint, _)| endpoint.clone())
            .collect()
    };
    assert_eq!(
        used(&streams),
        BTreeSet::from([home.clone()]),
        "it stays where it is active"
    );
    // Another adapter goes to where less is going on: it is active nowhere.
    streams.push(open("law", 0).await);
    let other = streams.last().unwrap().0.clone();
    assert_ne!(other, home);
    shown(&other).await;
    streams.push(open("law", 1).await);
    assert_eq!(streams.last().unwrap().0, other);
    // One that is in demand spreads.
    for number in 4..24 {
        streams.push(open("sql", number).await);
    }
    assert_eq!(used(&streams).len(), 4, "{:?}", used(&streams));
    let crowd = streams
        .iter()
        .filter(|(endpoint, _)| *endpoint == home)
        .count();
    // Of 26, no more than twice the mean and four.
    assert!((6..=17).contains(&crowd), "{crowd}");
    drop(streams);
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
}

with_one_and_four_workers!(
    an_adapter_stays_and_spreads_when_in_demand: placed, FilterState, OverrideHost
);
