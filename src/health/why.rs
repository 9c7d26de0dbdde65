//! What states are due to.

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
