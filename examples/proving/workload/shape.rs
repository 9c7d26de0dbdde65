//! The flags that only some workloads know, and the options of the generators that they make.

use super::{MAX_TOKENS, Named, WorkloadArgs, number};
use clap::{Args, value_parser};
use warmroute::sim::workload::{Workload, burst, chat, lora, mix, rag, uniform};

/// What only some workloads know.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Shape of the workload")]
pub struct ShapeArgs {
    /// chat-open: mean time from an answer to the next turn, in ms
    #[arg(long, value_parser = value_parser!(u32).range(0..=3_600_000))]
    pub think_ms: Option<u32>,
    /// rag: number of documents
    #[arg(long, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub documents: Option<u32>,
    /// rag: length of a document; burst: of the shared prefix; mix: of a long prompt; lora: of a
    /// system prompt
    #[arg(long, value_parser = value_parser!(u32).range(1..=MAX_TOKENS))]
    pub long_tokens: Option<u32>,
    /// uniform, burst, mix, lora: length of (other) prompts
    #[arg(long, value_parser = value_parser!(u32).range(1..=MAX_TOKENS))]
    pub prompt_tokens: Option<u32>,
    /// rag, burst, mix, uniform, lora: length of an output
    #[arg(long, value_parser = value_parser!(u32).range(1..=MAX_TOKENS))]
    pub output_tokens: Option<u32>,
    /// rag, lora: exponent of Zipf's law, 0 for all alike
    #[arg(long, value_parser = exponent)]
    pub zipf: Option<f64>,
    /// burst: requests of a burst
    #[arg(long, value_parser = value_parser!(u32).range(1..=100_000))]
    pub burst_requests: Option<u32>,
    /// burst: time from one burst to the next
    #[arg(long, value_parser = value_parser!(u32).range(1..=3_600_000))]
    pub burst_every_ms: Option<u32>,
    /// mix: share of the long prompts
    #[arg(long, value_parser = value_parser!(u32).range(0..=100))]
    pub long_percent: Option<u32>,
    /// lora: number of adapters
    #[arg(long, value_parser = value_parser!(u32).range(1..=10_000))]
    pub adapters: Option<u32>,
}

fn exponent(text: &str) -> Result<f64, String> {
    number(text, 0.0, 10.0, "an exponent")
}

impl WorkloadArgs {
    /// A flag that the workload does not know would do nothing, without a word.
    pub(super) fn refuse_strangers(&self) -> Result<(), String> {
        use Named::{Burst, Chat, ChatOpen, Lora, Mix, Rag, Uniform};
        let shape = &self.shape;
        let flags: [(bool, &str, &[Named]); 11] = [
            (self.threads.is_some(), "--threads", &[Chat]),
            (shape.think_ms.is_some(), "--think-ms", &[ChatOpen]),
            (shape.documents.is_some(), "--documents", &[Rag]),
            (
                shape.long_tokens.is_some(),
                "--long-tokens",
                &[Rag, Burst, Mix, Lora],
            ),
            (
                shape.prompt_tokens.is_some(),
                "--prompt-tokens",
                &[Burst, Mix, Uniform, Lora],
            ),
            (
                shape.output_tokens.is_some(),
                "--output-tokens",
                &[Rag, Burst, Mix, Uniform, Lora],
            ),
            (shape.zipf.is_some(), "--zipf", &[Rag, Lora]),
            (shape.burst_requests.is_some(), "--burst-requests", &[Burst]),
            (shape.burst_every_ms.is_some(), "--burst-every-ms", &[Burst]),
            (shape.long_percent.is_some(), "--long-percent", &[Mix]),
            (shape.adapters.is_some(), "--adapters", &[Lora]),
        ];
        for (is_given, flag, known_to) in flags {
            let is_known = self.trace.is_none() && known_to.contains(&self.workload);
            if is_given && !is_known {
                let names = known_to.iter().map(|named| named.name());
                let names: Vec<String> = names.collect();
                return Err(format!("{flag} is for the workload {}", names.join(", ")));
            }
        }
        if self.rate.is_some() && self.trace.is_none() && self.workload == Chat {
            return Err("--rate: chat is a closed loop, see chat-open and --threads".to_owned());
        }
        Ok(())
    }

    /// The workload of a generator.
    pub(super) fn generate(&self, seed: u64) -> Workload {
        match self.workload {
            Named::Chat => chat::closed(&self.chat(), seed),
            Named::Rag => rag::workload(&self.rag(), seed),
            Named::Burst => burst::workload(&self.burst(), seed),
            Named::Mix => mix::workload(&self.mix(), seed),
            Named::Uniform => uniform::workload(&self.uniform(), seed),
            Named::Lora => lora::workload(&self.lora(), seed),
            // The traces are read, not generated.
            Named::ChatOpen | Named::Conversation | Named::Mooncake1000 => {
                chat::open(&self.chat_open(), seed)
            }
        }
    }

    fn chat(&self) -> chat::Closed {
        let usual = chat::Closed::default();
        chat::Closed {
            requests: self.requests.unwrap_or(usual.requests),
            threads: self.threads.unwrap_or(usual.threads),
            ..usual
        }
    }

    fn chat_open(&self) -> chat::Open {
        let usual = chat::Open::default();
        chat::Open {
            requests: self.requests.unwrap_or(usual.requests),
            rate_per_s: self.rate.unwrap_or(usual.rate_per_s),
            think_ms: self.shape.think_ms.unwrap_or(usual.think_ms),
            ..usual
        }
    }

    fn rag(&self) -> rag::Options {
        let usual = rag::Options::default();
        rag::Options {
            requests: self.requests.unwrap_or(usual.requests),
            rate_per_s: self.rate.unwrap_or(usual.rate_per_s),
            documents: self.shape.documents.unwrap_or(usual.documents),
            document_tokens: self.shape.long_tokens.unwrap_or(usual.document_tokens),
            zipf: self.shape.zipf.unwrap_or(usual.zipf),
            output_tokens: self.shape.output_tokens.unwrap_or(usual.output_tokens),
            ..usual
        }
    }

    fn burst(&self) -> burst::Options {
        let usual = burst::Options::default();
        burst::Options {
            requests: self.requests.unwrap_or(usual.requests),
            rate_per_s: self.rate.unwrap_or(usual.rate_per_s),
            every_ms: self.shape.burst_every_ms.unwrap_or(usual.every_ms),
            burst_requests: self.shape.burst_requests.unwrap_or(usual.burst_requests),
            prefix_tokens: self.shape.long_tokens.unwrap_or(usual.prefix_tokens),
            prompt_tokens: self.shape.prompt_tokens.unwrap_or(usual.prompt_tokens),
            output_tokens: self.shape.output_tokens.unwrap_or(usual.output_tokens),
            ..usual
        }
    }

    fn mix(&self) -> mix::Options {
        let usual = mix::Options::default();
        mix::Options {
            requests: self.requests.unwrap_or(usual.requests),
            rate_per_s: self.rate.unwrap_or(usual.rate_per_s),
            long_percent: self.shape.long_percent.unwrap_or(usual.long_percent),
            long_tokens: self.shape.long_tokens.unwrap_or(usual.long_tokens),
            short_tokens: self.shape.prompt_tokens.unwrap_or(usual.short_tokens),
            output_tokens: self.shape.output_tokens.unwrap_or(usual.output_tokens),
        }
    }

    fn uniform(&self) -> uniform::Options {
        let usual = uniform::Options::default();
        uniform::Options {
            requests: self.requests.unwrap_or(usual.requests),
            rate_per_s: self.rate.unwrap_or(usual.rate_per_s),
            prompt_tokens: self.shape.prompt_tokens.unwrap_or(usual.prompt_tokens),
            output_tokens: self.shape.output_tokens.unwrap_or(usual.output_tokens),
        }
    }

    fn lora(&self) -> lora::Options {
        let usual = lora::Options::default();
        lora::Options {
            requests: self.requests.unwrap_or(usual.requests),
            rate_per_s: self.rate.unwrap_or(usual.rate_per_s),
            adapters: self.shape.adapters.unwrap_or(usual.adapters),
            zipf: self.shape.zipf.unwrap_or(usual.zipf),
            system_tokens: self.shape.long_tokens.unwrap_or(usual.system_tokens),
            prompt_tokens: self.shape.prompt_tokens.unwrap_or(usual.prompt_tokens),
            output_tokens: self.shape.output_tokens.unwrap_or(usual.output_tokens),
        }
    }
}
