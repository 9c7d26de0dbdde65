//! SGLang's families, under their exact names.
//!
//! With data parallelism every scheduler has a `dp_rank`; these are added up. Other labels
//! (`tp_rank`, `pp_rank`, `priority`) tell the same requests again, whole or in part, so that of the
//! gauges with one `dp_rank` only the largest counts.

use super::prometheus::{LabelValue, Sample};
use super::{Engine, Snapshot, Sum};

/// Most schedulers of one server; further ones are left out.
const MAX_RANKS: usize = 256;

/// What was seen of the families so far.
#[derive(Debug, Default)]
pub(super) struct Families {
    running: Ranks,
    waiting: Ranks,
    kv_usage: Ranks,
    num_blocks: Ranks,
    block_size_tokens: Option<u32>,
    prompt_tokens: Sum,
    cached_tokens: Sum,
    output_tokens: Sum,
    seen: bool,
}

/// The largest value of each `dp_rank`.
#[derive(Debug, Default)]
struct Ranks {
    largest: Vec<(Option<u32>, f64)>,
}

impl Ranks {
    fn take(&mut self, rank: Option<u32>, value: f64) {
        if let Some((_, largest)) = self.largest.iter_mut().find(|(other, _)| *other == rank) {
            *largest = largest.max(value);
        } else if self.largest.len() < MAX_RANKS {
            self.largest.push((rank, value));
        }
    }

    fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for (_, value) in &self.largest {
            sum.add(*value);
        }
        sum
    }
}

impl Families {
    /// Takes one sample with a finite value that is not negative.
    pub(super) fn take(&mut self, sample: &Sample<'_>) {
        let Some(name) = sample.name.strip_prefix(b"sglang:") else {
            return;
        };
        let number = |label: &str| sample.labels.get(label).and_then(LabelValue::number::<u32>);
        let rank = number("dp_rank");
        match name {
            b"num_running_reqs" => self.running.take(rank, sample.value),
            b"num_queue_reqs" => self.waiting.take(rank, sample.value),
            b"token_usage" => self.kv_usage.take(rank, sample.value),
            b"prompt_tokens_total" => self.prompt_tokens.add(sample.value),
            b"cached_tokens_total" => self.cached_tokens.add(sample.value),
            b"generation_tokens_total" => self.output_tokens.add(sample.value),
            // Gauges of their own since 0.5.11, labels of another before.
            b"page_size" => self.block_size_tokens = Some(sample.value as u32),
            b"num_pages" => self.num_blocks.take(rank, sample.value),
            b"cache_config_info" => {
                self.block_size_tokens = self.block_size_tokens.or(number("page_size"));
                if let Some(pages) = number("num_pages") {
                    self.num_blocks.take(rank, f64::from(pages));
                }
            }
            _ => return,
        }
        self.seen = true;
    }

    /// `None` if no family was seen.
    pub(super) fn snapshot(self) -> Option<Snapshot> {
        self.seen.then(|| Snapshot {
            running: self.running.sum().small(),
            waiting: self.waiting.sum().small(),
            kv_usage_permille: self.kv_usage.sum().mean_permille(),
            block_size_tokens: self.block_size_tokens.filter(|&tokens| tokens > 0),
            num_blocks: self.num_blocks.sum().count(),
            // Every prompt token is looked up; `cached_tokens_total` has one series for each tier.
            prefix_queries_tokens: self.prompt_tokens.count(),
            prefix_hits_tokens: self.cached_tokens.count(),
            prompt_tokens: self.prompt_tokens.count(),
            output_tokens: self.output_tokens.count(),
            ..Snapshot::empty(Engine::Sglang)
        })
    }
}
