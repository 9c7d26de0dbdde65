//! Takes a logged Decision again, with the policies of a configuration.

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use super::read::{Account, AccountError};
use crate::config::{Config, PoolConfig};
use crate::endpoint::{Endpoint, Pool};
use crate::policy::{self, Candidate, Policy, Ranking, View};
use crate::session::reason_name;

/// What a configuration decides, as an account has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Addresses, best first.
    pub ranked: Vec<String>,
    /// Why the first one.
    pub reason: String,
    /// Bound that it was held against.
    pub bound: u64,
    /// What each candidate would cost, in microseconds.
    pub costs_us: Vec<u64>,
}

impl Outcome {
    /// What was decided when the account was written.
    pub fn logged(account: &Account) -> Self {
        Self {
            ranked: account.ranked.clone(),
            reason: account.reason.clone(),
            bound: account.bound,
            costs_us: account.costs_us.clone(),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.ranked.join(", "), self.reason)?;
        if self.bound > 0 {
            write!(f, ", bound {}", self.bound)?;
        }
        Ok(())
    }
}

/// A pool, its policy, and the places of its endpoints by their addresses.
struct Decider {
    config: PoolConfig,
    policy: Box<dyn Policy>,
    places: HashMap<String, u32>,
}

impl Decider {
    fn new(config: &PoolConfig) -> Self {
        let endpoints = config.pool.endpoints().iter().zip(0_u32..);
        Self {
            policy: policy::build(&config.policy, &config.pool),
            places: endpoints
                .map(|(endpoint, index)| (endpoint.name().to_owned(), index))
                .collect(),
            config: config.clone(),
        }
    }

    /// With the discovered endpoints that the account names: only then is it known who they were.
    fn joined_by(&self, account: &Account) -> Option<Self> {
        let is_new = |name: &str| !self.places.contains_key(name);
        let mut candidates = account.candidates.iter();
        if self.config.clusters.is_empty() || !candidates.any(|(name, _)| is_new(name)) {
            return None;
        }
        let found = account.candidates.iter().filter(|(name, _)| is_new(name));
        let found = found.filter_map(|(name, candidate)| {
            let mut endpoint = Endpoint::new(name.parse().ok()?);
            endpoint.weight = candidate.weight;
            Some(endpoint)
        });
        let configured = self.config.pool.endpoints().iter().cloned();
        let mut config = self.config.clone();
        config.pool = Pool::new(configured.chain(found).collect());
        Some(Self::new(&config))
    }

    fn decide(&self, account: &Account) -> Result<Ranking, AccountError> {
        if self.policy.name() != account.policy {
            return Err(AccountError::OtherPolicy {
                logged: account.policy.clone(),
                configured: self.policy.name().to_owned(),
            });
        }
        let mut candidates = Vec::with_capacity(account.candidates.len());
        for (name, candidate) in &account.candidates {
            let place = self.places.get(name).copied();
            candidates.push(Candidate {
                endpoint: place.ok_or_else(|| AccountError::UnknownEndpoint(name.clone()))?,
                ..*candidate
            });
        }
        let view = View {
            pool: &self.config.pool,
            candidates: &candidates,
            key: account.key,
            blocks: &account.blocks,
            cost: account.cost,
            sequence: account.sequence,
            random: account.random,
        };
        let ranking = self.policy.rank(&view);
        ranking.ok_or_else(|| AccountError::Malformed("no candidates".into()))
    }
}

/// The pools of one configuration with their policies, each built once.
pub struct Replay {
    pools: Vec<Rc<Decider>>,
    fingerprint: u64,
}

impl Replay {
    /// For decisions that were taken under `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            pools: config
                .pools
                .iter()
                .map(|pool| Rc::new(Decider::new(pool)))
                .collect(),
            fingerprint: config.fingerprint,
        }
    }

    /// Whether the account was written under this very text of a configuration.
    pub fn is_of(&self, account: &Account) -> bool {
        self.fingerprint == account.config
    }

    /// What the policy makes of the view that the account describes.
    ///
    /// # Errors
    /// The configuration has no such pool or endpoint, or another policy for it.
    pub fn decide(&self, account: &Account) -> Result<Ranking, AccountError> {
        self.pool(account)?.decide(account)
    }

    /// As [`Self::decide`], in the words of an account.
    ///
    /// # Errors
    /// As [`Self::decide`].
    pub fn outcome(&self, account: &Account) -> Result<Outcome, AccountError> {
        let pool = self.pool(account)?;
        let ranking = pool.decide(account)?;
        let name = |index: &u32| {
            pool.config
                .pool
                .get(*index)
                .map(|one| one.name().to_owned())
        };
        Ok(Outcome {
            ranked: ranking.endpoints.iter().filter_map(name).collect(),
            reason: reason_name(ranking.reason).to_owned(),
            bound: ranking.bound,
            costs_us: ranking.costs_us,
        })
    }

    fn pool(&self, account: &Account) -> Result<Rc<Decider>, AccountError> {
        let mut pools = self.pools.iter();
        let found = pools.find(|pool| pool.config.name == account.pool);
        let found = found.ok_or_else(|| AccountError::UnknownPool(account.pool.clone()))?;
        Ok(match found.joined_by(account) {
            Some(joined) => Rc::new(joined),
            None => found.clone(),
        })
    }
}

/// What `config` makes of one account; [`Replay`] serves many.
///
/// # Errors
/// Those of [`Account::parse`] and [`Replay::decide`].
pub fn decide_again(config: &Config, account: &str) -> Result<Ranking, AccountError> {
    Replay::new(config).decide(&Account::parse(account)?)
}
