//! What a request holds, from its pick to its end: when which part is given back, and who holds it.

use super::Balancer;
use crate::endpoint::EndpointId;
use crate::state::Store;
use crate::state::ledger::Reservation;

impl Balancer {
    /// The first byte of the answer has come.
    pub fn prefill_done<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: &mut Reservation,
    ) {
        self.ledger.release_prefill(store, now_ms, reservation);
    }

    /// Another endpoint served the request: a retry at one of `tried`, who may have left the pool by now, or
    /// Envoy's fallback to a member. Any other address changes nothing.
    pub fn served_by<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: Reservation,
        pool: usize,
        tried: &[EndpointId],
        address: &str,
    ) -> Reservation {
        let id = EndpointId::of(address);
        let members = self.pools.get(pool).map(|pool| pool.ids.as_slice());
        let is_one = tried.contains(&id) || members.unwrap_or_default().contains(&id);
        match is_one && id != reservation.endpoint() {
            true => self.ledger.transfer(store, now_ms, reservation, id),
            false => reservation,
        }
    }

    /// The request is over, however it ended.
    pub fn complete<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: Reservation,
    ) {
        self.ledger.release(store, now_ms, reservation);
    }
}
