//! Envoy with the filter in front of what a scenario has for endpoints.

use crate::eds::Eds;
use crate::gauges::{self, Gauges};
use crate::load::{Load, Order};
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::envoy::EnvoyProcess;
use crate::support::stats::Stats;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// For the filter to hear of its first members.
const START_LIMIT: Duration = Duration::from_secs(10);
const WORKERS_LAG: Duration = Duration::from_millis(300);
/// How long the gauges may lag behind the last answer.
const SETTLE: Duration = Duration::from_secs(3);

/// How Envoy and the filter are set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Which shipped configuration.
    pub mode: Mode,
    /// Envoy's workers.
    pub workers: u32,
    /// Laid over the shipped plugin configuration; `null` removes a key.
    pub plugin: Value,
}

impl Setup {
    /// The shipped configuration of `mode`, with the explanation that scenarios read.
    pub fn new(mode: Mode, workers: u32) -> Self {
        Self {
            mode,
            workers,
            plugin: json!({ "explain": {"response_header": true} }),
        }
    }

    /// Lays the keys of `changes` over those given before.
    pub fn plugin(mut self, changes: Value) -> Self {
        if let (Value::Object(all), Value::Object(new)) = (&mut self.plugin, changes) {
            all.extend(new);
        }
        self
    }
}

/// An Envoy that serves. Dropping it ends it.
pub struct Front {
    envoy: EnvoyProcess,
}

impl Front {
    /// In front of endpoints that are listed and stay.
    pub async fn listed(setup: &Setup, endpoints: &[SocketAddr]) -> Result<Self, String> {
        let config = EnvoyConfig::shipped(setup.mode)?.endpoints(endpoints)?;
        Self::start(setup, config).await
    }

    /// In front of the members in a file, for which the filter asks every `interval_ms`. Returns when
    /// it knows of any: an Envoy that has just started does not, for a moment.
    pub async fn discovered(setup: &Setup, eds: &Eds, interval_ms: u32) -> Result<Self, String> {
        let front = Self::start(setup, eds.config(setup.mode, interval_ms)?).await?;
        let begun = Instant::now();
        let client = HttpClient::new(front.listener(), Protocol::Http1);
        while client.send(Call::get("/version")).await?.status != 200 {
            if begun.elapsed() > START_LIMIT {
                return Err(format!("no members are found in {START_LIMIT:?}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What one worker knows, the others know a tick later.
        tokio::time::sleep(WORKERS_LAG).await;
        Ok(front)
    }

    async fn start(setup: &Setup, config: EnvoyConfig) -> Result<Self, String> {
        let config = match setup.mode {
            Mode::Plain => config,
            _ => config.plugin(&setup.plugin)?,
        };
        let envoy = EnvoyProcess::start(&config, setup.workers).await;
        let envoy = envoy.map_err(|why| brief(&why))?;
        Ok(Self { envoy })
    }

    /// Where clients connect.
    pub fn listener(&self) -> SocketAddr {
        self.envoy.listener
    }

    /// Begins a load.
    pub fn load(&self, order: &Order) -> Load {
        Load::start(self.listener(), order)
    }

    /// Begins to look at the gauges.
    pub fn gauges(&self) -> Gauges {
        Gauges::watch(self.envoy.admin)
    }

    /// Envoy's figures whose own names, which are not Prometheus's, match `filter`.
    pub async fn stats(&self, filter: &str) -> Result<Stats, String> {
        let admin = HttpClient::new(self.envoy.admin, Protocol::Http1);
        let path = format!("/stats/prometheus?filter={filter}");
        let answer = admin.send(Call::get(&path)).await?;
        Ok(Stats::parse(&answer.text()))
    }

    /// The endpoint with the most requests under way.
    pub async fn busiest(&self) -> Result<String, String> {
        const INFLIGHT: &str = "warmroute_inflight_requests";
        let stats = self.stats(INFLIGHT).await?;
        let samples = stats.samples(INFLIGHT, &[]);
        let most = samples.max_by(|one, other| one.value.total_cmp(&other.value));
        let endpoint = most.and_then(|sample| sample.labels.get("endpoint"));
        endpoint
            .cloned()
            .ok_or_else(|| "nobody has requests".to_owned())
    }

    /// What is in flight when all is over, summed over endpoints and figures: 0 as soon as it is, else
    /// what it is after a pause.
    pub async fn inflight_at_end(&self) -> Result<f64, String> {
        let begun = Instant::now();
        loop {
            let look = gauges::look(self.envoy.admin).await?;
            let left = look.ok_or("the filter has no in-flight gauges")?.sum;
            if left == 0.0 || begun.elapsed() > SETTLE {
                return Ok(left);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The line of Envoy's log that says why it did not start.
fn brief(why: &str) -> String {
    let said = |word: &&str| why.lines().find(|line| line.contains(*word));
    let line = ["[error]", "[critical]"].iter().find_map(said);
    line.or(why.lines().next()).unwrap_or_default().to_owned()
}
