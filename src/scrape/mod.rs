//! What an engine says of itself: the text of its `/metrics` to a [`Snapshot`].

pub mod clusters;
mod life;
pub mod models;
pub mod prometheus;
mod sglang;
mod vllm;

pub use life::Life;

use std::fmt;

use prometheus::{BrokenLine, Line, Lines, Sample};

/// Most adapters that one list of a snapshot names; further ones are left out.
pub const MAX_ADAPTERS: usize = 256;

/// Longest adapter name that is taken, in bytes; longer ones are left out.
pub const MAX_ADAPTER_NAME_BYTES: usize = 256;

/// Lines whose names begin otherwise are passed over.
const PREFIXES: [&[u8]; 3] = [b"vllm:", b"sglang:", b"process_start_time_seconds"];

/// Which engine answered, told by the names of its families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
}

/// The state of one endpoint as its engine reports it. `None` where it says nothing (usable).
///
/// A server may run several engines (data parallelism); unless said otherwise, figures are sums
/// over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Who answered.
    pub engine: Engine,
    /// Requests in the running batch.
    pub running: Option<u32>,
    /// Requests in the queue.
    pub waiting: Option<u32>,
    /// Share of the KV cache in use, in thousandths: the mean over the engines, since a request goes
    /// to the one that has room.
    pub kv_usage_permille: Option<u32>,
    /// Whether the engine is awake (vLLM's sleep mode).
    pub awake: Option<bool>,
    /// Adapters with running requests.
    pub running_adapters: Option<Vec<String>>,
    /// Adapters with requests in the queue.
    pub waiting_adapters: Option<Vec<String>>,
    /// How many adapters fit into one batch.
    pub max_adapters: Option<u32>,
    /// Size of a block of the prefix cache, in tokens. The same for all engines.
    pub block_size_tokens: Option<u32>,
    /// Blocks of the KV cache.
    pub num_blocks: Option<u64>,
    /// When the server's process started, in whole seconds since 1970; changes on a restart, which
    /// also empties the caches.
    pub start_time_seconds: Option<u64>,
    /// Prompt tokens looked up in the prefix cache since the start.
    pub prefix_queries_tokens: Option<u64>,
    /// Prompt tokens found there since the start.
    pub prefix_hits_tokens: Option<u64>,
    /// Prompt tokens since the start.
    pub prompt_tokens: Option<u64>,
    /// Output tokens since the start.
    pub output_tokens: Option<u64>,
    /// Requests thrown out of the running batch since the start.
    pub preemptions: Option<u64>,
    /// Lines of the families read here that are broken.
    pub broken_lines: u32,
}

impl Snapshot {
    fn empty(engine: Engine) -> Self {
        Self {
            engine,
            running: None,
            waiting: None,
            kv_usage_permille: None,
            awake: None,
            running_adapters: None,
            waiting_adapters: None,
            max_adapters: None,
            block_size_tokens: None,
            num_blocks: None,
            start_time_seconds: None,
            prefix_queries_tokens: None,
            prefix_hits_tokens: None,
            prompt_tokens: None,
            output_tokens: None,
            preemptions: None,
            broken_lines: 0,
        }
    }
}

impl Snapshot {
    /// Tokens that fill the KV cache.
    pub fn kv_tokens(&self) -> Option<u64> {
        let block_size_tokens = u64::from(self.block_size_tokens?);
        self.num_blocks?.checked_mul(block_size_tokens)
    }
}

/// Why an answer is no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeError {
    /// No family of an engine we know: not an engine, or its metrics are switched off.
    NoKnownFamily,
}

impl fmt::Display for ScrapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKnownFamily => f.write_str("no metric of a known engine in the answer"),
        }
    }
}

impl std::error::Error for ScrapeError {}

/// Reads the answer of an engine's `/metrics`.
///
/// Values that are NaN, infinite or negative are taken for missing. At most
/// [`prometheus::MAX_TEXT_BYTES`] are read.
///
/// # Errors
///
/// [`ScrapeError::NoKnownFamily`] if none of the families that we read has a usable sample.
pub fn parse(text: &[u8]) -> Result<Snapshot, ScrapeError> {
    let mut vllm = vllm::Families::default();
    let mut sglang = sglang::Families::default();
    let mut started: Option<f64> = None;
    let mut broken_lines: u32 = 0;
    for line in Lines::new(text, &PREFIXES) {
        let taken = if line.name.starts_with(b"vllm:") {
            vllm.take(&line)
        } else if line.name.starts_with(b"sglang:") {
            sglang.take(&line)
        } else {
            take_start(&line, &mut started)
        };
        broken_lines = broken_lines.saturating_add(u32::from(taken.is_err()));
    }
    let mut snapshot = vllm
        .snapshot()
        .or_else(|| sglang.snapshot())
        .ok_or(ScrapeError::NoKnownFamily)?;
    // Conversions from floating point saturate.
    snapshot.start_time_seconds = started.map(|seconds| seconds as u64);
    snapshot.broken_lines = broken_lines;
    Ok(snapshot)
}

/// The sample of a line, if its value can be that of a load: finite, and not negative.
fn usable<'a>(line: &Line<'a>) -> Result<Option<Sample<'a>>, BrokenLine> {
    line.sample()
        .map(|sample| Some(sample).filter(|sample| sample.value.is_finite() && sample.value >= 0.0))
}

fn take_start(line: &Line<'_>, started: &mut Option<f64>) -> Result<(), BrokenLine> {
    if line.name == b"process_start_time_seconds"
        && let Some(sample) = usable(line)?
    {
        *started = Some(started.map_or(sample.value, |other| other.max(sample.value)));
    }
    Ok(())
}

/// The sum of the usable samples of a family, if there was one.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: f64,
    samples: u32,
}

impl Sum {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.samples = self.samples.saturating_add(1);
    }

    fn count(self) -> Option<u64> {
        (self.samples > 0).then(|| self.sum.round() as u64)
    }

    fn small(self) -> Option<u32> {
        self.count()
            .map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// The mean of shares between 0 and 1, in thousandths.
    fn mean_permille(self) -> Option<u32> {
        let mean = self.sum / f64::from(self.samples);
        (self.samples > 0).then(|| (mean * 1000.0).round().min(1000.0) as u32)
    }
}
