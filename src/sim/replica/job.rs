//! What is asked of a replica, and what it tells of that.

/// Which events a job wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// First token and end.
    Ends,
    /// Every token too.
    Tokens,
}

/// One request as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Names the job in events; unique among the jobs in the replica.
    pub id: u64,
    /// Chained ids of the prompt's full blocks; a shorter chain leaves the rest unshared.
    pub chain: Vec<u64>,
    /// Length of the prompt; at least one is assumed.
    pub prompt_tokens: u32,
    /// Tokens to generate; at least one is assumed.
    pub output_tokens: u32,
    /// Which events to report.
    pub detail: Detail,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitError {
    /// Prompt and output do not fit into the cache even alone.
    TooLarge,
}

/// What happened to a job, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Prefill is done, and the first token is there.
    FirstToken {
        /// The job.
        id: u64,
        /// End of the step.
        at_us: u64,
        /// Start of the first step that had the job in its batch.
        admitted_us: u64,
        /// Prompt tokens that the prefix cache saved.
        cached_tokens: u32,
    },
    /// A later token; only for [`Detail::Tokens`].
    Token {
        /// The job.
        id: u64,
        /// End of the step.
        at_us: u64,
    },
    /// The last token has been reported and the blocks are free.
    Finished {
        /// The job.
        id: u64,
        /// End of the step.
        at_us: u64,
    },
}
