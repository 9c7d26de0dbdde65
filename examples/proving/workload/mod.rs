//! Which workload a program runs: its flags, and what they come to.

mod shape;

use clap::{Args, ValueEnum, value_parser};
use shape::ShapeArgs;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use warmroute::sim::workload::{Workload, csv, mooncake};

/// A workload that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Named {
    /// Chats of many turns in a closed loop, as KubeAI published them
    Chat,
    /// The same chats arriving by themselves, at a set rate
    ChatOpen,
    /// Questions about documents, some popular
    Rag,
    /// Bursts of requests with one long prefix
    Burst,
    /// Few very long prompts among short ones
    Mix,
    /// Prompts of like length, nothing shared
    Uniform,
    /// LoRA adapters, some popular
    Lora,
    /// Mooncake's public conversation trace
    Conversation,
    /// The first 1,000 requests of Mooncake's first public trace
    #[value(name = "mooncake-1000")]
    Mooncake1000,
}

impl Named {
    /// As the flag has it.
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// File of a trace, below the directory of traces.
    fn trace_file(self) -> Option<&'static str> {
        match self {
            Self::Conversation => Some("conversation_trace.jsonl"),
            Self::Mooncake1000 => Some("mooncake_trace_1000.jsonl"),
            _ => None,
        }
    }
}

const MAX_REQUESTS: i64 = 1_000_000;
const MAX_TOKENS: i64 = 10_000_000;

/// The flags. What is not given is as the workload has it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// What is sent
    #[arg(
        long,
        value_enum,
        default_value = "chat-open",
        conflicts_with = "trace"
    )]
    pub workload: Named,
    /// A trace to send instead: Mooncake (.jsonl) or CSV (.csv)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Where the named traces lie
    #[arg(
        long,
        value_name = "DIR",
        env = "WARMROUTE_TRACES",
        default_value = "../shared/data/traces"
    )]
    pub traces: PathBuf,
    /// Requests in all; of a trace, the first ones
    #[arg(long, value_parser = value_parser!(u32).range(1..=MAX_REQUESTS))]
    pub requests: Option<u32>,
    /// Mean requests per second; the times of a trace are stretched to it
    #[arg(long, value_parser = rate)]
    pub rate: Option<f64>,
    /// chat: chats under way at any time
    #[arg(long, value_parser = value_parser!(u32).range(1..=100_000))]
    pub threads: Option<u32>,
    /// Divides all lengths in tokens
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    pub shrink: u32,
    /// Leaves out longer prompts (after --shrink)
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(1..=MAX_TOKENS))]
    pub max_prompt_tokens: Option<u32>,
    #[command(flatten)]
    pub shape: ShapeArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 0.001, 100_000.0, "requests per second")
}

/// A number within limits, as a flag's value.
fn number(text: &str, least: f64, most: f64, what: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let in_range = number.filter(|number| (least..=most).contains(number));
    in_range.ok_or_else(|| format!("expected {what} from {least} to {most}"))
}

impl WorkloadArgs {
    /// The workload that the flags name. The same seed gives the same; a trace knows no seed.
    pub fn load(&self, seed: u64) -> Result<Workload, String> {
        self.refuse_strangers()?;
        let mut workload = match (&self.trace, self.workload.trace_file()) {
            (Some(path), _) => read(path)?,
            (None, Some(file)) => Workload {
                name: self.workload.name(),
                ..read(&self.traces.join(file))?
            },
            (None, None) => self.generate(seed),
        };
        if self.shrink > 1 {
            workload = workload.shrunk(self.shrink);
            workload.about += &format!(", lengths divided by {}", self.shrink);
        }
        if let Some(tokens) = self.max_prompt_tokens {
            let (kept, dropped) = workload.without_longer_than(tokens);
            workload = kept;
            if dropped > 0 {
                workload.about += &format!(", without {dropped} prompts over {tokens} tokens");
            }
        }
        if let Some(requests) = self.requests {
            workload = workload.truncated(requests as usize);
        }
        if workload.requests.is_empty() {
            return Err(format!("{}: no request is left", workload.name));
        }
        workload.check()?;
        Ok(self.paced(workload))
    }

    /// One sentence for reports: what it is, and its size.
    pub fn describe(&self, workload: &Workload) -> String {
        let facts = workload.facts(REPORTED_BLOCK_TOKENS);
        format!(
            "{}: {}; {} requests, prompts of {:.0} tokens in the mean (p99 {}), outputs of {:.0} (p99 {}), and {:.0} % of the prompt tokens were there before.",
            workload.name,
            workload.about,
            facts.requests,
            facts.mean_prompt_tokens,
            facts.p99_prompt_tokens,
            facts.mean_output_tokens,
            facts.p99_output_tokens,
            facts.cacheable_share * 100.0
        )
    }

    /// The arrivals of a trace at the rate that was asked for; generators have it already.
    fn paced(&self, mut workload: Workload) -> Workload {
        let is_trace = self.trace.is_some() || self.workload.trace_file().is_some();
        let now = workload.rate_per_s().filter(|_| is_trace);
        if let (Some(wanted), Some(now)) = (self.rate, now) {
            workload = workload.sped_up(wanted / now);
            workload.about += &format!(", times stretched to {wanted} requests/s");
        }
        workload
    }
}

/// vLLM's block size on GPUs.
const REPORTED_BLOCK_TOKENS: u32 = 16;

/// Reads a trace in the format that its name ends with.
fn read(path: &Path) -> Result<Workload, String> {
    let shown = path.display();
    let name = path.file_name().map_or_else(
        || shown.to_string(),
        |name| name.to_string_lossy().into_owned(),
    );
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_csv = match extension {
        Some("csv") => true,
        Some("jsonl") => false,
        _ => return Err(format!("{shown}: expected a trace named .jsonl or .csv")),
    };
    let file = File::open(path).map_err(|error| {
        format!(
            "{shown}: {error} (Mooncake's traces are public: kvcache-ai/Mooncake on GitHub; --traces says where they lie)"
        )
    })?;
    let input = BufReader::new(file);
    let read = if is_csv {
        csv::read(input, &name)
    } else {
        mooncake::read(input, &name)
    };
    read.map_err(|error| error.to_string())
}
