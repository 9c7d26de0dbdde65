//! `consistent_hash`: the same key goes to the same endpoint, whatever its load.

use super::order::{Random, by_tokens, rank_by};
use super::{Policy, RANKED, Ranking, Reason, Ring, View};
use crate::endpoint::Pool;

/// The first eligible endpoint clockwise from the key; the retries are the next ones.
///
/// A request without a key goes where the fewest tokens are outstanding.
#[derive(Clone, Debug)]
pub struct ConsistentHash {
    ring: Ring,
}

impl ConsistentHash {
    /// `points` on the ring for an endpoint of weight 1, more in proportion for heavier ones.
    pub fn new(pool: &Pool, points: u32) -> Self {
        Self {
            ring: Ring::weighted(pool, points),
        }
    }
}

impl Policy for ConsistentHash {
    fn name(&self) -> &'static str {
        "consistent_hash"
    }

    fn reads_body(&self) -> bool {
        true
    }

    fn rank(&self, view: &View<'_>) -> Option<Ranking> {
        let on_ring = view.key.map(|key| {
            let eligible = self.ring.walk(key).filter(|index| {
                view.candidates
                    .binary_search_by_key(index, |other| other.endpoint)
                    .is_ok()
            });
            eligible.take(RANKED).collect::<Vec<u32>>()
        });
        let home = on_ring.and_then(|endpoints| Ranking::plain(endpoints, Reason::Home));
        home.or_else(|| {
            let endpoints = rank_by(view.candidates, &mut Random::new(view.random), by_tokens);
            Ranking::plain(endpoints, Reason::NoKey)
        })
    }
}
