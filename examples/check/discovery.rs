//! What is valid and yet goes wrong with discovery: clusters that are not there, and an admin interface that
//! is not reached, or is reached by everybody.

use crate::place::{down, get, string, walk};
use crate::warn::cluster;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use warmroute::config::Config;

/// Everything there is to say about the discovery of one filter.
pub fn warnings(documents: &[Value], config: &Config) -> Vec<String> {
    let Some(discovery) = &config.discovery else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    warnings.extend(admin_for_all(documents, &discovery.cluster));
    let bootstrap = documents
        .iter()
        .find(|one| get(one, "static_resources").is_some());
    let Some(bootstrap) = bootstrap else {
        // The clusters are elsewhere.
        return warnings;
    };
    warnings.extend(admin_elsewhere(documents, bootstrap, &discovery.cluster));
    let named = config.pools.iter().enumerate().flat_map(|(at, pool)| {
        let key = match config.pools.as_slice() {
            [only] if only.name == "default" => "clusters".to_owned(),
            _ => format!("pools[{at}].clusters"),
        };
        pool.clusters.iter().map(move |name| (key.clone(), name))
    });
    for (key, name) in named {
        warnings.extend(members_of(documents, bootstrap, &key, name));
    }
    for name in &discovery.verdicts {
        warnings.extend(missing(documents, bootstrap, "discovery.verdicts", name));
    }
    warnings
}

/// A cluster that nothing can bring.
fn missing(documents: &[Value], bootstrap: &Value, key: &str, name: &str) -> Option<String> {
    let more_to_come = down(bootstrap, &["dynamic_resources", "cds_config"]).is_some();
    (!more_to_come && cluster(documents, name).is_none())
        .then(|| format!("{key}: there is no cluster `{name}` in this file"))
}

fn members_of(documents: &[Value], bootstrap: &Value, key: &str, name: &str) -> Option<String> {
    let Some(cluster) = cluster(documents, name) else {
        return missing(documents, bootstrap, key, name);
    };
    (string(cluster, &["type"]) == "ORIGINAL_DST").then(|| {
        format!(
            "{key}: `{name}` is an ORIGINAL_DST cluster, whose members are only where requests already \
             went; name it in discovery.verdicts, and here one that lists endpoints"
        )
    })
}

fn admin_elsewhere(documents: &[Value], bootstrap: &Value, name: &str) -> Option<String> {
    let Some(cluster) = cluster(documents, name) else {
        return missing(documents, bootstrap, "discovery.cluster", name);
    };
    let admin = down(bootstrap, &["admin", "address"]);
    let Some(admin) = admin else {
        return Some(format!(
            "discovery.cluster: this file has no admin interface that `{name}` could lead to"
        ));
    };
    let admin = socket(admin)?;
    let there = |member: &Value| {
        socket(member).is_some_and(|member| {
            let any = admin.ip().is_unspecified() && member.ip().is_loopback();
            member.port() == admin.port() && (any || member.ip() == admin.ip())
        })
    };
    let members = walk(std::slice::from_ref(cluster));
    let mut members = members
        .into_iter()
        .filter_map(|(_, value)| down(value, &["endpoint", "address"]));
    (!members.any(there)).then(|| {
        format!("discovery.cluster: `{name}` does not lead to the admin interface, {admin}")
    })
}

fn socket(address: &Value) -> Option<SocketAddr> {
    let ip: IpAddr = string(address, &["socket_address", "address"])
        .parse()
        .ok()?;
    let port = down(address, &["socket_address", "port_value"])?.as_u64()?;
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}

/// A route to the admin interface: whoever may send requests there owns the Envoy.
fn admin_for_all(documents: &[Value], name: &str) -> Option<String> {
    let values = walk(documents);
    let mut routes = values.iter().filter_map(|(_, value)| get(value, "route"));
    routes
        .any(|route| string(route, &["cluster"]) == name)
        .then(|| {
            format!("a route leads to `{name}`, the admin interface: clients could stop this Envoy")
        })
}
