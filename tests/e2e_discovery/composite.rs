//! Discovery with a cluster of two choices: what `composite.yaml` has in place of what `discovery.yaml` has.

use crate::support::config::{EnvoyConfig, Mode};
use serde_json::{Value, json};

/// Takes the clusters that carry requests, and all that the listener has but the filter, from the shipped
/// configuration of a composite cluster.
pub fn steers(config: &mut EnvoyConfig) {
    let mut shipped = EnvoyConfig::shipped(Mode::Composite).unwrap();
    let clusters = config.0["static_resources"]["clusters"].as_array_mut();
    let clusters = clusters.unwrap();
    clusters.retain(|cluster| cluster["name"] != "vllm");
    for name in ["vllm", "vllm_first", "vllm_next"] {
        clusters.push(shipped.cluster(name).unwrap().clone());
    }
    let filter = config.wasm().unwrap().clone();
    *shipped.wasm().unwrap() = filter;
    let listeners: Value = shipped.0["static_resources"]["listeners"].clone();
    config.0["static_resources"]["listeners"] = listeners;
    *config = config
        .clone()
        .plugin(&json!({ "steering": "composite" }))
        .unwrap();
}
