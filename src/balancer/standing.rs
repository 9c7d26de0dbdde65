//! Who may get new requests, by what is known of the endpoints' health.

use super::{Balancer, Decision, Overload, Refusal};
use crate::endpoint::EndpointId;
use crate::health::{Board, Standing, State, Why};
use crate::policy::{Candidate, RANKED};
use crate::state::Store;

/// Leaves those that are ready; else those that are warming; else, as a last resort, those that are to be
/// spared, or even those that have failed; and in any case those that may be probed. Returns those that are
/// to be spared and were left out, the best ones first, as many as may be tried.
///
/// # Errors
/// Nobody may be used, and when the first one may be again.
pub(super) fn keep(
    candidates: &mut Vec<Candidate>,
    ids: &[EndpointId],
    board: &Board,
    now_ms: u64,
) -> Result<Vec<Candidate>, Refusal> {
    if board.is_clean() {
        return Ok(Vec::new());
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
        let mut reserve: Vec<Candidate> = candidates
            .extract_if(.., |candidate| !may_be(candidate))
            .filter(|candidate| is_last_resort(standing_of(candidate)))
            .collect();
        reserve.sort_by_cached_key(|one| (standing_of(one), one.load.requests));
        reserve.truncate(RANKED);
        return Ok(reserve);
    }
    let back_in_ms = candidates
        .iter()
        .filter_map(id_of)
        .map(|id| board.back_in_ms(id, now_ms));
    Err(Refusal::NoEndpoint {
        retry_after_ms: back_in_ms.min().unwrap_or(0),
    })
}

fn is_last_resort(standing: Standing) -> bool {
    matches!(standing, Standing::Resting | Standing::Failing)
}

/// What became of a pick in the light of health.
pub(super) enum Gate {
    /// It stands.
    Open,
    /// Somebody else probes the endpoint by now: pick again.
    Lost,
}

impl Balancer {
    /// Claims the probe that the pick would be, and says where Envoy may try next: nowhere else that is being
    /// probed, and where somebody is to be spared, only if there is nobody else.
    pub(super) fn pass<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        first: EndpointId,
        decision: &mut Decision,
    ) -> Gate {
        let standing = self.board.standing(first, now_ms);
        if standing == Standing::Probing {
            if !self.board.claim_probe(store, now_ms, first) {
                return Gate::Lost;
            }
            decision.probe = true;
        }
        let ids = self.pools.get(decision.pool).map(|pool| &pool.ids);
        let is_probed = |index: &u32| {
            let id = ids.and_then(|ids| ids.get(*index as usize));
            let other = id.map(|id| self.board.state(*id, now_ms));
            // Who was only passed over may be tried before a request fails.
            matches!(other, Some((State::Probing, why)) if why != Why::Blamed)
        };
        let others = decision.endpoints.iter().skip(1).chain(&decision.behind);
        let mut others: Vec<u32> = others.filter(|one| !is_probed(one)).copied().collect();
        if others.is_empty() || is_last_resort(standing) {
            let reserve = decision.reserve.iter();
            others.extend(reserve.filter(|one| !is_probed(one)));
        } else {
            decision.overload = Overload::Elsewhere;
        }
        let attempts = decision.endpoints.iter().take(1).chain(&others);
        decision.attempts = attempts.take(RANKED).copied().collect();
        Gate::Open
    }
}
