//! Clusters beside endpoints, and where they are looked for.

use super::*;

const DISCOVERY: &str = r#""discovery": {"cluster": "admin"}"#;

#[test]
fn clusters_may_stand_for_endpoints_or_beside_them() {
    let alone = parse(&format!(r#"{{"clusters": ["a", "b"], {DISCOVERY}}}"#)).unwrap();
    assert_eq!(alone.pools[0].clusters, ["a", "b"]);
    assert!(alone.pools[0].pool.is_empty());
    assert_eq!(
        alone.discovery,
        Some(DiscoveryConfig {
            cluster: "admin".into(),
            path: "/clusters?format=json".into(),
            interval_ms: 1_000,
            timeout_ms: 800,
            verdicts: Vec::new(),
        })
    );
    // How many there will be is not known.
    assert_eq!(alone.index_blocks, 1 << 20);
    let both = valid(&format!(r#""clusters": ["a"], {DISCOVERY}"#));
    assert_eq!(
        (both.pools[0].pool.len(), both.pools[0].clusters.len()),
        (1, 1)
    );
    let pools = parse(
        r#"{"pools": [
            {"name": "a", "clusters": ["x"], "endpoints": [{"address": "10.0.0.1:1"}]},
            {"name": "b", "models": ["m"], "clusters": ["x", "y"]}],
            "discovery": {"cluster": "c", "path": "/p", "interval_ms": 500, "timeout_ms": 400, "verdicts": ["v"]}}"#,
    )
    .unwrap();
    assert_eq!(pools.pools[1].clusters, ["x", "y"]);
    assert!(pools.pools[1].pool.is_empty());
    let discovery = pools.discovery.unwrap();
    assert_eq!((discovery.interval_ms, discovery.timeout_ms), (500, 400));
    assert_eq!(
        (discovery.path.as_str(), discovery.verdicts),
        ("/p", vec!["v".to_owned()])
    );
    // A short interval shortens the wait.
    let short = valid(r#""discovery": {"cluster": "c", "interval_ms": 300, "verdicts": ["v"]}"#);
    assert_eq!(short.discovery.unwrap().timeout_ms, 300);
}

#[test]
fn errors_of_discovery() {
    golden(&[
        (
            r#""clusters": ["a"]"#,
            "discovery: missing: `clusters` needs to know where Envoy's admin interface is",
        ),
        (
            DISCOVERY,
            "discovery: asks for nothing: give a pool `clusters`, or name `verdicts`",
        ),
        (
            r#""clusters": ["a"], "discovery": {"cluster": ""}"#,
            "discovery.cluster: must name an Envoy cluster",
        ),
        (
            r#""clusters": ["a"], "discovery": {"cluster": "c", "path": "clusters"}"#,
            "discovery.path: `clusters` must be a path that starts with `/`",
        ),
        (
            r#""clusters": ["a"], "discovery": {"cluster": "c", "interval_ms": 99}"#,
            "discovery.interval_ms: must be between 100 and 20000, not 99",
        ),
        (
            r#""clusters": ["a"], "discovery": {"cluster": "c", "timeout_ms": 9}"#,
            "discovery.timeout_ms: must be between 10 and 20000, not 9",
        ),
        (
            r#""clusters": ["a"], "discovery": {"cluster": "c", "verdicts": ["b", ""]}"#,
            "discovery.verdicts[1]: must be unique, not empty and no longer than 256 bytes",
        ),
        (
            r#""clusters": ["a", "a"], "discovery": {"cluster": "c"}"#,
            "clusters[1]: must be unique, not empty and no longer than 256 bytes",
        ),
    ]);
    let pools = |list: &str| error_of(&format!(r#"{{"pools": [{list}], {DISCOVERY}}}"#));
    assert_eq!(
        pools(r#"{"name": "a"}"#),
        "pools[0].endpoints: missing: give `endpoints`, `clusters` or both"
    );
    assert_eq!(
        pools(r#"{"name": "a", "clusters": [""]}"#),
        "pools[0].clusters[0]: must be unique, not empty and no longer than 256 bytes"
    );
    assert_eq!(
        error_of(&format!(
            r#"{{"clusters": ["a"], "pools": [{{"name": "a", "clusters": ["a"]}}], {DISCOVERY}}}"#
        )),
        "pools: give either `endpoints` and `clusters` (one pool) or `pools`, not both"
    );
    assert_eq!(
        error_of(&format!(r#"{{"clusters": [], {DISCOVERY}}}"#)),
        "endpoints: missing: give `endpoints` or `clusters` (one pool), or `pools`"
    );
    let many = |from: u32, count: u32| {
        let names: Vec<String> = (from..from + count).map(|n| format!(r#""c{n}""#)).collect();
        names.join(",")
    };
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", "clusters": [{}]}}, {{"name": "b", "clusters": [{}]}}"#,
            many(0, 33),
            many(33, 32)
        )),
        "pools: 65 clusters; at most 64 are allowed"
    );
    assert_eq!(
        error(&format!(r#""clusters": [{}], {DISCOVERY}"#, many(0, 65))),
        "clusters: 65 clusters; at most 64 are allowed"
    );
}
