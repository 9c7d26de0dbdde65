//! Mock replicas behind a real Envoy.

use super::client::{HttpClient, Protocol};
use super::config::{EnvoyConfig, Mode};
use super::envoy::EnvoyProcess;
use super::mock::{Mock, MockOptions, Port};
use super::stats::Stats;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use warmroute::sim::replica::Profile;

/// The gauges that must be 0 when nothing is under way.
pub const INFLIGHT: [&str; 3] = [
    "warmroute_inflight_requests",
    "warmroute_inflight_prefill_tokens",
    "warmroute_inflight_decode_tokens",
];

/// Health for tests of something else: endpoints that fail are tried again at once.
pub fn patient() -> Value {
    json!({"failures": 1_000_000, "rest_ms": 1, "max_rest_ms": 1})
}

/// What to start.
#[derive(Debug)]
pub struct FleetOptions {
    /// Which shipped configuration.
    pub mode: Mode,
    /// Envoy's `--concurrency`.
    pub workers: u32,
    /// One replica for each.
    pub mocks: Vec<MockOptions>,
    /// Laid over the shipped plugin configuration, key by key; `null` removes a key.
    pub plugin: Value,
    /// The last change to Envoy's configuration before it starts.
    pub adjust: fn(&mut EnvoyConfig),
}

impl FleetOptions {
    /// `replicas` equal replicas that answer as fast as they can, without scraping.
    pub fn new(mode: Mode, workers: u32, replicas: usize) -> Self {
        let mock = || MockOptions {
            profile: Profile::fast(),
            ..MockOptions::default()
        };
        Self {
            mode,
            workers,
            mocks: (0..replicas).map(|_| mock()).collect(),
            plugin: json!({ "scrape": null }),
            adjust: |_| {},
        }
    }

    /// Lays the keys of `changes` over those given before.
    pub fn plugin(mut self, changes: Value) -> Self {
        if let (Value::Object(all), Value::Object(new)) = (&mut self.plugin, changes) {
            all.extend(new);
        }
        self
    }

    /// Changes every replica's options.
    pub fn each_mock(mut self, change: impl Fn(&mut MockOptions)) -> Self {
        self.mocks.iter_mut().for_each(change);
        self
    }
}

/// Mock replicas and the Envoy in front of them. Dropping it ends both.
pub struct Fleet {
    /// First, so that Envoy goes before its endpoints do.
    pub envoy: EnvoyProcess,
    /// The replicas, in the order of the endpoints.
    pub mocks: Vec<Mock>,
    /// Of the replicas that were stopped: Envoy goes on asking there, and must find nobody else.
    stopped: Vec<Port>,
}

impl Fleet {
    /// Replicas behind an Envoy that runs already.
    pub fn new(envoy: EnvoyProcess, mocks: Vec<Mock>) -> Self {
        Self {
            envoy,
            mocks,
            stopped: Vec::new(),
        }
    }

    /// Starts the replicas and Envoy, and returns when it serves.
    ///
    /// # Errors
    /// One line that says what is missing, or why Envoy ended.
    pub async fn try_start(options: FleetOptions) -> Result<Self, String> {
        let mut mocks = Vec::new();
        for mock in options.mocks {
            mocks.push(
                Mock::start(mock)
                    .await
                    .map_err(|e| format!("mock replica: {e}"))?,
            );
        }
        let addresses: Vec<SocketAddr> = mocks.iter().map(Mock::addr).collect();
        let mut config = EnvoyConfig::shipped(options.mode)?.endpoints(&addresses)?;
        if options.mode != Mode::Plain {
            config = config.plugin(&options.plugin)?;
        }
        (options.adjust)(&mut config);
        let envoy = EnvoyProcess::start(&config, options.workers).await?;
        Ok(Self::new(envoy, mocks))
    }

    /// As [`Self::try_start`], for tests.
    ///
    /// # Panics
    /// If it can't be started.
    pub async fn start(options: FleetOptions) -> Self {
        match Self::try_start(options).await {
            Ok(fleet) => fleet,
            Err(why) => panic!("{why}"),
        }
    }

    /// Ends the replica at this place of the list, and takes it off. It returns its address, which stays
    /// configured and refuses connections until a new replica is started there.
    ///
    /// # Panics
    /// If there is none.
    pub async fn stop(&mut self, place: usize) -> SocketAddr {
        let port = self.mocks.remove(place).stop().await;
        let address = port.address();
        self.stopped.push(port);
        address
    }

    /// A client of Envoy's listener with connections of its own.
    pub fn client(&self, protocol: Protocol) -> HttpClient {
        HttpClient::new(self.envoy.listener, protocol)
    }

    /// Envoy's metrics with all that has happened so far, after a pause: the workers hand over
    /// their counts with each tick, every 100 ms.
    pub async fn stats(&self) -> Stats {
        tokio::time::sleep(Duration::from_millis(250)).await;
        self.stats_now().await
    }

    /// Envoy's metrics at once, which may lack what has just happened: for loops that wait.
    pub async fn stats_now(&self) -> Stats {
        self.envoy.stats().await.expect("Envoy's metrics")
    }

    /// The addresses as the metrics' `endpoint` label has them.
    pub fn endpoints(&self) -> Vec<String> {
        self.mocks.iter().map(|m| m.addr().to_string()).collect()
    }

    /// Returns as soon as every in-flight gauge of every endpoint is 0.
    ///
    /// # Errors
    /// The gauges that are not 0 after `limit`, or that do not exist.
    pub async fn inflight_is_zero_within(&self, limit: Duration) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let left = inflight_is_zero(&self.envoy.stats().await?);
            match left {
                Ok(()) => return Ok(()),
                Err(why) if begun.elapsed() >= limit => return Err(why),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

/// Whether every in-flight gauge of every endpoint is 0.
///
/// # Errors
/// One that is not, or that does not exist.
pub fn inflight_is_zero(stats: &Stats) -> Result<(), String> {
    for name in INFLIGHT {
        if !stats.has(name) {
            return Err(format!("there is no metric {name}"));
        }
        if let Some(sample) = stats.samples(name, &[]).find(|s| s.value != 0.0) {
            return Err(format!("{name}{:?} is {}", sample.labels, sample.value));
        }
    }
    Ok(())
}
