//! `prefix_hash`: consistent hashing with bounded loads (CHWBL) on the routing key.

use super::order::{Random, by_requests, by_tokens, rank_by};
use super::queue_time::QueueTime;
use super::{Candidate, Load, Measure, Policy, RANKED, Ranking, Reason, Ring, View};
use crate::endpoint::Pool;

/// Load factors above this (a thousand times the fair share) mean no bound at all.
const MAX_LOAD_FACTOR_PERMILLE: u32 = 1_000_000;

/// What an endpoint must carry less than to be given the request:
/// `max(1, ceil(load_factor × capacity / capacities × (total + cost)))`, exactly.
///
/// `total` is what all candidates carry now, `cost` what the request adds (at least 1 is counted).
/// In requests this is the most that the endpoint carries afterwards; in tokens the one request that
/// reaches the bound may pass it by its own cost, or no large request would ever fit.
///
/// In time, capacities are the speeds that endpoints have shown, and `total` and `cost` take the time
/// that they would take there: the bound of all is how long everything would take if it were shared by
/// speed, times the load factor.
///
/// With a load factor of at least 1 somebody always may. Were every load at or above its bound, then
/// `total = Σ load ≥ Σ bound ≥ load_factor × (total + cost) × Σ capacity / capacities
/// = load_factor × (total + cost) ≥ total + 1`, a contradiction. Smaller factors count as 1. In time
/// this holds while one endpoint is as many times faster than another at everything; else all may be
/// above, and the ring alone decides.
pub fn bound(
    load_factor_permille: u32,
    capacity: u64,
    capacities: u64,
    total: u128,
    cost: u64,
) -> u64 {
    let factor = load_factor_permille.clamp(1000, MAX_LOAD_FACTOR_PERMILLE);
    let after = total.saturating_add(u128::from(cost.max(1)));
    // 20 bits of factor and 32 of capacity leave 76 for the total: it saturates far beyond any load.
    let share = after
        .saturating_mul(u128::from(capacity))
        .saturating_mul(u128::from(factor));
    let parts = u128::from(capacities.max(1)).saturating_mul(1000);
    u64::try_from(share.div_ceil(parts))
        .unwrap_or(u64::MAX)
        .max(1)
}

/// The first eligible endpoint clockwise from the routing key that is within its bound.
///
/// The retries are the next ones clockwise within their bounds, then those beyond, so that a prefix
/// that has to move always moves to the same place. A request without a key goes where the least is
/// under way, in the unit of the bound, per weight; in time, where it would be through first.
#[derive(Clone, Debug)]
pub struct PrefixHash {
    ring: Ring,
    load_factor_permille: u32,
    measure: Measure,
}

impl PrefixHash {
    /// `points` on the ring for every endpoint; its weight acts in the bound, not on the ring.
    pub fn new(pool: &Pool, load_factor_permille: u32, measure: Measure, points: u32) -> Self {
        Self {
            ring: Ring::new(pool, points),
            load_factor_permille,
            measure,
        }
    }

    fn by_load(&self, view: &View<'_>) -> Option<Ranking> {
        let mut random = Random::new(view.random);
        let endpoints = match self.measure {
            Measure::Requests => rank_by(view.candidates, &mut random, by_requests),
            Measure::Tokens => rank_by(view.candidates, &mut random, by_tokens),
            Measure::ExpectedTime => {
                let queue = QueueTime::new(view);
                rank_by(view.candidates, &mut random, |a, b| queue.order(a, b))
            }
        };
        Ranking::plain(endpoints, Reason::NoKey)
    }

    fn by_key(&self, view: &View<'_>, key: u64) -> Option<Ranking> {
        let bounds = Bounds::new(self, view);
        let mut within = Vec::with_capacity(RANKED);
        let mut beyond = Vec::with_capacity(RANKED);
        let mut home = None;
        for index in self.ring.walk(key) {
            let Some(candidate) = find(view.candidates, index) else {
                continue;
            };
            home = home.or(Some(index));
            if bounds.fits(candidate) {
                within.push(index);
                if within.len() >= RANKED {
                    break;
                }
            } else if beyond.len() < RANKED {
                beyond.push(index);
            }
        }
        let missing = RANKED.saturating_sub(within.len());
        within.extend(beyond.into_iter().take(missing));
        let first = *within.first()?;
        Some(Ranking {
            reason: if home == Some(first) {
                Reason::Home
            } else {
                Reason::Overflow
            },
            bound: find(view.candidates, first).map_or(0, |candidate| bounds.of(candidate)),
            costs_us: bounds.queues_us(view.candidates),
            endpoints: within,
        })
    }
}

/// What the bounds of one pick are computed from.
struct Bounds {
    load_factor_permille: u32,
    unit: Unit,
    capacities: u64,
}

/// The unit of the bounds, with what all candidates carry and what the request adds.
enum Unit {
    Count {
        measure: fn(&Load) -> u64,
        total: u128,
        cost: u64,
    },
    Time(QueueTime),
}

impl Unit {
    fn new(measure: Measure, view: &View<'_>) -> Self {
        let measure: fn(&Load) -> u64 = match measure {
            Measure::Requests => |load| u64::from(load.requests),
            Measure::Tokens => Load::tokens,
            Measure::ExpectedTime => return Self::Time(QueueTime::new(view)),
        };
        let loads = view.candidates.iter();
        let loads = loads.map(|candidate| u128::from(measure(&candidate.load)));
        Self::Count {
            measure,
            total: loads.fold(0, u128::saturating_add),
            cost: measure(&view.cost),
        }
    }

    fn load(&self, candidate: &Candidate) -> u64 {
        match self {
            Self::Count { measure, .. } => measure(&candidate.load),
            Self::Time(queue) => queue.queue_us(candidate),
        }
    }

    /// As configured, or as the endpoint has shown.
    fn capacity(&self, candidate: &Candidate) -> u64 {
        match self {
            Self::Count { .. } => candidate.capacity(),
            Self::Time(queue) => queue.speed(candidate),
        }
    }
}

impl Bounds {
    fn new(policy: &PrefixHash, view: &View<'_>) -> Self {
        let unit = Unit::new(policy.measure, view);
        let capacities = view.candidates.iter().map(|one| unit.capacity(one));
        Self {
            load_factor_permille: policy.load_factor_permille,
            capacities: capacities.fold(0, u64::saturating_add),
            unit,
        }
    }

    fn of(&self, candidate: &Candidate) -> u64 {
        let (total, cost) = match &self.unit {
            Unit::Count { total, cost, .. } => (*total, *cost),
            // The same work takes another time on another endpoint.
            Unit::Time(queue) => (
                u128::from(queue.total_us(candidate)),
                queue.own_us(candidate),
            ),
        };
        bound(
            self.load_factor_permille,
            self.unit.capacity(candidate),
            self.capacities,
            total,
            cost,
        )
    }

    fn fits(&self, candidate: &Candidate) -> bool {
        self.unit.load(candidate) < self.of(candidate)
    }

    fn queues_us(&self, candidates: &[Candidate]) -> Vec<u64> {
        match &self.unit {
            Unit::Count { .. } => Vec::new(),
            Unit::Time(queue) => candidates.iter().map(|one| queue.queue_us(one)).collect(),
        }
    }
}

/// Candidates are in the order of the pool.
fn find(candidates: &[Candidate], endpoint: u32) -> Option<&Candidate> {
    let position = candidates
        .binary_search_by_key(&endpoint, |candidate| candidate.endpoint)
        .ok()?;
    candidates.get(position)
}

impl Policy for PrefixHash {
    fn name(&self) -> &'static str {
        "prefix_hash"
    }

    fn reads_body(&self) -> bool {
        true
    }

    fn reads_pace(&self) -> bool {
        self.measure == Measure::ExpectedTime
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        view.key
            .and_then(|key| self.by_key(view, key))
            .or_else(|| self.by_load(view))
    }
}
