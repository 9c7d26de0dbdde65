//! What is read beside the prompt: the API, the model, limits, counts, and key fields.

use super::*;

#[test]
fn b3_a_query_does_not_change_the_path() {
    for (path, api) in [
        ("/v1/chat/completions", Some(Api::ChatCompletions)),
        ("/v1/chat/completions?beta=true", Some(Api::ChatCompletions)),
        ("/v1/completions?", Some(Api::Completions)),
        ("/v1/responses?a=/v1/messages", Some(Api::Responses)),
        ("/v1/messages?beta=true", Some(Api::Messages)),
        ("/v1/chat/completions/", None),
        ("/v1/messages/count_tokens", None),
        ("/x/v1/completions", None),
        ("?/v1/completions", None),
        ("", None),
    ] {
        assert_eq!(Api::from_path(path.as_bytes()), api, "{path}");
    }
}

#[test]
fn b1_odd_but_valid_bodies_are_read() {
    let body = r#"{"model": "first", "stream": null, "max_tokens": 5.0, "top_logprobs": 25,
        "response_format": {"type": "structural_tag", "x": [{}, []]}, "model": "tiny",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "messages": [{"role": "oracle", "content": "Hm."},
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, {"type": "text", "text": "Hi"}]}],
        "guided_json": {"a": null}, "n": 2, "temperature": -1e-3}"#;
    let request = scan(Api::ChatCompletions, body);
    assert_eq!(request.model.as_deref(), Some("tiny"));
    assert!(!request.stream);
    assert_eq!(request.max_output_tokens, Some(5));
    assert_eq!(request.n, 2);
    assert_eq!(request.prompt.images, 1);
    assert!(request.prompt.routing.is_some());
}

#[test]
fn limits_and_counts_that_make_no_sense_are_ignored() {
    for (members, limit, n) in [
        (r#""max_tokens": null"#, None, 1),
        (r#""max_tokens": -3, "n": -1"#, None, 1),
        (r#""max_tokens": 1e300, "n": 1e300"#, None, 1),
        (r#""max_tokens": 99999999999, "n": 0"#, None, 1),
        (r#""max_tokens": 2.5, "n": null"#, None, 1),
        (r#""max_tokens": "7", "n": "2""#, None, 1),
        (r#""max_tokens": [7], "n": {"a": 3}"#, None, 1),
        (r#""max_tokens": 7, "max_completion_tokens": 9"#, Some(9), 1),
        (
            r#""max_completion_tokens": null, "max_tokens": 7"#,
            Some(7),
            1,
        ),
        (r#""max_tokens": 7, "max_tokens": 8, "n": 4"#, Some(8), 4),
        (r#""best_of": 5, "n": 2"#, None, 5),
        (r#""max_output_tokens": 7"#, None, 1),
    ] {
        let request = scan(Api::ChatCompletions, &format!("{{{members}}}"));
        assert_eq!(
            (request.max_output_tokens, request.n),
            (limit, n),
            "{members}"
        );
    }
    let request = scan(
        Api::Responses,
        r#"{"max_output_tokens": 7, "max_tokens": 8, "stream": true}"#,
    );
    assert_eq!(request.max_output_tokens, Some(7));
    assert!(request.stream);
}

#[test]
fn numbers_too_long_to_understand_are_ignored() {
    let limit = |number: &str| {
        let body = format!(r#"{{"max_tokens": {number}, "model": "tiny"}}"#);
        scan(Api::ChatCompletions, &body).max_output_tokens
    };
    assert_eq!(limit(&format!("5.{}", "0".repeat(20))), Some(5));
    assert_eq!(limit(&format!("5.{}1", "0".repeat(60))), None);
    assert_eq!(limit(&"9".repeat(1000)), None);

    let ids = completion("[1, 99999999999999999999, 2, 3]");
    assert_eq!(ids, completion("[1, 2, 3]"));
    let wide = completion("[1, 4294967298, 3]");
    assert_eq!(wide, completion("[1, 2, 3]"), "the lower 32 bits count");
}

#[test]
fn h8_text_that_looks_like_a_field_sets_none() {
    let paths = ["user", "metadata.session", "model", "metadata"];
    let body = r#"{"messages": [{"role": "user", "user": "bob", "content": "\"user\": \"bob\", {\"user\": \"bob\"}"}],
        "x": {"user": "bob", "metadata": {"session": "bob"}}, "y": ["user", "bob"], "z": "user", "metadata": {"other": {"session": "bob"}}}"#;
    assert_eq!(fields(&paths, body), vec![None; 4]);
}

#[test]
fn key_fields_are_found_at_their_paths() {
    let paths = [
        "user",
        "metadata.session_id",
        "a.b.c.d",
        "model",
        "missing",
        "metadata.count",
        "metadata.flag",
        "cache_salt",
        "ninth",
    ];
    let body = r#"{"metadata": {"session_id": "s-1", "count": 7, "flag": true}, "user": "b\u006fb", "model": "tiny",
        "a": {"b": {"x": {"d": "no"}, "c": {"d": "deep"}}, "d": "no"}, "cache_salt": "salt", "ninth": "x"}"#;
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        fields(&paths, body),
        vec![
            some("bob"),
            some("s-1"),
            some("deep"),
            some("tiny"),
            None,
            some("7"),
            some("true"),
            some("salt"),
            None
        ]
    );
    assert_eq!(
        fields(
            &["user", "metadata.session_id"],
            r#"{"user": "a", "metadata": {"session_id": "s"}, "user": null, "metadata": {}}"#
        ),
        vec![None, None]
    );
    assert_eq!(
        fields(&["a.b.c.d.e", ""], r#"{"a":{"b":{"c":{"d":{"e":"x"}}}}}"#),
        vec![None, None]
    );
}

#[test]
fn long_names_are_cut_and_stay_apart() {
    let long = "x".repeat(1000);
    let body = |end: &str| format!(r#"{{"user": "{long}{end}", "model": "{long}{end}"}}"#);
    let model = |end: &str| scan(Api::ChatCompletions, &body(end)).model.unwrap();
    assert_eq!(model("a").len(), 256);
    assert_ne!(model("a"), model("b"));
    assert_ne!(fields(&["user"], &body("a")), fields(&["user"], &body("b")));
    let key = format!(r#"{{"{long}": "no", "model": "tiny"}}"#);
    assert_eq!(
        scan(Api::ChatCompletions, &key).model.as_deref(),
        Some("tiny")
    );
}
