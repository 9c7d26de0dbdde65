//! Pools: what each is made of, and endpoints that come and go while requests are under way.

use super::Balancer;
use super::candidates::Known;
use crate::config::{KeySource, PoolConfig};
use crate::endpoint::{Endpoint, EndpointId, Pool};
use crate::models::Serves;
use crate::policy::{self, Policy, PolicySpec};

/// Whether it is known which endpoints a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Members {
    /// Some are to be discovered, and none was heard of yet.
    Awaited,
    /// As far as can be.
    Known,
}

/// A pool at work.
pub(super) struct PoolState {
    /// With the endpoints of the moment.
    pub(super) config: PoolConfig,
    /// Those that the configuration names.
    fixed: Pool,
    members: Members,
    /// Identity of the turn counter of the whole pool.
    counter: u64,
    /// Of the endpoints, in their order.
    pub(super) ids: Vec<EndpointId>,
    pub(super) policy: Box<dyn Policy>,
}

impl PoolState {
    pub(super) fn new(config: &PoolConfig) -> Self {
        let endpoints = config.pool.endpoints();
        Self {
            counter: turn_counter(config),
            ids: endpoints.iter().map(Endpoint::id).collect(),
            policy: policy::build(&config.policy, &config.pool),
            fixed: config.pool.clone(),
            members: match config.clusters.as_slice() {
                [] => Members::Known,
                _ => Members::Awaited,
            },
            config: config.clone(),
        }
    }

    /// Whether a pick may depend on the request's body.
    pub(super) fn reads_body(&self) -> bool {
        let keys = &self.config.keys;
        let by_policy = match self.config.policy {
            // What it hashes may all be in the headers.
            PolicySpec::ConsistentHash { .. } => {
                keys.iter().any(|key| matches!(key, KeySource::Body(_)))
            }
            _ => self.policy.reads_body(),
        };
        let endpoints = self.config.pool.endpoints();
        by_policy || endpoints.iter().any(|endpoint| !endpoint.models.is_empty())
    }

    /// Whose turn it is depends on who takes turns: each set of eligible endpoints counts its own.
    pub(super) fn counter(&self, known: &[Known]) -> u64 {
        if known.iter().all(|known| known.serves == Serves::Yes) {
            return self.counter;
        }
        let best = known.iter().map(|known| known.serves).min();
        let mut eligible = xxhash_rust::xxh64::Xxh64::new(self.counter);
        for (id, known) in self.ids.iter().zip(known) {
            if Some(known.serves) == best {
                eligible.update(&id.0.to_le_bytes());
            }
        }
        eligible.digest()
    }
}

/// Pools of one name may hold other endpoints: in another listener, or after an update.
fn turn_counter(pool: &PoolConfig) -> u64 {
    let mut counter = xxhash_rust::xxh64::Xxh64::new(0);
    counter.update(pool.name.as_bytes());
    for endpoint in pool.pool.endpoints() {
        counter.update(&endpoint.id().0.to_le_bytes());
    }
    counter.digest()
}

impl Balancer {
    /// Whether the pool is to have discovered endpoints and has none yet, so that who finds nobody may soon find
    /// somebody.
    pub fn awaits_members(&self, pool: usize) -> bool {
        let pool = self.pools.get(pool);
        pool.is_some_and(|pool| pool.members == Members::Awaited)
    }

    /// Whether no pool is awaited.
    pub(super) fn is_complete(&self) -> bool {
        let mut pools = self.pools.iter();
        pools.all(|pool| pool.members == Members::Known)
    }

    /// Takes the endpoints that are known for all there are.
    pub fn await_no_longer(&mut self) {
        for pool in &mut self.pools {
            pool.members = Members::Known;
        }
    }

    /// Makes the pool consist of the configured endpoints and of `found`, of which those that are configured
    /// too stay as configured. Says whether that changed it, or
    /// showed that nobody else is to be awaited.
    ///
    /// Requests that are under way are not touched: what they hold is kept by endpoint, not by pool.
    pub fn adopt(&mut self, pool: usize, found: &[Endpoint]) -> bool {
        let Some(state) = self.pools.get_mut(pool) else {
            return false;
        };
        let awaited = state.members == Members::Awaited && !found.is_empty();
        if awaited {
            state.members = Members::Known;
        }
        let configured = state.fixed.endpoints().iter();
        let members = Pool::new(configured.chain(found).cloned().collect());
        if members == state.config.pool {
            return awaited;
        }
        let mut config = state.config.clone();
        config.pool = members;
        let fixed = std::mem::take(&mut state.fixed);
        *state = PoolState {
            fixed,
            members: state.members,
            ..PoolState::new(&config)
        };
        true
    }
}
