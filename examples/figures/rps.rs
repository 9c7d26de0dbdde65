//! What the filter costs: closed-loop load through Envoy with it and without, on the same upstream,
//! and through Envoy with a filter that has nothing to do, which is what any Wasm filter costs.
//!
//! Envoy has one worker on one core; clients and upstream share another one (if there are two), and
//! must use less CPU time than the plain Envoy, so that Envoy is the bottleneck. All Envoys run all
//! the time, and short rounds alternate between them, so that whatever else the machine does strikes
//! all.

use super::closed_loop::Client;
use super::process::{Process, pin_this_thread, two_cores};
use super::support::config::{EnvoyConfig, Mode};
use super::support::envoy::EnvoyProcess;
use super::{Figure, upstream};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const ENDPOINTS: usize = 4;
const CONNECTIONS: usize = 16;
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(1_000);
/// Long enough for V8 to have compiled what is hot.
const WARM_UP: Duration = Duration::from_millis(5_000);
const PROMPTS: usize = 64;
const BODY_BYTES: usize = 4_096;
const INFERENCE: &str = "/v1/chat/completions";
/// No inference, so that the filter lets it pass if it is told to.
const OTHER: &str = "/v1/other";

/// The ratios of requests per second, and the CPU time of all.
pub fn measure() -> Result<Vec<Figure>, String> {
    let thread = std::thread::Builder::new()
        .name("rps".to_owned())
        .spawn(|| {
            let cores = two_cores();
            match cores {
                Some((_, load_core)) => pin_this_thread(load_core)?,
                None => eprintln!("figures: Envoy and the load share their cores"),
            }
            let envoy_core = cores.map(|(envoy_core, _)| envoy_core);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|e| e.to_string())?;
            runtime.block_on(compare(envoy_core))
        })
        .map_err(|e| e.to_string())?;
    thread
        .join()
        .unwrap_or_else(|_| Err("the load stopped with a panic".to_owned()))
}

async fn compare(envoy_core: Option<u32>) -> Result<Vec<Figure>, String> {
    let endpoints = upstream::start(ENDPOINTS).await?;
    let plain = Side::start(plain(&endpoints)?, INFERENCE, envoy_core).await?;
    let idle = Side::start(idle(&endpoints)?, OTHER, envoy_core).await?;
    let filter = Side::start(filter(&endpoints)?, INFERENCE, envoy_core).await?;
    for side in [&plain, &idle, &filter] {
        side.round(WARM_UP).await?;
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(Rounds {
            plain: plain.round(ROUND).await?,
            idle: idle.round(ROUND).await?,
            filter: filter.round(ROUND).await?,
        });
    }
    figures(&rounds)
}

/// Round robin, without the filter.
fn plain(endpoints: &[SocketAddr]) -> Result<EnvoyConfig, String> {
    EnvoyConfig::shipped(Mode::Plain)?.endpoints(endpoints)
}

/// The filter as shipped.
fn filter(endpoints: &[SocketAddr]) -> Result<EnvoyConfig, String> {
    EnvoyConfig::shipped(Mode::OriginalDst)?.endpoints(endpoints)
}

/// The filter as shipped, told to let pass what is no inference. Its cluster decides by itself then,
/// as the other modes' cannot.
fn idle(endpoints: &[SocketAddr]) -> Result<EnvoyConfig, String> {
    let config = EnvoyConfig::shipped(Mode::OverrideHost)?.endpoints(endpoints)?;
    config.plugin(&json!({"other_paths": "pass"}))
}

/// Medians over the rounds; ratios are those of one round.
fn figures(rounds: &[Rounds]) -> Result<Vec<Figure>, String> {
    let of = |value: fn(&Rounds) -> f64| median(rounds.iter().map(value).collect());
    let load_cpu_us = of(|round| round.plain.load_cpu_us)?;
    let plain_cpu_us = of(|round| round.plain.cpu_us)?;
    if load_cpu_us >= plain_cpu_us {
        return Err(format!(
            "Envoy was not the bottleneck: {load_cpu_us:.0} us of CPU time a request went to clients and \
             upstream, {plain_cpu_us:.0} us to the plain Envoy"
        ));
    }
    Ok(vec![
        (
            "envoy_with_filter_vs_plain_rps",
            of(|round| round.filter.rps / round.plain.rps)?,
        ),
        (
            "envoy_with_idle_filter_vs_plain_rps",
            of(|round| round.idle.rps / round.plain.rps)?,
        ),
        ("envoy_plain_rps", of(|round| round.plain.rps)?.round()),
        (
            "envoy_with_idle_filter_rps",
            of(|round| round.idle.rps)?.round(),
        ),
        (
            "envoy_with_filter_rps",
            of(|round| round.filter.rps)?.round(),
        ),
        ("envoy_plain_cpu_us_per_request", plain_cpu_us),
        (
            "envoy_with_idle_filter_cpu_us_per_request",
            of(|round| round.idle.cpu_us)?,
        ),
        (
            "envoy_with_filter_cpu_us_per_request",
            of(|round| round.filter.cpu_us)?,
        ),
        ("clients_and_upstream_cpu_us_per_request", load_cpu_us),
        (
            "envoy_with_idle_filter_vs_plain_cpu",
            of(|round| round.idle.cpu_us / round.plain.cpu_us)?,
        ),
        (
            "envoy_with_filter_vs_plain_cpu",
            of(|round| round.filter.cpu_us / round.plain.cpu_us)?,
        ),
    ])
}

/// One Envoy, on its core, and what it is asked.
struct Side {
    envoy: EnvoyProcess,
    process: Process,
    requests: Vec<Vec<u8>>,
}

/// A round of each, one right after the other.
struct Rounds {
    plain: Round,
    idle: Round,
    filter: Round,
}

/// What one round came to.
struct Round {
    rps: f64,
    /// Of Envoy, for each request.
    cpu_us: f64,
    /// Of clients and upstream together, for each request. As long as it is less than Envoy's, Envoy
    /// is the bottleneck.
    load_cpu_us: f64,
}

impl Side {
    async fn start(config: EnvoyConfig, path: &str, core: Option<u32>) -> Result<Self, String> {
        let before = Process::own_envoys()?;
        let envoy = EnvoyProcess::start(&config, 1).await?;
        let after = Process::own_envoys()?;
        let new = after.into_iter().find(|process| !before.contains(process));
        let process = new.ok_or("the process of Envoy is not to be found under /proc")?;
        if let Some(core) = core {
            process.pin(core)?;
        }
        Ok(Self {
            envoy,
            process,
            requests: requests(path),
        })
    }

    async fn round(&self, lasts: Duration) -> Result<Round, String> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(self.envoy.listener).await?);
        }
        let load = Process::this();
        let load_before_us = load.cpu_us()?;
        let cpu_before_us = self.process.cpu_us()?;
        let begun = Instant::now();
        let deadline = begun + lasts;
        let loops = clients
            .iter_mut()
            .enumerate()
            .map(|(number, client)| client.load(&self.requests, number, deadline));
        let answered: Vec<Result<u64, String>> = futures_util::future::join_all(loops).await;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let cpu_us = self.process.cpu_us()? - cpu_before_us;
        let load_cpu_us = load.cpu_us()? - load_before_us;
        let answered = answered.into_iter().sum::<Result<u64, String>>()? as f64;
        Ok(Round {
            rps: answered / elapsed_s,
            cpu_us: cpu_us as f64 / answered,
            load_cpu_us: load_cpu_us as f64 / answered,
        })
    }
}

/// Chats of four kilobytes that differ from their first word on.
fn requests(path: &str) -> Vec<Vec<u8>> {
    (0..PROMPTS)
        .map(|number| {
            let mut text = format!("Report {number}: ");
            while text.len() < BODY_BYTES - 180 {
                text.push_str("the quick brown fox jumps over the lazy dog, and ");
            }
            let mut body = json!({
                "model": "tiny",
                "messages": [
                    {"role": "system", "content": "You answer in one sentence."},
                    {"role": "user", "content": text},
                ],
                "max_tokens": 16,
            })
            .to_string();
            // JSON allows space at its end.
            body.extend(std::iter::repeat_n(
                ' ',
                BODY_BYTES.saturating_sub(body.len()),
            ));
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n",
                body.len()
            );
            (head + &body).into_bytes()
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> Result<f64, String> {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied();
    middle
        .filter(|value| value.is_finite())
        .ok_or_else(|| "no rounds".to_owned())
}
