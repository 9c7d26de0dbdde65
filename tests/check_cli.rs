//! `cargo run --example check`: what it finds, what it says, and its exit code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "support/example.rs"]
mod example;

use example::{Example, Outcome};
use serde_json::{Value, json};
use std::path::Path;

static CHECK: Example = Example::new("check");

fn check(arguments: &[&str]) -> Outcome {
    let output = CHECK
        .command()
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    output.into()
}

/// Checks a file with this content. Its name is left out of what was printed.
fn check_text(name: &str, text: &str, options: &[&str]) -> Outcome {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let mut outcome = check(&[options, &[path]].concat());
    outcome.stdout = outcome.stdout.replace(path, "FILE");
    outcome.stderr = outcome.stderr.replace(path, "FILE");
    outcome
}

/// The lines of standard output.
fn lines(outcome: &Outcome) -> Vec<&str> {
    outcome.stdout.lines().collect()
}

/// A configuration with one endpoint and the default policy.
fn plugin() -> Value {
    json!({"endpoints": [{"address": "10.0.0.1:8000"}]})
}

/// A filter that is as it should be.
fn filter(plugin: &Value) -> Value {
    json!({
        "name": "warmroute",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "warmroute",
                "allow_on_headers_stop_iteration": true,
                "failure_policy": "FAIL_RELOAD",
                "vm_config": {"vm_id": "warmroute"},
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": plugin.to_string(),
                },
            },
        },
    })
}

/// An Envoy with these filters that is as it should be.
fn envoy(filters: &[Value]) -> Value {
    json!({"static_resources": {
        "listeners": [{"filter_chains": [{"filters": [{"typed_config": {
            "early_header_mutation_extensions": [{"typed_config": {"mutations": [
                {"remove": "x-envoy-original-dst-host"},
                {"remove": "x-gateway-destination-endpoint"},
            ]}}],
            "route_config": {"virtual_hosts": [{"request_body_buffer_limit": 4_194_304, "routes": [
                {"match": {"prefix": "/"}, "route": {"cluster": "vllm", "timeout": "0s"}},
            ]}]},
            "http_filters": filters,
        }}]}]}],
        "clusters": [{
            "name": "scrape",
            "type": "ORIGINAL_DST",
            "original_dst_lb_config": {"use_http_header": true},
        }],
    }})
}

/// Those of a cluster that carries a fleet's requests.
fn limits() -> Value {
    json!({"thresholds": [{"max_connections": 9_999, "max_pending_requests": 9_999, "max_requests": 9_999}]})
}

const PLACE: &str =
    "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.http_filters[0]";

/// Changes what is at `pointer` below the first filter's `PluginConfig`; `null` removes.
fn changed(mut envoy: Value, pointer: &str, key: &str, value: Value) -> Value {
    let object = envoy.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => object.remove(key),
        value => object.insert(key.into(), value),
    };
    envoy
}

const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const CONFIG: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config";
const HOST: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0";
const ROUTE: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes/0/route";

/// The warnings about a document, without the place.
fn warnings(name: &str, document: &Value) -> Vec<String> {
    let outcome = check_text(name, &document.to_string(), &[]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let prefix = format!("FILE: {PLACE}: warning: ");
    lines(&outcome)
        .iter()
        .filter_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
        .collect()
}

#[test]
fn every_shipped_file_passes_without_a_warning() {
    let place = PLACE;
    let outcome = check(&[
        "--strict",
        "envoy/original_dst.yaml",
        "envoy/filter_state.yaml",
        "envoy/override_host.yaml",
        "envoy/discovery.yaml",
        "envoy/composite.yaml",
        "examples/istio/envoyfilter.yaml",
        "examples/istio/wasmplugin.yaml",
    ]);
    assert_eq!(
        lines(&outcome),
        [
            format!("envoy/original_dst.yaml: {place}: ok: 4 endpoints in 1 pool, expected_latency, original_dst"),
            format!("envoy/filter_state.yaml: {place}: ok: 4 endpoints in 1 pool, expected_latency, filter_state"),
            format!("envoy/override_host.yaml: {place}: ok: 4 endpoints in 1 pool, expected_latency, override_host"),
            format!("envoy/discovery.yaml: {place}: ok: the members of 1 cluster in 1 pool, expected_latency, original_dst"),
            format!("envoy/composite.yaml: {place}: ok: 4 endpoints in 1 pool, expected_latency, composite"),
            "examples/istio/envoyfilter.yaml: spec.configPatches[0].patch.value: ok: the members of 1 cluster in 1 pool, expected_latency, original_dst".into(),
            "examples/istio/wasmplugin.yaml: document 1, spec: ok: 2 endpoints in 1 pool, consistent_hash, original_dst".into(),
        ]
    );
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
}

#[test]
fn the_list_of_shipped_files_is_whole() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let yaml = |folder: &str| {
        let mut names: Vec<String> = std::fs::read_dir(root.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".yaml"))
            .collect();
        names.sort();
        names
    };
    // The plain one has no filter, and endpoints.yaml is read by discovery.yaml.
    assert_eq!(
        yaml("envoy"),
        [
            "composite.yaml",
            "discovery.yaml",
            "endpoints.yaml",
            "filter_state.yaml",
            "original_dst.yaml",
            "override_host.yaml",
            "plain.yaml"
        ]
    );
    assert_eq!(
        yaml("examples/istio"),
        ["envoyfilter.yaml", "wasmplugin.yaml"]
    );
}

#[test]
fn a_file_without_the_filter_is_wrong() {
    let outcome = check(&["envoy/plain.yaml"]);
    assert_eq!(
        outcome.stdout,
        "envoy/plain.yaml: error: no Warmroute filter found\n"
    );
    assert_eq!(outcome.code, 1);
}

#[test]
fn the_filters_own_configuration() {
    let good = json!({"steering": "override_host", "pools": [
        {"name": "a", "models": ["m"], "policy": {"name": "random"}, "endpoints": [{"address": "10.0.0.1:1"}, {"address": "[::1]:1"}]},
        {"name": "b", "endpoints": [{"address": "10.0.0.1:1"}]},
    ]});
    let outcome = check_text("good.json", &good.to_string(), &["--strict"]);
    assert_eq!(
        outcome.stdout,
        "FILE: ok: 3 endpoints in 2 pools, expected_latency and random, override_host\n"
    );
    assert_eq!(outcome.code, 0);

    let bad = json!({"endpoints": [{"address": "vllm:8000"}]});
    let outcome = check_text("bad.json", &bad.to_string(), &[]);
    assert_eq!(
        outcome.stdout,
        "FILE: error: endpoints[0].address: `vllm:8000` is not IP:port (IPv6 in brackets, as [::1]:8000; no host names)\n"
    );
    assert_eq!(outcome.code, 1);

    let outcome = check_text("broken.json", "{\"endpoints\": [", &[]);
    assert_eq!(
        outcome.stdout,
        "FILE: error: endpoints: EOF while parsing a list at line 1 column 15\n"
    );
    assert_eq!(outcome.code, 1);
}

#[test]
fn what_cannot_be_read_is_another_exit_code() {
    let outcome = check(&["no/such/file.yaml", "envoy/original_dst.yaml"]);
    assert_eq!(outcome.code, 2);
    assert!(
        outcome.stderr.starts_with("no/such/file.yaml: "),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("ok: 4 endpoints"), "{outcome:?}");

    let outcome = check_text("broken.yaml", "a: [1, 2\nb: }", &[]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.starts_with("FILE: "), "{outcome:?}");

    let outcome = check_text("own.yaml", "endpoints:\n- address: 10.0.0.1:1\n", &[]);
    assert_eq!(
        outcome.stderr,
        "FILE: the filter's own configuration must be JSON\n"
    );
    assert_eq!(outcome.code, 2);

    assert_eq!(check(&[]).code, 2);
    assert_eq!(check(&["--help"]).code, 0);
}

#[test]
fn every_way_to_write_the_configuration() {
    let ways = [
        json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": plugin().to_string()}),
        json!({"@type": "type.googleapis.com/google.protobuf.Struct", "value": plugin()}),
        json!({"@type": "type.googleapis.com/google.protobuf.BytesValue",
               "value": "eyJlbmRwb2ludHMiOlt7ImFkZHJlc3MiOiIxMC4wLjAuMTo4MDAwIn1dfQ=="}),
    ];
    for way in ways {
        let envoy = changed(envoy(&[filter(&plugin())]), CONFIG, "configuration", way);
        let outcome = check_text("ways.json", &envoy.to_string(), &["--strict"]);
        let expected =
            format!("FILE: {PLACE}: ok: 1 endpoint in 1 pool, expected_latency, original_dst\n");
        assert_eq!((outcome.stdout, outcome.code), (expected, 0));
    }
    for (way, why) in [
        (
            json!({"@type": "type.googleapis.com/google.protobuf.BytesValue", "value": "%"}),
            "configuration.value: not base64: Invalid symbol 37, offset 0.",
        ),
        (
            json!({"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"}),
            "configuration: `Duration` with such a value is none of StringValue, Struct, BytesValue",
        ),
        (
            Value::Null,
            "endpoints: missing: give `endpoints` or `clusters` (one pool), or `pools`",
        ),
    ] {
        let envoy = changed(envoy(&[filter(&plugin())]), CONFIG, "configuration", way);
        let outcome = check_text("wrong-ways.json", &envoy.to_string(), &[]);
        assert_eq!(outcome.stdout, format!("FILE: {PLACE}: error: {why}\n"));
        assert_eq!(outcome.code, 1);
    }
}

#[test]
fn an_error_names_file_place_and_path() {
    let bad = json!({"endpoints": [{"address": "10.0.0.1:8000"}], "policy": {"name": "prefix_hash", "load_factor": 0.5}});
    let outcome = check_text("place.json", &envoy(&[filter(&bad)]).to_string(), &[]);
    assert_eq!(
        outcome.stdout,
        format!("FILE: {PLACE}: error: policy.load_factor: must be between 1 and 100, not 0.5\n")
    );
    assert_eq!(outcome.code, 1);
}

#[test]
fn an_extension_configuration_and_camel_case() {
    let resource = json!({"resources": [{
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": "warmroute",
        "typedConfig": {
            "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
            "typeUrl": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "value": {"config": {
                "allowOnHeadersStopIteration": true,
                "configuration": {"@type": "type.googleapis.com/google.protobuf.Struct",
                    "value": {"steering": "filter_state", "endpoints": [{"address": "10.0.0.1:1", "weight": 2.0}]}},
            }},
        },
    }]});
    let outcome = check_text("ecds.json", &resource.to_string(), &["--strict"]);
    assert_eq!(
        outcome.stdout,
        "FILE: resources[0]: ok: 1 endpoint in 1 pool, expected_latency, filter_state\n"
    );
    assert_eq!(outcome.code, 0);
}

#[test]
fn a_wasm_plugin_that_needs_the_body_is_warned_of() {
    let text = "kind: WasmPlugin\nmetadata: {name: warmroute}\nspec:\n  pluginConfig:\n    steering: filter_state\n    endpoints: [{address: '10.0.0.1:8000'}]\n";
    let outcome = check_text("plugin.yaml", text, &["--strict"]);
    assert_eq!(
        lines(&outcome),
        [
            "FILE: spec: ok: 1 endpoint in 1 pool, expected_latency, filter_state",
            "FILE: spec: warning: this needs the body, which a WasmPlugin cannot hold: every request waits 250 ms and then goes by load alone; use an EnvoyFilter",
        ]
    );
    assert_eq!(outcome.code, 1);
    assert_eq!(check_text("plugin.yaml", text, &[]).code, 0);
}

#[test]
fn the_flag_is_missed_only_where_the_body_is_read() {
    let missing = |plugin: &Value| {
        changed(
            envoy(&[filter(plugin)]),
            CONFIG,
            "allow_on_headers_stop_iteration",
            Value::Null,
        )
    };
    assert_eq!(
        warnings("flag.json", &missing(&plugin())),
        [
            "allow_on_headers_stop_iteration is not true: the filter never sees a body, and every request waits 250 ms and then goes by load alone"
        ]
    );
    let turns =
        json!({"endpoints": [{"address": "10.0.0.1:8000"}], "policy": {"name": "round_robin"}});
    assert_eq!(
        warnings("flag.json", &missing(&turns)),
        Vec::<String>::new()
    );
}

#[test]
fn failing_open_needs_a_cluster_with_a_choice_of_its_own() {
    let open = |steering: &str, key: &str, value: Value| {
        let plugin = json!({"steering": steering, "endpoints": [{"address": "10.0.0.1:8000"}]});
        warnings(
            "open.json",
            &changed(envoy(&[filter(&plugin)]), CONFIG, key, value),
        )
    };
    let warning = "fails open, and then an ORIGINAL_DST cluster has no destination, or the client's: use FAIL_RELOAD";
    assert_eq!(
        open("original_dst", "failure_policy", json!("FAIL_OPEN")),
        [warning]
    );
    assert_eq!(open("filter_state", "fail_open", json!(true)), [warning]);
    assert_eq!(
        open("override_host", "failure_policy", json!("FAIL_OPEN")),
        Vec::<String>::new()
    );
    assert_eq!(
        open("original_dst", "failure_policy", json!("FAIL_CLOSED")),
        Vec::<String>::new()
    );
}

#[test]
fn clients_that_may_steer_are_warned_of() {
    let naked = |steering: &str| {
        let plugin = json!({"steering": steering, "endpoints": [{"address": "10.0.0.1:8000"}]});
        warnings(
            "steer.json",
            &changed(
                envoy(&[filter(&plugin)]),
                MANAGER,
                "early_header_mutation_extensions",
                Value::Null,
            ),
        )
    };
    let warning = |header: &str| {
        format!(
            "no early_header_mutation_extensions removes {header}: if the filter is not there, a client chooses where Envoy connects"
        )
    };
    assert_eq!(
        naked("original_dst"),
        [warning("x-envoy-original-dst-host")]
    );
    assert_eq!(
        naked("override_host"),
        [warning("x-gateway-destination-endpoint")]
    );
    assert_eq!(naked("filter_state"), Vec::<String>::new());
}

#[test]
fn a_route_that_cuts_answers_is_warned_of() {
    let timeout = |value: Value| {
        warnings(
            "route.json",
            &changed(envoy(&[filter(&plugin())]), ROUTE, "timeout", value),
        )
    };
    assert_eq!(
        timeout(Value::Null),
        ["a route's timeout is the default of 15 s and cuts longer answers: set timeout: 0s"]
    );
    assert_eq!(
        timeout(json!("60s")),
        ["a route's timeout is 60s and cuts longer answers: set timeout: 0s"]
    );
    assert_eq!(timeout(json!("0s")), Vec::<String>::new());
}

#[test]
fn the_scrape_cluster_must_be_there_and_of_the_right_kind() {
    let scraping = |cluster: &str| {
        let plugin =
            json!({"endpoints": [{"address": "10.0.0.1:8000"}], "scrape": {"cluster": cluster}});
        envoy(&[filter(&plugin)])
    };
    assert_eq!(
        warnings("scrape.json", &scraping("scrape")),
        Vec::<String>::new()
    );
    assert_eq!(
        warnings("scrape.json", &scraping("other")),
        ["scrape.cluster: there is no cluster `other` in this file"]
    );
    let wrong = changed(
        scraping("scrape"),
        "/static_resources/clusters/0",
        "type",
        json!("STATIC"),
    );
    assert_eq!(
        warnings("scrape.json", &wrong),
        [
            "scrape.cluster: `scrape` is not an ORIGINAL_DST cluster that obeys x-envoy-original-dst-host"
        ]
    );
}

#[test]
fn two_filters_of_one_name_are_warned_of() {
    let other = json!({
        "name": "another",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {"name": "another", "vm_config": {"vm_id": "shared"}},
        },
    });
    let apart = envoy(&[filter(&plugin()), other.clone()]);
    let outcome = check_text("two.json", &apart.to_string(), &["--strict"]);
    let second = PLACE.replace("http_filters[0]", "http_filters[1]");
    assert_eq!(
        lines(&outcome),
        [
            format!("FILE: {PLACE}: ok: 1 endpoint in 1 pool, expected_latency, original_dst"),
            format!("FILE: {second}: another Wasm filter, not checked"),
        ]
    );
    let shared_vm = changed(
        apart.clone(),
        &format!("{CONFIG}/vm_config"),
        "vm_id",
        json!("shared"),
    );
    assert_eq!(
        warnings("two.json", &shared_vm),
        [format!(
            "shares its vm_id `shared` with the filter at {second}: Envoy may take one's configuration for the other's"
        )]
    );
    let shared_name = changed(apart, CONFIG, "name", json!("another"));
    assert_eq!(
        warnings("two.json", &shared_name),
        [format!(
            "shares its name `another` with the filter at {second}: Envoy may take one's configuration for the other's"
        )]
    );
}

#[test]
fn bodies_that_envoy_would_refuse_are_warned_of() {
    let holding = |max_bytes: u64, limit: Value| {
        let plugin =
            json!({"endpoints": [{"address": "10.0.0.1:8000"}], "hold": {"max_bytes": max_bytes}});
        changed(
            envoy(&[filter(&plugin)]),
            HOST,
            "request_body_buffer_limit",
            limit,
        )
    };
    let warning = |needed: u64| {
        [format!(
            "bodies may be refused with 413: set request_body_buffer_limit on the virtual host to at least {needed}, that is hold.max_bytes and what comes in one read (per_connection_buffer_limit_bytes)"
        )]
    };
    assert_eq!(
        warnings("hold.json", &holding(1_000, json!(1_049_576))),
        Vec::<String>::new()
    );
    assert_eq!(
        warnings("hold.json", &holding(1_000, json!(1_049_575))),
        warning(1_049_576)
    );
    assert_eq!(
        warnings("hold.json", &holding(1_000_000, Value::Null)),
        warning(2_048_576)
    );
    let small_reads = changed(
        holding(40_000, json!(72_768)),
        "/static_resources/listeners/0",
        "per_connection_buffer_limit_bytes",
        json!(32_768),
    );
    assert_eq!(warnings("hold.json", &small_reads), Vec::<String>::new());
    let turns =
        json!({"endpoints": [{"address": "10.0.0.1:8000"}], "policy": {"name": "round_robin"}});
    let unlimited = changed(
        envoy(&[filter(&turns)]),
        HOST,
        "request_body_buffer_limit",
        Value::Null,
    );
    assert_eq!(warnings("hold.json", &unlimited), Vec::<String>::new());
}

#[test]
fn a_cluster_that_does_not_listen_is_warned_of() {
    let leading_to = |steering: &str, mut cluster: Value| {
        let plugin = json!({"steering": steering, "endpoints": [{"address": "10.0.0.1:8000"}, {"address": "[::1]:8000"}]});
        cluster["circuit_breakers"] = limits();
        let mut envoy = envoy(&[filter(&plugin)]);
        let clusters = envoy.pointer_mut("/static_resources/clusters").unwrap();
        clusters.as_array_mut().unwrap().push(cluster);
        warnings("cluster.json", &envoy)
    };
    let fixed = json!({"name": "vllm", "type": "STATIC"});
    let by_header = json!({"name": "vllm", "type": "ORIGINAL_DST", "original_dst_lb_config": {"use_http_header": true}});
    let by_state = json!({"name": "vllm", "type": "ORIGINAL_DST"});
    let none = Vec::<String>::new();

    let warning = "no route leads to an ORIGINAL_DST cluster that obeys x-envoy-original-dst-host";
    assert_eq!(leading_to("original_dst", fixed.clone()), [warning]);
    assert_eq!(leading_to("original_dst", by_state.clone()), [warning]);
    assert_eq!(leading_to("original_dst", by_header.clone()), none);

    let warning = "no route leads to an ORIGINAL_DST cluster";
    assert_eq!(leading_to("filter_state", fixed.clone()), [warning]);
    assert_eq!(leading_to("filter_state", by_state), none);

    let warning = "no route leads to a cluster with the policy override_host that obeys x-gateway-destination-endpoint";
    assert_eq!(leading_to("override_host", fixed), [warning]);
    assert_eq!(leading_to("override_host", by_header), [warning]);
    let listed = |addresses: &[&str]| {
        let members: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"socket_address": {"address": address, "port_value": 8000}}))
            .collect();
        json!({
            "name": "vllm", "type": "STATIC", "load_assignment": members,
            "load_balancing_policy": {"override_host_sources": [{"header": "x-gateway-destination-endpoint"}]},
        })
    };
    assert_eq!(
        leading_to("override_host", listed(&["10.0.0.1", "::1"])),
        none
    );
    assert_eq!(
        leading_to("override_host", listed(&["10.0.0.1"])),
        ["no cluster lists [::1]:8000: Envoy passes over what it does not know"]
    );
}

/// A filter that discovers the members of `vllm_endpoints`, in an Envoy that has what it needs.
fn discovering() -> Value {
    let mut plugin = plugin();
    plugin.as_object_mut().unwrap().remove("endpoints");
    plugin["clusters"] = json!(["vllm_endpoints"]);
    plugin["discovery"] = json!({"cluster": "admin", "verdicts": ["scrape"]});
    let mut envoy = envoy(&[filter(&plugin)]);
    let address = json!({"socket_address": {"address": "127.0.0.1", "port_value": 9901}});
    envoy["admin"] = json!({ "address": address });
    let clusters = envoy["static_resources"]["clusters"]
        .as_array_mut()
        .unwrap();
    clusters.push(json!({"name": "vllm_endpoints", "type": "EDS"}));
    clusters.push(
        json!({"name": "admin", "type": "STATIC", "load_assignment": {"endpoints": [
        {"lb_endpoints": [{"endpoint": {"address": address}}]}]}}),
    );
    envoy
}

#[test]
fn discovery_needs_its_clusters_and_the_admin_interface() {
    const CLUSTERS: &str = "/static_resources/clusters";
    const ADMIN: &str = "/admin/address/socket_address";
    assert_eq!(warnings("good.json", &discovering()), Vec::<String>::new());
    let anywhere = changed(discovering(), ADMIN, "address", json!("0.0.0.0"));
    assert_eq!(warnings("anywhere.json", &anywhere), Vec::<String>::new());

    let other = changed(discovering(), ADMIN, "port_value", json!(9902));
    assert_eq!(
        warnings("other.json", &other),
        ["discovery.cluster: `admin` does not lead to the admin interface, 127.0.0.1:9902"]
    );
    let none = changed(discovering(), "", "admin", Value::Null);
    assert_eq!(
        warnings("none.json", &none),
        ["discovery.cluster: this file has no admin interface that `admin` could lead to"]
    );
    let mut alone = discovering();
    alone
        .pointer_mut(CLUSTERS)
        .unwrap()
        .as_array_mut()
        .unwrap()
        .truncate(0);
    assert_eq!(
        warnings("alone.json", &alone),
        [
            "discovery.cluster: there is no cluster `admin` in this file",
            "clusters: there is no cluster `vllm_endpoints` in this file",
            "discovery.verdicts: there is no cluster `scrape` in this file",
        ]
    );
    // A control plane may send what is not in the file, but no route may lead to the admin interface.
    let sent = changed(
        alone,
        "",
        "dynamic_resources",
        json!({"cds_config": {"ads": {}}}),
    );
    assert_eq!(warnings("sent.json", &sent), Vec::<String>::new());
    let open = changed(discovering(), ROUTE, "cluster", json!("admin"));
    let open = warnings("open.json", &open);
    let text = "a route leads to `admin`, the admin interface: clients could stop this Envoy";
    assert!(open.iter().any(|warning| warning == text), "{open:?}");
    let mut deaf = discovering();
    deaf.pointer_mut(CLUSTERS).unwrap()[1]["type"] = json!("ORIGINAL_DST");
    assert_eq!(
        warnings("deaf.json", &deaf),
        [
            "clusters: `vllm_endpoints` is an ORIGINAL_DST cluster, whose members are only where requests already went; name it in discovery.verdicts, and here one that lists endpoints"
        ]
    );
}

#[test]
fn clusters_and_endpoints_are_told_apart() {
    let both = json!({"pools": [
        {"name": "a", "clusters": ["x", "y"], "endpoints": [{"address": "10.0.0.1:1"}]},
        {"name": "b", "models": ["m"], "clusters": ["y"]},
    ], "discovery": {"cluster": "c"}});
    let outcome = check_text("both.json", &both.to_string(), &["--strict"]);
    assert_eq!(
        outcome.stdout,
        "FILE: ok: 1 endpoint and the members of 2 clusters in 2 pools, expected_latency, original_dst\n"
    );
    let found = json!({"clusters": ["x"], "discovery": {"cluster": "c"}});
    let outcome = check_text("found.json", &found.to_string(), &["--strict"]);
    assert_eq!(
        outcome.stdout,
        "FILE: ok: the members of 1 cluster in 1 pool, expected_latency, original_dst\n"
    );
}

#[test]
fn limits_that_are_too_small_for_a_fleet_are_warned_of() {
    let carried_by = |clusters: &[Value]| {
        let mut envoy = envoy(&[filter(&plugin())]);
        let list = envoy.pointer_mut("/static_resources/clusters").unwrap();
        list.as_array_mut().unwrap().extend_from_slice(clusters);
        let mut warnings = warnings("limits.json", &envoy);
        warnings.retain(|warning| warning.contains("circuit_breakers"));
        warnings
    };
    let steered = |name: &str, limits: Value| {
        json!({
            "name": name, "type": "ORIGINAL_DST", "circuit_breakers": limits,
            "original_dst_lb_config": {"use_http_header": true},
        })
    };
    let warning = |name: &str| {
        format!(
            "cluster `{name}`: Envoy's default of 1,024 requests under way holds for the whole fleet: set circuit_breakers.thresholds (max_connections, max_pending_requests, max_requests)"
        )
    };
    let none = [""; 0];
    assert_eq!(carried_by(&[steered("vllm", limits())]), none);
    let some = json!({"thresholds": [{"max_connections": 9_999}]});
    assert_eq!(carried_by(&[steered("vllm", some)]), [warning("vllm")]);
    let mut high = limits();
    high["thresholds"][0]["priority"] = json!("HIGH");
    assert_eq!(carried_by(&[steered("vllm", high)]), [warning("vllm")]);
    // Where no route leads, little goes.
    assert_eq!(carried_by(&[steered("other", Value::Null)]), none);
    // A composite cluster counts nothing itself.
    let composite = json!({"name": "vllm", "circuit_breakers": limits(), "cluster_type": {
        "typed_config": {"clusters": [{"name": "first"}, {"name": "next"}]}}});
    let members = [
        composite,
        steered("first", limits()),
        steered("next", Value::Null),
    ];
    assert_eq!(carried_by(&members), [warning("next")]);
}

#[test]
fn verdicts_by_status_code_are_warned_of() {
    let detecting = |detection: Value| {
        let cluster = "/static_resources/clusters/0";
        let envoy = changed(discovering(), cluster, "outlier_detection", detection);
        warnings("outliers.json", &envoy)
    };
    let warning = |key: &str| {
        format!(
            "discovery.verdicts: the outlier detection of `scrape` ejects by status code, so that a fleet that is full gets nothing: set {key}: 0"
        )
    };
    assert_eq!(
        detecting(json!({"interval": "1s"})),
        [warning("enforcing_consecutive_5xx")]
    );
    assert_eq!(
        detecting(json!({"enforcing_consecutive_5xx": 0})),
        [warning("enforcing_success_rate")]
    );
    assert_eq!(
        detecting(json!({"enforcing_consecutive_5xx": 0, "enforcing_success_rate": 0})),
        [""; 0]
    );
    assert_eq!(
        detecting(json!({
            "enforcing_consecutive_5xx": 0, "enforcing_success_rate": 0,
            "enforcing_consecutive_gateway_failure": 10,
        })),
        [warning("enforcing_consecutive_gateway_failure")]
    );
}
