//! The states of an endpoint, and what they mean for a pick.

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
    /// Its breaker is open for failures: only if there is nobody else. A client whose requests make every
    /// engine fail must not take them all from the others.
    Failing,
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
