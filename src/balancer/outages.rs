//! Endpoints that refuse connections: nothing runs there, and nothing is cached.

use super::Balancer;
use crate::endpoint::{EndpointId, MAX_KNOWN};
use crate::state::Store;

/// An endpoint that refuses connections is forgotten once in so long, in milliseconds.
const FORGET_EVERY_MS: u64 = 1_000;

/// Endpoints that refused a connection: each once, however often it did.
#[derive(Debug, Default)]
pub(super) struct Outages {
    outages: Vec<Outage>,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    endpoint: EndpointId,
    forgotten_ms: u64,
    /// It has refused again since.
    again: bool,
}

impl Outage {
    fn is_over(&self, now_ms: u64) -> bool {
        now_ms.abs_diff(self.forgotten_ms) >= FORGET_EVERY_MS
    }
}

impl Outages {
    /// Whether what an endpoint holds is to be forgotten now that it refused a connection. If not, it
    /// is a little later.
    fn refused(&mut self, now_ms: u64, endpoint: EndpointId) -> bool {
        let mut outages = self.outages.iter_mut();
        match outages.find(|outage| outage.endpoint == endpoint) {
            Some(outage) if outage.is_over(now_ms) => {
                outage.forgotten_ms = now_ms;
                outage.again = false;
            }
            Some(outage) => {
                outage.again = true;
                return false;
            }
            None => {
                if self.outages.len() >= MAX_KNOWN {
                    self.outages.clear();
                }
                self.outages.push(Outage {
                    endpoint,
                    forgotten_ms: now_ms,
                    again: false,
                });
            }
        }
        true
    }

    /// One that has refused again since it was forgotten, if that is long enough ago.
    pub(super) fn due(&mut self, now_ms: u64) -> Option<EndpointId> {
        let mut outages = self.outages.iter_mut();
        let outage = outages.find(|outage| outage.again && outage.is_over(now_ms))?;
        outage.again = false;
        outage.forgotten_ms = now_ms;
        Some(outage.endpoint)
    }
}

impl Balancer {
    /// The endpoint refused a connection: nothing runs there, and what will has an empty cache.
    pub(super) fn refused<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
    ) {
        if self.index.is_some() && self.outages.refused(now_ms, endpoint) {
            self.forget(store, endpoint);
        }
    }

    /// Nothing is cached there any more.
    #[cold]
    pub(super) fn forget<S: Store + ?Sized>(&mut self, store: &S, endpoint: EndpointId) {
        if let Some(index) = &mut self.index {
            index.forget(store, endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_is_forgotten_once_a_second_and_once_more_after_the_last_time() {
        let mut outages = Outages::default();
        let (one, two) = (EndpointId(1), EndpointId(2));
        assert!(outages.refused(5_000, one) && outages.refused(5_001, two));
        assert!(!outages.refused(5_500, one) && !outages.refused(5_999, one));
        assert_eq!(outages.due(5_900), None);
        assert_eq!(outages.due(6_001), Some(one));
        assert_eq!(outages.due(6_001), None);
        assert!(!outages.refused(6_100, one), "not twice within a second");
        assert_eq!(outages.due(7_001), Some(one));
        assert_eq!(outages.due(9_000), None);
        assert!(outages.refused(9_001, one));
        // A clock that is set back holds nothing up.
        assert!(outages.refused(1_000, one));
    }
}
