//! Rows against rules and a twin, boards against each other.

mod boards;
mod rules;
mod twin;

use proptest::prelude::*;

use super::*;

const SCRAPED: Settings = Settings {
    failures: 3,
    rest_ms: 1_000,
    max_rest_ms: 60_000,
    kv_full_permille: 980,
    kv_full_ms: 10_000,
    scraped_ms: Some(5_000),
    configuration: 7,
};

const UNSCRAPED: Settings = Settings {
    scraped_ms: None,
    ..SCRAPED
};

fn signals() -> impl Strategy<Value = Signal> {
    let verdict = prop_oneof![
        Just(Verdict::Healthy),
        Just(Verdict::Degraded),
        Just(Verdict::Unhealthy),
        Just(Verdict::Draining),
    ];
    let asked = prop_oneof![
        Just(None),
        Just(Some(0)),
        (1..5_000_u64).prop_map(Some),
        any::<u64>().prop_map(Some),
    ];
    let full = prop_oneof![Just(0_u32), Just(979), Just(980), Just(1_000)];
    prop_oneof![
        5 => Just(Signal::Good),
        2 => Just(Signal::Alive),
        6 => Just(Signal::Failed),
        2 => Just(Signal::Refused),
        3 => asked.prop_map(|retry_after_ms| Signal::Overloaded { retry_after_ms }),
        3 => Just(Signal::Blamed),
        2 => Just(Signal::Unproved),
        4 => (full, any::<Option<bool>>())
            .prop_map(|(kv_permille, awake)| Signal::Scraped { kv_permille, awake }),
        2 => Just(Signal::ScrapeSilent),
        2 => Just(Signal::ScrapeRefused),
        1 => Just(Signal::EngineHealthy),
        1 => Just(Signal::EngineUnhealthy),
        1 => Just(Signal::Asleep),
        1 => Just(Signal::Awake),
        2 => verdict.prop_map(Signal::Envoy),
        1 => Just(Signal::Came),
        1 => Just(Signal::Left),
    ]
}

/// Between two things that happen, in milliseconds: at once, within a rest, or long after.
fn pauses() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0..50_u64,
        3 => 50..1_500_u64,
        2 => 1_500..12_000_u64,
        1 => 12_000..700_000_u64,
    ]
}
