//! What a configuration means when nothing is said, and what is said when it is wrong.

use super::*;
use crate::endpoint::Endpoint;
use crate::policy::{LoadKind, Measure, Preset, Thresholds};

const ONE: &str = r#""endpoints": [{"address": "10.0.0.1:8000"}]"#;

fn parse(json: &str) -> Result<Config, ConfigError> {
    Config::parse(json.as_bytes())
}

/// A configuration that is valid but for `member`.
fn with(member: &str) -> Result<Config, ConfigError> {
    parse(&format!("{{{ONE}, {member}}}"))
}

fn valid(member: &str) -> Config {
    with(member).unwrap()
}

fn error(member: &str) -> String {
    with(member).unwrap_err().to_string()
}

fn error_of(json: &str) -> String {
    parse(json).unwrap_err().to_string()
}

/// One pool with this policy.
fn policy(policy: &str) -> Result<(PolicySpec, Vec<KeySource>), String> {
    let mut config = with(&format!(r#""policy": {policy}"#)).map_err(|error| error.to_string())?;
    let pool = config.pools.remove(0);
    Ok((pool.policy, pool.keys))
}

#[test]
fn every_default() {
    let config = parse(&format!("{{{ONE}}}")).unwrap();
    assert_eq!(config.steering, SteeringMode::OriginalDst);
    assert_eq!(config.other_paths, OtherPaths::Pick);
    assert_eq!(config.explain.response_header, Toggle::Off);
    assert_eq!(config.explain.log_field, Toggle::Off);
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

/// A table of what is wrong and what is said about it.
fn golden(cases: &[(&str, &str)]) {
    for (member, text) in cases {
        assert_eq!(error(member), *text, "{member}");
    }
}

#[test]
fn errors_of_notation() {
    for (json, text) in [
        (
            "",
            "endpoints: missing: give `endpoints` (one pool) or `pools`",
        ),
        (
            " \n",
            "endpoints: missing: give `endpoints` (one pool) or `pools`",
        ),
        (
            "{}",
            "endpoints: missing: give `endpoints` (one pool) or `pools`",
        ),
        ("{", ".: EOF while parsing an object at line 1 column 1"),
        (
            r#"{"endpoints": [{"address": "10.0.0.1:1"}], "hold": {"max_b"#,
            "hold: EOF while parsing a string at line 1 column 58",
        ),
        ("nonsense", ".: expected ident at line 1 column 2"),
        (
            "[]",
            ".: invalid length 1, expected struct Config with 11 elements at line 1 column 2",
        ),
        (
            r#"{"endpoints": [{"address": "10.0.0.1:1"}]} x"#,
            ".: trailing characters at line 1 column 44",
        ),
        (
            r#"{"endpoints": [{"address": "10.0.0.1:1"}], "endpoints": []}"#,
            ".: duplicate field `endpoints` at line 1 column 54",
        ),
    ] {
        assert_eq!(error_of(json), text, "{json}");
    }
}

#[test]
fn errors_of_unknown_keys_name_the_known_ones() {
    golden(&[
        (
            r#""polices": {}"#,
            "polices: unknown field `polices`, expected one of `steering`, `policy`, `endpoints`, `pools`, `prefix`, `index`, `tokens`, `hold`, `scrape`, `explain`, `other_paths` at line 1 column 55",
        ),
        (
            r#""hold": {"max_byte": 1}"#,
            "hold.max_byte: unknown field `max_byte`, expected `max_bytes` or `watchdog_ms` at line 1 column 65",
        ),
    ]);
    assert_eq!(
        error_of(r#"{"endpoints": [{"adress": "10.0.0.1:8000"}]}"#),
        "endpoints[0].adress: unknown field `adress`, expected one of `address`, `weight`, `models`, `labels` at line 1 column 24"
    );
}

#[test]
fn errors_of_types_and_names() {
    golden(&[
        (
            r#""steering": "header""#,
            "steering: unknown variant `header`, expected one of `original_dst`, `filter_state`, `override_host` at line 1 column 66",
        ),
        (
            r#""other_paths": "drop""#,
            "other_paths: unknown variant `drop`, expected `pick` or `pass` at line 1 column 67",
        ),
        (
            r#""policy": {"name": "fastest"}"#,
            "policy.name: unknown variant `fastest`, expected one of `round_robin`, `random`, `weighted_round_robin`, `least_request`, `least_outstanding_tokens`, `power_of_two`, `consistent_hash`, `prefix_hash`, `expected_latency`, `cache_aware` at line 1 column 74",
        ),
        (
            r#""policy": {"load": "kv"}"#,
            "policy: missing field `name` at line 1 column 70",
        ),
        (
            r#""policy": {"name": "power_of_two", "load": "gpu"}"#,
            "policy.load: unknown variant `gpu`, expected one of `requests`, `tokens`, `kv`, `expected_time` at line 1 column 94",
        ),
        (
            r#""policy": {"name": "prefix_hash", "bound": "kv"}"#,
            "policy.bound: unknown variant `kv`, expected one of `requests`, `tokens`, `expected_time` at line 1 column 93",
        ),
        (
            r#""hold": {"watchdog_ms": "250"}"#,
            "hold.watchdog_ms: invalid type: string \"250\", expected a whole number, not negative at line 1 column 75",
        ),
        (
            r#""hold": {"watchdog_ms": 2.5}"#,
            "hold.watchdog_ms: invalid value: floating point `2.5`, expected a whole number, not negative at line 1 column 73",
        ),
        (
            r#""hold": {"watchdog_ms": -1}"#,
            "hold.watchdog_ms: invalid type: integer `-1`, expected a whole number, not negative at line 1 column 72",
        ),
        (
            r#""explain": {"log_field": "yes"}"#,
            "explain.log_field: invalid type: string \"yes\", expected a boolean at line 1 column 76",
        ),
        (
            r#""scrape": {}"#,
            "scrape: missing field `cluster` at line 1 column 58",
        ),
    ]);
}

#[test]
fn errors_of_ranges_name_the_range() {
    golden(&[
        (
            r#""prefix": {"bytes": 0}"#,
            "prefix.bytes: must be between 1 and 1048576, not 0",
        ),
        (
            r#""index": {"max_blocks": 4194305}"#,
            "index.max_blocks: must be between 1024 and 4194304, not 4194305",
        ),
        (
            r#""tokens": {"bytes_per_token": 0.05}"#,
            "tokens.bytes_per_token: must be between 0.1 and 100, not 0.05",
        ),
        (
            r#""tokens": {"output_tokens": 0}"#,
            "tokens.output_tokens: must be between 1 and 16777216, not 0",
        ),
        (
            r#""tokens": {"image_tokens": 16777217}"#,
            "tokens.image_tokens: must be between 0 and 16777216, not 16777217",
        ),
        (
            r#""hold": {"max_bytes": 99999999999}"#,
            "hold.max_bytes: must be between 1 and 1073741824, not 99999999999",
        ),
        (
            r#""hold": {"watchdog_ms": 60001}"#,
            "hold.watchdog_ms: must be between 1 and 60000, not 60001",
        ),
        (
            r#""policy": {"name": "prefix_hash", "load_factor": 0.9}"#,
            "policy.load_factor: must be between 1 and 100, not 0.9",
        ),
        (
            r#""policy": {"name": "prefix_hash", "points": 4097}"#,
            "policy.points: must be between 1 and 4096, not 4097",
        ),
        (
            r#""policy": {"name": "cache_aware", "match_threshold": 1.1}"#,
            "policy.match_threshold: must be between 0 and 1, not 1.1",
        ),
        (
            r#""policy": {"name": "cache_aware", "imbalance_ratio": 0.5}"#,
            "policy.imbalance_ratio: must be between 1 and 1000, not 0.5",
        ),
        (
            r#""policy": {"name": "cache_aware", "preset": "ray", "imbalance_requests": 1000001}"#,
            "policy.imbalance_requests: must be between 0 and 1000000, not 1000001",
        ),
    ]);
}

#[test]
fn errors_of_policy_parameters() {
    golden(&[
        (
            r#""policy": {"name": "round_robin", "points": 1}"#,
            "policy.points: `round_robin` takes no parameters",
        ),
        (
            r#""policy": {"name": "power_of_two", "keys": []}"#,
            "policy.keys: `power_of_two` has no such parameter; it takes `load`",
        ),
        (
            r#""policy": {"name": "consistent_hash", "load": "kv"}"#,
            "policy.load: `consistent_hash` has no such parameter; it takes `keys`, `points`",
        ),
        (
            r#""policy": {"name": "prefix_hash", "load": "kv"}"#,
            "policy.load: `prefix_hash` has no such parameter; it takes `load_factor`, `bound`, `points`",
        ),
        (
            r#""policy": {"name": "prefix_hash", "preset": "ray"}"#,
            "policy.preset: `prefix_hash` has no such parameter; it takes `load_factor`, `bound`, `points`",
        ),
        (
            r#""policy": {"name": "cache_aware", "bound": "tokens"}"#,
            "policy.bound: `cache_aware` has no such parameter; it takes `preset`, `match_threshold`, `imbalance_requests`, `imbalance_ratio`",
        ),
        (
            r#""policy": {"name": "consistent_hash"}"#,
            "policy.keys: needs 1 to 8 sources, such as [{\"header\": \"x-session-id\"}, {\"body\": \"user\"}]",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"header": "a", "cookie": "b"}]}"#,
            "policy.keys[0]: must be exactly one of {\"header\": NAME}, {\"cookie\": NAME}, {\"body\": FIELD}",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"body": "user"}, {"header": "a b"}]}"#,
            "policy.keys[1]: must be exactly one of {\"header\": NAME}, {\"cookie\": NAME}, {\"body\": FIELD}",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"body": "a.b.c.d.e"}]}"#,
            "policy.keys[0].body: `a.b.c.d.e` must be a field of the body such as `user` or `metadata.session_id`, at most 4 deep",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"body": "a..b"}]}"#,
            "policy.keys[0].body: `a..b` must be a field of the body such as `user` or `metadata.session_id`, at most 4 deep",
        ),
    ]);
    let sources = r#"{"body": "user"},"#.repeat(8) + r#"{"body": "user"}"#;
    assert_eq!(
        policy(&format!(
            r#"{{"name": "consistent_hash", "keys": [{sources}]}}"#
        )),
        Err("policy.keys: needs 1 to 8 sources, such as [{\"header\": \"x-session-id\"}, {\"body\": \"user\"}]".into())
    );
}

#[test]
fn body_fields_are_limited_over_all_pools() {
    let pool = |name: &str, fields: std::ops::Range<u32>| {
        let keys: Vec<String> = fields.map(|n| format!(r#"{{"body": "f{n}"}}"#)).collect();
        format!(
            r#"{{"name": "{name}", "endpoints": [{{"address": "10.0.0.1:1"}}],
                "policy": {{"name": "consistent_hash", "keys": [{}]}}}}"#,
            keys.join(",")
        )
    };
    // Eight different ones, one of them named twice.
    let eight = format!(r#"{{"pools": [{}, {}]}}"#, pool("a", 0..5), pool("b", 4..8));
    assert_eq!(parse(&eight).unwrap().scan.key_fields.len(), 8);
    let nine = format!(r#"{{"pools": [{}, {}]}}"#, pool("a", 0..5), pool("b", 5..9));
    assert_eq!(
        error_of(&nine),
        "pools[1].policy.keys[3].body: at most 8 different body fields"
    );
}

#[test]
fn errors_of_endpoints() {
    let address =
        |address: &str| error_of(&format!(r#"{{"endpoints": [{{"address": "{address}"}}]}}"#));
    for host in [
        "vllm.default:8000",
        "10.0.0.1",
        "::1:8000",
        "",
        "10.0.0.1:70000",
    ] {
        assert_eq!(
            address(host),
            format!(
                "endpoints[0].address: `{host}` is not IP:port (IPv6 in brackets, as [::1]:8000; no host names)"
            )
        );
    }
    for nowhere in ["10.0.0.1:0", "0.0.0.0:80", "[::]:80"] {
        assert_eq!(
            address(nowhere),
            format!("endpoints[0].address: `{nowhere}` can't be connected to")
        );
    }
    assert_eq!(
        error_of(
            r#"{"endpoints": [{"address": "10.0.0.1:1"}, {"address": "10.0.0.2:1", "weight": 0}]}"#
        ),
        "endpoints[1].weight: must be between 1 and 10000, not 0"
    );
    assert_eq!(
        error_of(r#"{"endpoints": []}"#),
        "endpoints: must name at least one endpoint"
    );
}

#[test]
fn errors_of_pools() {
    let endpoints = r#""endpoints": [{"address": "10.0.0.1:1"}]"#;
    let pools = |list: &str| error_of(&format!(r#"{{"pools": [{list}]}}"#));
    assert_eq!(
        error(r#""pools": []"#),
        "pools: give either `endpoints` (one pool) or `pools`, not both"
    );
    assert_eq!(pools(""), "pools: must hold between 1 and 64 pools");
    let many: Vec<String> = (0..65)
        .map(|n| format!(r#"{{"name": "p{n}", {endpoints}}}"#))
        .collect();
    assert_eq!(
        pools(&many.join(",")),
        "pools: must hold between 1 and 64 pools"
    );
    assert_eq!(
        pools(&format!(r#"{{"name": "", {endpoints}}}"#)),
        "pools[0].name: must be unique and not empty"
    );
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", {endpoints}}}, {{"name": "a", {endpoints}}}"#
        )),
        "pools[1].name: must be unique and not empty"
    );
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", "models": ["m"], {endpoints}}}, {{"name": "b", "models": ["n", "m"], {endpoints}}}"#
        )),
        "pools[1].models[1]: model `m` already belongs to another pool"
    );
    assert_eq!(
        pools(r#"{"name": "a", "endpoints": []}"#),
        "pools[0].endpoints: must name at least one endpoint"
    );
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", "policy": {{"name": "random", "load": "kv"}}, {endpoints}}}"#
        )),
        "pools[0].policy.load: `random` takes no parameters"
    );
}

#[test]
fn endpoints_are_limited_over_all_pools() {
    let endpoints = |count: u32| {
        let list: Vec<String> = (0..count)
            .map(|n| format!(r#"{{"address": "10.0.{}.{}:80"}}"#, n / 256, n % 256))
            .collect();
        list.join(",")
    };
    let most = parse(&format!(r#"{{"endpoints": [{}]}}"#, endpoints(1_024))).unwrap();
    assert_eq!(most.pools[0].pool.len(), MAX_ENDPOINTS);
    assert_eq!(
        error_of(&format!(r#"{{"endpoints": [{}]}}"#, endpoints(1_025))),
        "pools: 1025 endpoints; at most 1024 are allowed"
    );
}

#[test]
fn errors_of_scraping() {
    golden(&[
        (
            r#""scrape": {"cluster": ""}"#,
            "scrape.cluster: must name an Envoy cluster",
        ),
        (
            r#""scrape": {"cluster": "c", "path": "metrics"}"#,
            "scrape.path: `metrics` must be a path that starts with `/`",
        ),
        (
            r#""scrape": {"cluster": "c", "path": "/a b"}"#,
            "scrape.path: `/a b` must be a path that starts with `/`",
        ),
        (
            r#""scrape": {"cluster": "c", "interval_ms": 99}"#,
            "scrape.interval_ms: must be between 100 and 3600000, not 99",
        ),
        (
            r#""scrape": {"cluster": "c", "timeout_ms": 9}"#,
            "scrape.timeout_ms: must be between 10 and 60000, not 9",
        ),
        (
            r#""scrape": {"cluster": "c", "stale_after_ms": 99}"#,
            "scrape.stale_after_ms: must be between 100 and 4294967295, not 99",
        ),
        (
            r#""scrape": {"cluster": "c", "interval_ms": 2000, "stale_after_ms": 1999}"#,
            "scrape.stale_after_ms: must not be below scrape.interval_ms (2000)",
        ),
    ]);
}

#[test]
fn bad_utf8_is_an_error_like_any_other() {
    assert_eq!(
        Config::parse(b"{\"steering\": \"\xff\"}")
            .unwrap_err()
            .to_string(),
        "steering: invalid unicode code point at line 1 column 15"
    );
}
