//! The facade that sessions pick through: pools, their policies, the ledger and the engines' reports.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::config::{Config, KeySource, PoolConfig};
use crate::endpoint::{Endpoint, EndpointId};
use crate::index::{BLOCK_BYTES, Belief, SharedIndex};
use crate::policy::{self, Candidate, Load, Policy, PolicySpec, Reason, View};
use crate::rates::{Pace, Rates};
use crate::state::Store;
use crate::state::ledger::{Ledger, Reservation};
use crate::state::snapshots::{self, Report};
use crate::tokens::Usage;

/// What one pick is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Index of the pool, from [`Balancer::pool_for`].
    pub pool: usize,
    /// Model or adapter, if the request names one.
    pub model: Option<&'a str>,
    /// Routing key, if the request has one.
    pub key: Option<u64>,
    /// Prefix blocks of the prompt under its model, if the pool's policy reads the index.
    pub blocks: &'a [u64],
    /// What it is expected to cost.
    pub cost: Load,
}

/// Where a request goes, and everything that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the pool.
    pub pool: usize,
    /// Name of the policy.
    pub policy: &'static str,
    /// Ranked endpoints, as indices into the pool; the first one holds the reservation.
    pub endpoints: Vec<u32>,
    /// Why the first one.
    pub reason: Reason,
    /// The routing key that was used.
    pub key: Option<u64>,
    /// What was reserved.
    pub cost: Load,
    /// Bound that the first one was held against, in the policy's unit; 0 if it has none.
    pub bound: u64,
    /// What each candidate would cost, or how long its queue is where that is bounded, in microseconds;
    /// empty if the policy counts neither.
    pub costs_us: Vec<u64>,
    /// How many picks the pool had before.
    pub sequence: u64,
    /// What the policy saw.
    pub candidates: Vec<Candidate>,
}

impl Decision {
    /// The first one as the policy saw it.
    pub fn chosen(&self) -> Option<&Candidate> {
        let first = self.endpoints.first()?;
        self.candidates
            .iter()
            .find(|candidate| candidate.endpoint == *first)
    }
}

/// What is known about an endpoint besides its load.
#[derive(Default)]
struct Known {
    matched_blocks: u32,
    matched_tokens: u64,
    given_blocks: u32,
    pace: Pace,
}

struct PoolState {
    config: PoolConfig,
    /// Identity of the turn counter of the whole pool.
    counter: u64,
    ids: Vec<EndpointId>,
    policy: Box<dyn Policy>,
}

impl PoolState {
    /// Whose turn it is depends on who takes turns: each set of eligible endpoints counts its own.
    fn counter(&self, model: Option<&str>) -> u64 {
        let endpoints = self.config.pool.endpoints();
        if endpoints.iter().all(|endpoint| endpoint.models.is_empty()) {
            return self.counter;
        }
        let mut eligible = xxhash_rust::xxh64::Xxh64::new(self.counter);
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.serves(model)) {
            eligible.update(&endpoint.id().0.to_le_bytes());
        }
        eligible.digest()
    }

    fn reads_body(&self) -> bool {
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
}

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
    /// The report that KV sizes were last learned from, by endpoint.
    kv_seen_ms: BTreeMap<EndpointId, u64>,
}

impl Balancer {
    /// `vm` must be unique among the VMs that share the store.
    pub fn new(config: Rc<Config>, vm: u64) -> Self {
        let pools = config.pools.iter().map(|pool| PoolState {
            counter: turn_counter(pool),
            ids: pool.pool.endpoints().iter().map(Endpoint::id).collect(),
            policy: policy::build(&pool.policy, &pool.pool),
            config: pool.clone(),
        });
        let pools: Vec<PoolState> = pools.collect();
        let index = pools
            .iter()
            .any(|pool| pool.policy.reads_index())
            .then(|| SharedIndex::new(config.index_blocks, vm, config.fingerprint));
        Self {
            pools,
            index,
            rates: Rates::new(),
            kv_seen_ms: BTreeMap::new(),
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
        self.pools.len() > 1 || self.pools.iter().any(PoolState::reads_body)
    }

    /// Whether the pool's policy asks the prefix index.
    pub fn reads_index(&self, pool: usize) -> bool {
        self.pools
            .get(pool)
            .is_some_and(|pool| pool.policy.reads_index())
    }

    /// The pool for `model`: the one that names it, else the first that names none, else the first.
    pub fn pool_for(&self, model: Option<&str>) -> usize {
        let naming = model.and_then(|model| {
            self.pools
                .iter()
                .position(|pool| pool.config.models.iter().any(|named| named == model))
        });
        naming
            .or_else(|| {
                self.pools
                    .iter()
                    .position(|pool| pool.config.models.is_empty())
            })
            .unwrap_or(0)
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

    /// Picks an endpoint and reserves the cost there, in one atomic step.
    pub fn pick<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        random: u64,
        ask: Ask<'_>,
    ) -> Option<(Decision, Reservation)> {
        let state = self.pools.get(ask.pool)?;
        let others: Vec<(Load, u32)> = state
            .ids
            .iter()
            .map(|id| self.others(*id, now_ms))
            .collect();
        let index = self
            .index
            .as_mut()
            .filter(|_| state.policy.reads_index())
            .map(|index| index.latest(store));
        let tokens = &self.config.tokens;
        let known: Vec<Known> = state
            .ids
            .iter()
            .map(|id| {
                // Who does not ask does not pay.
                let mut known = Known::default();
                if state.policy.reads_pace() {
                    known.pace = self.rates.pace(*id);
                }
                if let Some(index) = index {
                    let blocks = index.matched_blocks(*id, ask.blocks);
                    let bytes = u64::from(blocks).saturating_mul(u64::from(BLOCK_BYTES));
                    known.matched_blocks = blocks;
                    known.matched_tokens = tokens.text_tokens(bytes).min(ask.cost.prefill_tokens);
                    known.given_blocks = index.given_blocks(*id);
                }
                known
            })
            .collect();
        let mut decision = None;
        let reservation = self.ledger.reserve(
            store,
            now_ms,
            state.counter(ask.model),
            &state.ids,
            |loads, sequence| {
                decision = decide(state, &ask, loads, &others, &known, sequence, random);
                let decision = decision.as_ref()?;
                let first = usize::try_from(*decision.endpoints.first()?).ok()?;
                Some((first, decision.cost))
            },
        )?;
        decision.map(|decision| (decision, reservation))
    }

    /// The endpoint gets a prompt, and holds its blocks from now on; what was believed before.
    pub fn sent<S: Store + ?Sized>(
        &mut self,
        store: &S,
        endpoint: EndpointId,
        blocks: &[u64],
    ) -> Belief {
        match &mut self.index {
            Some(index) => index.insert(store, endpoint, blocks),
            None => Belief::default(),
        }
    }

    /// The engine has told how much of a prompt of `prompt_bytes` was in its cache.
    pub fn correct(
        &mut self,
        endpoint: EndpointId,
        belief: &Belief,
        prompt_bytes: u64,
        usage: &Usage,
    ) {
        let (Some(index), Some(cached_tokens)) = (&mut self.index, usage.cached_tokens) else {
            return;
        };
        // Bytes per token are those of this very prompt.
        let cached_bytes = cached_tokens
            .saturating_mul(prompt_bytes)
            .checked_div(usage.prompt_tokens)
            .unwrap_or(0);
        let blocks = cached_bytes / u64::from(BLOCK_BYTES);
        index.correct(endpoint, belief, u32::try_from(blocks).unwrap_or(u32::MAX));
    }

    /// What answers show of their endpoints' speed; `None` if no policy asks for it.
    pub fn rates(&mut self) -> Option<&mut Rates> {
        self.reads_pace().then_some(&mut self.rates)
    }

    fn reads_pace(&self) -> bool {
        self.pools.iter().any(|pool| pool.policy.reads_pace())
    }

    /// Traffic at an endpoint that is not ours, and its KV cache usage, as far as a fresh report tells.
    fn others(&self, id: EndpointId, now_ms: u64) -> (Load, u32) {
        let Some(report) = self
            .reports
            .get(&id)
            .filter(|report| report.is_fresh(now_ms, self.stale_after_ms))
        else {
            return (Load::default(), 0);
        };
        let requests = report.others();
        let waiting = u64::from(requests.min(report.waiting));
        let load = Load {
            requests,
            waiting: requests.min(report.waiting),
            prefill_tokens: waiting.saturating_mul(self.typical.prefill_tokens),
            decode_tokens: u64::from(requests).saturating_mul(self.typical.decode_tokens),
            context_tokens: u64::from(requests).saturating_mul(self.typical.context_tokens),
        };
        (load, report.kv_usage_permille)
    }

    /// Learns what an inference call costs here: other people's are priced as our last few dozen.
    pub fn learn_typical(&mut self, cost: Load) {
        let blend = |old: u64, new: u64| old.saturating_mul(15).saturating_add(new) / 16;
        self.typical.prefill_tokens =
            blend(self.typical.prefill_tokens, cost.prefill_tokens).max(1);
        self.typical.context_tokens =
            blend(self.typical.context_tokens, cost.context_tokens).max(1);
        self.typical.decode_tokens = blend(self.typical.decode_tokens, cost.decode_tokens).max(1);
    }

    /// The first byte of the answer has come.
    pub fn prefill_done<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: &mut Reservation,
    ) {
        self.ledger.release_prefill(store, now_ms, reservation);
    }

    /// The request is over, however it ended.
    pub fn complete<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: Reservation,
    ) {
        self.ledger.release(store, now_ms, reservation);
    }

    /// Another member of the pool served the request: a retry, or Envoy's fallback. An address that
    /// is no member changes nothing.
    pub fn served_by<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: Reservation,
        pool: usize,
        address: &str,
    ) -> Reservation {
        let member = self
            .pool(pool)
            .and_then(|pool| {
                pool.pool
                    .endpoints()
                    .iter()
                    .find(|endpoint| endpoint.name() == address)
            })
            .map(Endpoint::id);
        match member {
            Some(id) if id != reservation.endpoint() => {
                self.ledger.transfer(store, now_ms, reservation, id)
            }
            _ => reservation,
        }
    }

    /// Periodic work: heartbeat, dead VMs, and the engines' latest reports.
    pub fn tick<S: Store + ?Sized>(&mut self, store: &S, now_ms: u64) {
        self.ledger.tick(store, now_ms);
        if self.stale_after_ms > 0 {
            self.reports = snapshots::load(store, self.config.fingerprint)
                .into_iter()
                .map(|report| (report.endpoint, report))
                .collect();
            if self.reads_pace() {
                self.learn_kv(store, now_ms);
            }
        }
    }

    /// Compares what the engines report of their KV cache with what is known to be there.
    fn learn_kv<S: Store + ?Sized>(&mut self, store: &S, now_ms: u64) {
        let mut totals = None;
        for (id, report) in &self.reports {
            let seen = self.kv_seen_ms.insert(*id, report.at_ms);
            // Too little says nothing, and what was said before is old.
            if seen == Some(report.at_ms)
                || report.kv_usage_permille < 50
                || report.age_ms(now_ms) >= 500
                || report.others() > 0
            {
                continue;
            }
            let totals = totals.get_or_insert_with(|| self.ledger.totals(store));
            let context_tokens = totals.get(id).map_or(0, |load| load.context_tokens);
            self.rates
                .kv_used(*id, context_tokens, report.kv_usage_permille);
        }
    }

    /// What this Envoy has in flight, by endpoint.
    pub fn totals<S: Store + ?Sized>(&self, store: &S) -> BTreeMap<EndpointId, Load> {
        self.ledger.totals(store)
    }

    /// The latest report on each endpoint, fresh or not.
    pub fn reports(&self) -> &BTreeMap<EndpointId, Report> {
        &self.reports
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

fn decide(
    state: &PoolState,
    ask: &Ask<'_>,
    loads: &[Load],
    others: &[(Load, u32)],
    known: &[Known],
    sequence: u64,
    random: u64,
) -> Option<Decision> {
    let pool = &state.config.pool;
    let all = || {
        pool.endpoints()
            .iter()
            .zip(0_u32..)
            .zip(loads.iter().zip(others).zip(known))
            .map(
                |((endpoint, index), ((ours, (others, kv_usage_permille)), known))| {
                    let load = ours.plus(*others);
                    let weight = endpoint.weight.max(1);
                    (
                        endpoint,
                        Candidate {
                            endpoint: index,
                            weight,
                            load,
                            kv_usage_permille: *kv_usage_permille,
                            matched_blocks: known.matched_blocks,
                            matched_tokens: known.matched_tokens,
                            given_blocks: known.given_blocks,
                            pace: known.pace,
                        },
                    )
                },
            )
    };
    let serving = all()
        .filter(|(endpoint, _)| endpoint.serves(ask.model))
        .map(|(_, candidate)| candidate);
    let mut candidates: Vec<Candidate> = serving.collect();
    if candidates.is_empty() {
        // Nobody lists the model: the engine's own 404 is the best answer there is.
        candidates = all().map(|(_, candidate)| candidate).collect();
    }
    let view = View {
        pool,
        candidates: &candidates,
        key: ask.key,
        blocks: ask.blocks,
        cost: ask.cost,
        sequence,
        random,
    };
    let ranking = state.policy.rank(&view)?;
    let first = ranking.endpoints.first();
    let chosen = candidates
        .iter()
        .find(|candidate| Some(&candidate.endpoint) == first);
    // What is cached need not be computed.
    let matched_tokens = chosen.map_or(0, |candidate| candidate.matched_tokens);
    let mut cost = ask.cost;
    cost.prefill_tokens = cost.prefill_tokens.saturating_sub(matched_tokens).max(1);
    Some(Decision {
        pool: ask.pool,
        policy: state.policy.name(),
        endpoints: ranking.endpoints,
        reason: ranking.reason,
        key: ask.key,
        cost,
        bound: ranking.bound,
        costs_us: ranking.costs_us,
        sequence,
        candidates,
    })
}

#[cfg(test)]
mod tests;
