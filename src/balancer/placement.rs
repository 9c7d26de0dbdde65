//! Who is best placed for an adapter.

use super::candidates::{Known, known_of};
use crate::models::prefer;
use crate::policy::Candidate;

/// Leaves those that have the adapter at hand, and tells the others, the least loaded first.
pub(super) fn keep(candidates: &mut Vec<Candidate>, known: &[Known]) -> Vec<u32> {
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
