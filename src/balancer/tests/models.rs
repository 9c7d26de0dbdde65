//! The gateway's own list of models.

use super::*;

fn reply(gateway: &mut Gateway, path: &str) -> Option<(u16, String)> {
    let reply = gateway
        .balancer
        .models_reply(&gateway.store, path.as_bytes());
    reply.map(|reply| (reply.status, reply.body))
}

#[test]
fn f3_the_gateway_lists_the_models_of_all_endpoints() {
    let mut gateway = Gateway::asking("");
    assert_eq!(reply(&mut gateway, "/v1/models"), None, "nothing is known");
    gateway.answered(1, 200, &list(&["base"]));
    gateway.answered(2, 200, &list(&["base", "org/sql é"]));
    let (status, body) = reply(&mut gateway, "/v1/models?x=1").unwrap();
    let whole: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, whole["data"][0]["id"].as_str()),
        (200, Some("base"))
    );
    assert_eq!(whole["data"].as_array().unwrap().len(), 2);
    let card = Some((200, r#"{"id":"org/sql é","parent":"base"}"#.to_owned()));
    assert_eq!(reply(&mut gateway, "/v1/models/org%2Fsql%20%C3%A9"), card);
    assert_eq!(reply(&mut gateway, "/v1/models/org/sql%20%c3%a9"), card);
    for path in [
        "/v1/models/",
        "/v1/modelsx",
        "/v1",
        "/v1/models/%2",
        "/v1/models/%ff",
    ] {
        assert_eq!(reply(&mut gateway, path), None, "{path}");
    }
    // The third has not said what it serves.
    assert_eq!(reply(&mut gateway, "/v1/models/nobody"), None);
    gateway.answered(3, 200, &list(&["base"]));
    let (status, body) = reply(&mut gateway, "/v1/models/nobody").unwrap();
    assert_eq!(status, 404);
    assert!(
        body.contains("The model `nobody` does not exist."),
        "{body}"
    );
}

#[test]
fn without_models_the_gateway_has_no_list() {
    let mut gateway = Gateway::new(r#""endpoints": [{"address": "10.0.0.1:80"}]"#);
    gateway.answered(1, 200, &list(&["base"]));
    assert_eq!(reply(&mut gateway, "/v1/models"), None);
    assert_eq!(gateway.used("anything", 1), [1]);
}
