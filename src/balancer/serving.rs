//! Who serves the model that a request names.

use super::candidates::{Known, known_of};
use super::pools::PoolState;
use super::{Balancer, Refusal};
use crate::models::{Catalogue, Serves, Wanted};
use crate::policy::Candidate;

fn serves(candidate: &Candidate, known: &[Known]) -> Serves {
    known_of(candidate, known).map_or(Serves::No, |known| known.serves)
}

/// Leaves those that serve the model, and those of which that is not known yet.
///
/// # Errors
/// [`Refusal::UnknownModel`] if all serve others.
pub(super) fn keep(candidates: &mut Vec<Candidate>, known: &[Known]) -> Result<(), Refusal> {
    let had_any = !candidates.is_empty();
    candidates.retain(|candidate| serves(candidate, known) != Serves::No);
    match had_any && candidates.is_empty() {
        true => Err(Refusal::UnknownModel),
        false => Ok(()),
    }
}

/// Leaves those that are known to serve the model, if one of them may be picked.
pub(super) fn prefer_known(candidates: &mut Vec<Candidate>, known: &[Known]) {
    let is_known = |candidate: &Candidate| serves(candidate, known) == Serves::Yes;
    if candidates.iter().any(is_known) {
        candidates.retain(is_known);
    }
}

impl PoolState {
    /// Whether one of the endpoints may serve the model, or one that is still to come.
    fn may_serve(&self, catalogue: &Catalogue, wanted: &Wanted<'_>) -> bool {
        let endpoints = self.config.pool.endpoints();
        let serves = |endpoint| catalogue.serves(endpoint, wanted) != Serves::No;
        endpoints.is_empty() || endpoints.iter().any(serves)
    }

    /// Whether one of the endpoints names the model among others.
    fn lists(&self, catalogue: &Catalogue, wanted: &Wanted<'_>) -> bool {
        let mut endpoints = self.config.pool.endpoints().iter();
        endpoints.any(|endpoint| catalogue.lists(endpoint, wanted))
    }
}

impl Balancer {
    /// The pool for `model`: the one that names it, else one with an endpoint that lists it, else the first
    /// that names none and may serve it, else the first that names none, else the first.
    pub fn pool_for(&self, model: Option<&str>) -> usize {
        if self.pools.len() < 2 {
            return 0;
        }
        let position = |of: &dyn Fn(&PoolState) -> bool| self.pools.iter().position(of);
        let open = |pool: &PoolState| pool.config.models.is_empty();
        let named =
            |name: &str| position(&|pool| pool.config.models.iter().any(|named| named == name));
        let listed = |wanted: Wanted<'_>| {
            let lists = |pool: &PoolState| pool.lists(&self.catalogue, &wanted);
            position(&|pool| open(pool) && lists(pool)).or_else(|| position(&lists))
        };
        // Where not all have been heard, nobody can say that there is no such model.
        let possible = |wanted: Wanted<'_>| {
            position(&|pool| open(pool) && pool.may_serve(&self.catalogue, &wanted))
        };
        model
            .and_then(named)
            .or_else(|| self.catalogue.wanted(model).and_then(listed))
            .or_else(|| self.catalogue.wanted(model).and_then(possible))
            .or_else(|| position(&open))
            .unwrap_or(0)
    }
}
