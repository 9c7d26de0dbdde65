//! What is valid and yet goes wrong with the clusters that carry the requests: limits for a fleet that are meant
//! for a server, and an outlier detection that takes a full fleet for a broken one.

use crate::place::{down, get, string, walk};
use crate::warn::{cluster, obeys_list};
use serde_json::Value;
use warmroute::config::Config;

/// Everything there is to say about the clusters of one filter.
pub fn warnings(documents: &[Value], config: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = carrying(documents)
        .into_iter()
        .filter(|cluster| !has_limits(cluster))
        .map(|cluster| {
            let name = string(cluster, &["name"]);
            format!(
                "cluster `{name}`: Envoy's default of 1,024 requests under way holds for the whole fleet: set \
                 circuit_breakers.thresholds (max_connections, max_pending_requests, max_requests)"
            )
        })
        .collect();
    let verdicts = config.discovery.iter().flat_map(|one| &one.verdicts);
    warnings.extend(verdicts.filter_map(|name| ejects_who_is_full(documents, name)));
    warnings
}

/// The clusters that routes lead to and that connect to endpoints as the filter says.
fn carrying(documents: &[Value]) -> Vec<&Value> {
    let values = walk(documents);
    let routed = values
        .iter()
        .filter_map(|(_, value)| cluster(documents, string(value, &["route", "cluster"])));
    let mut carrying: Vec<&Value> = Vec::new();
    for routed in routed {
        for cluster in members(documents, routed) {
            let steered = string(cluster, &["type"]) == "ORIGINAL_DST" || obeys_list(cluster);
            if steered && !carrying.contains(&cluster) {
                carrying.push(cluster);
            }
        }
    }
    carrying
}

/// Those of a composite cluster, which counts nothing itself; else the cluster.
fn members<'a>(documents: &'a [Value], routed: &'a Value) -> Vec<&'a Value> {
    match down(routed, &["cluster_type", "typed_config", "clusters"]).and_then(Value::as_array) {
        Some(entries) => entries
            .iter()
            .filter_map(|entry| cluster(documents, string(entry, &["name"])))
            .collect(),
        None => vec![routed],
    }
}

fn has_limits(cluster: &Value) -> bool {
    let thresholds = down(cluster, &["circuit_breakers", "thresholds"]).and_then(Value::as_array);
    let mut usual = thresholds
        .into_iter()
        .flatten()
        .filter(|threshold| string(threshold, &["priority"]) != "HIGH");
    usual.any(|threshold| {
        ["max_connections", "max_pending_requests", "max_requests"]
            .iter()
            .all(|key| get(threshold, key).is_some())
    })
}

/// Ways to eject by status code, and how far each is enforced by default, in percent.
const BY_STATUS: [(&str, u64); 4] = [
    ("enforcing_consecutive_5xx", 100),
    ("enforcing_success_rate", 100),
    ("enforcing_consecutive_gateway_failure", 0),
    ("enforcing_failure_percentage", 0),
];

/// Five times 503 in a row is nothing special for an engine with a full queue.
fn ejects_who_is_full(documents: &[Value], name: &str) -> Option<String> {
    let outliers = get(cluster(documents, name)?, "outlier_detection")?;
    let percent = |key, default| {
        get(outliers, key)
            .and_then(Value::as_u64)
            .unwrap_or(default)
    };
    let (enforced, _) = BY_STATUS
        .into_iter()
        .find(|(key, default)| percent(key, *default) > 0)?;
    Some(format!(
        "discovery.verdicts: the outlier detection of `{name}` ejects by status code, so that a fleet that is \
         full gets nothing: set {enforced}: 0"
    ))
}
