//! The default scorers of llm-d's inference scheduler, the Gateway API's endpoint picker.
//!
//! Source: docs/architecture.md in llm-d/llm-d-inference-scheduler and the plugins of
//! kubernetes-sigs/gateway-api-inference-extension: queue (weight 2) is 1 for the shortest queue of
//! waiting requests, 0 for the longest and linear between; KV cache (weight 2) is the free share;
//! prefix (weight 3) is the share of the prompt's blocks of 16 tokens, of which the first 256 count,
//! that the endpoint was sent, by an LRU as large as its cache. The highest sum gets the request,
//! ties by chance. Queue and KV cache are scraped, every 50 ms as it ships.

use super::index::Index;
use super::ledger::Ledger;
use super::{Ask, PeerRouter, least};
use crate::sim::replica::{Gauges, Profile};

/// `--refresh-metrics-interval` as it ships.
pub(super) const SHIPPED_INTERVAL_US: u64 = 50_000;
const QUEUE_WEIGHT: f64 = 2.0;
const KV_WEIGHT: f64 = 2.0;
const PREFIX_WEIGHT: f64 = 3.0;
const MOST_BLOCKS: usize = 256;

pub(super) struct Llmd {
    interval_us: u64,
    gauges: Vec<Gauges>,
    index: Index,
    ledger: Ledger,
}

impl Llmd {
    pub(super) fn new(replicas: &[Profile], interval_us: u64) -> Self {
        Self {
            interval_us,
            gauges: vec![Gauges::default(); replicas.len()],
            index: Index::new(replicas.iter().map(|profile| profile.blocks)),
            ledger: Ledger::new(replicas.len()),
        }
    }

    fn scores(&self, chain: &[u64]) -> Vec<f64> {
        let waiting = || self.gauges.iter().map(|gauges| gauges.waiting);
        let longest = waiting().max().unwrap_or(0);
        let shortest = waiting().min().unwrap_or(0);
        let score = |(endpoint, gauges): (usize, &Gauges)| {
            let queue = match longest - shortest {
                0 => 1.0,
                span => f64::from(longest - gauges.waiting) / f64::from(span),
            };
            let matched = f64::from(self.index.matched_blocks(endpoint, chain));
            let prefix = matched / chain.len().max(1) as f64;
            QUEUE_WEIGHT * queue + KV_WEIGHT * (1.0 - gauges.kv_usage) + PREFIX_WEIGHT * prefix
        };
        self.gauges.iter().enumerate().map(score).collect()
    }
}

impl PeerRouter for Llmd {
    fn scrape_interval_us(&self) -> u64 {
        self.interval_us
    }

    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let chain = ask.chain.get(..MOST_BLOCKS).unwrap_or(ask.chain);
        let scores = self.scores(chain).into_iter().map(|score| -score);
        let endpoint = least(scores.enumerate(), ask.random);
        self.index.insert(endpoint, chain);
        self.ledger.begin(ask.id, endpoint, 0);
        endpoint
    }

    fn finished(&mut self, id: u32) {
        self.ledger.finish(id);
    }

    fn scraped(&mut self, endpoint: usize, gauges: &Gauges) {
        if let Some(known) = self.gauges.get_mut(endpoint) {
            *known = *gauges;
        }
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }
}
