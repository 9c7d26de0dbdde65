//! What the filter says of its own picks, and requests that make it say so.
// The figures use a part of it.
#![allow(dead_code)]
// As in a test, to panic is a way to fail.
#![allow(clippy::expect_used, clippy::indexing_slicing)]

use crate::support::client::{Call, HttpClient, Protocol, Streaming};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::{Fleet, FleetOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The header that explains a pick.
pub const HEADER: &str = "x-warmroute-decision";
/// A stream of which only the headers come, so that its load stays.
pub const HELD: &str = "stall=0";

/// What an endpoint carries, as a pick saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub requests: u64,
    pub prefill_tokens: u64,
    pub decode_tokens: u64,
}

impl Carried {
    pub fn tokens(&self) -> u64 {
        self.prefill_tokens + self.decode_tokens
    }

    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.prefill_tokens += other.prefill_tokens;
        self.decode_tokens += other.decode_tokens;
    }
}

/// The explanation of one pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub policy: String,
    pub reason: String,
    pub pool: String,
    pub endpoint: String,
    pub ranked: Vec<String>,
    pub sequence: u64,
    pub key: Option<String>,
    /// What the pick reserved.
    pub cost: Carried,
    pub bound: u64,
    /// By endpoint, before the pick's own reservation.
    pub loads: BTreeMap<String, Carried>,
    /// Tokens of the prompt that each endpoint is believed to hold; empty if the policy does not ask.
    pub matched_tokens: BTreeMap<String, u64>,
}

impl Decision {
    /// Reads the header's value.
    pub fn parse(line: &str) -> Result<Self, String> {
        let fields: BTreeMap<&str, &str> = line
            .split(';')
            .filter_map(|field| field.split_once('='))
            .collect();
        let field = |name: &str| {
            let found = fields.get(name).copied();
            found.ok_or_else(|| format!("no {name} in the decision {line:?}"))
        };
        let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
        let (prefill, decode) = field("cost")?.split_once('+').ok_or("no + in cost")?;
        let loads = field("loads")?.trim_matches(['[', ']']).split(',');
        let loads: Vec<_> = loads.map(load).collect::<Result<_, String>>()?;
        let costs = fields.get("costs").copied().unwrap_or_default();
        let costs = costs.trim_matches(['[', ']']).split(',');
        let matched = costs.filter_map(|cost| cost.split_once('/'));
        let matched_tokens = loads
            .iter()
            .zip(matched)
            .map(|((endpoint, _), (tokens, _))| Ok((endpoint.clone(), number(tokens)?)));
        Ok(Self {
            policy: field("policy")?.to_owned(),
            reason: field("reason")?.to_owned(),
            pool: field("pool")?.to_owned(),
            endpoint: field("endpoint")?.to_owned(),
            ranked: field("ranked")?.split('|').map(str::to_owned).collect(),
            sequence: number(field("sequence")?)?,
            key: fields.get("key").map(|key| (*key).to_owned()),
            cost: Carried {
                requests: 1,
                prefill_tokens: number(prefill)?,
                decode_tokens: number(decode)?,
            },
            bound: number(field("bound")?)?,
            matched_tokens: matched_tokens.collect::<Result<_, String>>()?,
            loads: loads.into_iter().collect(),
        })
    }

    /// What all endpoints together carried.
    pub fn total(&self) -> Carried {
        self.loads
            .values()
            .fold(Carried::default(), |mut sum, load| {
                sum.add(load);
                sum
            })
    }
}

fn load(text: &str) -> Result<(String, Carried), String> {
    let bad = || format!("not a load: {text:?}");
    let (endpoint, figures) = text.rsplit_once(' ').ok_or_else(bad)?;
    let mut figures = figures.split('/').map(|figure| figure.parse::<u64>());
    let mut next = || figures.next().and_then(Result::ok).ok_or_else(bad);
    let carried = Carried {
        requests: next()?,
        prefill_tokens: next()?,
        decode_tokens: next()?,
    };
    Ok((endpoint.to_owned(), carried))
}

/// Replicas behind an Envoy that explains its picks.
pub fn explained(mode: Mode, workers: u32, replicas: usize) -> FleetOptions {
    FleetOptions::new(mode, workers, replicas)
        .plugin(json!({ "explain": {"response_header": true} }))
}

/// A chat of one user message.
pub fn chat(text: &str) -> Value {
    json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
    })
}

/// `body` with the keys of `changes` laid over it.
pub fn with(mut body: Value, changes: Value) -> Value {
    if let (Value::Object(all), Value::Object(new)) = (&mut body, changes) {
        all.extend(new);
    }
    body
}

/// A streamed call of which only the headers come.
pub fn held(body: Value) -> Call {
    Call::chat(&with(body, json!({ "stream": true }))).header("x-mock-fault", HELD)
}

/// The explanation in an answer, which is still to come.
pub async fn open(client: &HttpClient, call: Call) -> Result<(Decision, Streaming), String> {
    let stream = client.open(call).await?;
    let decision = Decision::parse(&stream.header(HEADER))
        .map_err(|why| format!("status {}: {why}", stream.status))?;
    Ok((decision, stream))
}

/// Sends `call` and reads the whole answer, which must be a 200.
pub async fn ask(client: &HttpClient, call: Call) -> Result<Decision, String> {
    let (decision, stream) = open(client, call).await?;
    let answer = stream.finish().await?;
    match answer.status {
        200 => Ok(decision),
        status => Err(format!("status {status}: {}", answer.text())),
    }
}

/// `count` clients, HTTP/1.1 and HTTP/2 in turn, so that Envoy spreads them over its workers.
pub fn clients(fleet: &Fleet, count: usize) -> Vec<HttpClient> {
    let protocols = Protocol::ALL.into_iter().cycle().take(count);
    protocols.map(|protocol| fleet.client(protocol)).collect()
}

/// Asks with `probe` until the pick sees nothing under way anywhere. The answer's own load is gone
/// when this returns.
pub async fn until_idle(client: &HttpClient, probe: &Value, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let left = ask(client, Call::chat(probe)).await?.total();
        if left == Carried::default() {
            return Ok(());
        }
        if begun.elapsed() > limit {
            return Err(format!("still under way after {limit:?}: {left:?}"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Puts one pool in place of the endpoints for each of `pools`, all with the same endpoints: a name,
/// which is also the model that leads there, and a policy.
pub fn pools(config: &mut EnvoyConfig, pools: &[(&str, Value)]) {
    let plugin = plugin(config);
    let pools: Vec<Value> = pools
        .iter()
        .map(|(name, policy)| {
            json!({
                "name": name,
                "models": [name],
                "policy": policy,
                "endpoints": plugin["endpoints"],
            })
        })
        .collect();
    change(
        config,
        &json!({ "endpoints": null, "policy": null, "pools": pools }),
    );
}

/// The plugin configuration as it is.
pub fn plugin(config: &mut EnvoyConfig) -> Value {
    let wasm = config.wasm().expect("the filter");
    let text = wasm["configuration"]["value"].as_str().unwrap_or_default();
    serde_json::from_str(text).expect("a plugin configuration")
}

/// Lays `changes` over the plugin configuration.
pub fn change(config: &mut EnvoyConfig, changes: &Value) {
    *config = config.clone().plugin(changes).expect("a filter");
}
