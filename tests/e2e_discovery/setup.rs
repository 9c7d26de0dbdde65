//! Replicas that Envoy learns of, and where requests go.

use crate::support::check::{SETTLE, decided};
use crate::support::client::{Call, HttpClient, Protocol, Streaming};
use crate::support::config::EnvoyConfig;
use crate::support::eds::EdsFile;
use crate::support::envoy::EnvoyProcess;
use crate::support::fleet::Fleet;
use crate::support::mock::{Mock, MockOptions};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use warmroute::sim::replica::Profile;

/// Between two readings of Envoy's list, in milliseconds: as shipped.
pub const INTERVAL: u64 = 1_000;
/// How often each worker looks what others have heard.
const TICK: Duration = Duration::from_millis(100);
/// Requests that must agree on where requests go; each has a connection of its own, so that it may come to any
/// worker.
const WITNESSES: usize = 24;
/// Tokens of a stream that lasts.
const SLOW_TOKENS: u32 = 60;

/// What to start.
pub struct Options {
    mocks: Vec<MockOptions>,
    /// Laid over the shipped plugin configuration.
    pub plugin: Value,
    /// Asked in place of Envoy's own admin interface.
    pub admin: Option<SocketAddr>,
    /// The last change to Envoy's configuration, with the replicas' addresses.
    pub adjust: fn(&mut EnvoyConfig, &[SocketAddr]),
}

/// So many replicas; Envoy's file names all of them.
pub fn fleet(replicas: usize) -> Options {
    let mock = || MockOptions {
        profile: Profile::fast(),
        ..MockOptions::default()
    };
    Options {
        mocks: (0..replicas).map(|_| mock()).collect(),
        plugin: json!({}),
        admin: None,
        adjust: |_, _| {},
    }
}

impl Options {
    /// A stream of [`slow_chat`] takes so many seconds.
    pub fn streams_last(mut self, seconds: u32) -> Self {
        for mock in &mut self.mocks {
            mock.profile.step_base_us = seconds * 1_000_000 / SLOW_TOKENS;
        }
        self
    }

    /// Starts all of it; Envoy knows all replicas.
    pub async fn start(self, workers: u32) -> Discovering {
        self.begin(workers, None).await
    }

    /// The same, but Envoy knows only these.
    pub async fn start_with(self, workers: u32, known: &[SocketAddr]) -> Discovering {
        self.begin(workers, Some(known)).await
    }

    async fn begin(self, workers: u32, known: Option<&[SocketAddr]>) -> Discovering {
        let mut mocks = Vec::new();
        for mock in self.mocks {
            mocks.push(Mock::start(mock).await.unwrap());
        }
        let addresses: Vec<SocketAddr> = mocks.iter().map(Mock::addr).collect();
        let eds = EdsFile::new(known.unwrap_or(&addresses));
        let common = json!({
            "policy": {"name": "round_robin"}, "scrape": null, "explain": {"response_header": true},
        });
        let config = EnvoyConfig::discovery(&eds).unwrap();
        let mut config = config
            .plugin(&common)
            .unwrap()
            .plugin(&self.plugin)
            .unwrap();
        if let Some(admin) = self.admin {
            config.admin_at(admin).unwrap();
        }
        (self.adjust)(&mut config, &addresses);
        let envoy = EnvoyProcess::start(&config, workers).await.unwrap();
        let fleet = Fleet::new(envoy, mocks);
        Discovering { fleet, eds }
    }
}

/// A fleet whose endpoints Envoy discovers.
pub struct Discovering {
    pub fleet: Fleet,
    /// Where Envoy reads of them.
    pub eds: EdsFile,
}

pub fn chat(number: usize) -> Value {
    json!({
        "model": "tiny", "max_tokens": 1,
        "messages": [{"role": "user", "content": format!("Prompt number {number}")}],
    })
}

/// A stream that lasts where [`Options::streams_last`] says how long.
pub fn slow_chat() -> Value {
    json!({
        "model": "tiny", "max_tokens": SLOW_TOKENS, "stream": true,
        "messages": [{"role": "user", "content": "Count to sixty"}],
    })
}

impl Discovering {
    /// The replicas' names in metrics and decisions.
    pub fn names<const N: usize>(&self) -> [String; N] {
        self.fleet.endpoints().try_into().expect("so many replicas")
    }

    /// Addresses of some replicas.
    pub fn addresses<const N: usize>(&self, which: [usize; N]) -> Vec<SocketAddr> {
        which
            .iter()
            .map(|at| self.fleet.mocks[*at].addr())
            .collect()
    }

    fn new_client(&self) -> HttpClient {
        self.fleet.client(Protocol::Http1)
    }

    /// Where requests go, as seen by some on new connections; statuses of those that go nowhere.
    async fn picks(&self) -> BTreeSet<String> {
        let ask = async |number| {
            let answer = self
                .new_client()
                .send(Call::chat(&chat(number)))
                .await
                .unwrap();
            match answer.status {
                200 => decided(&answer.headers, "endpoint"),
                status => format!("status {status}"),
            }
        };
        let picks = futures_util::future::join_all((0..WITNESSES).map(ask)).await;
        picks.into_iter().collect()
    }

    /// How often the filter was answered by the admin interface.
    async fn readings(&self) -> u64 {
        const ANSWERED: &str = "cluster.warmroute_admin.upstream_rq_200";
        let path = format!("/stats?filter={ANSWERED}");
        let stats = self.fleet.envoy.admin_get(&path).await.unwrap();
        let mut lines = stats.lines().filter_map(|line| line.split_once(": "));
        let answered = lines.find(|(name, _)| *name == ANSWERED);
        // Envoy counts it with the first one.
        answered.map_or(0, |(_, count)| count.trim().parse().unwrap())
    }

    /// Waits until the filter reads so often that its usual interval does not explain it.
    ///
    /// # Panics
    /// If it takes too long.
    pub async fn is_read_in_a_hurry(&self) {
        let begun = Instant::now();
        loop {
            let since = Instant::now();
            let before = self.readings().await;
            tokio::time::sleep(Duration::from_millis(2 * INTERVAL)).await;
            let read = self.readings().await - before;
            // One may have been under way.
            let usual = since.elapsed().as_millis() as u64 / INTERVAL + 1;
            if read > usual {
                return;
            }
            assert!(begun.elapsed() < SETTLE, "{read} readings, as usual");
        }
    }

    /// Waits until requests go to these and nowhere else, and says how long that took.
    ///
    /// # Panics
    /// If it takes longer than `limit` and than as many readings as are answered within that where the machine is not
    /// busy, or does not last.
    pub async fn picks_are(&self, expected: &[&String], limit: Duration) -> Duration {
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).clone()).collect();
        let begun = Instant::now();
        let within = (limit.as_millis() as u64 / INTERVAL).max(2);
        // The first may be older than what is expected, and the last may not have come to all workers.
        let enough = self.readings().await + within + 2;
        let took = loop {
            // What was seen in between is not older than this.
            let asked = begun.elapsed();
            let is_late =
                asked >= limit && (self.readings().await >= enough || asked >= limit + SETTLE);
            let mut picks = self.picks().await;
            if picks == expected {
                // A worker that does not know yet may have had too few requests to show it.
                tokio::time::sleep(2 * TICK).await;
                picks = self.picks().await;
            }
            if picks == expected {
                break asked;
            }
            assert!(!is_late, "{picks:?} after {asked:?}, not {expected:?}");
        };
        assert_eq!(self.picks().await, expected, "it did not last");
        took
    }

    /// Waits until every request is answered so.
    ///
    /// # Panics
    /// As [`Self::picks_are`].
    pub async fn answers_are(&self, status: u16, limit: Duration) {
        self.picks_are(&[&format!("status {status}")], limit).await;
    }

    /// A stream of some seconds on this endpoint.
    pub async fn open_stream_on(&self, endpoint: &str) -> Streaming {
        for _ in 0..20 {
            let stream = self
                .new_client()
                .open(Call::chat(&slow_chat()))
                .await
                .unwrap();
            if decided(&stream.headers, "endpoint") == endpoint {
                return stream;
            }
        }
        panic!("no stream goes to {endpoint}");
    }

    /// Requests that the filter says are under way on this endpoint.
    pub async fn inflight(&self, endpoint: &str) -> f64 {
        let stats = self.fleet.stats().await;
        stats.metric("warmroute_inflight_requests", &[("endpoint", endpoint)])
    }

    /// Failures of discovery so far.
    pub async fn failures(&self) -> f64 {
        let stats = self.fleet.stats_now().await;
        stats.metric("warmroute_discovery_failures_total", &[])
    }

    /// Waits until the members are known for certain.
    ///
    /// # Panics
    /// If they are not within `limit`.
    pub async fn known_within(&self, limit: Duration) {
        let begun = Instant::now();
        loop {
            let stats = self.fleet.stats_now().await;
            if stats.metric("warmroute_discovery_age_ms", &[]) < INTERVAL as f64 / 2.0 {
                return;
            }
            assert!(begun.elapsed() < limit.max(SETTLE), "still old");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
