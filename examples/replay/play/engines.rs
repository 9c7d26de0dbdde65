//! What stands behind the router: mock replicas in this process, or engines that are there already.

use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::mock::{Mock, MockOptions};
use crate::support::stats::Stats;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::Workload;

/// Longer than vLLM's 5 s. Routers leave an idle connection a second before that, which on a machine
/// that is too busy is no second: requests would be lost on connections that are just being closed.
const KEEP_ALIVE_MS: u64 = 60_000;

/// How the replicas are made, or where they are.
#[derive(Clone, Debug)]
pub enum Replicas {
    /// Mock replicas, anew for each run.
    Mock {
        count: u32,
        profile: Profile,
        speed: f64,
    },
    /// Engines of somebody else.
    There(Vec<SocketAddr>),
}

/// Replicas that serve.
pub struct Engines {
    pub addresses: Vec<SocketAddr>,
    mocks: Vec<Mock>,
}

/// Counters of engines over all of them, to be compared with a later look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Calls that are no inference, by path; of mock replicas only.
    pub other_calls: Option<BTreeMap<String, u64>>,
    /// Prompt tokens found in prefix caches; of real engines only.
    pub cached_tokens: Option<f64>,
    /// Prompt tokens looked up there.
    pub looked_up_tokens: Option<f64>,
}

impl Engines {
    /// Starts mock replicas that serve what `workload` asks for, or takes what is there.
    ///
    /// # Errors
    /// A mock replica could not be started.
    pub async fn start(
        replicas: &Replicas,
        model: &str,
        workload: &Workload,
    ) -> Result<Self, String> {
        let (count, profile, speed) = match replicas {
            Replicas::There(addresses) => {
                return Ok(Self {
                    addresses: addresses.clone(),
                    mocks: Vec::new(),
                });
            }
            Replicas::Mock {
                count,
                profile,
                speed,
            } => (*count, profile, *speed),
        };
        let adapters = workload
            .requests
            .iter()
            .filter_map(|request| request.adapter);
        let adapters = adapters.max().map_or(0, |last| last.saturating_add(1));
        let mut mocks = Vec::new();
        for _ in 0..count {
            let mock = Mock::start(MockOptions {
                model: model.to_owned(),
                adapters: (0..adapters)
                    .map(|adapter| format!("lora-{adapter}"))
                    .collect(),
                profile: profile.clone(),
                time_scale: 1.0 / speed,
                tells_endpoint: true,
                keep_alive_ms: KEEP_ALIVE_MS,
                ..MockOptions::default()
            });
            mocks.push(mock.await.map_err(|e| format!("mock replica: {e}"))?);
        }
        Ok(Self {
            addresses: mocks.iter().map(Mock::addr).collect(),
            mocks,
        })
    }

    /// The counters so far. An engine without metrics leaves its part out.
    pub async fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for mock in &self.mocks {
            let all = counters.other_calls.get_or_insert_default();
            for (path, calls) in mock.other_calls() {
                *all.entry(path).or_default() += calls;
            }
        }
        if self.mocks.is_empty() {
            for address in &self.addresses {
                counters.add_metrics(*address).await;
            }
        }
        counters
    }

    /// Closes mock replicas.
    pub async fn stop(self) {
        for mock in self.mocks {
            mock.stop().await;
        }
    }
}

impl Counters {
    async fn add_metrics(&mut self, engine: SocketAddr) {
        let client = HttpClient::new(engine, Protocol::Http1);
        let Ok(page) = client.send(Call::get("/metrics")).await else {
            return;
        };
        let stats = Stats::parse(&page.text());
        let add = |sum: &mut Option<f64>, name: &str| {
            if stats.has(name) {
                *sum = Some(sum.unwrap_or_default() + stats.metric(name, &[]));
            }
        };
        add(&mut self.cached_tokens, "vllm:prefix_cache_hits_total");
        add(
            &mut self.looked_up_tokens,
            "vllm:prefix_cache_queries_total",
        );
    }

    /// Calls other than inference since `before`, by path.
    pub fn calls_since(&self, before: &Self) -> Option<BTreeMap<String, u64>> {
        let before = before.other_calls.as_ref()?;
        let mut calls = self.other_calls.clone()?;
        for (path, count) in &mut calls {
            *count = count.saturating_sub(before.get(path).copied().unwrap_or_default());
        }
        calls.retain(|_, count| *count > 0);
        Some(calls)
    }

    /// Share of the looked up prompt tokens that was found in caches since `before`.
    pub fn hit_rate_since(&self, before: &Self) -> Option<f64> {
        let found = self.cached_tokens? - before.cached_tokens?;
        let looked_up = self.looked_up_tokens? - before.looked_up_tokens?;
        (looked_up > 0.0).then(|| (found / looked_up).clamp(0.0, 1.0))
    }
}
