//! Policies of the configuration: which parameters go with which name, and where keys are found.

use super::values::{thousandths, whole};
use super::{ConfigError, KeySource, MAX_KEYS, MAX_POINTS, raw};
use crate::policy::{LoadKind, Measure, PolicySpec, Preset, Thresholds};

pub(super) fn policy_of(
    path: &str,
    raw: raw::Policy,
    fields: &mut Vec<String>,
) -> Result<(PolicySpec, Vec<KeySource>), ConfigError> {
    use raw::PolicyName as Name;
    let allowed: &[&str] = match raw.name {
        Name::PowerOfTwo => &["load"],
        Name::ConsistentHash => &["keys", "points"],
        Name::PrefixHash => &["load_factor", "bound", "points"],
        Name::CacheAware => &[
            "preset",
            "match_threshold",
            "imbalance_requests",
            "imbalance_ratio",
        ],
        _ => &[],
    };
    if let Some(key) = raw.given().into_iter().find(|key| !allowed.contains(key)) {
        let problem = match allowed {
            [] => format!("`{}` takes no parameters", raw.name.as_str()),
            keys => format!(
                "`{}` has no such parameter; it takes `{}`",
                raw.name.as_str(),
                keys.join("`, `")
            ),
        };
        return Err(ConfigError::new(format!("{path}.{key}"), problem));
    }
    let points = whole(&format!("{path}.points"), raw.points, 128, 1, MAX_POINTS)?;
    let mut keys = Vec::new();
    let spec = match raw.name {
        Name::RoundRobin => PolicySpec::RoundRobin,
        Name::Random => PolicySpec::Random,
        Name::WeightedRoundRobin => PolicySpec::WeightedRoundRobin,
        Name::LeastRequest => PolicySpec::LeastRequest,
        Name::ExpectedLatency => PolicySpec::ExpectedLatency,
        Name::CacheAware => PolicySpec::CacheAware(thresholds(path, &raw)?),
        Name::LeastOutstandingTokens => PolicySpec::LeastOutstandingTokens,
        Name::PowerOfTwo => PolicySpec::PowerOfTwo {
            load: match raw.load.unwrap_or(raw::LoadKind::Tokens) {
                raw::LoadKind::Requests => LoadKind::Requests,
                raw::LoadKind::Tokens => LoadKind::Tokens,
                raw::LoadKind::Kv => LoadKind::Kv,
                raw::LoadKind::ExpectedTime => LoadKind::ExpectedTime,
            },
        },
        Name::ConsistentHash => {
            keys = keys_of(&format!("{path}.keys"), raw.keys, fields)?;
            PolicySpec::ConsistentHash { points }
        }
        Name::PrefixHash => PolicySpec::PrefixHash {
            load_factor_permille: thousandths(
                &format!("{path}.load_factor"),
                raw.load_factor,
                1_250,
                1_000,
                100_000,
            )?,
            bound: match raw.bound.unwrap_or(raw::Measure::Tokens) {
                raw::Measure::Requests => Measure::Requests,
                raw::Measure::Tokens => Measure::Tokens,
                raw::Measure::ExpectedTime => Measure::ExpectedTime,
            },
            points,
        },
    };
    Ok((spec, keys))
}

/// Those of the preset, but for what is given.
fn thresholds(path: &str, raw: &raw::Policy) -> Result<Thresholds, ConfigError> {
    let at = |key: &str| [path, key].join(".");
    let preset = match raw.preset.as_deref() {
        None | Some("vllm_router") => Preset::VllmRouter,
        Some("sglang_router") => Preset::SglangRouter,
        Some("ray") => Preset::Ray,
        Some(other) => {
            let problem = format!(
                "unknown variant `{other}`, expected one of `vllm_router`, `sglang_router`, `ray`"
            );
            return Err(ConfigError::new(at("preset"), problem));
        }
    };
    let mut thresholds = preset.thresholds();
    let Thresholds {
        match_permille,
        imbalance_requests,
        imbalance_ratio_permille,
        ..
    } = &mut thresholds;
    *match_permille = thousandths(
        &at("match_threshold"),
        raw.match_threshold,
        *match_permille,
        0,
        1_000,
    )?;
    if raw.imbalance_requests.is_some() {
        let path = at("imbalance_requests");
        *imbalance_requests = whole(&path, raw.imbalance_requests, 0, 0, 1_000_000)?;
    }
    *imbalance_ratio_permille = thousandths(
        &at("imbalance_ratio"),
        raw.imbalance_ratio,
        *imbalance_ratio_permille,
        1_000,
        1_000_000,
    )?;
    Ok(thresholds)
}

// Called once; as a function of its own it makes the module larger.
#[inline(always)]
fn keys_of(
    path: &str,
    raw: Option<Vec<raw::Key>>,
    fields: &mut Vec<String>,
) -> Result<Vec<KeySource>, ConfigError> {
    let raw = raw.unwrap_or_default();
    if raw.is_empty() || raw.len() > MAX_KEYS {
        let problem = format!(
            "needs 1 to {MAX_KEYS} sources, such as [{{\"header\": \"x-session-id\"}}, {{\"body\": \"user\"}}]"
        );
        return Err(ConfigError::new(path, problem));
    }
    let mut keys = Vec::with_capacity(raw.len());
    for (index, source) in raw.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        keys.push(match (source.header, source.cookie, source.body) {
            (Some(name), None, None) if is_token(&name) => KeySource::Header(name.to_ascii_lowercase()),
            (None, Some(name), None) if is_token(&name) => KeySource::Cookie(name),
            (None, None, Some(field)) => KeySource::Body(field_index(&path, field, fields)?),
            _ => {
                let problem = "must be exactly one of {\"header\": NAME}, {\"cookie\": NAME}, {\"body\": FIELD}";
                return Err(ConfigError::new(path, problem));
            }
        });
    }
    Ok(keys)
}

/// Interns a body field, so that the scan looks for each field once however many pools want it.
fn field_index(path: &str, field: String, fields: &mut Vec<String>) -> Result<usize, ConfigError> {
    let steps = field.split('.').count();
    if steps > 4 || field.split('.').any(str::is_empty) {
        let problem = format!(
            "`{field}` must be a field of the body such as `user` or `metadata.session_id`, at most 4 deep"
        );
        return Err(ConfigError::new(format!("{path}.body"), problem));
    }
    if let Some(known) = fields.iter().position(|known| *known == field) {
        return Ok(known);
    }
    if fields.len() >= MAX_KEYS {
        return Err(ConfigError::new(
            format!("{path}.body"),
            format!("at most {MAX_KEYS} different body fields"),
        ));
    }
    fields.push(field);
    Ok(fields.len() - 1)
}

fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"()<>@,;\\\"/[]?={}".contains(&byte))
}
