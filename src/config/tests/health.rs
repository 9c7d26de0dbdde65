//! The key `health`.

use super::*;
use crate::health::Settings;

const SCRAPE: &str = r#""scrape": {"cluster": "engines"}"#;

#[test]
fn health_is_on_and_asks_where_engines_are_scraped() {
    let alone = parse(&format!("{{{ONE}}}")).unwrap().health;
    let configuration = alone.settings.configuration;
    assert_eq!(
        alone.settings,
        Settings {
            configuration,
            ..Settings::default()
        }
    );
    assert_eq!((alone.path, alone.sleep_path), (None, None));
    let scraped = valid(SCRAPE).health;
    // Another text is another configuration.
    assert_ne!(scraped.settings.configuration, configuration);
    let expected = HealthConfig {
        settings: Settings {
            scraped_ms: Some(5_000),
            configuration: scraped.settings.configuration,
            ..Settings::default()
        },
        path: Some("/health".into()),
        sleep_path: None,
    };
    assert_eq!(scraped, expected);
    // What is asked for seldom counts until it was asked for again.
    let seldom = valid(
        r#""scrape": {"cluster": "c", "interval_ms": 3000, "timeout_ms": 700, "stale_after_ms": 3000}"#,
    );
    assert_eq!(seldom.health.settings.scraped_ms, Some(6_700));
    let silent = valid(&format!(r#"{SCRAPE}, "health": {{"path": ""}}"#));
    assert_eq!(silent.health.path, None);
    // The longest rest is never below the first.
    let long = valid(r#""health": {"rest_ms": 90000}"#).health.settings;
    assert_eq!((long.rest_ms, long.max_rest_ms), (90_000, 90_000));
}

#[test]
fn every_key_of_health() {
    let health = r#""health": {"failures": 5, "rest_ms": 200, "max_rest_ms": 3000, "path": "/ping",
        "sleep_path": "/is_sleeping", "kv_full": 0.9, "kv_full_ms": 0}"#;
    let health = valid(&format!("{SCRAPE}, {health}")).health;
    let expected = HealthConfig {
        settings: Settings {
            failures: 5,
            rest_ms: 200,
            max_rest_ms: 3_000,
            kv_full_permille: 900,
            kv_full_ms: 0,
            scraped_ms: Some(5_000),
            configuration: health.settings.configuration,
        },
        path: Some("/ping".into()),
        sleep_path: Some("/is_sleeping".into()),
    };
    assert_eq!(health, expected);
}

#[test]
fn errors_of_health() {
    golden(&[
        (
            r#""health": {"failures": 0}"#,
            "health.failures: must be between 1 and 1000000, not 0",
        ),
        (
            r#""health": {"rest_ms": 2000, "max_rest_ms": 1000}"#,
            "health.max_rest_ms: must be between 2000 and 3600000, not 1000",
        ),
        (
            r#""health": {"kv_full": 1.1}"#,
            "health.kv_full: must be between 0.001 and 1, not 1.1",
        ),
        (
            r#""health": {"sleep_path": "/is_sleeping"}"#,
            "health.sleep_path: needs `scrape`, by whose cluster engines are asked",
        ),
        (
            r#""health": {"path": "/health"}"#,
            "health.path: needs `scrape`, by whose cluster engines are asked",
        ),
        (
            r#""scrape": {"cluster": "engines"}, "health": {"path": "health"}"#,
            "health.path: `health` must be a path that starts with `/`",
        ),
    ]);
}
