//! What a configuration means that says something.

use super::*;
use crate::endpoint::Endpoint;
use crate::policy::{LoadKind, Measure};

#[test]
fn everything_that_can_be_said() {
    let config = parse(
        r#"{
          "steering": "override_host",
          "policy": {"name": "power_of_two", "load": "kv"},
          "pools": [
            {"name": "llama", "models": ["llama-8b", "lora-a"],
             "policy": {"name": "consistent_hash", "points": 7, "keys": [
               {"cookie": "sid"}, {"body": "user"}, {"body": "metadata.session"}]},
             "endpoints": [
               {"address": "[2001:db8::1]:8000", "weight": 3, "models": ["llama-8b"], "labels": {"zone": "a"}},
               {"address": "10.0.0.2:8000"}]},
            {"name": "rest", "endpoints": [{"address": "10.0.0.3:8000"}]},
            {"name": "hash", "models": ["m"], "endpoints": [{"address": "10.0.0.3:8000"}],
             "policy": {"name": "prefix_hash", "load_factor": 1.5, "bound": "requests", "points": 9}}
          ],
          "prefix": {"bytes": 2048},
          "index": {"max_blocks": 5000},
          "tokens": {"bytes_per_token": 3.25, "output_tokens": 100, "image_tokens": 0},
          "hold": {"max_bytes": 65536, "watchdog_ms": 50},
          "scrape": {"cluster": "c", "path": "/m", "interval_ms": 500, "timeout_ms": 400, "stale_after_ms": 600},
          "explain": {"response_header": true, "log_field": true},
          "responses": {"hold_headers": true},
          "other_paths": "pass"
        }"#,
    )
    .unwrap();
    assert_eq!(config.steering, SteeringMode::OverrideHost);
    assert_eq!(config.scan.prefix_bytes, 2_048);
    assert_eq!(config.index_blocks, 5_000);
    assert_eq!(config.scan.key_fields, ["user", "metadata.session"]);
    assert_eq!(config.tokens.bytes_per_token_milli, 3_250);
    assert_eq!(config.tokens.output_tokens, 100);
    assert_eq!(config.tokens.image_tokens, 0);
    assert_eq!((config.hold_max_bytes, config.watchdog_ms), (65_536, 50));
    let scrape = config.scrape.unwrap();
    assert_eq!((scrape.cluster.as_str(), scrape.path.as_str()), ("c", "/m"));
    assert_eq!(
        (scrape.interval_ms, scrape.timeout_ms, scrape.stale_after_ms),
        (500, 400, 600)
    );
    assert_eq!(config.explain.response_header, Toggle::On);
    assert_eq!(config.explain.log_field, Toggle::On);
    assert_eq!(config.responses.hold_headers, Toggle::On);
    assert_eq!(config.other_paths, OtherPaths::Pass);

    let [llama, rest, hash] = config.pools.as_slice() else {
        panic!("{} pools", config.pools.len())
    };
    assert_eq!(llama.models, ["llama-8b", "lora-a"]);
    assert_eq!(llama.policy, PolicySpec::ConsistentHash { points: 7 });
    assert_eq!(
        llama.keys,
        [
            KeySource::Cookie("sid".into()),
            KeySource::Body(0),
            KeySource::Body(1)
        ]
    );
    let names: Vec<&str> = llama.pool.endpoints().iter().map(Endpoint::name).collect();
    assert_eq!(names, ["10.0.0.2:8000", "[2001:db8::1]:8000"]);
    let weighted = llama.pool.get(1).unwrap();
    assert_eq!(weighted.weight, 3);
    assert_eq!(weighted.models, ["llama-8b"]);
    assert_eq!(weighted.labels.get("zone").map(String::as_str), Some("a"));
    // A pool without a policy of its own has the default one.
    let two = PolicySpec::PowerOfTwo { load: LoadKind::Kv };
    assert_eq!((rest.name.as_str(), rest.policy), ("rest", two));
    assert_eq!(
        hash.policy,
        PolicySpec::PrefixHash {
            load_factor_permille: 1_500,
            bound: Measure::Requests,
            points: 9
        }
    );
}

#[test]
fn loads_and_bounds_may_be_in_time() {
    let policy = |policy: &str| {
        let text =
            format!(r#"{{"policy": {policy}, "endpoints": [{{"address": "10.0.0.1:80"}}]}}"#);
        Config::parse(text.as_bytes()).unwrap().pools[0].policy
    };
    assert_eq!(
        policy(r#"{"name": "power_of_two", "load": "expected_time"}"#),
        PolicySpec::PowerOfTwo {
            load: LoadKind::ExpectedTime
        }
    );
    assert_eq!(
        policy(r#"{"name": "prefix_hash", "bound": "expected_time"}"#),
        PolicySpec::PrefixHash {
            load_factor_permille: 1_250,
            bound: Measure::ExpectedTime,
            points: 128
        }
    );
}

#[test]
fn whole_numbers_may_be_written_as_protobuf_writes_them() {
    let config = valid(r#""hold": {"max_bytes": 65536.0, "watchdog_ms": 5e1}"#);
    assert_eq!((config.hold_max_bytes, config.watchdog_ms), (65_536, 50));
}

#[test]
fn limits_are_inclusive() {
    let low = valid(r#""hold": {"max_bytes": 1, "watchdog_ms": 1}, "prefix": {"bytes": 1}"#);
    assert_eq!(
        (low.hold_max_bytes, low.watchdog_ms, low.scan.prefix_bytes),
        (1, 1, 1)
    );
    let high = valid(
        r#""hold": {"max_bytes": 1073741824, "watchdog_ms": 60000}, "prefix": {"bytes": 1048576}"#,
    );
    assert_eq!(
        (
            high.hold_max_bytes,
            high.watchdog_ms,
            high.scan.prefix_bytes
        ),
        (1 << 30, 60_000, 1 << 20)
    );
}

#[test]
fn an_address_given_twice_is_one_endpoint() {
    let config = parse(
        r#"{"endpoints": [
          {"address": "10.0.0.1:8000", "weight": 2}, {"address": "10.0.0.1:8000", "weight": 5}]}"#,
    )
    .unwrap();
    assert_eq!(config.pools[0].pool.len(), 1);
    assert_eq!(config.pools[0].pool.get(0).unwrap().weight, 2);
}

#[test]
fn the_fingerprint_is_that_of_the_text() {
    let text = format!("{{{ONE}}}");
    let one = parse(&text).unwrap().fingerprint;
    assert_eq!(one, parse(&text).unwrap().fingerprint);
    assert_ne!(one, parse(&format!("{text} ")).unwrap().fingerprint);
}
