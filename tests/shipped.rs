//! The shipped Envoy configurations are one, but for how they steer: what makes one of them fit for production
//! is in all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use serde_json::{Value, json};
use std::path::Path;

/// The plain one carries no filter, but is compared with the others.
const FILES: [&str; 6] = [
    "original_dst",
    "filter_state",
    "override_host",
    "composite",
    "discovery",
    "plain",
];

fn shipped(name: &str) -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("envoy/{name}.yaml"));
    serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The parts of a configuration that all have in common.
fn common(envoy: &Value) -> [&Value; 9] {
    let listener = &envoy["static_resources"]["listeners"][0];
    let manager = &listener["filter_chains"][0]["filters"][0]["typed_config"];
    let host = &manager["route_config"]["virtual_hosts"][0];
    [
        &envoy["overload_manager"],
        &envoy["stats_config"]["histogram_bucket_settings"],
        &listener["tcp_keepalive"],
        &manager["http2_protocol_options"],
        &manager["request_headers_timeout"],
        &manager["stream_idle_timeout"],
        &manager["use_remote_address"],
        &host["request_body_buffer_limit"],
        &host["routes"][0]["route"]["timeout"],
    ]
}

#[test]
fn all_have_the_same_limits_and_timeouts() {
    let first = shipped(FILES[0]);
    for name in FILES {
        let other = shipped(name);
        for (place, (one, other)) in common(&first).into_iter().zip(common(&other)).enumerate() {
            assert!(!one.is_null(), "{place}");
            // No filter, no metrics of its own and no body that it waits for.
            let needless = name == "plain" && matches!(place, 1 | 7);
            assert!(one == other || needless, "{name}: {place}: {other}");
        }
    }
}

#[test]
fn whatever_connects_to_engines_notices_who_vanished_and_has_limits_for_a_fleet() {
    let vanished = json!([{
        "description": "tcp_user_timeout", "level": 6, "name": 18, "int_value": 30_000,
        "state": "STATE_PREBIND",
    }]);
    let mut seen = 0;
    for name in FILES {
        let envoy = shipped(name);
        let clusters = envoy["static_resources"]["clusters"].as_array().unwrap();
        // Composite clusters connect to nobody, the lists of discovery and the admin interface carry no requests.
        let elsewhere = ["vllm_endpoints", "warmroute_admin"];
        let connect = clusters.iter().filter(|cluster| {
            cluster["cluster_type"].is_null()
                && !elsewhere.contains(&cluster["name"].as_str().unwrap())
        });
        for cluster in connect {
            let place = format!("{name}: {}", cluster["name"]);
            let keepalive = &cluster["upstream_connection_options"]["tcp_keepalive"];
            let period =
                json!({"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3});
            assert_eq!(*keepalive, period, "{place}");
            let options = &cluster["upstream_bind_config"]["socket_options"];
            assert_eq!(*options, vanished, "{place}");
            let protocol = &cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
            let idle = &protocol["common_http_protocol_options"]["idle_timeout"];
            assert_eq!(*idle, "4s", "{place}");
            for limit in ["max_connections", "max_pending_requests", "max_requests"] {
                let limit = &cluster["circuit_breakers"]["thresholds"][0][limit];
                assert_eq!(*limit, 100_000, "{place}");
            }
            seen += 1;
        }
    }
    // One that carries requests and one for questions each; two carry them in the composite one.
    assert_eq!(seen, 2 * FILES.len());
}
