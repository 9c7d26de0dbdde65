//! The arithmetic of bounds, the turns, and whole rankings.

use warmroute::endpoint::{Endpoint, Pool};
use warmroute::policy::{
    self, Candidate, Load, LoadKind, Measure, PolicySpec, Preset, Ranking, Reason, View, bound,
    smooth_schedule,
};
use warmroute::rates::Pace;
use wasm_bindgen_test::wasm_bindgen_test;

#[wasm_bindgen_test(unsupported = test)]
fn bounds_are_exact() {
    assert_eq!(bound(1250, 1, 300, 149, 1), 1);
    assert_eq!(bound(1250, 1, 8, 63, 1), 10);
    assert_eq!(bound(1250, 1, 8, 64, 1), 11);
    assert_eq!(bound(1250, 3, 4, 0, 1000), 938);
    assert_eq!(bound(1000, 2, 3, 1 << 62, 5), 3_074_457_345_618_258_606);
    assert_eq!(bound(u32::MAX, u64::MAX, 1, u128::MAX, u64::MAX), u64::MAX);
}

#[wasm_bindgen_test(unsupported = test)]
fn turns_are_smooth() {
    assert_eq!(smooth_schedule(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
    assert_eq!(smooth_schedule(&[1_000_000_000, 2_000_000_000]), [1, 0, 1]);
}

/// A prompt of so many blocks.
fn rank_prompt(spec: PolicySpec, key: Option<u64>, blocks: usize) -> Ranking {
    let endpoints =
        (1..=6).map(|number| Endpoint::new(format!("10.0.0.{number}:8000").parse().unwrap()));
    let pool = Pool::new(endpoints.collect());
    let loads = [(3, 900), (1, 5000), (2, 100), (2, 100), (4, 0), (1, 4000)];
    let candidates: Vec<Candidate> = loads
        .iter()
        .zip(0..)
        .map(|(&(requests, prefill_tokens), endpoint)| Candidate {
            endpoint,
            weight: 1 + endpoint % 2,
            load: Load {
                requests,
                prefill_tokens,
                decode_tokens: 50,
                ..Load::default()
            },
            kv_usage_permille: 100 * endpoint,
            matched_blocks: [0, 9, 9, 2, 0, 0]
                .get(endpoint as usize)
                .copied()
                .unwrap_or(0),
            given_blocks: 100 * (endpoint % 3),
            pace: Pace {
                first_us: 10_000 * (1 + endpoint),
                ..Pace::default()
            },
            ..Candidate::default()
        })
        .collect();
    let view = View {
        pool: &pool,
        candidates: &candidates,
        key,
        cost: Load {
            requests: 1,
            prefill_tokens: 700,
            decode_tokens: 100,
            ..Load::default()
        },
        blocks: &vec![1; blocks],
        sequence: (1 << 40) + 5,
        random: 0x0123_4567_89ab_cdef,
    };
    policy::build(&spec, &pool).rank(&view).unwrap()
}

fn rank(spec: PolicySpec, key: Option<u64>) -> Ranking {
    rank_prompt(spec, key, 0)
}

fn ranking(endpoints: [u32; 3], reason: Reason, bound: u64) -> Ranking {
    Ranking {
        endpoints: endpoints.to_vec(),
        reason,
        bound,
        costs_us: Vec::new(),
    }
}

#[wasm_bindgen_test(unsupported = test)]
fn rankings_of_every_policy() {
    let key = Some(0xc8f6_9e44_9c3d_c2a0);
    let by = |bound| PolicySpec::PrefixHash {
        load_factor_permille: 1250,
        bound,
        points: 128,
    };
    let two = |load| PolicySpec::PowerOfTwo { load };
    let cases = [
        (
            PolicySpec::RoundRobin,
            key,
            ranking([3, 4, 5], Reason::Turn, 0),
        ),
        (
            PolicySpec::WeightedRoundRobin,
            key,
            ranking([0, 2, 4], Reason::Turn, 0),
        ),
        (
            PolicySpec::Random,
            key,
            ranking([5, 1, 2], Reason::Random, 0),
        ),
        (
            PolicySpec::LeastRequest,
            key,
            ranking([5, 1, 3], Reason::LeastLoaded, 0),
        ),
        (
            PolicySpec::LeastOutstandingTokens,
            key,
            ranking([4, 3, 2], Reason::LeastLoaded, 0),
        ),
        (
            two(LoadKind::Requests),
            key,
            ranking([5, 0, 4], Reason::LessLoadedOfTwo, 0),
        ),
        (
            two(LoadKind::Tokens),
            key,
            ranking([0, 5, 4], Reason::LessLoadedOfTwo, 0),
        ),
        (
            two(LoadKind::Kv),
            key,
            ranking([0, 5, 4], Reason::LessLoadedOfTwo, 0),
        ),
        (
            PolicySpec::ConsistentHash { points: 128 },
            key,
            ranking([0, 3, 2], Reason::Home, 0),
        ),
        (
            PolicySpec::ConsistentHash { points: 128 },
            None,
            ranking([4, 3, 2], Reason::NoKey, 0),
        ),
        (
            by(Measure::Requests),
            key,
            ranking([3, 1, 5], Reason::Overflow, 4),
        ),
        (
            by(Measure::Tokens),
            key,
            ranking([0, 3, 2], Reason::Home, 1556),
        ),
        (
            two(LoadKind::ExpectedTime),
            key,
            ranking([0, 5, 4], Reason::LessLoadedOfTwo, 0),
        ),
        (
            by(Measure::ExpectedTime),
            None,
            ranking([4, 3, 2], Reason::NoKey, 0),
        ),
        (
            by(Measure::Requests),
            None,
            ranking([5, 1, 3], Reason::NoKey, 0),
        ),
        (
            by(Measure::Tokens),
            None,
            ranking([4, 3, 2], Reason::NoKey, 0),
        ),
    ];
    let wrong: Vec<String> = cases
        .into_iter()
        .map(|(spec, key, expected)| (spec, rank(spec, key), expected))
        .filter(|(_, ranked, expected)| ranked != expected)
        .map(|(spec, ranked, _)| format!("{spec:?}: {ranked:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[wasm_bindgen_test(unsupported = test)]
fn rankings_in_time_and_by_match() {
    let by_time = PolicySpec::PrefixHash {
        load_factor_permille: 1250,
        bound: Measure::ExpectedTime,
        points: 128,
    };
    let bounded = Ranking {
        costs_us: vec![162_500, 675_000, 62_500, 62_500, 50_000, 550_000],
        ..ranking([0, 3, 2], Reason::Home, 364_584)
    };
    assert_eq!(rank(by_time, Some(0xc8f6_9e44_9c3d_c2a0)), bounded);
    let aware = |preset: Preset, blocks| {
        let spec = PolicySpec::CacheAware(preset.thresholds());
        let ranked = rank_prompt(spec, None, blocks);
        (ranked.endpoints, ranked.reason)
    };
    // 9 blocks are more than 0.3 of 29, just 0.3 of 30, and just 0.1 of 90.
    let warm = (vec![1, 2, 3], Reason::LongestMatch);
    assert_eq!(aware(Preset::VllmRouter, 29), warm);
    let idle = (vec![5, 1, 3], Reason::NoMatch);
    assert_eq!(aware(Preset::VllmRouter, 30), idle);
    let empty = (vec![3, 0, 1], Reason::NoMatch);
    assert_eq!(aware(Preset::SglangRouter, 30), empty);
    assert_eq!(aware(Preset::Ray, 90), warm);
    assert_eq!(aware(Preset::Ray, 91), empty);
}
