//! Envoy's configuration for a comparison: the shipped one, quiet, with the policy in question.

use super::client::SERVED_BY_ENVOY;
use super::names::{Family, Name};
use crate::support::config::{EnvoyConfig, Mode, set};
use serde_json::{Value, json};
use std::net::SocketAddr;

const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const CLUSTER: &str = "/static_resources/clusters/0";
const ROUTE: &str = "route_config/virtual_hosts/0/routes/0/route";
/// Most that an endpoint may have over the mean, in percent, as the filter's own default and KubeAI's.
const BALANCE_FACTOR: u32 = 125;

/// The configuration for `name` in front of `endpoints`, with a listener at `port` (0: any).
///
/// # Errors
/// A shipped file or the module is missing.
pub fn config(
    name: Name,
    endpoints: &[SocketAddr],
    port: u16,
    tells_endpoint: bool,
) -> Result<EnvoyConfig, String> {
    let mode = match name.family {
        Family::Warmroute => Mode::OriginalDst,
        _ => Mode::Plain,
    };
    let mut config = EnvoyConfig::shipped(mode)?.endpoints(endpoints)?;
    if name.family == Family::Warmroute {
        config = config.plugin(&json!({ "policy": policy(name.policy) }))?;
    } else {
        balancer(&mut config.0, name.policy)?;
    }
    let listener = "/static_resources/listeners/0/address/socket_address/port_value";
    set(&mut config.0, listener, json!(port))?;
    // As quiet as the other routers.
    set(&mut config.0, &format!("{MANAGER}/access_log"), json!([]))?;
    if tells_endpoint {
        let hosts = format!("{MANAGER}/route_config/virtual_hosts/0");
        let header = json!({"key": SERVED_BY_ENVOY, "value": "%UPSTREAM_REMOTE_ADDRESS%"});
        put(
            &mut config.0,
            &hosts,
            "response_headers_to_add",
            json!([{ "header": header }]),
        )?;
    }
    Ok(config)
}

/// The filter's policy.
fn policy(name: &str) -> Value {
    match name {
        // The key that an application would set; without one this policy has nothing to hash.
        "consistent_hash" => json!({"name": name, "keys": [{"header": "x-session-id"}]}),
        _ => json!({ "name": name }),
    }
}

/// Envoy's own load balancer.
fn balancer(config: &mut Value, policy: &str) -> Result<(), String> {
    set(
        config,
        &format!("{CLUSTER}/lb_policy"),
        json!(policy.to_uppercase()),
    )?;
    if policy == "ring_hash" {
        let bound =
            json!({"consistent_hashing_lb_config": {"hash_balance_factor": BALANCE_FACTOR}});
        put(config, CLUSTER, "common_lb_config", bound)?;
        let hash = json!([{"header": {"header_name": "x-session-id"}}]);
        put(config, &format!("{MANAGER}/{ROUTE}"), "hash_policy", hash)?;
    }
    Ok(())
}

/// Adds a key to the object at `pointer`.
fn put(config: &mut Value, pointer: &str, key: &str, value: Value) -> Result<(), String> {
    let object = config
        .pointer_mut(pointer)
        .and_then(Value::as_object_mut)
        .ok_or_else(|| format!("the Envoy configuration has nothing at {pointer}"))?;
    object.insert(key.to_owned(), value);
    Ok(())
}
