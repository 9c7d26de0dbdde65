//! What is heard of endpoints, and the states that it comes to.

use super::Balancer;
use crate::endpoint::EndpointId;
use crate::health::{Signal, State, Turn, Why};
use crate::state::Store;

/// Most turns that wait to be told; of more, the last are not.
const MAX_TURNS: usize = 256;

impl Balancer {
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
