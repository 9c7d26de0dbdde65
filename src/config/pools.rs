//! Pools and endpoints of the configuration.

use std::net::SocketAddr;

use super::discovery::clusters_of;
use super::policy::policy_of;
use super::values::whole;
use super::{ConfigError, MAX_ENDPOINTS, MAX_POOLS, PoolConfig, raw};
use crate::endpoint::{Endpoint, Pool};

pub(super) fn pools_of(
    policy: Option<raw::Policy>,
    endpoints: Option<Vec<raw::Endpoint>>,
    clusters: Vec<String>,
    pools: Option<Vec<raw::Pool>>,
    fields: &mut Vec<String>,
) -> Result<Vec<PoolConfig>, ConfigError> {
    let is_one_pool = endpoints.is_some() || !clusters.is_empty();
    let pools = match pools {
        None if is_one_pool => {
            let (policy, keys) = policy_of("policy", policy.unwrap_or_default(), fields)?;
            let pool = endpoints_of("endpoints", endpoints)?;
            vec![PoolConfig {
                name: "default".into(),
                models: Vec::new(),
                pool,
                clusters: clusters_of("clusters", clusters)?,
                policy,
                keys,
            }]
        }
        Some(pools) if !is_one_pool => named_pools(&policy.unwrap_or_default(), pools, fields)?,
        Some(_) => {
            return Err(ConfigError::new(
                "pools",
                "give either `endpoints` and `clusters` (one pool) or `pools`, not both",
            ));
        }
        None => {
            return Err(ConfigError::new(
                "endpoints",
                "missing: give `endpoints` or `clusters` (one pool), or `pools`",
            ));
        }
    };
    let named: usize = pools.iter().map(|pool| pool.pool.len()).sum();
    if named > MAX_ENDPOINTS {
        return Err(ConfigError::new(
            "pools",
            format!("{named} endpoints; at most {MAX_ENDPOINTS} are allowed"),
        ));
    }
    Ok(pools)
}

fn named_pools(
    default_policy: &raw::Policy,
    pools: Vec<raw::Pool>,
    fields: &mut Vec<String>,
) -> Result<Vec<PoolConfig>, ConfigError> {
    if pools.is_empty() || pools.len() > MAX_POOLS {
        return Err(ConfigError::new(
            "pools",
            format!("must hold between 1 and {MAX_POOLS} pools"),
        ));
    }
    let mut valid: Vec<PoolConfig> = Vec::with_capacity(pools.len());
    for (index, raw) in pools.into_iter().enumerate() {
        let path = format!("pools[{index}]");
        if raw.name.is_empty() || valid.iter().any(|pool| pool.name == raw.name) {
            return Err(ConfigError::new(
                format!("{path}.name"),
                "must be unique and not empty",
            ));
        }
        for (at, model) in raw.models.iter().enumerate() {
            if valid.iter().any(|pool| pool.models.contains(model)) {
                let problem = format!("model `{model}` already belongs to another pool");
                return Err(ConfigError::new(format!("{path}.models[{at}]"), problem));
            }
        }
        let policy = raw.policy.unwrap_or_else(|| default_policy.clone());
        let (policy, keys) = policy_of(&format!("{path}.policy"), policy, fields)?;
        if raw.endpoints.is_none() && raw.clusters.is_empty() {
            return Err(ConfigError::new(
                format!("{path}.endpoints"),
                "missing: give `endpoints`, `clusters` or both",
            ));
        }
        let pool = endpoints_of(&format!("{path}.endpoints"), raw.endpoints)?;
        let clusters = clusters_of(&format!("{path}.clusters"), raw.clusters)?;
        valid.push(PoolConfig {
            name: raw.name,
            models: raw.models,
            pool,
            clusters,
            policy,
            keys,
        });
    }
    Ok(valid)
}

fn endpoints_of(path: &str, raw: Option<Vec<raw::Endpoint>>) -> Result<Pool, ConfigError> {
    let Some(raw) = raw else {
        return Ok(Pool::default());
    };
    if raw.is_empty() {
        return Err(ConfigError::new(path, "must name at least one endpoint"));
    }
    let mut endpoints = Vec::with_capacity(raw.len());
    for (index, raw) in raw.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        let address: SocketAddr = raw.address.parse().map_err(|_| {
            let problem = format!(
                "`{}` is not IP:port (IPv6 in brackets, as [::1]:8000; no host names)",
                raw.address
            );
            ConfigError::new(format!("{path}.address"), problem)
        })?;
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(ConfigError::new(
                format!("{path}.address"),
                format!("`{}` can't be connected to", raw.address),
            ));
        }
        let mut endpoint = Endpoint::new(address);
        endpoint.weight = whole(&format!("{path}.weight"), raw.weight, 1, 1, 10_000)?;
        endpoint.models = raw.models;
        endpoint.labels = raw.labels;
        endpoints.push(endpoint);
    }
    Ok(Pool::new(endpoints))
}

/// Whether where a request may go depends on its model.
pub(super) fn model_decides(pools: &[PoolConfig]) -> bool {
    let mut endpoints = pools.iter().flat_map(|pool| pool.pool.endpoints());
    pools.len() > 1 || endpoints.any(|endpoint| !endpoint.models.is_empty())
}
