//! The real run of one policy: a fresh Envoy, cold caches, every request at its due time.

use crate::Args;
use crate::call::{Answer, SERVED_BY, ask};
use crate::engine::{Counters, Engine};
use crate::support::client::{HttpClient, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::envoy::EnvoyProcess;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use warmroute::sim::fleet;
use warmroute::sim::record::{Run, Served};
use warmroute::sim::workload::{Request, Start, Workload};

/// Counters follow the end of a stream by a moment.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// The `prefix.bytes` of the plugin configuration: its default of 1,024, shrunken as the prompts are.
pub fn prefix_bytes(args: &Args) -> u32 {
    1_024 / args.shrink.max(1)
}

/// Runs all of `workload` under `policy`.
///
/// # Errors
/// Envoy or an engine that is not there, and counters of the engines that are not what the answers
/// say. A request that fails is not an error of the run.
pub async fn run(
    args: &Args,
    policy: &str,
    engines: &[Engine],
    workload: &Workload,
) -> Result<Run, String> {
    for engine in engines {
        engine.reset().await?;
    }
    let before = counters(engines).await?;
    let addresses: Vec<SocketAddr> = engines.iter().map(|engine| engine.address).collect();
    let config = config(args, policy, &addresses)?;
    let envoy = EnvoyProcess::start(&config, args.workers).await?;
    let client = HttpClient::new(envoy.listener, Protocol::Http1);
    let bar = bar(policy, workload);
    let begun = Instant::now();
    let sent = workload
        .requests
        .iter()
        .zip(0_u32..)
        .map(|(request, index)| {
            let (client, addresses, bar) = (&client, &addresses, &bar);
            async move {
                let due = due(request)?;
                tokio::time::sleep_until((begun + due).into()).await;
                let answer = ask(client, request).await;
                bar.inc(1);
                Ok(served(index, due, begun, addresses, answer))
            }
        });
    let served = futures_util::future::join_all(sent).await;
    let served: Vec<Served> = served.into_iter().collect::<Result<_, String>>()?;
    bar.finish_and_clear();
    if bar.is_hidden() {
        eprintln!(
            "{policy}: {} requests in {:.1} s",
            served.len(),
            begun.elapsed().as_secs_f64()
        );
    }
    settle(engines, &before, &served).await?;
    Ok(Run {
        router: "warmroute".to_owned(),
        policy: policy.to_owned(),
        endpoints: addresses.iter().map(SocketAddr::to_string).collect(),
        served,
        ..Run::default()
    })
}

/// As shipped, with the policy, and a response header that names the endpoint.
fn config(args: &Args, policy: &str, addresses: &[SocketAddr]) -> Result<EnvoyConfig, String> {
    let plugin = json!({
        "policy": fleet::policy(policy),
        "prefix": {"bytes": prefix_bytes(args)},
    });
    let mut config = EnvoyConfig::shipped(Mode::OriginalDst)?
        .endpoints(addresses)?
        .plugin(&plugin)?;
    let routes = config.0.pointer_mut(
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config",
    );
    let routes = routes.and_then(Value::as_object_mut);
    let routes = routes.ok_or("the Envoy configuration has no routes")?;
    let header = json!({"key": SERVED_BY, "value": "%UPSTREAM_REMOTE_ADDRESS%"});
    routes.insert(
        "response_headers_to_add".to_owned(),
        json!([{ "header": header }]),
    );
    Ok(config)
}

fn due(request: &Request) -> Result<Duration, String> {
    match request.start {
        Start::At { us } => Ok(Duration::from_micros(us)),
        Start::After { .. } => Err("a trace has times only".to_owned()),
    }
}

fn served(
    index: u32,
    due: Duration,
    begun: Instant,
    addresses: &[SocketAddr],
    answer: Result<Answer, String>,
) -> Served {
    let mut served = Served {
        request: index,
        due_us: due.as_micros() as u64,
        ..Served::default()
    };
    match answer {
        Ok(answer) => {
            let after = |at: Instant| Some(at.duration_since(begun).as_micros() as u64);
            let by = addresses.iter().zip(0_u32..);
            let by = by.filter(|(address, _)| address.to_string() == answer.served_by);
            served.endpoint = by.map(|(_, index)| index).next();
            served.first_us = after(answer.first);
            served.end_us = after(answer.end);
            served.prompt_tokens = answer.prompt_tokens;
            served.cached_tokens = answer.cached_tokens;
            served.output_tokens = answer.output_tokens;
            if served.endpoint.is_none() {
                served.error = Some(format!(
                    "served by {:?}, no endpoint of ours",
                    answer.served_by
                ));
            }
        }
        Err(why) => served.error = Some(why),
    }
    served
}

async fn counters(engines: &[Engine]) -> Result<Vec<Counters>, String> {
    let asked = engines.iter().map(Engine::counters);
    futures_util::future::join_all(asked)
        .await
        .into_iter()
        .collect()
}

/// Waits until the engines' own counters say what the answers said.
async fn settle(engines: &[Engine], before: &[Counters], served: &[Served]) -> Result<(), String> {
    if served.iter().any(|one| one.error.is_some()) {
        return Ok(()); // What a failed request looked up is not known.
    }
    let begun = Instant::now();
    loop {
        let now = counters(engines).await?;
        let wrong = now
            .iter()
            .zip(before)
            .zip(0_u32..)
            .find_map(|((now, before), endpoint)| {
                let counted = Counters {
                    queried_tokens: now.queried_tokens - before.queried_tokens,
                    found_tokens: now.found_tokens - before.found_tokens,
                };
                let answered = answered(served, endpoint);
                (counted != answered).then(|| {
                    format!("engine {endpoint} counts {counted:?}, its answers say {answered:?}")
                })
            });
        match wrong {
            None => return Ok(()),
            Some(why) if begun.elapsed() > SETTLE_LIMIT => return Err(why),
            Some(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

fn answered(served: &[Served], endpoint: u32) -> Counters {
    let mut sum = Counters::default();
    for one in served.iter().filter(|one| one.endpoint == Some(endpoint)) {
        sum.queried_tokens += u64::from(one.prompt_tokens);
        sum.found_tokens += u64::from(one.cached_tokens);
    }
    sum
}

fn bar(policy: &str, workload: &Workload) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} requests, {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(workload.requests.len() as u64)
        .with_style(style)
        .with_message(policy.to_owned())
}
