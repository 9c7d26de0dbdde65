//! Who serves the model that a request names, and what is known of all models.

use super::{Balancer, Known, PoolState, Refusal};
use crate::endpoint::{Endpoint, EndpointId};
use crate::models::{Catalogue, Serves, Wanted, prefer};
use crate::policy::Candidate;
use crate::reply::{Reply, ReplyKind};
use crate::state::Store;
use crate::state::models::Adapters;

/// Where the gateway's own list of models is.
const LIST_PATH: &[u8] = b"/v1/models";

fn known_of<'a>(candidate: &Candidate, known: &'a [Known]) -> Option<&'a Known> {
    known.get(usize::try_from(candidate.endpoint).ok()?)
}

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

/// Leaves those that have the adapter at hand, and tells the others, the least loaded first.
pub(super) fn keep_placed(candidates: &mut Vec<Candidate>, known: &[Known]) -> Vec<u32> {
    let others = prefer(candidates, |candidate| {
        let known = known_of(candidate, known);
        let affinity = known.map(|known| known.affinity).unwrap_or_default();
        (affinity, candidate.load.requests)
    });
    let least = others.iter().map(|other| other.load.requests).min();
    let mut behind: Vec<u32> = others.iter().map(|other| other.endpoint).collect();
    let mut requests = others.iter().map(|other| other.load.requests);
    if let Some(at) = requests.position(|requests| Some(requests) == least) {
        behind.swap(0, at);
    }
    behind
}

impl PoolState {
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

    /// Takes an engine's answer to the question for its models, for all workers: 0 if none came.
    #[inline(never)]
    pub fn models_answered<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        status: u16,
        answer: &[u8],
    ) -> bool {
        self.catalogue
            .answered(store, now_ms, endpoint, status, answer)
    }

    /// Takes the adapters that have requests at an engine, for all workers.
    pub fn adapters_reported<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        adapters: &Adapters,
    ) {
        self.catalogue.scraped(store, now_ms, endpoint, adapters);
    }

    /// The gateway's own answer to a `GET` of `path`, the list of all models or the card of one; `None` if
    /// it has none.
    #[inline(never)]
    pub fn models_reply<S: Store + ?Sized>(&mut self, store: &S, path: &[u8]) -> Option<Reply> {
        self.config.models.as_ref()?;
        let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
        let path = path.get(..end.unwrap_or(path.len()))?;
        let rest = path.strip_prefix(LIST_PATH)?;
        let pools = self.pools.iter();
        let members = pools.flat_map(|pool| pool.config.pool.endpoints());
        let members: Vec<&Endpoint> = members.collect();
        let body = if rest.is_empty() {
            self.catalogue.merged(store, &members)?.to_owned()
        } else {
            let name = percent_decoded(rest.strip_prefix(b"/")?)?;
            match self.catalogue.card(store, &members, &name) {
                Some(card) => card.json,
                None if self.catalogue.is_unknown(&members, &name) => {
                    return Some(Reply::refusal(Refusal::UnknownModel, None, Some(&name)));
                }
                None => return None,
            }
        };
        Some(Reply {
            kind: ReplyKind::Models,
            status: 200,
            retry_after_s: None,
            body,
        })
    }
}

/// A part of a path as text; `None` if it is none, or empty.
#[inline(never)]
fn percent_decoded(part: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.iter();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(*rest.next()?).to_digit(16);
        let byte = match byte {
            b'%' => u8::try_from(digit()? * 16 + digit()?).ok()?,
            byte => *byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
