//! What is said of wrong notation, keys, types, ranges, and scraping.

use super::*;

#[test]
fn errors_of_notation() {
    for (json, text) in [
        (
            "",
            "endpoints: missing: give `endpoints` or `clusters` (one pool), or `pools`",
        ),
        (
            " \n",
            "endpoints: missing: give `endpoints` or `clusters` (one pool), or `pools`",
        ),
        (
            "{}",
            "endpoints: missing: give `endpoints` or `clusters` (one pool), or `pools`",
        ),
        ("{", ".: EOF while parsing an object at line 1 column 1"),
        (
            r#"{"endpoints": [{"address": "10.0.0.1:1"}], "hold": {"max_b"#,
            "hold: EOF while parsing a string at line 1 column 58",
        ),
        ("nonsense", ".: expected ident at line 1 column 2"),
        (
            "[]",
            ".: invalid length 1, expected struct Config with 17 elements at line 1 column 2",
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
fn bad_utf8_is_an_error_like_any_other() {
    assert_eq!(
        Config::parse(b"{\"steering\": \"\xff\"}")
            .unwrap_err()
            .to_string(),
        "steering: invalid unicode code point at line 1 column 15"
    );
}

#[test]
fn errors_of_unknown_keys_name_the_known_ones() {
    golden(&[
        (
            r#""polices": {}"#,
            "polices: unknown field `polices`, expected one of `steering`, `policy`, `endpoints`, `clusters`, `pools`, `discovery`, `prefix`, `index`, `tokens`, `hold`, `scrape`, `models`, `saturation`, `health`, `explain`, `responses`, `other_paths` at line 1 column 55",
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
            "steering: unknown variant `header`, expected one of `original_dst`, `filter_state`, `override_host`, `composite` at line 1 column 66",
        ),
        (
            r#""responses": {"hold_headers": 1}"#,
            "responses.hold_headers: invalid type: integer `1`, expected a boolean at line 1 column 77",
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
    for (path, value, range) in [
        ("prefix.bytes", "0", "1 and 1048576"),
        ("index.max_blocks", "4194305", "1024 and 4194304"),
        ("tokens.bytes_per_token", "0.05", "0.1 and 100"),
        ("tokens.output_tokens", "0", "1 and 16777216"),
        ("tokens.image_tokens", "16777217", "0 and 16777216"),
        ("hold.max_bytes", "99999999999", "1 and 1073741824"),
        ("hold.watchdog_ms", "60001", "1 and 60000"),
    ] {
        let (object, key) = path.split_once('.').unwrap();
        assert_eq!(
            error(&format!(r#""{object}": {{"{key}": {value}}}"#)),
            format!("{path}: must be between {range}, not {value}")
        );
    }
    golden(&[
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
fn a_limit_on_the_kv_cache_needs_scraping() {
    let limit = r#""saturation": {"max_kv": 0.9}"#;
    assert_eq!(
        error(limit),
        "saturation.max_kv: needs `scrape`, by which it is known"
    );
    let scraped = valid(&format!(r#"{limit}, "scrape": {{"cluster": "c"}}"#));
    assert_eq!(scraped.saturation.unwrap().max_kv_permille, Some(900));
    let others = valid(r#""saturation": {"max_requests": 9}"#);
    assert_eq!(others.saturation.unwrap().max_kv_permille, None);
}
