//! Who may get new requests, by what is known of the endpoints' health.

use super::{Balancer, Decision, Refusal};
use crate::endpoint::EndpointId;
use crate::health::{Board, Signal, Standing, State, Turn, Why};
use crate::policy::Candidate;
use crate::state::Store;

/// Most turns that wait to be told; of more, the last are not.
const MAX_TURNS: usize = 256;

/// Leaves those that are ready; else those that are warming; else, as the last resort, those that are to be
/// spared; and in any case those that may be probed.
///
/// # Errors
/// Nobody may be used, and when the first one may be again.
pub(super) fn keep(
    candidates: &mut Vec<Candidate>,
    ids: &[EndpointId],
    board: &Board,
    now_ms: u64,
) -> Result<(), Refusal> {
    if board.is_clean() {
        return Ok(());
    }
    let id_of = |candidate: &Candidate| ids.get(candidate.endpoint as usize).copied();
    let standing_of = |candidate: &Candidate| {
        id_of(candidate).map_or(Standing::Out, |id| board.standing(id, now_ms))
    };
    let standings = candidates.iter().map(standing_of);
    // Who is probed may fail: where it can, Envoy then goes on to one of the others.
    let proven = standings.filter(|standing| *standing != Standing::Probing);
    let best = proven.min().unwrap_or(Standing::Out);
    let may_be = |candidate: &Candidate| match standing_of(candidate) {
        Standing::Out => false,
        standing => standing == best || standing == Standing::Probing,
    };
    if candidates.iter().any(may_be) {
        candidates.retain(may_be);
        return Ok(());
    }
    let back_in_ms = candidates
        .iter()
        .filter_map(id_of)
        .map(|id| board.back_in_ms(id, now_ms));
    Err(Refusal::NoEndpoint {
        retry_after_ms: back_in_ms.min().unwrap_or(0),
    })
}

/// What became of a pick in the light of health.
pub(super) enum Gate {
    /// It stands.
    Open,
    /// Somebody else probes the endpoint by now: pick again.
    Lost,
}

impl Balancer {
    /// Claims the probe that the pick would be, and leaves out of its ranking where it must not be tried next:
    /// a single request probes who was ejected, and an overload is not answered by more of it.
    pub(super) fn pass<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        first: EndpointId,
        decision: &mut Decision,
    ) -> Gate {
        if self.board.is_clean() {
            return Gate::Open;
        }
        let standing = self.board.standing(first, now_ms);
        if standing == Standing::Probing {
            if !self.board.claim_probe(store, now_ms, first) {
                return Gate::Lost;
            }
            decision.probe = true;
        }
        let ids = self.pools.get(decision.pool).map(|pool| &pool.ids);
        let spared = |index: &u32| {
            let id = ids.and_then(|ids| ids.get(*index as usize));
            let other = id.map(|id| self.board.state(*id, now_ms));
            // Who was only passed over may be tried before a request fails.
            let is_ejected = matches!(other, Some((State::Probing, why)) if why != Why::Blamed);
            standing == Standing::Resting || is_ejected
        };
        let ranked = decision.endpoints.iter().chain(&decision.behind);
        let others = ranked.skip(1).copied();
        decision.spared = others.filter(spared).collect();
        Gate::Open
    }

    /// Takes what was heard of an endpoint, for all workers.
    pub fn heard<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        signal: Signal,
    ) {
        if matches!(signal, Signal::Refused | Signal::ScrapeRefused) {
            self.refused(store, now_ms, endpoint);
        }
        let turn = self.board.hear(store, now_ms, endpoint, signal);
        if let Some(turn) = turn.filter(|_| self.turns.len() < MAX_TURNS) {
            self.turns.push(turn);
        }
    }

    /// Whether a sign of life of the endpoint is of any use now. Costs nothing.
    pub fn wants_life(&self, endpoint: EndpointId) -> bool {
        self.board.wants_life(endpoint)
    }

    /// The endpoint's state at `now_ms`, and what it is due to.
    pub fn state(&self, endpoint: EndpointId, now_ms: u64) -> (State, Why) {
        self.board.state(endpoint, now_ms)
    }

    /// Turns that this worker has made since it was asked last.
    pub fn take_turns(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.turns)
    }
}
