//! The figures that a report compares: their names, units and digits, and which way is better.

use super::summary::{Latency, Summary};

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The higher one.
    Higher,
    /// The lower one.
    Lower,
}

/// The two tables that the figures are divided into, so that each fits a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What clients notice.
    Clients,
    /// What the fleet and the router do for it.
    Fleet,
}

/// One figure of a run.
pub struct Metric {
    /// Key in the JSON, with the unit.
    pub key: &'static str,
    /// Its table.
    pub part: Part,
    /// What several neighbours have in common, as the heading above them.
    pub group: &'static str,
    /// The rest of the name.
    pub label: &'static str,
    /// Unit as shown; empty for a plain number.
    pub unit: &'static str,
    /// How it is measured, in one sentence.
    pub about: &'static str,
    /// Which way is better.
    pub better: Better,
    /// From the unit of the key to the unit that is shown.
    pub scale: f64,
    /// The value, in the unit of the key.
    pub get: fn(&Summary) -> Option<f64>,
}

impl Metric {
    /// Its name where no group stands above it.
    pub fn name(&self) -> String {
        match self.group {
            REPLICAS => self.label.to_owned(),
            group => format!("{group} {}", self.label).trim().to_owned(),
        }
    }

    /// Which way is better, in words.
    pub fn direction(&self) -> &'static str {
        match self.better {
            Better::Higher => "higher is better",
            Better::Lower => "lower is better",
        }
    }

    /// The value in the shown unit, without the unit.
    pub fn show(&self, value: f64) -> String {
        number(value * self.scale)
    }

    /// The value in the shown unit, with the unit.
    pub fn show_with_unit(&self, value: f64) -> String {
        format!("{} {}", self.show(value), self.unit)
            .trim()
            .to_owned()
    }

    /// Whether the first value is better than the second.
    pub fn is_better(&self, one: f64, other: f64) -> bool {
        match self.better {
            Better::Higher => one > other,
            Better::Lower => one < other,
        }
    }
}

/// The group whose labels say all.
const REPLICAS: &str = "Replicas";

/// All of them, in the order of the tables.
pub const METRICS: &[Metric] = &[
    Metric {
        key: "goodput_per_s",
        part: Part::Clients,
        group: "Goodput",
        label: "",
        unit: "/s",
        about: "answers within the objective per second, from the first due time to the last event",
        better: Better::Higher,
        scale: 1.0,
        get: |s| s.goodput_per_s,
    },
    latency("ttft_mean_ms", "TTFT", "mean", TTFT, |s| {
        ms(s.ttft, |l| l.mean_ms)
    }),
    latency("ttft_p50_ms", "TTFT", "p50", TTFT, |s| {
        ms(s.ttft, |l| l.p50_ms)
    }),
    latency("ttft_p90_ms", "TTFT", "p90", TTFT, |s| {
        ms(s.ttft, |l| l.p90_ms)
    }),
    latency("ttft_p99_ms", "TTFT", "p99", TTFT, |s| {
        ms(s.ttft, |l| l.p99_ms)
    }),
    latency("tpot_mean_ms", "TPOT", "mean", TPOT, |s| {
        ms(s.tpot, |l| l.mean_ms)
    }),
    latency("tpot_p99_ms", "TPOT", "p99", TPOT, |s| {
        ms(s.tpot, |l| l.p99_ms)
    }),
    latency("e2e_mean_ms", "End to end", "mean", E2E, |s| {
        ms(s.e2e, |l| l.mean_ms)
    }),
    latency("e2e_p50_ms", "End to end", "p50", E2E, |s| {
        ms(s.e2e, |l| l.p50_ms)
    }),
    latency("e2e_p99_ms", "End to end", "p99", E2E, |s| {
        ms(s.e2e, |l| l.p99_ms)
    }),
    Metric {
        key: "requests_per_s",
        part: Part::Fleet,
        group: "Throughput",
        label: "requests",
        unit: "/s",
        about: "whole answers per second, from the first due time to the last event",
        better: Better::Higher,
        scale: 1.0,
        get: |s| s.requests_per_s,
    },
    Metric {
        key: "tokens_per_s",
        part: Part::Fleet,
        group: "Throughput",
        label: "tokens",
        unit: "/s",
        about: "prompt and output tokens of whole answers per second",
        better: Better::Higher,
        scale: 1.0,
        get: |s| s.tokens_per_s,
    },
    Metric {
        key: "output_tokens_per_s",
        part: Part::Fleet,
        group: "Throughput",
        label: "output tokens",
        unit: "/s",
        about: "output tokens of whole answers per second",
        better: Better::Higher,
        scale: 1.0,
        get: |s| s.output_tokens_per_s,
    },
    Metric {
        key: "hit_rate",
        part: Part::Fleet,
        group: REPLICAS,
        label: "hit rate",
        unit: "%",
        about: "cached prompt tokens over prompt tokens, of whole answers",
        better: Better::Higher,
        scale: 100.0,
        get: |s| s.hit_rate,
    },
    Metric {
        key: "load_skew",
        part: Part::Fleet,
        group: REPLICAS,
        label: "load skew",
        unit: "",
        about: "prompt and output tokens of the busiest endpoint over the mean of all endpoints; 1 is even",
        better: Better::Lower,
        scale: 1.0,
        get: |s| s.load_skew,
    },
    Metric {
        key: "router_cpu_s_per_1000_requests",
        part: Part::Fleet,
        group: "Router",
        label: "CPU per 1,000 requests",
        unit: "s",
        about: "processor time of the router, user and system, per 1,000 requests sent",
        better: Better::Lower,
        scale: 1.0,
        get: |s| s.router_cpu_s_per_1000,
    },
    Metric {
        key: "router_peak_rss_bytes",
        part: Part::Fleet,
        group: "Router",
        label: "peak RSS",
        unit: "MiB",
        about: "most memory that the router had in use at any time",
        better: Better::Lower,
        scale: 1.0 / 1_048_576.0,
        get: |s| s.router_peak_rss_bytes,
    },
    Metric {
        key: "extra_calls",
        part: Part::Fleet,
        group: "Router",
        label: "extra calls",
        unit: "",
        about: "calls to the engines other than inference: health, metrics, tokenizing",
        better: Better::Lower,
        scale: 1.0,
        get: |s| s.extra_calls,
    },
];

const TTFT: &str = "time from when a request was due to its first token, of whole answers";
const TPOT: &str = "time per output token after the first, of whole answers with two or more";
const E2E: &str = "time from when a request was due to its last token, of whole answers";

/// The metric with this key.
pub fn by_key(key: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.key == key)
}

/// Three significant digits, all digits before the point, thousands apart.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 99.95 || size == 0.0 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size >= 0.0995 => 3,
        _ if size >= 0.000_995 => 4,
        _ => return format!("{value:.1e}"),
    };
    let text = format!("{value:.decimals$}");
    match text.split_once('.') {
        Some(_) => text,
        None => thousands(&text),
    }
}

/// A whole number with its thousands apart.
pub fn thousands(digits: &str) -> String {
    let mut apart = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        let rest = digits.len() - position;
        if rest.is_multiple_of(3) && position > 0 && !apart.ends_with('-') {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart
}

const fn latency(
    key: &'static str,
    group: &'static str,
    label: &'static str,
    about: &'static str,
    get: fn(&Summary) -> Option<f64>,
) -> Metric {
    Metric {
        key,
        part: Part::Clients,
        group,
        label,
        unit: "ms",
        about,
        better: Better::Lower,
        scale: 1.0,
        get,
    }
}

fn ms(latency: Option<Latency>, value: fn(Latency) -> f64) -> Option<f64> {
    latency.map(value)
}
