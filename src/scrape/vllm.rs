//! vLLM's families, under their exact names (those of 0.32, and older ones where they differ).

use super::prometheus::{BrokenLine, LabelValue, Labels, Line};
use super::{Engine, MAX_ADAPTER_NAME_BYTES, MAX_ADAPTERS, Snapshot, Sum, usable};

/// What was seen of the families so far.
#[derive(Debug, Default)]
pub(super) struct Families<'a> {
    running: Sum,
    waiting: Sum,
    kv_usage: Sum,
    /// `gpu_cache_usage_perc`, until 0.9.
    old_kv_usage: Sum,
    awake: Sum,
    /// The newest `lora_requests_info`: its value is the time at which it was written, and a series
    /// of its own is left behind for every set of adapters there ever was.
    adapters: Option<(f64, Labels<'a>)>,
    block_size_tokens: Option<u32>,
    num_blocks: Sum,
    prefix_queries: Sum,
    prefix_hits: Sum,
    /// `gpu_prefix_cache_*`, until 0.9.
    old_prefix_queries: Sum,
    old_prefix_hits: Sum,
    prompt_tokens: Sum,
    output_tokens: Sum,
    preemptions: Sum,
    seen: bool,
}

impl<'a> Families<'a> {
    /// Takes one line, if it is of a family we read.
    pub(super) fn take(&mut self, line: &Line<'a>) -> Result<(), BrokenLine> {
        let Some(name) = line.name.strip_prefix(b"vllm:") else {
            return Ok(());
        };
        let sum = match name {
            b"num_requests_running" => &mut self.running,
            b"num_requests_waiting" => &mut self.waiting,
            b"kv_cache_usage_perc" => &mut self.kv_usage,
            b"gpu_cache_usage_perc" => &mut self.old_kv_usage,
            b"prefix_cache_queries_total" => &mut self.prefix_queries,
            b"prefix_cache_hits_total" => &mut self.prefix_hits,
            b"gpu_prefix_cache_queries_total" => &mut self.old_prefix_queries,
            b"gpu_prefix_cache_hits_total" => &mut self.old_prefix_hits,
            b"prompt_tokens_total" => &mut self.prompt_tokens,
            b"generation_tokens_total" => &mut self.output_tokens,
            b"num_preemptions_total" => &mut self.preemptions,
            b"engine_sleep_state" | b"lora_requests_info" | b"cache_config_info" => {
                return self.take_labels(name, line);
            }
            _ => return Ok(()),
        };
        if let Some(sample) = usable(line)? {
            sum.add(sample.value);
            self.seen = true;
        }
        Ok(())
    }

    /// Families whose labels say more than their values.
    fn take_labels(&mut self, name: &[u8], line: &Line<'a>) -> Result<(), BrokenLine> {
        let Some(sample) = usable(line)? else {
            return Ok(());
        };
        match name {
            b"engine_sleep_state" => {
                if sample
                    .labels
                    .get("sleep_state")
                    .is_some_and(|state| state.text() == "awake")
                {
                    self.awake.add(sample.value);
                }
            }
            b"lora_requests_info" => {
                if self
                    .adapters
                    .is_none_or(|(newest, _)| sample.value >= newest)
                {
                    self.adapters = Some((sample.value, sample.labels));
                }
            }
            _ => {
                let number =
                    |label: &str| sample.labels.get(label).and_then(LabelValue::number::<u32>);
                self.block_size_tokens = self.block_size_tokens.or(number("block_size"));
                if let Some(blocks) = number("num_gpu_blocks") {
                    self.num_blocks.add(f64::from(blocks));
                }
            }
        }
        self.seen = true;
        Ok(())
    }

    /// `None` if no family was seen.
    pub(super) fn snapshot(self) -> Option<Snapshot> {
        let adapters = |label: &str| {
            let (_, labels) = self.adapters?;
            labels.get(label).map(split_adapters)
        };
        self.seen.then(|| Snapshot {
            running: self.running.small(),
            waiting: self.waiting.small(),
            kv_usage_permille: self
                .kv_usage
                .mean_permille()
                .or(self.old_kv_usage.mean_permille()),
            awake: self.awake.count().map(|engines| engines > 0),
            running_adapters: adapters("running_lora_adapters"),
            waiting_adapters: adapters("waiting_lora_adapters"),
            max_adapters: self
                .adapters
                .and_then(|(_, labels)| labels.get("max_lora")?.number()),
            block_size_tokens: self.block_size_tokens.filter(|&tokens| tokens > 0),
            num_blocks: self.num_blocks.count(),
            prefix_queries_tokens: self
                .prefix_queries
                .count()
                .or(self.old_prefix_queries.count()),
            prefix_hits_tokens: self.prefix_hits.count().or(self.old_prefix_hits.count()),
            prompt_tokens: self.prompt_tokens.count(),
            output_tokens: self.output_tokens.count(),
            preemptions: self.preemptions.count(),
            ..Snapshot::empty(Engine::Vllm)
        })
    }
}

/// `a,b,c`, bounded.
fn split_adapters(list: LabelValue<'_>) -> Vec<String> {
    let text = list.text();
    let names = text.split(',').map(str::trim);
    let taken = names.filter(|name| !name.is_empty() && name.len() <= MAX_ADAPTER_NAME_BYTES);
    taken.take(MAX_ADAPTERS).map(str::to_owned).collect()
}
