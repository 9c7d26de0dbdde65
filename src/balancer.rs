//! The facade that sessions pick through: pools, their policies, the ledger and the engines' reports.
//!
//! In the order of a request: who may be picked by what is known (`candidates.rs`), the pick and its
//! reservation (`picking.rs`) through the stages that leave endpoints out (`serving.rs`, `standing.rs`,
//! `saturation.rs`, `placement.rs`), what it holds until its end (`releasing.rs`), and what its answer
//! teaches (`learning.rs`). Beside requests: what is heard of health (`hearing.rs`) and of refused
//! connections (`outages.rs`), what engines report (`engines.rs`) and serve (`models.rs`), pools whose
//! members change (`pools.rs`), and what the clock calls for (`upkeep.rs`).

mod candidates;
mod decision;
mod engines;
mod hearing;
mod learning;
mod models;
mod outages;
mod picking;
mod placement;
mod pools;
mod releasing;
mod saturation;
mod serving;
mod standing;
mod upkeep;

pub use self::decision::{Ask, Decision, Overload, Refusal};

use std::collections::BTreeMap;
use std::rc::Rc;

use self::outages::Outages;
use self::pools::PoolState;
use crate::config::{Config, PoolConfig};
use crate::endpoint::{Endpoint, EndpointId};
use crate::health::{Board, Turn};
use crate::index::SharedIndex;
use crate::models::Catalogue;
use crate::policy::Load;
use crate::rates::Rates;
use crate::state::Store;
use crate::state::ledger::Ledger;
use crate::state::snapshots::Report;
use crate::tokens::Learned;

/// One VM's balancer.
pub struct Balancer {
    config: Rc<Config>,
    pools: Vec<PoolState>,
    ledger: Ledger,
    reports: BTreeMap<EndpointId, Report>,
    stale_after_ms: u64,
    /// What a request costs on average here: the price put on other people's requests.
    typical: Load,
    /// Only if a policy asks it.
    index: Option<SharedIndex>,
    rates: Rates,
    outages: Outages,
    learned: Learned,
    catalogue: Catalogue,
    board: Board,
    /// Not told yet.
    turns: Vec<Turn>,
}

impl Balancer {
    /// `vm` must be unique among the VMs that share the store.
    pub fn new(config: Rc<Config>, vm: u64) -> Self {
        let pools: Vec<PoolState> = config.pools.iter().map(PoolState::new).collect();
        let index = pools
            .iter()
            .any(|pool| pool.policy.reads_index())
            .then(|| SharedIndex::new(config.index_blocks, vm, config.fingerprint));
        Self {
            pools,
            index,
            rates: Rates::new(),
            outages: Outages::default(),
            learned: Learned::default(),
            catalogue: Catalogue::new(config.models.clone()),
            board: Board::new(config.health.settings),
            turns: Vec::new(),
            ledger: Ledger::new(vm),
            reports: BTreeMap::new(),
            stale_after_ms: config
                .scrape
                .as_ref()
                .map_or(0, |scrape| scrape.stale_after_ms),
            typical: Load {
                requests: 1,
                waiting: 1,
                prefill_tokens: 512,
                decode_tokens: u64::from(config.tokens.output_tokens),
                context_tokens: 512,
            },
            config,
        }
    }

    /// The configuration that this balancer was built from.
    pub fn config(&self) -> &Rc<Config> {
        &self.config
    }

    /// Whether any pick may depend on a request's body.
    pub fn reads_body(&self) -> bool {
        let by_model = self.pools.len() > 1 || self.config.models.is_some();
        by_model || self.pools.iter().any(PoolState::reads_body)
    }

    /// Whether the pool's policy asks the prefix index.
    pub fn reads_index(&self, pool: usize) -> bool {
        self.pools
            .get(pool)
            .is_some_and(|pool| pool.policy.reads_index())
    }

    /// The pool at `index`.
    pub fn pool(&self, index: usize) -> Option<&PoolConfig> {
        self.pools.get(index).map(|pool| &pool.config)
    }

    /// An endpoint of a pool.
    pub fn endpoint(&self, pool: usize, index: u32) -> Option<&Endpoint> {
        self.pool(pool)?.pool.get(index)
    }

    /// Every endpoint once, over all pools.
    pub fn endpoints(&self) -> BTreeMap<EndpointId, &Endpoint> {
        let all = self
            .pools
            .iter()
            .flat_map(|pool| pool.config.pool.endpoints());
        all.map(|endpoint| (endpoint.id(), endpoint)).collect()
    }

    /// What this Envoy has in flight, by endpoint.
    pub fn totals<S: Store + ?Sized>(&self, store: &S) -> BTreeMap<EndpointId, Load> {
        self.ledger.totals(store)
    }

    /// What this Envoy has in flight at one endpoint.
    pub fn total<S: Store + ?Sized>(&self, store: &S, endpoint: EndpointId) -> Load {
        self.ledger.total(store, endpoint)
    }
}

#[cfg(test)]
pub(crate) mod tests;
