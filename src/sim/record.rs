//! What was seen of a run, in virtual or in real time: the raw material of every report.

use serde::Serialize;

/// What became of one request. Times are in microseconds after the beginning of the run, on the
/// clock of the modelled hardware where the replicas are models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Index into the workload.
    pub request: u32,
    /// Index of the endpoint that served it; `None` if it is not known or there was none.
    pub endpoint: Option<u32>,
    /// When it was to be sent. Latencies count from here, however late it was really sent.
    pub due_us: u64,
    /// First token.
    pub first_us: Option<u64>,
    /// Last token.
    pub end_us: Option<u64>,
    /// Length of the prompt, as the engine counts it.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that the engine found in its prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Why it failed; `None` for a whole, good answer.
    pub error: Option<String>,
}

/// What a router process used during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouterCost {
    /// Processor time, user and system.
    pub cpu_us: u64,
    /// Most memory in use at any time.
    pub peak_rss_bytes: u64,
}

/// One workload through one router under one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Run {
    /// `warmroute`, `envoy`, `vllm-router`, …
    pub router: String,
    /// The router's policy.
    pub policy: String,
    /// Seed of workload and decisions.
    pub seed: u64,
    /// Names of the endpoints that [`Served::endpoint`] counts.
    pub endpoints: Vec<String>,
    /// All requests that were sent, in the order of the workload.
    pub served: Vec<Served>,
    /// Requests of the workload that were never sent, since the run was interrupted.
    pub unsent: u32,
    /// `None` if it was not measured, as in a simulation.
    pub cost: Option<RouterCost>,
    /// Calls to the engines other than inference (health, metrics, tokenizing).
    pub extra_calls: Option<u64>,
    /// What a reader has to know to judge this run fairly.
    pub notes: Vec<String>,
    /// Why there is no result at all: the router did not start, say.
    pub failed: Option<String>,
}

/// Latencies up to which a request counts as good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Objective {
    /// Time to first token.
    pub ttft_us: u64,
    /// Time per output token after the first.
    pub tpot_us: u64,
}

/// Runs that belong into one report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Study {
    /// Heading.
    pub title: String,
    /// The exact command that makes it again.
    pub command: String,
    /// What was sent, in one sentence.
    pub workload: String,
    /// What served it, in one sentence.
    pub fleet: String,
    /// `router/policy` that the others are compared with.
    pub baseline: String,
    /// What counts as good.
    pub objective: Objective,
    /// What else a reader has to know.
    pub notes: Vec<String>,
    /// Every run, the failed ones too.
    pub runs: Vec<Run>,
}
