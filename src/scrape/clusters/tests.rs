//! What is read of Envoy's answers, of broken ones, and of any bytes.

use std::net::SocketAddr;

use super::*;

/// A real answer, trimmed.
const ENVOY_1_40: &[u8] = include_bytes!("../../../tests/data/clusters-envoy-1.40.json");

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn read(wanted: &[&str], pieces: &[&[u8]]) -> Result<Vec<Option<Cluster>>, ClustersError> {
    let wanted = names(wanted);
    let mut reader = ClustersReader::new(&wanted);
    for piece in pieces {
        reader.push(piece);
    }
    reader.finish()
}

fn member(address: &str, verdict: Verdict) -> Member {
    Member {
        address: address.parse().unwrap(),
        weight: 1,
        priority: 0,
        locality: String::new(),
        verdict,
    }
}

/// One cluster `c` with one host of these members.
fn of_host(host: &str) -> Result<Vec<Option<Cluster>>, ClustersError> {
    let text =
        format!(r#"{{"cluster_statuses": [{{"name": "c", "host_statuses": [{{{host}}}]}}]}}"#);
    read(&["c"], &[text.as_bytes()])
}

const ADDRESS: &str =
    r#""address": {"socket_address": {"address": "10.0.0.1", "port_value": 8000}}"#;

#[test]
fn an_answer_of_envoy_1_40_is_read() {
    let wanted = ["vllm_endpoints", "vllm", "statics", "dns", "empty", "none"];
    let found = read(&wanted, &[ENVOY_1_40]).unwrap();
    let there = |address, verdict| Member {
        locality: "r1/z1/s1".into(),
        ..member(address, verdict)
    };
    let eds = vec![
        Member {
            weight: 3,
            ..there("127.0.0.1:9101", Verdict::Healthy)
        },
        there("127.0.0.1:9102", Verdict::Draining),
        there("[::1]:9103", Verdict::Unhealthy),
        there("127.0.0.1:9104", Verdict::Degraded),
        there("127.0.0.1:9105", Verdict::Unhealthy),
        Member {
            priority: 1,
            locality: "r2".into(),
            ..member("127.0.0.1:9106", Verdict::Healthy)
        },
    ];
    let ejected = vec![member("127.0.0.1:9101", Verdict::Unhealthy)];
    let unchecked = vec![
        member("127.0.0.1:9201", Verdict::Unhealthy),
        member("127.0.0.1:9202", Verdict::Unhealthy),
    ];
    let resolved = vec![member("[::1]:9301", Verdict::Healthy)];
    let counts = |one: &Cluster| (one.unusable, one.left_out);
    let counts: Vec<_> = found.iter().flatten().map(counts).collect();
    assert_eq!(counts[0], (1, 0), "one is a pipe");
    assert_eq!(counts[1..], [(0, 0); 4]);
    let members = found.into_iter().map(|one| one.map(|one| one.members));
    let expected = [
        Some(eds),
        Some(ejected),
        Some(unchecked),
        Some(resolved),
        Some(Vec::new()),
        None,
    ];
    assert_eq!(members.collect::<Vec<_>>(), expected);
}

#[test]
fn any_split_reads_alike_and_no_beginning_is_an_answer() {
    let whole = read(&["vllm_endpoints", "vllm"], &[ENVOY_1_40]).unwrap();
    let end = ENVOY_1_40.trim_ascii_end().len();
    for at in 0..ENVOY_1_40.len() {
        let (head, tail) = ENVOY_1_40.split_at(at);
        if at % 7 == 0 {
            assert_eq!(
                read(&["vllm_endpoints", "vllm"], &[head, tail]).as_ref(),
                Ok(&whole)
            );
        }
        if at < end {
            let cut = read(&["vllm_endpoints", "vllm"], &[head]);
            assert_eq!(cut, Err(ClustersError::Broken), "cut at {at}");
        }
    }
}

#[test]
fn what_is_no_list_of_clusters_is_an_error() {
    for text in [
        "",
        " ",
        "[]",
        "no healthy upstream",
        "<html>",
        "{\"cluster_statuses\": [}]}",
    ] {
        assert_eq!(
            read(&["c"], &[text.as_bytes()]),
            Err(ClustersError::Broken),
            "{text}"
        );
    }
    for text in [
        "{}",
        r#"{"configs": []}"#,
        r#"{"cluster_statuses": {}}"#,
        r#"{"cluster_statuses": null}"#,
    ] {
        assert_eq!(
            read(&["c"], &[text.as_bytes()]),
            Err(ClustersError::NoClusters),
            "{text}"
        );
    }
    let none = read(&["c"], &[br#"{"cluster_statuses": []}"#]).unwrap();
    assert_eq!(none, [None]);
}

#[test]
fn every_sign_of_ill_health_is_seen_and_the_worst_counts() {
    let verdict = |health: &str| {
        let found = of_host(&format!(r#""health_status": {{{health}}}, {ADDRESS}"#)).unwrap();
        found[0].as_ref().unwrap().members[0].verdict
    };
    for (health, expected) in [
        ("", Verdict::Healthy),
        (r#""eds_health_status": "UNKNOWN""#, Verdict::Healthy),
        (r#""eds_health_status": "HEALTHY""#, Verdict::Healthy),
        (r#""eds_health_status": "DEGRADED""#, Verdict::Degraded),
        (r#""eds_health_status": "UNHEALTHY""#, Verdict::Unhealthy),
        (r#""eds_health_status": "TIMEOUT""#, Verdict::Unhealthy),
        (r#""eds_health_status": "DRAINING""#, Verdict::Draining),
        (r#""eds_health_status": "of tomorrow""#, Verdict::Healthy),
        (r#""failed_active_health_check": true"#, Verdict::Unhealthy),
        (r#""failed_active_health_check": false"#, Verdict::Healthy),
        (r#""failed_outlier_check": true"#, Verdict::Unhealthy),
        (r#""failed_active_degraded_check": true"#, Verdict::Degraded),
        (r#""pending_dynamic_removal": true"#, Verdict::Draining),
        (r#""pending_active_hc": true"#, Verdict::Unhealthy),
        (
            r#""excluded_via_immediate_hc_fail": true"#,
            Verdict::Unhealthy,
        ),
        (r#""active_hc_timeout": true"#, Verdict::Unhealthy),
        (
            r#""eds_health_status": "DRAINING", "failed_outlier_check": true"#,
            Verdict::Draining,
        ),
        (
            r#""failed_outlier_check": true, "eds_health_status": "HEALTHY""#,
            Verdict::Unhealthy,
        ),
    ] {
        assert_eq!(verdict(health), expected, "{health}");
    }
}

#[test]
fn who_cannot_be_connected_to_is_counted_and_left_out() {
    let socket = |address: &str, port: &str| {
        format!(
            r#""address": {{"socket_address": {{"address": "{address}", "port_value": {port}}}}}"#
        )
    };
    for host in [
        String::new(),
        r#""address": {"pipe": {"path": "/run/vllm.sock"}}"#.to_owned(),
        r#""address": {"envoy_internal_address": {"server_listener_name": "x"}}"#.to_owned(),
        r#""address": {"socket_address": {"address": "10.0.0.1", "named_port": "http"}}"#
            .to_owned(),
        socket("vllm.example", "80"),
        socket("fe80::1%eth0", "80"),
        socket("10.0.0.1", "0"),
        socket("10.0.0.1", "65536"),
        socket("10.0.0.1", "-1"),
        socket("0.0.0.0", "80"),
        socket("::", "80"),
        socket(&"1".repeat(300), "80"),
    ] {
        let nobody = Cluster {
            unusable: 1,
            ..Cluster::default()
        };
        assert_eq!(of_host(&host).unwrap(), [Some(nobody)], "{host}");
    }
}

#[test]
fn figures_stay_within_their_limits() {
    let found = |more: &str| {
        let found = of_host(&format!("{ADDRESS}, {more}")).unwrap();
        found[0].as_ref().unwrap().members[0].clone()
    };
    for (weight, expected) in [("0", 1), ("7", 7), ("4294967295", MAX_WEIGHT), ("-1", 1)] {
        assert_eq!(found(&format!(r#""weight": {weight}"#)).weight, expected);
    }
    assert_eq!(found(r#""priority": 99999999999"#).priority, u32::MAX);
    let long = "ü".repeat(120);
    let locality = found(&format!(
        r#""locality": {{"region": "{long}", "zone": "z"}}"#
    ))
    .locality;
    assert_eq!(locality, "ü".repeat(64));
    let parts = found(r#""locality": {"zone": "z", "sub_zone": ""}"#);
    assert_eq!(parts.locality, "/z");
}

#[test]
fn no_answer_gives_more_members_than_the_limit() {
    let hosts = |from: u32, count: u32| {
        let host = |n: u32| {
            format!(
                r#"{{"address": {{"socket_address": {{"address": "10.0.{}.{}", "port_value": 80}}}}}}"#,
                n / 256,
                n % 256
            )
        };
        let hosts: Vec<String> = (from..from + count).map(host).collect();
        hosts.join(",")
    };
    let text = format!(
        r#"{{"cluster_statuses": [
            {{"host_statuses": [{}], "name": "b"}},
            {{"name": "other", "host_statuses": [{}]}},
            {{"name": "a", "host_statuses": [{}]}}]}}"#,
        hosts(0, 1_000),
        hosts(1_000, 1_100),
        hosts(3_000, 1_100)
    );
    let found = read(&["a", "b"], &[text.as_bytes()]).unwrap();
    let counts = |one: &Cluster| (one.members.len(), one.left_out);
    let counts: Vec<_> = found.iter().flatten().map(counts).collect();
    assert_eq!(counts, [(24, 1_076), (1_000, 0)]);
}

#[test]
fn thousands_of_other_clusters_are_passed_over() {
    let answer: serde_json::Value = serde_json::from_slice(ENVOY_1_40).unwrap();
    let mut clusters = Vec::new();
    for n in 0..3_000 {
        let mut cluster = answer["cluster_statuses"][n % 5].clone();
        cluster["name"] = format!("outbound|{n}||service.default.svc.cluster.local").into();
        clusters.push(cluster);
    }
    clusters.insert(2_000, answer["cluster_statuses"][4].clone());
    let text = serde_json::json!({ "cluster_statuses": clusters }).to_string();
    assert!(text.len() > 1_000_000, "{}", text.len());
    let found = read(&["vllm_endpoints"], &[text.as_bytes()]).unwrap();
    let small = read(&["vllm_endpoints"], &[ENVOY_1_40]).unwrap();
    assert_eq!(found, small);
}

/// The same by building the whole tree.
fn twin(text: &[u8], wanted: &[String]) -> Vec<Option<Vec<SocketAddr>>> {
    let tree: serde_json::Value = serde_json::from_slice(text).unwrap();
    let clusters = tree["cluster_statuses"].as_array().unwrap();
    let of = |name: &String| {
        let cluster = clusters.iter().find(|one| one["name"] == name.as_str())?;
        let hosts = cluster["host_statuses"].as_array().cloned();
        let socket = |host: serde_json::Value| {
            let socket = &host["address"]["socket_address"];
            let ip = socket["address"].as_str()?.parse().ok()?;
            let port = u16::try_from(socket["port_value"].as_u64()?).ok()?;
            Some(SocketAddr::new(ip, port)).filter(|address| address.port() > 0)
        };
        Some(hosts.into_iter().flatten().filter_map(socket).collect())
    };
    wanted.iter().map(of).collect()
}

fn some_host() -> impl proptest::strategy::Strategy<Value = serde_json::Value> {
    use proptest::prelude::*;
    let nested = serde_json::json!({"name": "c0", "address": "10.9.9.9", "host_statuses": [{"port_value": 1}]});
    (any::<[u8; 4]>(), any::<u16>(), any::<bool>()).prop_map(move |(ip, port, pipe)| {
        // 0.0.0.0 is nowhere.
        let ip = std::net::Ipv4Addr::new(ip[0].max(1), ip[1], ip[2], ip[3]);
        let socket = serde_json::json!({"address": ip.to_string(), "port_value": port});
        let address = match pipe {
            true => serde_json::json!({"pipe": {"path": "}]\"{["}}),
            false => serde_json::json!({"socket_address": socket, "more": nested}),
        };
        serde_json::json!({"stats": [nested, nested], "address": address, "name": "c1"})
    })
}

proptest::proptest! {
    #[test]
    fn what_is_read_equals_what_the_tree_holds(
        clusters in proptest::collection::vec(
            ("c[0-4]", proptest::collection::vec(some_host(), 0..4)), 0..6),
        size in 1_usize..50,
    ) {
        let mut seen = Vec::new();
        let mut list = Vec::new();
        for (name, hosts) in clusters {
            if !seen.contains(&name) {
                list.push(serde_json::json!({"host_statuses": hosts, "name": name, "x": [{"name": "c4"}]}));
                seen.push(name);
            }
        }
        let text = serde_json::json!({"cluster_statuses": list}).to_string();
        let wanted = names(&["c3", "c0", "c1"]);
        let mut reader = ClustersReader::new(&wanted);
        for piece in text.as_bytes().chunks(size) {
            reader.push(piece);
        }
        let found: Vec<Option<Vec<SocketAddr>>> = reader.finish().unwrap().into_iter()
            .map(|one| one.map(|one| one.members.iter().map(|one| one.address).collect()))
            .collect();
        proptest::prop_assert_eq!(found, twin(text.as_bytes(), &wanted));
    }

    #[test]
    fn any_bytes_are_harmless(bytes: Vec<u8>, at in 0_usize..8_000, cut: bool) {
        let mut text = ENVOY_1_40.to_vec();
        let at = at.min(text.len());
        let end = if cut { text.len() } else { at };
        text.splice(at..end, bytes.iter().copied());
        for text in [text.as_slice(), bytes.as_slice()] {
            if let Ok(found) = read(&["vllm", "vllm_endpoints"], &[text]) {
                proptest::prop_assert!(found.len() == 2);
            }
        }
    }
}
