//! JSON as clients write it: escaped, reordered, repeated, deeply nested, or broken.

use super::*;

#[test]
fn what_is_skipped_is_not_checked() {
    for value in [r#""\q""#, r#"[1 2 }"#, r#"{"a" "b"]"#, r#"[tru]"#] {
        let body = format!(r#"{{"logit_bias": {value}, "model": "tiny"}}"#);
        let model = scan(Api::ChatCompletions, &body).model;
        assert_eq!(model.as_deref(), Some("tiny"), "{value}");
    }
}

#[test]
fn b7_what_is_not_an_object_is_malformed() {
    for body in [
        "",
        " ",
        "[]",
        "7",
        "\"x\"",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,}",
        "{a:1}",
        "{\"a\" 1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":tru}",
        "{\"a\":nul}",
        "{\"a\":-}",
        "{\"a\":1x}",
        "{\"model\":\"\\x\"}",
        "{\"model\":\"\\u12g4\"}",
        "{\"messages\":[}",
        "{\"messages\":[1,]}",
        "{\"messages\":[{]}",
        "\u{1f}\u{8b}\u{8}gzip",
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"cut o",
    ] {
        let options = ScanOptions {
            key_fields: vec!["user".to_owned()],
            ..OPTIONS
        };
        let request = scan_bytes(Api::ChatCompletions, &options, body.as_bytes());
        let expected = InferenceRequest {
            fields: vec![None],
            ..InferenceRequest::unknown(Api::ChatCompletions, Scan::Malformed)
        };
        assert_eq!(request, expected, "{body}");
    }
}

#[test]
fn b7_deep_nesting_is_only_counted() {
    const DEPTH: usize = 100_000;
    let deep = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    let objects = format!("{}1{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH));
    for value in [deep, objects] {
        for key in ["x", "tools", "messages", "model", "metadata", "stream"] {
            let body = format!(r#"{{"{key}": {value}, "model": "tiny"}}"#);
            let options = ScanOptions {
                key_fields: vec!["metadata.a.a.a".to_owned()],
                ..OPTIONS
            };
            let request = scan_bytes(Api::ChatCompletions, &options, body.as_bytes());
            assert_eq!(request.scan, Scan::Complete, "{key}");
            assert_eq!(request.model.as_deref(), Some("tiny"), "{key}");
        }
        for message in [
            r#"{"content": V}"#,
            r#"{"tool_calls": V}"#,
            r#"{"content": [V]}"#,
            r#"{"content": [{"source": V}]}"#,
        ] {
            let body = format!(
                r#"{{"messages": [{}], "model": "tiny"}}"#,
                message.replace('V', &value)
            );
            let request = scan_bytes(Api::Messages, &OPTIONS, body.as_bytes());
            assert_eq!(request.model.as_deref(), Some("tiny"), "{message}");
        }
        let body = format!(r#"{{"prompt": [{value}], "model": "tiny"}}"#);
        let request = scan_bytes(Api::Completions, &OPTIONS, body.as_bytes());
        assert_eq!(request.model.as_deref(), Some("tiny"));
    }
}

#[test]
fn b7_invalid_utf8_and_lone_surrogates_are_hashed_as_they_are() {
    let read = |content: &[u8]| {
        let mut body = br#"{"messages": [{"role": "user", "content": ""#.to_vec();
        body.extend_from_slice(content);
        body.extend_from_slice(br#""}], "model": ""#);
        body.extend_from_slice(content);
        body.extend_from_slice(br#""}"#);
        let request = scan_bytes(Api::ChatCompletions, &OPTIONS, &body);
        assert_eq!(request.scan, Scan::Complete);
        assert!(request.model.is_some());
        request.prompt
    };
    let contents: [&[u8]; 10] = [
        b"\\ud83dx",
        b"x\\ud83d",
        b"\xFF\xFE",
        b"\xFF",
        b"\xC3",
        b"\\ud83d",
        b"\\ude00",
        b"\\ude00\\ud83d",
        b"\\ud83d\\ud83d\\ude00",
        b"\\ud83d\\n",
    ];
    for (index, content) in contents.iter().enumerate() {
        for other in contents.iter().skip(index + 1) {
            assert_ne!(
                read(content).routing,
                read(other).routing,
                "{content:?} {other:?}"
            );
        }
    }
    assert_eq!(
        read(b"\\ud83d\\ude00").routing,
        read("😀".as_bytes()).routing
    );
    assert_eq!(read(b"\\ud83d\\ud83d\\ude00").text_bytes, 7);
}

#[test]
fn escapes_make_no_difference() {
    let plain = scan(
        Api::ChatCompletions,
        "{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"a/b\\n\\\"ü\\\" 😀\"}], \"tools\": [{\"name\": \"é\"}]}",
    );
    let escaped = scan(
        Api::ChatCompletions,
        r#"{"\u006dodel": "t\u0069ny", "mess\u0061ges": [{"\u0072ole": "us\u0065r", "content": "a\/b\u000a\u0022\u00FC\u0022 \uD83D\ude00"}], "tools": [ {"n\u0061me" : "\u00e9"} ]}"#,
    );
    assert_eq!(plain, escaped);
    assert_eq!(plain.model.as_deref(), Some("tiny"));
    assert!(plain.prompt.routing.is_some());
}

#[test]
fn the_order_of_keys_makes_no_difference() {
    let one = scan(
        Api::ChatCompletions,
        r#"{"model":"m","cache_salt":"s","tools":[{"a":1}],"messages":[{"role":"system","content":"S"},{"role":"user","name":"n","content":"long enough to fill some blocks"}]}"#,
    );
    let other = scan(
        Api::ChatCompletions,
        r#"{"messages":[{"content":"S","role":"system"},{"content":"long enough to fill some blocks","name":"n","role":"user"}],"tools":[{"a":1}],"cache_salt":"s","model":"m"}"#,
    );
    assert_eq!(one, other);
    assert!(one.prompt.blocks.len() > 1);
}

#[test]
fn a_byte_order_mark_and_white_space_are_tolerated() {
    let request = scan(
        Api::ChatCompletions,
        "\u{feff}\r\n\t {\"model\" : \"tiny\" }\n trailing",
    );
    assert_eq!(request.model.as_deref(), Some("tiny"));
}

#[test]
fn the_last_of_repeated_keys_counts() {
    let once = scan(
        Api::ChatCompletions,
        r#"{"messages":[{"role":"user","content":"the one that counts"}],"tools":[{"b":2}]}"#,
    );
    for body in [
        r#"{"messages":[{"role":"user","content":"not this, which is longer than a block"}],"tools":[{"a":1}],"messages":[{"role":"user","content":"the one that counts"}],"tools":[{"b":2}]}"#,
        r#"{"messages":[{"role":"system","content":"not this, which is longer than a block","role":"user","content":[{"text":"nor this"}],"content":"the one that counts"}],"tools":[{"b":2}]}"#,
        r#"{"tools":[{"b":2}],"messages":7,"messages":[{"role":"user","content":[{"text":"not this, which is longer than a block","text":"the one that counts"}]}]}"#,
    ] {
        assert_eq!(scan(Api::ChatCompletions, body), once, "{body}");
    }
    let none = scan(
        Api::ChatCompletions,
        r#"{"messages":[{"role":"user","content":"not this"}],"messages":null,"model":"a","model":null}"#,
    );
    assert_eq!(none.prompt, PromptDigest::default());
    assert_eq!(none.model, None);
    assert_eq!(
        scan(Api::Completions, r#"{"prompt":["a","b"],"prompt":"c"}"#).prompt,
        completion(r#""c""#)
    );
}
