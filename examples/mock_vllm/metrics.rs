//! `/metrics`: the recorded page of a real vLLM 0.32 with our own values in it.
//!
//! The page is a template, so that every family, label and help text is as vLLM writes it. What
//! the model does not know stays zero.

use super::call::Limits;
use super::engine::{Adapters, lock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use warmroute::sim::replica::{Gauges, Profile};

/// How many combinations of adapters are remembered.
const LORA_SERIES_MOST: usize = 64;

const TEMPLATE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/vllm-0.32.0/metrics_idle.body"
));

/// One request that is done, for the histograms.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub output_tokens: u32,
    pub queue_s: f64,
    pub first_token_s: f64,
    pub total_s: f64,
}

#[derive(Debug, Default)]
struct Histogram {
    /// By the bits of the upper bound, which sort as the (positive) bounds do.
    buckets: BTreeMap<u64, u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn observe(&mut self, value: f64) {
        *self.buckets.entry(value.max(0.0).to_bits()).or_default() += 1;
        self.sum += value;
        self.count += 1;
        // Bounded: values far apart are kept, the rest is rounded to three digits.
        if self.buckets.len() > 4_096 {
            let coarse = std::mem::take(&mut self.buckets);
            for (bits, count) in coarse {
                let value = f64::from_bits(bits);
                let unit = 10f64.powi(value.max(1e-9).log10().floor() as i32 - 2);
                *self
                    .buckets
                    .entry(((value / unit).round() * unit).to_bits())
                    .or_default() += count;
            }
        }
    }

    fn below(&self, bound: f64) -> u64 {
        self.buckets
            .range(..=bound.max(0.0).to_bits())
            .map(|(_, count)| count)
            .sum()
    }
}

/// What the page shows beyond the model's gauges.
#[derive(Debug, Default)]
pub struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    histograms: BTreeMap<&'static str, Histogram>,
    http: BTreeMap<(String, String, u16), u64>,
    /// Running and waiting adapters, and when they were last those: an old series stays, as the
    /// Prometheus client of Python never forgets one.
    lora: BTreeMap<(String, String), f64>,
    /// Without any request for one there is no series, either.
    adapter_used: bool,
    rejections: u64,
    started_s: f64,
}

fn unix_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

impl Metrics {
    pub fn new() -> Self {
        let metrics = Self::default();
        lock(&metrics.inner).started_s = unix_s();
        metrics
    }

    /// Counts a finished request.
    pub fn done(&self, done: &Done) {
        let mut inner = lock(&self.inner);
        let decodes = f64::from(done.output_tokens.saturating_sub(1).max(1));
        let decode_s = (done.total_s - done.first_token_s).max(0.0);
        let prefill_s = (done.first_token_s - done.queue_s).max(0.0);
        for (family, value) in [
            ("vllm:request_prompt_tokens", f64::from(done.prompt_tokens)),
            (
                "vllm:request_generation_tokens",
                f64::from(done.output_tokens),
            ),
            (
                "vllm:request_max_num_generation_tokens",
                f64::from(done.output_tokens),
            ),
            (
                "vllm:request_params_max_tokens",
                f64::from(done.output_tokens),
            ),
            ("vllm:request_params_n", 1.0),
            ("vllm:time_to_first_token_seconds", done.first_token_s),
            ("vllm:inter_token_latency_seconds", decode_s / decodes),
            (
                "vllm:request_time_per_output_token_seconds",
                decode_s / decodes,
            ),
            ("vllm:e2e_request_latency_seconds", done.total_s),
            ("vllm:request_queue_time_seconds", done.queue_s),
            (
                "vllm:request_inference_time_seconds",
                (done.total_s - done.queue_s).max(0.0),
            ),
            ("vllm:request_prefill_time_seconds", prefill_s),
            ("vllm:request_decode_time_seconds", decode_s),
            ("vllm:request_num_preemptions", 0.0),
            (
                "vllm:request_prefill_kv_computed_tokens",
                f64::from(done.prompt_tokens.saturating_sub(done.cached_tokens)),
            ),
        ] {
            inner.histograms.entry(family).or_default().observe(value);
        }
    }

    /// Notes that an adapter was asked for.
    pub fn adapter_used(&self) {
        lock(&self.inner).adapter_used = true;
    }

    /// Counts a request that the full queue refused.
    pub fn rejected(&self) {
        lock(&self.inner).rejections += 1;
    }

    /// Counts an answer.
    pub fn http(&self, handler: &str, method: &str, status: u16) {
        let key = (handler.to_owned(), method.to_owned(), status / 100);
        *lock(&self.inner).http.entry(key).or_default() += 1;
    }

    /// The page.
    pub fn page(
        &self,
        gauges: &Gauges,
        adapters: &Adapters,
        limits: &Limits,
        profile: &Profile,
    ) -> String {
        let mut inner = lock(&self.inner);
        inner.note_adapters(adapters, limits);
        let mut page = String::with_capacity(TEMPLATE.len() + 1_024);
        for line in TEMPLATE.lines() {
            if line.starts_with('#') {
                page.push_str(line);
                page.push('\n');
                inner.own_samples(line, limits, &mut page);
                continue;
            }
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            if name == "vllm:lora_requests_info" {
                continue;
            }
            let series = own_labels(series, name, limits, profile);
            let known = inner.value(name, labels, gauges);
            let value = known.unwrap_or_else(|| inner.template_value(name, value));
            // Writing into a String cannot fail.
            let _ = writeln!(page, "{series} {value:?}");
        }
        page
    }
}

impl Inner {
    fn note_adapters(&mut self, adapters: &Adapters, limits: &Limits) {
        if !limits.adapters.is_enabled() || !self.adapter_used {
            return;
        }
        let join = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(",");
        self.lora
            .insert((join(&adapters.running), join(&adapters.waiting)), unix_s());
        while self.lora.len() > LORA_SERIES_MOST {
            let oldest = self.lora.iter().min_by(|one, two| one.1.total_cmp(two.1));
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                return;
            };
            self.lora.remove(&key);
        }
    }

    /// Samples of the families whose label values are ours.
    fn own_samples(&self, line: &str, limits: &Limits, page: &mut String) {
        let Some(family) = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split(' ').next())
        else {
            return;
        };
        // Writing into a String cannot fail.
        match family {
            "vllm:lora_requests_info" => {
                for ((running, waiting), at_s) in &self.lora {
                    let _ = writeln!(
                        page,
                        "vllm:lora_requests_info{{max_lora=\"{}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} {at_s:?}",
                        limits.adapters.max_loras(),
                    );
                }
            }
            "http_requests_total" => {
                for ((handler, method, class), count) in &self.http {
                    let _ = writeln!(
                        page,
                        "http_requests_total{{handler=\"{handler}\",method=\"{method}\",status=\"{class}xx\"}} {count}.0"
                    );
                }
            }
            _ => {}
        }
    }

    /// The value of a series of ours.
    fn value(&self, name: &str, labels: &str, gauges: &Gauges) -> Option<f64> {
        let has = |label: &str| labels.contains(label);
        let computed = gauges.prompt_tokens.saturating_sub(gauges.cached_tokens);
        let count = |number: u64| Some(number as f64);
        match name {
            "process_start_time_seconds" => Some(self.started_s),
            "vllm:num_requests_running" => count(gauges.running.into()),
            "vllm:num_requests_waiting" => count(gauges.waiting.into()),
            "vllm:num_requests_waiting_by_reason" if has("capacity") => {
                count(gauges.waiting.into())
            }
            "vllm:kv_cache_usage_perc" => Some(gauges.kv_usage),
            "vllm:prefix_cache_queries_total" => count(gauges.prefix_queries_tokens),
            "vllm:prefix_cache_hits_total" => count(gauges.prefix_hits_tokens),
            "vllm:num_preemptions_total" => count(gauges.preemptions),
            "vllm:prompt_tokens_total" => count(gauges.prompt_tokens),
            "vllm:prompt_tokens_cached_total" => count(gauges.cached_tokens),
            "vllm:prompt_tokens_by_source_total" if has("local_compute") => count(computed),
            "vllm:prompt_tokens_by_source_total" if has("local_cache_hit") => {
                count(gauges.cached_tokens)
            }
            "vllm:prompt_tokens_cached_by_source_total" if has("device") => {
                count(gauges.cached_tokens)
            }
            "vllm:generation_tokens_total" => count(gauges.generation_tokens),
            "vllm:request_success_total" if has("length") => count(gauges.finished),
            "vllm:request_success_total" if has("abort") => count(gauges.aborted),
            "vllm:admission_rejections_total" if has("max_num_queued_reqs") => {
                count(self.rejections)
            }
            _ => self.histogram_value(name, labels),
        }
    }

    fn histogram_value(&self, name: &str, labels: &str) -> Option<f64> {
        let (family, part) = name.rsplit_once('_')?;
        let histogram = self.histograms.get(family)?;
        match part {
            "sum" => Some(histogram.sum),
            "count" => Some(histogram.count as f64),
            "bucket" => {
                let bound = labels.split("le=\"").nth(1)?.split('"').next()?;
                let bound = if bound == "+Inf" {
                    f64::INFINITY
                } else {
                    bound.parse().ok()?
                };
                Some(histogram.below(bound) as f64)
            }
            _ => None,
        }
    }

    /// What the recorded page says where it says something constant, else zero.
    fn template_value(&self, name: &str, recorded: &str) -> f64 {
        let constant = name.ends_with("_info")
            || name.starts_with("python_")
            || name.starts_with("process_")
            || name == "vllm:engine_sleep_state";
        if constant {
            recorded.parse().unwrap_or(0.0)
        } else if name.ends_with("_created") {
            self.started_s
        } else {
            0.0
        }
    }
}

/// The labels with our model and cache in them.
fn own_labels(series: &str, name: &str, limits: &Limits, profile: &Profile) -> String {
    let mut series = series.replace(
        "model_name=\"tiny\"",
        &format!("model_name=\"{}\"", limits.model),
    );
    if name == "vllm:cache_config_info" {
        for (label, value) in [
            ("block_size", u64::from(profile.block_tokens)),
            (
                "effective_attention_block_size",
                u64::from(profile.block_tokens),
            ),
            ("num_gpu_blocks", u64::from(profile.blocks)),
            ("kv_cache_size_tokens", profile.capacity_tokens()),
        ] {
            series = with_label(&series, label, value);
        }
    }
    series
}

fn with_label(series: &str, label: &str, value: u64) -> String {
    for before in ["{", ","] {
        let key = format!("{before}{label}=\"");
        if let Some((head, tail)) = series.split_once(&key)
            && let Some((_, tail)) = tail.split_once('"')
        {
            return format!("{head}{key}{value}\"{tail}");
        }
    }
    series.to_owned()
}
