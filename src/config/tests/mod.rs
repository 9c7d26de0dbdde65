//! Configurations, parsed: what they mean, and what is said when they are wrong.

mod defaults;
mod discovery;
mod errors;
mod health;
mod models;
mod pool_errors;
mod values;

use super::*;

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

/// A table of what is wrong and what is said about it.
fn golden(cases: &[(&str, &str)]) {
    for (member, text) in cases {
        assert_eq!(error(member), *text, "{member}");
    }
}
