//! What a configuration means when nothing is said.

use super::*;
use crate::policy::{LoadKind, Preset, Thresholds};

#[test]
fn every_default() {
    let config = parse(&format!("{{{ONE}}}")).unwrap();
    assert_eq!(config.steering, SteeringMode::OriginalDst);
    assert_eq!(config.other_paths, OtherPaths::Pick);
    assert_eq!(config.explain.response_header, Toggle::Off);
    assert_eq!(config.explain.log_field, Toggle::Off);
    assert_eq!(config.responses.hold_headers, Toggle::Off);
    assert_eq!(config.scan.prefix_bytes, 1_024);
    assert_eq!(config.scan.key_fields, Vec::<String>::new());
    assert_eq!(config.tokens.bytes_per_token_milli, 4_000);
    assert_eq!(config.tokens.output_tokens, 256);
    assert_eq!(config.tokens.image_tokens, 1_024);
    assert_eq!(config.hold_max_bytes, 1_000_000);
    assert_eq!(config.watchdog_ms, 250);
    assert_eq!(config.scrape, None);
    assert_eq!(config.pools.len(), 1);
    let pool = &config.pools[0];
    assert_eq!(pool.name, "default");
    assert_eq!(pool.models, Vec::<String>::new());
    assert_eq!(pool.keys, []);
    assert_eq!(pool.policy, PolicySpec::ExpectedLatency);
    let endpoint = pool.pool.get(0).unwrap();
    assert_eq!(endpoint.name(), "10.0.0.1:8000");
    assert_eq!(endpoint.weight, 1);
    assert!(endpoint.models.is_empty() && endpoint.labels.is_empty());
}

#[test]
fn every_default_of_scraping() {
    let scrape = valid(r#""scrape": {"cluster": "engines"}"#).scrape.unwrap();
    assert_eq!(
        scrape,
        ScrapeConfig {
            cluster: "engines".into(),
            path: "/metrics".into(),
            interval_ms: 1_000,
            timeout_ms: 800,
            stale_after_ms: 5_000,
        }
    );
    // Both follow the interval.
    let often = valid(r#""scrape": {"cluster": "engines", "interval_ms": 200}"#);
    let often = often.scrape.unwrap();
    assert_eq!((often.timeout_ms, often.stale_after_ms), (200, 1_000));
    let seldom = valid(r#""scrape": {"cluster": "engines", "interval_ms": 30000}"#);
    let seldom = seldom.scrape.unwrap();
    assert_eq!((seldom.timeout_ms, seldom.stale_after_ms), (800, 150_000));
}

#[test]
fn every_default_of_the_policies() {
    let spec = |name: &str| policy(&format!(r#"{{"name": "{name}"}}"#)).unwrap().0;
    assert_eq!(spec("round_robin"), PolicySpec::RoundRobin);
    assert_eq!(spec("random"), PolicySpec::Random);
    assert_eq!(spec("weighted_round_robin"), PolicySpec::WeightedRoundRobin);
    assert_eq!(spec("least_request"), PolicySpec::LeastRequest);
    assert_eq!(
        spec("least_outstanding_tokens"),
        PolicySpec::LeastOutstandingTokens
    );
    assert_eq!(
        spec("power_of_two"),
        PolicySpec::PowerOfTwo {
            load: LoadKind::Tokens
        }
    );
    assert_eq!(
        policy(r#"{"name": "consistent_hash", "keys": [{"header": "X-Session-ID"}]}"#),
        Ok((
            PolicySpec::ConsistentHash { points: 128 },
            vec![KeySource::Header("x-session-id".into())]
        ))
    );
}

#[test]
fn the_index_grows_with_the_pools_that_ask_it() {
    let blocks = |asking: usize, others: usize| {
        let endpoints = |net: usize, count: usize| -> Vec<String> {
            let address = |host| format!(r#"{{"address": "10.{net}.{}.1:80"}}"#, host);
            (0..count).map(address).collect()
        };
        let (asking, others) = (
            endpoints(1, asking).join(","),
            endpoints(2, others).join(","),
        );
        let json = format!(
            r#"{{"pools": [
                {{"name": "a", "policy": {{"name": "expected_latency"}}, "endpoints": [{asking}]}},
                {{"name": "b", "models": ["b"], "policy": {{"name": "prefix_hash"}}, "endpoints": [{others}]}}]}}"#
        );
        parse(&json).unwrap().index_blocks
    };
    assert_eq!(
        [blocks(1, 9), blocks(8, 1), blocks(9, 200)],
        [262_144, 262_144, 294_912]
    );
    assert_eq!([blocks(32, 1), blocks(200, 1)], [1_048_576, 1_048_576]);
}

#[test]
fn a_preset_is_the_default_of_each_threshold() {
    let thresholds = |settings: &str| {
        let text = format!(
            r#"{{"policy": {{"name": "cache_aware"{settings}}}, "endpoints": [{{"address": "10.0.0.1:80"}}]}}"#
        );
        let config = Config::parse(text.as_bytes()).unwrap();
        assert_eq!(config.scan.max_blocks, crate::index::MAX_BLOCKS);
        match config.pools[0].policy {
            PolicySpec::CacheAware(thresholds) => thresholds,
            other => panic!("{other:?}"),
        }
    };
    let (vllm, ray) = (Preset::VllmRouter.thresholds(), Preset::Ray.thresholds());
    assert_eq!(thresholds(""), vllm);
    assert_eq!(thresholds(r#", "preset": "vllm_router""#), vllm);
    let sglang = Preset::SglangRouter;
    assert_eq!(
        thresholds(r#", "preset": "sglang_router""#),
        sglang.thresholds()
    );
    assert_eq!(thresholds(r#", "preset": "ray""#), ray);
    assert_eq!(
        thresholds(r#", "preset": "ray", "imbalance_requests": 0, "match_threshold": 0.25"#),
        Thresholds {
            imbalance_requests: 0,
            match_permille: 250,
            ..ray
        }
    );
    assert_eq!(
        thresholds(r#", "imbalance_ratio": 2"#).imbalance_ratio_permille,
        2_000
    );
}
