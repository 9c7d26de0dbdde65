//! What is said of wrong pools, of their policies, and of their endpoints.

use super::*;

#[test]
fn errors_of_policy_parameters() {
    golden(&[
        (
            r#""policy": {"name": "round_robin", "points": 1}"#,
            "policy.points: `round_robin` takes no parameters",
        ),
        (
            r#""policy": {"name": "power_of_two", "keys": []}"#,
            "policy.keys: `power_of_two` has no such parameter; it takes `load`",
        ),
        (
            r#""policy": {"name": "consistent_hash", "load": "kv"}"#,
            "policy.load: `consistent_hash` has no such parameter; it takes `keys`, `points`",
        ),
        (
            r#""policy": {"name": "prefix_hash", "load": "kv"}"#,
            "policy.load: `prefix_hash` has no such parameter; it takes `load_factor`, `bound`, `points`",
        ),
        (
            r#""policy": {"name": "prefix_hash", "preset": "ray"}"#,
            "policy.preset: `prefix_hash` has no such parameter; it takes `load_factor`, `bound`, `points`",
        ),
        (
            r#""policy": {"name": "cache_aware", "bound": "tokens"}"#,
            "policy.bound: `cache_aware` has no such parameter; it takes `preset`, `match_threshold`, `imbalance_requests`, `imbalance_ratio`",
        ),
        (
            r#""policy": {"name": "consistent_hash"}"#,
            "policy.keys: needs 1 to 8 sources, such as [{\"header\": \"x-session-id\"}, {\"body\": \"user\"}]",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"header": "a", "cookie": "b"}]}"#,
            "policy.keys[0]: must be exactly one of {\"header\": NAME}, {\"cookie\": NAME}, {\"body\": FIELD}",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"body": "user"}, {"header": "a b"}]}"#,
            "policy.keys[1]: must be exactly one of {\"header\": NAME}, {\"cookie\": NAME}, {\"body\": FIELD}",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"body": "a.b.c.d.e"}]}"#,
            "policy.keys[0].body: `a.b.c.d.e` must be a field of the body such as `user` or `metadata.session_id`, at most 4 deep",
        ),
        (
            r#""policy": {"name": "consistent_hash", "keys": [{"body": "a..b"}]}"#,
            "policy.keys[0].body: `a..b` must be a field of the body such as `user` or `metadata.session_id`, at most 4 deep",
        ),
    ]);
    let sources = r#"{"body": "user"},"#.repeat(8) + r#"{"body": "user"}"#;
    assert_eq!(
        policy(&format!(
            r#"{{"name": "consistent_hash", "keys": [{sources}]}}"#
        )),
        Err("policy.keys: needs 1 to 8 sources, such as [{\"header\": \"x-session-id\"}, {\"body\": \"user\"}]".into())
    );
}

#[test]
fn body_fields_are_limited_over_all_pools() {
    let pool = |name: &str, fields: std::ops::Range<u32>| {
        let keys: Vec<String> = fields.map(|n| format!(r#"{{"body": "f{n}"}}"#)).collect();
        format!(
            r#"{{"name": "{name}", "endpoints": [{{"address": "10.0.0.1:1"}}],
                "policy": {{"name": "consistent_hash", "keys": [{}]}}}}"#,
            keys.join(",")
        )
    };
    // Eight different ones, one of them named twice.
    let eight = format!(r#"{{"pools": [{}, {}]}}"#, pool("a", 0..5), pool("b", 4..8));
    assert_eq!(parse(&eight).unwrap().scan.key_fields.len(), 8);
    let nine = format!(r#"{{"pools": [{}, {}]}}"#, pool("a", 0..5), pool("b", 5..9));
    assert_eq!(
        error_of(&nine),
        "pools[1].policy.keys[3].body: at most 8 different body fields"
    );
}

#[test]
fn errors_of_endpoints() {
    let address =
        |address: &str| error_of(&format!(r#"{{"endpoints": [{{"address": "{address}"}}]}}"#));
    for host in [
        "vllm.default:8000",
        "10.0.0.1",
        "::1:8000",
        "",
        "10.0.0.1:70000",
    ] {
        assert_eq!(
            address(host),
            format!(
                "endpoints[0].address: `{host}` is not IP:port (IPv6 in brackets, as [::1]:8000; no host names)"
            )
        );
    }
    for nowhere in ["10.0.0.1:0", "0.0.0.0:80", "[::]:80"] {
        assert_eq!(
            address(nowhere),
            format!("endpoints[0].address: `{nowhere}` can't be connected to")
        );
    }
    assert_eq!(
        error_of(
            r#"{"endpoints": [{"address": "10.0.0.1:1"}, {"address": "10.0.0.2:1", "weight": 0}]}"#
        ),
        "endpoints[1].weight: must be between 1 and 10000, not 0"
    );
    assert_eq!(
        error_of(r#"{"endpoints": []}"#),
        "endpoints: must name at least one endpoint"
    );
}

#[test]
fn errors_of_pools() {
    let endpoints = r#""endpoints": [{"address": "10.0.0.1:1"}]"#;
    let pools = |list: &str| error_of(&format!(r#"{{"pools": [{list}]}}"#));
    assert_eq!(
        error(r#""pools": []"#),
        "pools: give either `endpoints` and `clusters` (one pool) or `pools`, not both"
    );
    assert_eq!(pools(""), "pools: must hold between 1 and 64 pools");
    let many: Vec<String> = (0..65)
        .map(|n| format!(r#"{{"name": "p{n}", {endpoints}}}"#))
        .collect();
    assert_eq!(
        pools(&many.join(",")),
        "pools: must hold between 1 and 64 pools"
    );
    assert_eq!(
        pools(&format!(r#"{{"name": "", {endpoints}}}"#)),
        "pools[0].name: must be unique and not empty"
    );
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", {endpoints}}}, {{"name": "a", {endpoints}}}"#
        )),
        "pools[1].name: must be unique and not empty"
    );
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", "models": ["m"], {endpoints}}}, {{"name": "b", "models": ["n", "m"], {endpoints}}}"#
        )),
        "pools[1].models[1]: model `m` already belongs to another pool"
    );
    assert_eq!(
        pools(r#"{"name": "a", "endpoints": []}"#),
        "pools[0].endpoints: must name at least one endpoint"
    );
    assert_eq!(
        pools(&format!(
            r#"{{"name": "a", "policy": {{"name": "random", "load": "kv"}}, {endpoints}}}"#
        )),
        "pools[0].policy.load: `random` takes no parameters"
    );
}

#[test]
fn endpoints_are_limited_over_all_pools() {
    let endpoints = |count: u32| {
        let list: Vec<String> = (0..count)
            .map(|n| format!(r#"{{"address": "10.0.{}.{}:80"}}"#, n / 256, n % 256))
            .collect();
        list.join(",")
    };
    let most = parse(&format!(r#"{{"endpoints": [{}]}}"#, endpoints(1_024))).unwrap();
    assert_eq!(most.pools[0].pool.len(), MAX_ENDPOINTS);
    assert_eq!(
        error_of(&format!(r#"{{"endpoints": [{}]}}"#, endpoints(1_025))),
        "pools: 1025 endpoints; at most 1024 are allowed"
    );
}
