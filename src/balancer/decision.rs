//! What a pick is asked for, and what comes of it: a decision, or why there is none.

use std::fmt;

use crate::policy::{Candidate, Load, Reason};

/// What one pick is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Index of the pool, from [`super::Balancer::pool_for`].
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
    /// Where Envoy tries, one after the other, at most [`crate::policy::RANKED`]; the first one is the pick.
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

/// Nobody may be picked, and nobody knows when.
pub(super) const NOBODY: Refusal = Refusal::NoEndpoint { retry_after_ms: 0 };
