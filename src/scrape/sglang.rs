//! SGLang's families, under their exact names.
//!
//! With data parallelism every scheduler has a `dp_rank`; these are added up. Other labels
//! (`tp_rank`, `pp_rank`, `priority`) tell the same requests again, whole or in part, so that of the
//! gauges with one `dp_rank` only the largest counts.

use super::prometheus::{BrokenLine, LabelValue, Line};
use super::{Engine, Snapshot, Sum, usable};

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

/// How a family is read.
enum Family<'a> {
    Gauge(&'a mut Ranks),
    Counter(&'a mut Sum),
    BlockSize,
    CacheConfig,
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
    /// Takes one line, if it is of a family we read.
    pub(super) fn take(&mut self, line: &Line<'_>) -> Result<(), BrokenLine> {
        let Some(name) = line.name.strip_prefix(b"sglang:") else {
            return Ok(());
        };
        let family = match name {
            b"num_running_reqs" => Family::Gauge(&mut self.running),
            b"num_queue_reqs" => Family::Gauge(&mut self.waiting),
            b"token_usage" => Family::Gauge(&mut self.kv_usage),
            // Gauges of their own since 0.5.11, labels of another before.
            b"num_pages" => Family::Gauge(&mut self.num_blocks),
            b"page_size" => Family::BlockSize,
            b"cache_config_info" => Family::CacheConfig,
            b"prompt_tokens_total" => Family::Counter(&mut self.prompt_tokens),
            b"cached_tokens_total" => Family::Counter(&mut self.cached_tokens),
            b"generation_tokens_total" => Family::Counter(&mut self.output_tokens),
            _ => return Ok(()),
        };
        let Some(sample) = usable(line)? else {
            return Ok(());
        };
        let number = |label: &str| sample.labels.get(label).and_then(LabelValue::number::<u32>);
        let rank = number("dp_rank");
        match family {
            Family::Gauge(ranks) => ranks.take(rank, sample.value),
            Family::Counter(sum) => sum.add(sample.value),
            Family::BlockSize => self.block_size_tokens = Some(sample.value as u32),
            Family::CacheConfig => {
                self.block_size_tokens = self.block_size_tokens.or(number("page_size"));
                if let Some(pages) = number("num_pages") {
                    self.num_blocks.take(rank, f64::from(pages));
                }
            }
        }
        self.seen = true;
        Ok(())
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
