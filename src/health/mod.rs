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

mod board;
mod codec;
mod hear;
mod retry_after;
mod row;
mod time;

#[cfg(test)]
mod tests;

pub use board::{Board, MAX_ROWS};
pub use retry_after::retry_after_ms;
pub use row::Row;

use crate::endpoint::EndpointId;

/// How long one claim of a probe holds, in milliseconds: nobody else probes meanwhile.
pub const PROBE_MS: u64 = 10_000;
/// A sign of life this recent outweighs silence, in milliseconds.
pub const LIFE_MS: u64 = 2_000;
/// How long what Envoy said of an endpoint counts after it was last said, in milliseconds.
pub const VERDICT_MS: u64 = 60_000;
/// How long an endpoint that left is kept from new requests, in milliseconds: until every worker has
/// taken it out of its pools.
pub const LEFT_MS: u64 = 5_000;
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

/// What an endpoint's state means for a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// A full member.
    Ready,
    /// One request at a time, for whoever claims it.
    Probing,
    /// It has just come: only if nobody is ready.
    Warming,
    /// Only if nobody is ready or warming.
    Resting,
    /// Nothing new, whoever else there is.
    Out,
}

/// The named state of an endpoint, for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A full member.
    Ready,
    /// Discovered, and nothing good heard of it yet.
    Warming,
    /// To be spared.
    Resting,
    /// Taken out.
    Ejected,
    /// Half open: one request at a time shows whether it works again.
    Probing,
    /// On its way out.
    Draining,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Ready,
        Self::Warming,
        Self::Resting,
        Self::Ejected,
        Self::Probing,
        Self::Draining,
    ];

    /// As metrics and logs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Warming => "warming",
            Self::Resting => "resting",
            Self::Ejected => "ejected",
            Self::Probing => "probing",
            Self::Draining => "draining",
        }
    }

    /// What it means for a pick.
    pub fn standing(self) -> Standing {
        match self {
            Self::Ready => Standing::Ready,
            Self::Probing => Standing::Probing,
            Self::Warming => Standing::Warming,
            Self::Resting => Standing::Resting,
            Self::Ejected | Self::Draining => Standing::Out,
        }
    }
}

/// What a state is due to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// Nothing in particular.
    #[default]
    Nothing,
    /// Failures in a row.
    Failures,
    /// A refused connection.
    Refused,
    /// Envoy's verdict.
    Envoy,
    /// The engine sleeps.
    Asleep,
    /// It said that it has too much to do.
    Overloaded,
    /// Envoy tried it first, and went elsewhere.
    Blamed,
    /// It did not answer a scrape in time.
    Silent,
    /// The engine says that it is not well.
    Unhealthy,
    /// Its KV cache has been full for long.
    KvFull,
}

impl Why {
    /// As metrics and logs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Failures => "failures",
            Self::Refused => "refused",
            Self::Envoy => "envoy",
            Self::Asleep => "asleep",
            Self::Overloaded => "overloaded",
            Self::Blamed => "blamed",
            Self::Silent => "silent",
            Self::Unhealthy => "unhealthy",
            Self::KvFull => "kv_full",
        }
    }
}

/// What Envoy says of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It may be used, as far as Envoy knows.
    #[default]
    Healthy,
    /// It serves, but says of itself that it would rather not.
    Degraded,
    /// A check failed, outlier detection ejected it, or the control plane says so.
    Unhealthy,
    /// It is about to leave.
    Draining,
}

/// Something heard of an endpoint. Client errors (4xx other than 429) are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A request got a good answer; of one that probes, its first output is enough.
    Good,
    /// Part of an answer came, good or not.
    Alive,
    /// A request failed, and the endpoint is to blame.
    Failed,
    /// A request's connection was refused.
    Refused,
    /// Too busy, and how long it asked to be spared, in milliseconds.
    Overloaded {
        /// `None` if it did not say.
        retry_after_ms: Option<u64>,
    },
    /// Envoy tried it first and went elsewhere: it failed somehow.
    Blamed,
    /// A request that probed is over, and says nothing of the endpoint: the client left or erred.
    Unproved,
    /// It answered a scrape.
    Scraped {
        /// KV usage in thousandths; 0 if it does not tell.
        kv_permille: u32,
        /// `None` if it does not tell.
        awake: Option<bool>,
    },
    /// It did not answer a scrape in time.
    ScrapeSilent,
    /// A scrape's connection was refused.
    ScrapeRefused,
    /// The engine says that it is well.
    EngineHealthy,
    /// The engine says that it is not.
    EngineUnhealthy,
    /// The engine says that it sleeps.
    Asleep,
    /// The engine says that it does not.
    Awake,
    /// What Envoy says.
    Envoy(Verdict),
    /// It was discovered, and was not there before.
    Came,
    /// It is not there any more.
    Left,
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
