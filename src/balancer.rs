//! The facade that sessions pick through: pools, their policies, the ledger and the engines' reports.

mod engines;
mod learning;
mod members;
mod saturation;
mod serving;
mod standing;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use self::engines::{Outages, Seen};
use self::standing::Gate;
use crate::config::{Config, KeySource, PoolConfig, Saturation};
use crate::endpoint::{Endpoint, EndpointId, Pool};
use crate::health::{Board, Turn};
use crate::index::{BLOCK_BYTES, Match, SharedIndex};
use crate::models::{Affinity, Catalogue, Serves};
use crate::policy::{self, Candidate, Load, Policy, PolicySpec, Reason, View};
use crate::rates::{Pace, Rates};
use crate::state::Store;
use crate::state::ledger::{Carried, Ledger, Reservation};
use crate::state::snapshots::Report;
use crate::tokens::Learned;

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
    /// Of the limits of `saturation`, how much its priority may use, in thousandths.
    pub share_permille: u32,
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
    /// Others that serve the model, but have its adapter not as much at hand: tried after the ranked ones.
    pub behind: Vec<u32>,
    /// Others that are to be spared: tried only if there is nobody else, and never for an overload.
    pub reserve: Vec<u32>,
    /// Where Envoy tries, one after the other, at most [`policy::RANKED`]; the first one is the pick.
    pub attempts: Vec<u32>,
    /// Whether there is somebody else to try when an endpoint is overloaded.
    pub overload: Overload,
    /// It shows whether the first one works again: nothing else goes there until that is known.
    pub probe: bool,
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

/// Where a request goes on to that an endpoint refuses since it is overloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// To the next of the attempts.
    Elsewhere,
    /// Back to the client: nobody is left who is not to be spared.
    #[default]
    Passed,
}

/// Why there is no pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No endpoint may be used now.
    NoEndpoint {
        /// When one may be again, in milliseconds from now; 0 if nobody knows.
        retry_after_ms: u64,
    },
    /// All endpoints that may be used carry as much as they are allowed to.
    Saturated {
        /// When to try again, in milliseconds from now.
        retry_after_ms: u64,
    },
    /// No endpoint serves the model.
    UnknownModel,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoEndpoint { .. } => "no endpoint may be used now",
            Self::Saturated { .. } => "all endpoints are at their limits",
            Self::UnknownModel => "no endpoint serves the model",
        })
    }
}

impl std::error::Error for Refusal {}

const NOBODY: Refusal = Refusal::NoEndpoint { retry_after_ms: 0 };

/// What is known about an endpoint besides its load.
#[derive(Default)]
struct Known {
    matched: Match,
    matched_tokens: u64,
    given_blocks: u32,
    pace: Pace,
    seen: Seen,
    serves: Serves,
    affinity: Affinity,
}

struct PoolState {
    /// With the endpoints of the moment.
    config: PoolConfig,
    /// Those that the configuration names.
    fixed: Pool,
    /// Identity of the turn counter of the whole pool.
    counter: u64,
    ids: Vec<EndpointId>,
    policy: Box<dyn Policy>,
}

impl PoolState {
    fn new(config: &PoolConfig) -> Self {
        let endpoints = config.pool.endpoints();
        Self {
            counter: turn_counter(config),
            ids: endpoints.iter().map(Endpoint::id).collect(),
            policy: policy::build(&config.policy, &config.pool),
            fixed: config.pool.clone(),
            config: config.clone(),
        }
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

    /// Picks an endpoint and reserves the cost there, in one atomic step.
    ///
    /// # Errors
    /// Why no endpoint can be picked.
    pub fn pick<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        random: u64,
        ask: Ask<'_>,
    ) -> Result<(Decision, Reservation), Refusal> {
        let endpoints = self.pools.get(ask.pool).map_or(0, |pool| pool.ids.len());
        // Each time but the last, somebody else was faster to probe one of them.
        for _ in 0..=endpoints {
            let (mut decision, reservation) = self.reserve(store, now_ms, random, &ask)?;
            match self.pass(store, now_ms, reservation.endpoint(), &mut decision) {
                Gate::Open => return Ok((decision, reservation)),
                Gate::Lost => self.ledger.release(store, now_ms, reservation),
            }
        }
        Err(NOBODY)
    }

    /// Picks by the state of health that this worker knows.
    fn reserve<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        random: u64,
        ask: &Ask<'_>,
    ) -> Result<(Decision, Reservation), Refusal> {
        let state = self.pools.get(ask.pool).ok_or(NOBODY)?;
        let paces = match state.policy.reads_pace() {
            // Who does not ask does not pay.
            true => self.rates.paces(&state.ids),
            false => Vec::new(),
        };
        let seen: Vec<Seen> = state.ids.iter().map(|id| self.seen(*id, now_ms)).collect();
        let index = self
            .index
            .as_mut()
            .filter(|_| state.policy.reads_index())
            .map(|index| index.latest(store));
        let text = index.map(|_| self.learned.text_estimator(&self.config.tokens, ask.model));
        let catalogue = &self.catalogue;
        let wanted = catalogue.wanted(ask.model);
        let known: Vec<Known> = state
            .config
            .pool
            .endpoints()
            .iter()
            .zip(&state.ids)
            .zip(seen)
            .enumerate()
            .map(|(at, ((endpoint, id), seen))| {
                let mut known = Known {
                    pace: paces.get(at).copied().unwrap_or_default(),
                    seen,
                    ..Known::default()
                };
                if let Some(wanted) = &wanted {
                    known.serves = catalogue.serves(endpoint, wanted);
                    known.affinity = match known.seen.fresh {
                        true => catalogue.affinity(*id, wanted),
                        false => Affinity::default(),
                    };
                }
                if let (Some(index), Some(text)) = (index, text) {
                    known.matched = index.longest_match(*id, ask.blocks);
                    let bytes = u64::from(known.matched.blocks) * u64::from(BLOCK_BYTES);
                    known.matched_tokens = text.text_tokens(bytes).min(ask.cost.prefill_tokens);
                    known.given_blocks = index.given_blocks(*id);
                }
                known
            })
            .collect();
        let moment = (now_ms, random);
        let rules = Rules {
            board: &self.board,
            limits: self.config.saturation.as_ref(),
        };
        let mut decided = Err(NOBODY);
        let reservation = self.ledger.reserve(
            store,
            now_ms,
            state.counter(&known),
            &state.ids,
            |carried, sequence| {
                decided = decide(state, rules, ask, carried, &known, sequence, moment);
                let decision = decided.as_ref().ok()?;
                let first = usize::try_from(*decision.endpoints.first()?).ok()?;
                Some((first, decision.cost))
            },
        );
        let decision = decided?;
        Ok((decision, reservation.ok_or(NOBODY)?))
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

    /// Another endpoint served the request: a retry at one of `tried`, who may have left the pool by now, or
    /// Envoy's fallback to a member. Any other address changes nothing.
    pub fn served_by<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: Reservation,
        pool: usize,
        tried: &[EndpointId],
        address: &str,
    ) -> Reservation {
        let id = EndpointId::of(address);
        let members = self.pools.get(pool).map(|pool| pool.ids.as_slice());
        let is_one = tried.contains(&id) || members.unwrap_or_default().contains(&id);
        match is_one && id != reservation.endpoint() {
            true => self.ledger.transfer(store, now_ms, reservation, id),
            false => reservation,
        }
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

/// Pools of one name may hold other endpoints: in another listener, or after an update.
fn turn_counter(pool: &PoolConfig) -> u64 {
    let mut counter = xxhash_rust::xxh64::Xxh64::new(0);
    counter.update(pool.name.as_bytes());
    for endpoint in pool.pool.endpoints() {
        counter.update(&endpoint.id().0.to_le_bytes());
    }
    counter.digest()
}

/// What decides who may be picked at all.
#[derive(Clone, Copy)]
struct Rules<'a> {
    board: &'a Board,
    limits: Option<&'a Saturation>,
}

/// Everybody's candidates, through the stages that leave out who may not be picked, to the policy.
fn decide(
    state: &PoolState,
    rules: Rules<'_>,
    ask: &Ask<'_>,
    carried: &[Carried],
    known: &[Known],
    sequence: u64,
    (now_ms, random): (u64, u64),
) -> Result<Decision, Refusal> {
    let mut candidates = all_candidates(state, carried, known, now_ms);
    serving::keep(&mut candidates, known)?;
    let mut reserve = standing::keep(&mut candidates, &state.ids, rules.board, now_ms)?;
    if let Some(limits) = rules.limits {
        saturation::keep(&mut candidates, limits, ask.share_permille)?;
        saturation::retain(&mut reserve, limits, ask.share_permille);
    }
    serving::prefer_known(&mut candidates, known);
    let behind = serving::keep_placed(&mut candidates, known);
    let view = View {
        pool: &state.config.pool,
        candidates: &candidates,
        key: ask.key,
        blocks: ask.blocks,
        cost: ask.cost,
        sequence,
        random,
    };
    let ranking = state.policy.rank(&view);
    let ranking = ranking.ok_or(NOBODY)?;
    let first = ranking.endpoints.first();
    let chosen = candidates
        .iter()
        .find(|candidate| Some(&candidate.endpoint) == first);
    // What is cached need not be computed.
    let matched_tokens = chosen.map_or(0, |candidate| candidate.matched_tokens);
    let mut cost = ask.cost;
    cost.prefill_tokens = cost.prefill_tokens.saturating_sub(matched_tokens).max(1);
    Ok(Decision {
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
        behind,
        reserve: reserve.iter().map(|one| one.endpoint).collect(),
        attempts: Vec::new(),
        overload: Overload::default(),
        probe: false,
    })
}

/// All endpoints of the pool as a policy may see them.
fn all_candidates(
    state: &PoolState,
    carried: &[Carried],
    known: &[Known],
    now_ms: u64,
) -> Vec<Candidate> {
    let endpoints = state.config.pool.endpoints().iter().zip(0_u32..);
    let facts = carried.iter().zip(known);
    let candidate = |((endpoint, index), (ours, known)): ((&Endpoint, u32), (&Carried, &Known))| {
        let seen = &known.seen;
        let load = ours.load.plus(seen.others);
        Candidate {
            endpoint: index,
            weight: endpoint.weight.max(1),
            load,
            other_requests: seen.others.requests,
            kv_usage_permille: seen.kv_usage_permille,
            matched_blocks: known.matched.blocks,
            matched_tokens: known.matched_tokens,
            matched_age_permille: known.matched.age_permille,
            given_blocks: known.given_blocks,
            queue_tokens: match state.policy.reads_pace() {
                true => queue_tokens(&known.pace, load, now_ms, ours.moved_ms),
                false => load.prefill_tokens,
            },
            kv_tokens: seen.kv_tokens,
            kv_used_tokens: seen.kv_used_tokens(ours.load),
            pace: known.pace,
        }
    };
    endpoints.zip(facts).map(candidate).collect()
}

/// Prompt tokens that are computed before a new one, without what should be done by now.
///
/// An engine whose queue has not moved for much longer than it should take waits for something else,
/// for space above all: then nothing is taken off.
fn queue_tokens(pace: &Pace, load: Load, now_ms: u64, moved_ms: u64) -> u64 {
    let elapsed_us = now_ms.saturating_sub(moved_ms).saturating_mul(1_000);
    let patience_us = pace.prefill_us(load.prefill_tokens).saturating_mul(3) / 2;
    let steps_us = pace.output_us(load.context_tokens).saturating_mul(2);
    if load.waiting == 0 || elapsed_us > patience_us.saturating_add(steps_us) {
        return load.prefill_tokens;
    }
    load.prefill_tokens
        .saturating_sub(pace.prefill_tokens(elapsed_us))
}

#[cfg(test)]
mod tests;
