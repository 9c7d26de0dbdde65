//! Whether an endpoint may get new requests: what is heard of it, and what that comes to.
//!
//! ```text
//! warming ──▶ ready ⇄ resting          soft: a resting endpoint is the last resort
//!               │ ▲
//!               ▼ │
//!            ejected ⇄ probing         hard: an ejected endpoint gets nothing, a probing one a single
//!                                      request at a time
//! ```
//!
//! A [`Row`] holds the facts about one endpoint, [`Row::hear`] changes them, and [`Row::standing`] says
//! what they come to at a moment. The [`Board`] shares all rows between the workers.

mod asked;
mod board;
mod codec;
mod hear;
mod retry_after;
mod row;
mod signal;
mod state;
mod time;
mod why;

#[cfg(test)]
mod tests;

pub use asked::signal_of;
pub use board::{Board, MAX_ROWS};
pub use retry_after::retry_after_ms;
pub use row::Row;
pub use signal::{Signal, Verdict};
pub use state::{Standing, State};
pub use why::Why;

use crate::endpoint::EndpointId;

/// How long one claim of a probe holds, in milliseconds: nobody else probes meanwhile.
pub const PROBE_MS: u64 = 10_000;
/// A sign of life this recent outweighs silence, in milliseconds.
pub const LIFE_MS: u64 = 2_000;
/// How long what Envoy said of an endpoint counts after it was last said, in milliseconds. Discovery may ask as
/// seldom as every 20,000.
pub const VERDICT_MS: u64 = 60_000;
/// How long an endpoint that left is kept from new requests, in milliseconds: until every worker has
/// taken it out of its pools.
pub const LEFT_MS: u64 = 5_000;
/// A row that nothing has changed for so long says nothing any more, in milliseconds: the endpoint may be gone from
/// every configuration, without anybody to say so. Longer than any rest.
pub const FORGET_MS: u64 = 24 * 3_600_000;
/// How many times the longest rest of ours an endpoint may ask for.
pub const ASKED_REST_FACTOR: u64 = 10;
/// How long what an engine says counts where nothing is scraped, in milliseconds.
const TOLD_MS: u64 = 5_000;

/// When an endpoint is taken out, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Failures in a row that eject; at least 1.
    pub failures: u32,
    /// First rest, in milliseconds; each further one in a row is twice as long.
    pub rest_ms: u64,
    /// Longest rest that is not asked for, in milliseconds.
    pub max_rest_ms: u64,
    /// KV usage that counts as full, in thousandths.
    pub kv_full_permille: u32,
    /// How long the KV cache must have been full, in milliseconds.
    pub kv_full_ms: u64,
    /// How long what a scrape said counts, in milliseconds; `None` if nothing is scraped.
    pub scraped_ms: Option<u64>,
    /// Tells configurations apart: what Envoy said to one, it may take back at once.
    pub configuration: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            failures: 3,
            rest_ms: 1_000,
            max_rest_ms: 60_000,
            kv_full_permille: 980,
            kv_full_ms: 10_000,
            scraped_ms: None,
            configuration: 0,
        }
    }
}

impl Settings {
    /// How long what an engine says counts.
    fn told_ms(&self) -> u64 {
        self.scraped_ms.unwrap_or(TOLD_MS)
    }

    /// Longest rest that an endpoint may ask for.
    fn max_asked_ms(&self) -> u64 {
        self.max_rest_ms.saturating_mul(ASKED_REST_FACTOR)
    }

    /// The rest that is the `number`th in a row, counted from 1.
    fn rest_ms(&self, number: u32) -> u64 {
        let doublings = number.saturating_sub(1).min(32);
        let rest_ms = self.rest_ms.max(1).saturating_mul(1 << doublings);
        rest_ms.min(self.max_rest_ms.max(1))
    }
}

/// An endpoint went from one state to another by what was heard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Which.
    pub endpoint: EndpointId,
    /// From here.
    pub from: State,
    /// To here.
    pub to: State,
    /// Due to this; when it comes back, [`Why::Nothing`].
    pub why: Why,
}
