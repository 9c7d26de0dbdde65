//! Cases H: what goes together goes to one endpoint, and only that.

use crate::SETTLE;
use crate::decision::{
    Decision, ask, change, chat, clients, explained, held, plugin, pools, until_idle, with,
};
use crate::support::check::becomes;
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::{Fleet, FleetOptions};
use crate::waves::{counts, open_all};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Replicas behind `prefix_hash`, which goes by the routing key.
fn by_prefix(mode: Mode, workers: u32, replicas: usize) -> FleetOptions {
    explained(mode, workers, replicas).plugin(json!({ "policy": {"name": "prefix_hash"} }))
}

/// The routing key of `body`, which also must lead to the same endpoint twice in a row.
async fn key(client: &HttpClient, body: &Value) -> String {
    let first = ask(client, Call::chat(body)).await.unwrap();
    let again = ask(client, Call::chat(body)).await.unwrap();
    assert_eq!(first.key, again.key);
    assert_eq!(first.endpoint, again.endpoint);
    assert_eq!(first.reason, "home");
    first.key.expect("a routing key")
}

async fn keys(mode: Mode, workers: u32) {
    let options = by_prefix(mode, workers, 4).each_mock(|mock| {
        mock.adapters = ["a", "ab", "lora"].map(str::to_owned).to_vec();
    });
    let fleet = Fleet::start(options).await;
    for protocol in Protocol::ALL {
        let client = fleet.client(protocol);
        adapters_and_prefixes(&client).await;
        string_and_parts(&client).await;
        system_and_tools(&client).await;
        salt_images_and_adapters(&client).await;
        no_prompt(&client).await;
    }
    until_idle(&fleet.client(Protocol::Http1), &chat("probe"), SETTLE)
        .await
        .unwrap();
}

/// H3.
async fn adapters_and_prefixes(client: &HttpClient) {
    let a = with(chat("bc"), json!({"model": "a"}));
    let ab = with(chat("c"), json!({"model": "ab"}));
    assert_ne!(key(client, &a).await, key(client, &ab).await);
}

fn say(content: Value) -> Value {
    with(
        chat(""),
        json!({"messages": [{"role": "user", "content": content}]}),
    )
}

/// H5.
async fn string_and_parts(client: &HttpClient) {
    let string = key(client, &say(json!("Why is the sky blue?"))).await;
    let one = json!([{"type": "text", "text": "Why is the sky blue?"}]);
    let several = json!([
        {"type": "text", "text": "Why is "},
        {"type": "text", "text": "the sky"},
        {"type": "text", "text": " blue?"},
    ]);
    assert_eq!(key(client, &say(one)).await, string);
    assert_eq!(key(client, &say(several)).await, string);
    let other = json!([{"type": "text", "text": "Why is the sky red?"}]);
    assert_ne!(key(client, &say(other)).await, string);
}

/// H12, its first half.
async fn system_and_tools(client: &HttpClient) {
    let of = |system: &str| {
        with(
            chat(""),
            json!({"messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": "Why?"},
            ]}),
        )
    };
    let tool = |name: &str| {
        let function = json!({"name": name, "parameters": {"type": "object"}});
        json!({"tools": [{"type": "function", "function": function}]})
    };
    let all = [
        of("You are brief."),
        of("You are verbose."),
        with(of("You are brief."), tool("search")),
        with(of("You are brief."), tool("calculate")),
    ];
    let mut keys = BTreeSet::new();
    for body in &all {
        keys.insert(key(client, body).await);
    }
    assert_eq!(keys.len(), all.len());
}

/// H13.
async fn salt_images_and_adapters(client: &HttpClient) {
    let image = |data: &str| {
        let url = format!("data:image/png;base64,{data}");
        say(json!([
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": url}},
        ]))
    };
    let all = [
        chat("The same prompt"),
        with(chat("The same prompt"), json!({"cache_salt": "alice"})),
        with(chat("The same prompt"), json!({"cache_salt": "bob"})),
        with(chat("The same prompt"), json!({"model": "lora"})),
        image("iVBORw0KGgoAAAA1"),
        image("iVBORw0KGgoAAAA2"),
    ];
    let mut keys = BTreeSet::new();
    for body in &all {
        keys.insert(key(client, body).await);
    }
    assert_eq!(keys.len(), all.len());
}

/// H4.
async fn no_prompt(client: &HttpClient) {
    let bodies = [
        say(json!(null)),
        say(json!("")),
        with(chat(""), json!({"messages": []})),
    ];
    for body in bodies {
        let pick = ask(client, Call::chat(&body)).await.unwrap();
        assert_eq!((pick.reason.as_str(), pick.key), ("no_key", None), "{body}");
    }
    let empty = json!({"model": "tiny", "prompt": "", "max_tokens": 2});
    let call = Call::post("/v1/completions", empty.to_string());
    let pick = ask(client, call).await.unwrap();
    assert_eq!((pick.reason.as_str(), pick.key), ("no_key", None));
}

with_one_and_four_workers!(
    h3_h4_h5_h12_h13_routing_keys_through_envoy: keys, FilterState, OverrideHost
);

async fn shared_system_prompt(mode: Mode, workers: u32) {
    let fleet = Fleet::start(by_prefix(mode, workers, 4)).await;
    let clients = clients(&fleet, 2);
    let system = "You are the assistant of a large company. ".repeat(60);
    let mut picks = Vec::new();
    for (number, client) in (0..200).zip(clients.iter().cycle()) {
        let body = with(
            chat(""),
            json!({"messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": format!("Question {number}")},
            ]}),
        );
        picks.push(ask(client, Call::chat(&body)).await.unwrap());
    }
    let keys: BTreeSet<_> = picks.iter().map(|pick| pick.key.clone()).collect();
    assert_eq!(keys.len(), 200);
    spread(&picks, 4);
}

/// Every endpoint gets some, and none nearly half.
fn spread(picks: &[Decision], endpoints: usize) {
    let counts = counts(picks);
    assert_eq!(counts.len(), endpoints, "{counts:?}");
    let all = u32::try_from(picks.len()).unwrap();
    for count in counts.values() {
        assert!(*count >= all / 12 && *count <= all * 45 / 100, "{counts:?}");
    }
}

with_one_and_four_workers!(
    h12_a_shared_system_prompt_does_not_pile_everything_up:
    shared_system_prompt, OriginalDst, FilterState
);

fn hash_sessions(config: &mut EnvoyConfig) {
    let policy = json!({
        "name": "consistent_hash",
        "keys": [{"header": "x-session-id"}, {"cookie": "sid"}, {"body": "user"}],
    });
    change(config, &json!({ "policy": policy }));
}

async fn sessions(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 4);
    options.adjust = hash_sessions;
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 2);
    let (mut keyless, mut users, mut bob) = (Vec::new(), Vec::new(), Vec::new());
    for (number, client) in (0..200).zip(clients.iter().cycle()) {
        let prompt = format!("Prompt {number}");
        keyless.push(ask(client, Call::chat(&chat(&prompt))).await.unwrap());
        let body = with(chat("Hello"), json!({"user": format!("user-{number}")}));
        users.push(ask(client, Call::chat(&body)).await.unwrap());
    }
    assert!(keyless.iter().all(|pick| pick.reason == "no_key"));
    spread(&keyless, 4);
    assert!(users.iter().all(|pick| pick.reason == "home"));
    spread(&users, 4);
    for (number, client) in (0..20).zip(clients.iter().cycle()) {
        let prompt = format!("Prompt {number}");
        let body = with(chat(&prompt), json!({"user": "bob"}));
        bob.push(ask(client, Call::chat(&body)).await.unwrap());
    }
    assert_eq!(counts(&bob).len(), 1);
    // H8: what a prompt says is no field of the body, in whatever form.
    for text in [
        r#""user": "bob""#,
        r#"{"user": "bob"}"#,
        r#"\", "user": "bob", "x": "#,
    ] {
        for client in &clients {
            let pick = ask(client, Call::chat(&chat(text))).await.unwrap();
            assert_eq!((pick.reason.as_str(), pick.key), ("no_key", None), "{text}");
        }
    }
    // The sources go in their order; each is one endpoint, whatever else changes.
    for (name, value) in [("x-session-id", "s1"), ("cookie", "a=b; sid=s1; c=d")] {
        let mut picks = Vec::new();
        for (number, client) in (0..10).zip(clients.iter().cycle()) {
            let body = with(chat("Hello"), json!({"user": format!("user-{number}")}));
            let call = Call::chat(&body).header(name, value);
            picks.push(ask(client, call).await.unwrap());
        }
        let keys: BTreeSet<_> = picks.iter().map(|pick| &pick.key).collect();
        assert_eq!((counts(&picks).len(), keys.len()), (1, 1), "{name}");
    }
}

with_one_and_four_workers!(
    h7_h8_session_keys_stick_and_nothing_else_does: sessions, FilterState, OriginalDst
);

fn both_hashes(config: &mut EnvoyConfig) {
    let sessions = json!({"name": "consistent_hash", "keys": [{"body": "user"}]});
    pools(
        config,
        &[
            ("consistent_hash", sessions),
            ("prefix_hash", json!({"name": "prefix_hash"})),
        ],
    );
}

async fn request_ids(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 4).each_mock(|mock| {
        mock.adapters = ["consistent_hash", "prefix_hash"]
            .map(str::to_owned)
            .to_vec();
    });
    options.adjust = both_hashes;
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 6);
    for policy in ["consistent_hash", "prefix_hash"] {
        let body = with(chat("Hello"), json!({"model": policy, "user": "bob"}));
        let mut picks = Vec::new();
        for (number, client) in (0..60).zip(clients.iter().cycle()) {
            let call = Call::chat(&body);
            let call = match number % 2 {
                0 => call,
                _ => call.header(
                    "x-request-id",
                    format!("00000000-0000-4000-8000-{number:012}"),
                ),
            };
            picks.push(ask(client, call).await.unwrap());
        }
        assert!(picks.iter().all(|pick| pick.policy == policy));
        assert_eq!(counts(&picks).len(), 1, "{policy}");
    }
    // Envoy did give each request an id of its own.
    let seen: Vec<_> = fleet.mocks.iter().flat_map(|mock| mock.seen()).collect();
    let ids: BTreeSet<_> = seen
        .iter()
        .flat_map(|seen| &seen.headers)
        .filter(|(name, _)| name == "x-request-id")
        .map(|(_, id)| id.clone())
        .collect();
    assert!(
        ids.len() > 60,
        "{} ids in {} requests",
        ids.len(),
        seen.len()
    );
}

with_one_and_four_workers!(
    h9_a_fresh_request_id_does_not_break_stickiness: request_ids, OverrideHost, OriginalDst
);

const IDLE_POLICIES: [&str; 4] = [
    "least_request",
    "least_outstanding_tokens",
    "power_of_two",
    "prefix_hash",
];

fn idle_policies(config: &mut EnvoyConfig) {
    let all = IDLE_POLICIES.map(|name| (name, json!({ "name": name })));
    pools(config, &all);
}

async fn ties(mode: Mode, workers: u32) {
    let mut options = explained(mode, workers, 2).each_mock(|mock| {
        mock.adapters = IDLE_POLICIES.map(str::to_owned).to_vec();
    });
    // Where the ring's points lie depends on the addresses alone: with the same ones in every run,
    // chance has no part in the shares of prefix_hash.
    for (mock, host) in options.mocks.iter_mut().zip(1..) {
        let subnet = u8::try_from(workers).unwrap();
        mock.listen = SocketAddr::from(([127, 71, subnet, host], 18_071));
    }
    options.adjust = idle_policies;
    let fleet = Fleet::start(options).await;
    let clients = clients(&fleet, 2);
    for policy in IDLE_POLICIES {
        let mut picks = Vec::new();
        for (number, client) in (0..450).zip(clients.iter().cycle()) {
            let body = with(chat(&format!("Prompt {number}")), json!({"model": policy}));
            picks.push(ask(client, Call::chat(&body)).await.unwrap());
        }
        let counts = counts(&picks);
        assert_eq!(counts.len(), 2, "{policy}: {counts:?}");
        for count in counts.values() {
            assert!((180..=270).contains(count), "{policy}: {counts:?}");
        }
    }
}

with_one_and_four_workers!(
    h10_equal_loads_are_no_tie_that_the_first_always_wins: ties, OriginalDst, FilterState
);

async fn hot_prefix(mode: Mode, workers: u32) {
    let fleet = Fleet::start(by_prefix(mode, workers, 2)).await;
    let clients = clients(&fleet, 12);
    let calls = (0..60).map(|_| held(chat("The one prompt of all")));
    let opened = open_all(&clients, calls.collect()).await.unwrap();
    let counts = counts(opened.iter().map(|(pick, _)| pick));
    // 1.25 times the fair share of 60 equal requests, rounded up.
    assert_eq!(counts.len(), 2, "{counts:?}");
    assert!(counts.values().all(|count| *count <= 38), "{counts:?}");
    let overflows = opened.iter().filter(|(pick, _)| pick.reason == "overflow");
    let overflows = u32::try_from(overflows.count()).unwrap();
    drop(opened);
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    becomes(
        &fleet,
        "warmroute_overflow_total",
        &[],
        f64::from(overflows),
    )
    .await;
    assert!(overflows >= 22, "{overflows}");
}

with_one_and_four_workers!(
    h11_a_hot_prefix_does_not_all_go_to_one_endpoint: hot_prefix, OverrideHost, FilterState
);

/// The helpers above change what they think they change.
#[test]
fn pools_replace_the_endpoints() {
    let endpoints = [SocketAddr::from(([127, 0, 0, 1], 9101))];
    let shipped = EnvoyConfig::shipped(Mode::OriginalDst).unwrap();
    let mut config = shipped.endpoints(&endpoints).unwrap();
    idle_policies(&mut config);
    let plugin = plugin(&mut config);
    assert_eq!(plugin.get("endpoints"), None);
    assert_eq!(plugin["pools"].as_array().unwrap().len(), 4);
    assert_eq!(
        plugin["pools"][2]["endpoints"][0]["address"],
        "127.0.0.1:9101"
    );
}
