//! What is valid and yet goes wrong on a real Envoy.

use crate::find::{Found, Shape};
use crate::place::{Step, at, down, get, string, walk};
use serde_json::Value;
use std::rc::Rc;
use warmroute::balancer::Balancer;
use warmroute::config::{Config, SteeringMode};
use warmroute::steer::{
    NEXT_DST_HEADER, ORIGINAL_DST_HEADER, OVERRIDE_HOST_HEADER, forbidden_headers,
};

/// Everything there is to say about one filter.
pub fn all(documents: &[Value], filters: &[Found], found: &Found, config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(body_unseen(found, config));
    warnings.extend(bodies_refused(documents, found, config));
    warnings.extend(open_without_destination(found, config));
    warnings.extend(client_may_steer(documents, found, config));
    warnings.extend(answers_cut(documents, found));
    warnings.extend(deaf_clusters(documents, found, config));
    warnings.extend(scrape_cluster(documents, config));
    warnings.extend(crate::discovery::warnings(documents, config));
    warnings.extend(crate::cluster::warnings(documents, config));
    warnings.extend(mistaken_identity(documents, filters, found));
    warnings
}

fn reads_body(config: &Config) -> bool {
    Balancer::new(Rc::new(config.clone()), 1).reads_body()
}

fn body_unseen(found: &Found, config: &Config) -> Option<String> {
    let flag = get(&found.body, "allow_on_headers_stop_iteration");
    if !reads_body(config) || flag.is_some_and(|flag| flag == &Value::Bool(true)) {
        return None;
    }
    let wait_ms = config.watchdog_ms;
    Some(match found.shape {
        Shape::PluginConfig => format!(
            "allow_on_headers_stop_iteration is not true: the filter never sees a body, and every \
             request waits {wait_ms} ms and then goes by load alone"
        ),
        Shape::WasmPlugin => format!(
            "this needs the body, which a WasmPlugin cannot hold: every request waits {wait_ms} ms \
             and then goes by load alone; use an EnvoyFilter"
        ),
    })
}

/// What the filter holds, and what then comes in one read, Envoy must be able to buffer; else it
/// refuses the request. Known only where the virtual hosts stand in the file.
fn bodies_refused(documents: &[Value], found: &Found, config: &Config) -> Option<String> {
    const DEFAULT_READ_BYTES: u64 = 1 << 20;
    const KEY: &str = "request_body_buffer_limit";
    let hosts = down(
        manager(documents, &found.path)?,
        &["route_config", "virtual_hosts"],
    )?;
    let read_bytes = enclosing(documents, &found.path, "filter_chains")
        .and_then(|listener| get(listener, "per_connection_buffer_limit_bytes")?.as_u64())
        .unwrap_or(DEFAULT_READ_BYTES);
    let needed_bytes = config.hold_max_bytes.saturating_add(read_bytes);
    let fits = |host: &Value| {
        let limits: Vec<u64> = walk(std::slice::from_ref(host))
            .into_iter()
            .filter_map(|(_, value)| get(value, KEY)?.as_u64())
            .collect();
        !limits.is_empty() && limits.iter().all(|limit| *limit >= needed_bytes)
    };
    (reads_body(config) && !hosts.as_array()?.iter().all(fits)).then(|| {
        format!(
            "bodies may be refused with 413: set {KEY} on the virtual host to at least \
             {needed_bytes}, that is hold.max_bytes and what comes in one read \
             (per_connection_buffer_limit_bytes)"
        )
    })
}

fn open_without_destination(found: &Found, config: &Config) -> Option<String> {
    let body = &found.body;
    let open = get(body, "fail_open").is_some_and(|open| open == &Value::Bool(true))
        || string(body, &["failure_policy"]) == "FAIL_OPEN"
        || string(body, &["fail_strategy"]) == "FAIL_OPEN";
    (open && config.steering != SteeringMode::OverrideHost).then(|| {
        "fails open, and then an ORIGINAL_DST cluster has no destination, or the client's: use \
         FAIL_RELOAD"
            .into()
    })
}

/// A steering header that no `early_header_mutation_extensions` removes. For a filter inside a
/// connection manager it must be that one's; for one that is looked up, any in the file.
fn client_may_steer(documents: &[Value], found: &Found, config: &Config) -> Option<String> {
    if config.steering == SteeringMode::FilterState {
        // No header is obeyed there.
        return None;
    }
    let headers = forbidden_headers(config.steering).iter();
    headers
        .copied()
        .find_map(|header| kept(documents, found, header))
}

/// The same for one header.
fn kept(documents: &[Value], found: &Found, header: &str) -> Option<String> {
    let removed = |scope: &Value| {
        walk(std::slice::from_ref(scope))
            .into_iter()
            .filter_map(|(_, value)| get(value, "early_header_mutation_extensions"))
            .flat_map(|extensions| walk(std::slice::from_ref(extensions)))
            .filter_map(|(_, value)| value.get("remove")?.as_str())
            .any(|name| name.eq_ignore_ascii_case(header))
    };
    let removed = match manager(documents, &found.path) {
        Some(manager) => removed(manager),
        None => documents.iter().any(removed),
    };
    (!removed).then(|| {
        format!(
            "no early_header_mutation_extensions removes {header}: if the filter is not there, a \
             client chooses where Envoy connects"
        )
    })
}

/// The connection manager that holds the filter.
fn manager<'a>(documents: &'a [Value], path: &[Step]) -> Option<&'a Value> {
    enclosing(documents, path, "http_filters")
}

/// The innermost object around `path` that has a member of this name.
fn enclosing<'a>(documents: &'a [Value], path: &[Step], member: &str) -> Option<&'a Value> {
    (0..path.len())
        .rev()
        .filter_map(|depth| at(documents, path.get(..depth)?))
        .find(|value| get(value, member).is_some())
}

fn answers_cut(documents: &[Value], found: &Found) -> Option<String> {
    let routes = get(manager(documents, &found.path)?, "route_config")?;
    let cut = walk(std::slice::from_ref(routes))
        .into_iter()
        .filter_map(|(_, value)| get(value, "route").filter(|route| route.is_object()))
        .find(|route| !matches!(string(route, &["timeout"]), "0s" | "0.0s"))?;
    let timeout = match string(cut, &["timeout"]) {
        "" => "the default of 15 s",
        set => set,
    };
    Some(format!(
        "a route's timeout is {timeout} and cuts longer answers: set timeout: 0s"
    ))
}

/// Routes that all lead to clusters that do not do what the filter says. Clusters that are not in
/// the file may well do.
fn deaf_clusters(documents: &[Value], found: &Found, config: &Config) -> Option<String> {
    let routes = get(manager(documents, &found.path)?, "route_config")?;
    let names: Vec<&str> = walk(std::slice::from_ref(routes))
        .into_iter()
        .filter_map(|(_, value)| down(value, &["route", "cluster"])?.as_str())
        .collect();
    let clusters: Option<Vec<&Value>> = names.iter().map(|name| cluster(documents, name)).collect();
    let clusters = clusters.filter(|clusters| !clusters.is_empty())?;
    let listening: Vec<&Value> = clusters
        .into_iter()
        .filter(|cluster| match config.steering {
            SteeringMode::OriginalDst => obeys_header(cluster, ORIGINAL_DST_HEADER),
            SteeringMode::FilterState => string(cluster, &["type"]) == "ORIGINAL_DST",
            SteeringMode::OverrideHost => obeys_list(cluster),
            SteeringMode::Composite => obeys_both(documents, cluster),
        })
        .collect();
    if listening.is_empty() {
        return Some(match config.steering {
            SteeringMode::OriginalDst => format!(
                "no route leads to an ORIGINAL_DST cluster that obeys {ORIGINAL_DST_HEADER}"
            ),
            SteeringMode::FilterState => "no route leads to an ORIGINAL_DST cluster".into(),
            SteeringMode::OverrideHost => format!(
                "no route leads to a cluster with the policy override_host that obeys \
                 {OVERRIDE_HOST_HEADER}"
            ),
            SteeringMode::Composite => format!(
                "no route leads to a composite cluster of an ORIGINAL_DST cluster that obeys \
                 {ORIGINAL_DST_HEADER} and one that obeys {NEXT_DST_HEADER}"
            ),
        });
    }
    if config.steering != SteeringMode::OverrideHost {
        return None;
    }
    let members: Vec<(&str, u64)> = walk(documents)
        .into_iter()
        .filter_map(|(_, value)| {
            let port = get(value, "port_value")?.as_u64()?;
            Some((string(value, &["address"]), port))
        })
        .collect();
    let missing = config
        .pools
        .iter()
        .flat_map(|pool| pool.pool.endpoints())
        .find(|endpoint| {
            let (ip, port) = (endpoint.address.ip().to_string(), endpoint.address.port());
            !members.contains(&(ip.as_str(), u64::from(port)))
        })?;
    Some(format!(
        "no cluster lists {missing}: Envoy passes over what it does not know"
    ))
}

/// The cluster of this name, wherever in the file it stands.
pub fn cluster<'a>(documents: &'a [Value], name: &str) -> Option<&'a Value> {
    walk(documents).into_iter().find_map(|(_, value)| {
        let is_cluster = ["connect_timeout", "type", "cluster_type"]
            .iter()
            .any(|key| get(value, key).is_some());
        (is_cluster && string(value, &["name"]) == name).then_some(value)
    })
}

fn obeys_header(cluster: &Value, wanted: &str) -> bool {
    string(cluster, &["type"]) == "ORIGINAL_DST"
        && get(cluster, "original_dst_lb_config").is_some_and(|settings| {
            let header = match string(settings, &["http_header_name"]) {
                "" => ORIGINAL_DST_HEADER,
                named => named,
            };
            down(settings, &["use_http_header"]) == Some(&Value::Bool(true))
                && header.eq_ignore_ascii_case(wanted)
        })
}

/// Whether the first attempt goes by the one header and the second by the other.
fn obeys_both(documents: &[Value], composite: &Value) -> bool {
    let entries = down(composite, &["cluster_type", "typed_config", "clusters"]);
    let names = entries.and_then(Value::as_array).into_iter().flatten();
    let mut members = names.map(|entry| cluster(documents, string(entry, &["name"])));
    let mut next_obeys = |header| {
        let member = members.next().flatten();
        member.is_some_and(|member| obeys_header(member, header))
    };
    next_obeys(ORIGINAL_DST_HEADER) && next_obeys(NEXT_DST_HEADER)
}

/// Whether a cluster's policy goes by the filter's list.
pub fn obeys_list(cluster: &Value) -> bool {
    walk(std::slice::from_ref(cluster))
        .into_iter()
        .filter_map(|(_, value)| get(value, "override_host_sources")?.as_array())
        .flatten()
        .any(|source| string(source, &["header"]).eq_ignore_ascii_case(OVERRIDE_HOST_HEADER))
}

fn scrape_cluster(documents: &[Value], config: &Config) -> Option<String> {
    let name = &config.scrape.as_ref()?.cluster;
    let Some(cluster) = cluster(documents, name) else {
        return Some(format!(
            "scrape.cluster: there is no cluster `{name}` in this file"
        ));
    };
    (!obeys_header(cluster, ORIGINAL_DST_HEADER)).then(|| {
        format!(
            "scrape.cluster: `{name}` is not an ORIGINAL_DST cluster that obeys {ORIGINAL_DST_HEADER}"
        )
    })
}

/// Two different filters with one name or one VM: Envoy may take one's configuration for the
/// other's.
fn mistaken_identity(documents: &[Value], filters: &[Found], found: &Found) -> Option<String> {
    let alike = |one: &str, other: &str| !one.is_empty() && one == other;
    filters
        .iter()
        .filter(|other| other.path != found.path && other.body != found.body)
        .find_map(|other| {
            let shared = if alike(other.vm_id(), found.vm_id()) {
                format!("vm_id `{}`", found.vm_id())
            } else if alike(other.name(), found.name()) {
                format!("name `{}`", found.name())
            } else {
                return None;
            };
            let place = crate::place::text(documents, &other.path);
            Some(format!(
                "shares its {shared} with the filter at {place}: Envoy may take one's configuration \
                 for the other's"
            ))
        })
}
