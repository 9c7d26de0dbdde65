//! The command line: what to send, through what, and in front of what.

use crate::play::client::Client;
use crate::play::engines::Replicas;
use crate::play::names::{self, Name};
use crate::play::router::Start;
use crate::play::run::{Setting, Through};
use crate::proving::report::ReportArgs;
use crate::proving::workload::WorkloadArgs;
use clap::Parser;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use warmroute::sim::profiles;
use warmroute::sim::record::Objective;

/// Replays a workload in real time through one router after the other, and compares them.
///
/// Without --endpoints or --url, mock replicas in this process stand for the engines.
#[derive(Parser, Debug)]
#[command(name = "replay")]
pub struct Args {
    /// Routers, in this order: router/policy, all policies of a router, or all.
    #[arg(long, value_delimiter = ',', value_parser = names::parse, default_value = "all")]
    routers: Vec<Vec<Name>>,
    /// A router that runs already, as http://HOST:PORT, instead of routers started here.
    #[arg(long, conflicts_with_all = ["routers", "endpoints"])]
    url: Option<String>,
    /// Engines that run already, as HOST:PORT, instead of mock replicas. Routers are started in front
    /// of them. Their caches are as the runs before left them.
    #[arg(long, value_delimiter = ',', value_parser = endpoint)]
    endpoints: Vec<SocketAddr>,
    /// The model's name in requests.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// Mock replicas.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    replicas: u32,
    /// Hardware that the mock replicas are modelled after.
    #[arg(long, value_parser = profiles::NAMES, default_value = "l4-fp8")]
    profile: String,
    /// Blocks of a mock replica's KV cache, instead of the profile's.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    blocks: Option<u32>,
    /// How much faster than the modelled hardware mock replicas and arrivals are. Reported times are
    /// the modelled hardware's. 1 in front of real engines; else 5.
    #[arg(long, value_parser = speed)]
    speed: Option<f64>,
    /// Worker threads of Envoy.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Where routers listen; 0 takes any free port.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Seeds of the workload; every router gets each of them.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3])]
    pub seeds: Vec<u64>,
    /// A good request has its first token within so many milliseconds...
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    ttft_ms: u32,
    /// ... and at most so many milliseconds for each later one.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    tpot_ms: u32,
    /// What the others are compared with, as router/policy. The first run if not given and
    /// envoy/round_robin is not among them.
    #[arg(long)]
    baseline: Option<String>,
    /// An answer that is silent for so many seconds is given up.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    silence_s: u64,
    /// Prints `FIGURE name value` lines.
    #[arg(long)]
    pub figures: bool,
    /// Replays two small workloads of its own and simulates them too, and prints how far apart the
    /// two are.
    #[arg(long, conflicts_with_all = ["url", "endpoints", "json", "html", "figures", "trace"])]
    pub twin: bool,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Speeds beyond this are faster than a clock of milliseconds can follow.
const SPEED_MOST: f64 = 1_000.0;
const MODELLED_SPEED: f64 = 5.0;

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    match speed > 0.0 && speed <= SPEED_MOST {
        true => Ok(speed),
        false => Err(format!("expected more than 0 and at most {SPEED_MOST}")),
    }
}

fn endpoint(text: &str) -> Result<SocketAddr, String> {
    let address = text.trim_start_matches("http://").trim_end_matches('/');
    let mut found = address
        .to_socket_addrs()
        .map_err(|e| format!("expected HOST:PORT: {e}"))?;
    found
        .next()
        .ok_or_else(|| "the host has no address".to_owned())
}

/// The command line, understood.
#[derive(Debug)]
pub struct Plan {
    pub setting: Setting,
    pub routers: Vec<Through>,
    pub objective: Objective,
    pub baseline: String,
    /// The fleet in one sentence.
    pub fleet: String,
}

impl Args {
    /// What is to be done.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn plan(&self) -> Result<Plan, String> {
        let real = self.url.is_some() || !self.endpoints.is_empty();
        let speed = self
            .speed
            .unwrap_or(if real { 1.0 } else { MODELLED_SPEED });
        if real && speed != 1.0 {
            return Err(
                "--speed: real engines cannot be made faster; --rate changes the arrivals"
                    .to_owned(),
            );
        }
        let silence = Duration::from_secs(self.silence_s);
        let routers: Vec<Through> = match &self.url {
            Some(url) => {
                Client::new(url, silence).map_err(|why| format!("--url: {why}"))?;
                vec![Through::There(url.clone())]
            }
            None => names::join(&self.routers)
                .into_iter()
                .map(Through::Started)
                .collect(),
        };
        let (replicas, fleet) = self.fleet(speed)?;
        Ok(Plan {
            baseline: self.baseline(&routers)?,
            routers,
            objective: Objective {
                ttft_us: u64::from(self.ttft_ms) * 1_000,
                tpot_us: u64::from(self.tpot_ms) * 1_000,
            },
            fleet,
            setting: Setting {
                replicas,
                model: self.model.clone(),
                speed,
                silence,
                start: Start {
                    workers: self.workers,
                    port: self.port,
                    envoy_tells_endpoint: real,
                },
            },
        })
    }

    fn fleet(&self, speed: f64) -> Result<(Replicas, String), String> {
        if let Some(url) = &self.url {
            let about = format!("Whatever is behind {url}.");
            return Ok((Replicas::There(Vec::new()), about));
        }
        if !self.endpoints.is_empty() {
            let names: Vec<String> = self.endpoints.iter().map(ToString::to_string).collect();
            let about = format!("Engines that ran already: {}.", names.join(", "));
            return Ok((Replicas::There(self.endpoints.clone()), about));
        }
        let mut profile = profiles::named(&self.profile)
            .ok_or_else(|| format!("--profile: there is no {:?}", self.profile))?;
        profile.blocks = self.blocks.unwrap_or(profile.blocks);
        let about = format!(
            "{} mock replicas modelled after {} ({} blocks of {} tokens), {speed} times as fast; Envoy with {} workers.",
            self.replicas, self.profile, profile.blocks, profile.block_tokens, self.workers,
        );
        let count = self.replicas;
        Ok((
            Replicas::Mock {
                count,
                profile,
                speed,
            },
            about,
        ))
    }

    fn baseline(&self, routers: &[Through]) -> Result<String, String> {
        const USUAL: &str = "envoy/round_robin";
        let names: Vec<String> = routers.iter().map(label).collect();
        match &self.baseline {
            Some(name) if names.contains(name) => Ok(name.clone()),
            Some(name) => Err(format!(
                "--baseline {name} is not among the routers: {}",
                names.join(", ")
            )),
            None if names.iter().any(|name| name == USUAL) => Ok(USUAL.to_owned()),
            None => Ok(names.first().cloned().unwrap_or_default()),
        }
    }
}

/// `router/policy`, as in the record.
pub fn label(through: &Through) -> String {
    let (router, policy) = through.names();
    format!("{router}/{policy}")
}
