//! Cases of request bodies.

use super::*;
use crate::prefix::{block_keys, routing_key};

const OPTIONS: ScanOptions = ScanOptions {
    prefix_bytes: 64,
    block_bytes: 16,
    max_blocks: 100,
    key_fields: Vec::new(),
};

/// Scans `body` in one piece and in several small ones, and asserts that they all say the same.
fn scan_bytes(api: Api, options: &ScanOptions, body: &[u8]) -> InferenceRequest {
    let in_pieces = |size: usize| {
        let mut scanner = RequestScanner::new(api, options);
        for piece in body.chunks(size) {
            scanner.push(piece);
        }
        scanner.finish()
    };
    let whole = in_pieces(body.len().max(1));
    if body.len() < 10_000 {
        for size in [1, 2, 3, 5, 17] {
            assert_eq!(in_pieces(size), whole, "in pieces of {size}");
        }
    }
    whole
}

fn scan(api: Api, body: &str) -> InferenceRequest {
    let request = scan_bytes(api, &OPTIONS, body.as_bytes());
    assert_eq!(request.scan, Scan::Complete, "{body}");
    request
}

fn chat(messages: &str) -> PromptDigest {
    scan(
        Api::ChatCompletions,
        &format!(r#"{{"messages": {messages}}}"#),
    )
    .prompt
}

fn chat_with(members: &str, content: &str) -> PromptDigest {
    let body = format!(r#"{{{members} "messages": [{{"role": "user", "content": {content}}}]}}"#);
    scan(Api::ChatCompletions, &body).prompt
}

fn completion(prompt: &str) -> PromptDigest {
    scan(Api::Completions, &format!(r#"{{"prompt": {prompt}}}"#)).prompt
}

fn fields(paths: &[&str], body: &str) -> Vec<Option<String>> {
    let options = ScanOptions {
        key_fields: paths.iter().map(|path| (*path).to_owned()).collect(),
        ..OPTIONS
    };
    scan_bytes(Api::ChatCompletions, &options, body.as_bytes()).fields
}

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
fn what_is_skipped_is_not_checked() {
    for value in [r#""\q""#, r#"[1 2 }"#, r#"{"a" "b"]"#, r#"[tru]"#] {
        let body = format!(r#"{{"logit_bias": {value}, "model": "tiny"}}"#);
        let model = scan(Api::ChatCompletions, &body).model;
        assert_eq!(model.as_deref(), Some("tiny"), "{value}");
    }
}

#[test]
fn b4_every_prompt_of_a_batch_is_hashed_by_itself() {
    let options = ScanOptions {
        prefix_bytes: 8,
        block_bytes: 8,
        ..OPTIONS
    };
    let read = |prompt: &str| {
        let body = format!(r#"{{"prompt": {prompt}}}"#);
        scan_bytes(Api::Completions, &options, body.as_bytes()).prompt
    };
    let first = read(r#""the first prompt""#);
    let second = read(r#""the second prompt""#);
    let both = read(r#"["the first prompt", "the second prompt"]"#);
    assert_eq!((first.items, both.items), (1, 2));
    assert_eq!(both.routing, first.routing);
    assert_eq!(both.blocks, [first.blocks.clone(), second.blocks].concat());
    assert_eq!(read(r#"["", "the first prompt"]"#).routing, first.routing);

    let ids = read("[1, 2, 3, 4, 5]");
    assert_eq!((ids.items, ids.token_ids, ids.blocks.len()), (1, 5, 2));
    assert_eq!(
        read("[1, 2, 9]").routing,
        ids.routing,
        "two ids fill eight bytes"
    );
    assert_ne!(read("[1, 9, 3]").routing, ids.routing);
    assert_eq!(read("[1, 2]").routing, ids.routing);
    let batch = read("[[1, 2, 3, 4, 5], [7, 8]]");
    assert_eq!((batch.items, batch.token_ids), (2, 7));
    assert_eq!(batch.routing, ids.routing);
    assert_eq!(batch.blocks, [ids.blocks, read("[7, 8]").blocks].concat());
    assert_eq!(read("[[], [1, 2]]").routing, ids.routing);

    let text = read(r#""\u0001\u0000\u0000\u0000\u0002\u0000\u0000\u0000""#);
    assert_ne!(text.routing, ids.routing, "text is not token ids");
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

#[test]
fn h3_model_and_prefix_never_run_together() {
    let prompt = |routing| PromptDigest {
        routing: Some(routing),
        ..PromptDigest::default()
    };
    let bc = completion(r#""bc""#);
    let c = completion(r#""c""#);
    assert_ne!(routing_key(Some("a"), &bc), routing_key(Some("ab"), &c));
    assert_ne!(routing_key(None, &c), routing_key(Some(""), &c));
    // The model's last bytes and the hash's first ones may be the same.
    let moved = u64::from_le_bytes(*b"bxxxxxxx");
    assert_ne!(
        routing_key(Some("ab"), &prompt(u64::from_le_bytes(*b"xxxxxxxx"))),
        routing_key(Some("a"), &prompt(moved))
    );
    assert_eq!(routing_key(Some("a"), &PromptDigest::default()), None);
}

#[test]
fn h4_no_prompt_worth_the_name_has_no_key() {
    for messages in [
        "null",
        "[]",
        "{}",
        "7",
        "\"x\"",
        r#"[{}]"#,
        r#"[{"role":"user","content":null}]"#,
        r#"[{"role":"user","content":""}]"#,
        r#"[{"role":"user","content":[]}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":""}]}]"#,
        r#"[{"role":"user"}]"#,
        "[null, 1, []]",
    ] {
        for members in ["", r#""tools": [{"a": 1}], "cache_salt": "s", "#] {
            let body = format!(r#"{{{members} "messages": {messages}}}"#);
            let prompt = scan(Api::ChatCompletions, &body).prompt;
            assert_eq!(prompt.routing, None, "{body}");
            assert_eq!(routing_key(Some("tiny"), &prompt), None);
        }
    }
    assert_eq!(
        scan(Api::ChatCompletions, "{}").prompt,
        PromptDigest::default()
    );
    for prompt in ["null", "\"\"", "[]", "[[]]", "[\"\"]", "[\"\", []]", "{}"] {
        assert_eq!(completion(prompt).routing, None, "{prompt}");
    }
    for input in ["null", "\"\"", "[]", "7"] {
        let body = format!(r#"{{"input": {input}, "instructions": "Be brief."}}"#);
        assert_eq!(scan(Api::Responses, &body).prompt.routing, None, "{input}");
    }
}

#[test]
fn h5_string_and_parts_give_the_same_prefix() {
    let text = chat_with("", r#""one text, of some length, in parts""#);
    for parts in [
        r#"[{"type":"text","text":"one text, of some length, in parts"}]"#,
        r#"[{"type":"text","text":"one text, "},{"text":"of some length","type":"text"},{"type":"text","text":", in parts"}]"#,
        r#"["one text, of some length", {"type":"text","text":", in parts","cache_control":{"type":"ephemeral"}}]"#,
        r#"[{"type":"text","text":""},{"type":"text","text":"one text, of some length, in parts"}]"#,
    ] {
        assert_eq!(chat_with("", parts), text, "{parts}");
    }
    let input = scan(
        Api::Responses,
        r#"{"input": "one text, of some length, in parts"}"#,
    )
    .prompt;
    let items = scan(
        Api::Responses,
        r#"{"input": [{"type":"message","role":"user","content":[{"type":"input_text","text":"one text, of some length, in parts"}]}]}"#,
    );
    assert_eq!(input, text);
    assert_eq!(items.prompt, text);
    let system = |system: &str| {
        let body =
            format!(r#"{{"messages": [{{"role":"user","content":"Hi"}}], "system": {system}}}"#);
        scan(Api::Messages, &body).prompt
    };
    assert_eq!(
        system(
            r#"[{"type":"text","text":"Be "},{"type":"text","text":"brief.","cache_control":{"type":"ephemeral"}}]"#
        ),
        system(r#""Be brief.""#)
    );
}

#[test]
fn h6_blocks_are_chained() {
    let block = |name: char| name.to_string().repeat(16);
    let blocks = |names: &str| {
        let text: String = names.chars().map(block).collect();
        chat_with("", &format!("\"{text}\"")).blocks
    };
    let (ab, ba, aab, b) = (blocks("AB"), blocks("BA"), blocks("AAB"), blocks("B"));
    assert_eq!((ab.len(), b.len()), (2, 1));
    assert!(ab.iter().all(|block| !ba.contains(block)));
    assert!(aab.iter().all(|block| !b.contains(block)));
    assert_eq!(ab.first(), aab.first());
    assert!(!ab.contains(&aab[1]));
    assert_eq!(blocks("ABCD")[..2], ab[..]);
}

#[test]
fn blocks_stop_at_their_limit() {
    let text = format!("\"{}\"", "x".repeat(1000));
    for (block_bytes, max_blocks, expected) in [
        (16, 5, 5),
        (16, 0, 0),
        (0, 5, 0),
        (1000, 5, 1),
        (2000, 5, 0),
    ] {
        let options = ScanOptions {
            block_bytes,
            max_blocks,
            ..OPTIONS
        };
        let body = format!(r#"{{"messages":[{{"role":"user","content":{text}}}]}}"#);
        let request = scan_bytes(Api::ChatCompletions, &options, body.as_bytes());
        assert_eq!(
            request.prompt.blocks.len(),
            expected,
            "{block_bytes} {max_blocks}"
        );
        assert_eq!(request.prompt.text_bytes, 1000);
    }
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

#[test]
fn h12_system_and_tools_are_part_of_the_prefix() {
    let base = chat(r#"[{"role":"system","content":"S"},{"role":"user","content":"Hi"}]"#);
    for other in [
        chat(r#"[{"role":"system","content":"T"},{"role":"user","content":"Hi"}]"#),
        chat(r#"[{"role":"user","content":"Hi"}]"#),
        chat(r#"[{"role":"user","content":"SHi"}]"#),
        chat(r#"[{"role":"developer","content":"S"},{"role":"user","content":"Hi"}]"#),
        chat(r#"[{"role":"system","content":"S"},{"role":"user","content":"Ho"}]"#),
        scan(Api::ChatCompletions, r#"{"tools":[{"a":1}],"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hi"}]}"#).prompt,
    ] {
        assert_ne!(other.routing, base.routing);
    }
    assert_eq!(
        chat_with(r#""tools": [], "#, "\"Hi\""),
        chat_with("", "\"Hi\"")
    );
    let tools = |tools: &str| chat_with(&format!(r#""tools": {tools}, "#), "\"Hi\"").routing;
    assert_eq!(tools(r#"[{"a": "b c"}]"#), tools("[ {\n\"a\" :\"b c\"} ]"));
    assert_ne!(tools(r#"[{"a": "b c"}]"#), tools(r#"[{"a": "bc"}]"#));
    assert_ne!(tools(r#"[{"a": "b"}]"#), tools(r#"[{"a": ["b"]}]"#));
    assert_ne!(tools(r#"["a,b"]"#), tools(r#"["a","b"]"#));
}

#[test]
fn h12_later_turns_keep_the_key() {
    let first = chat(r#"[{"role":"system","content":"S"},{"role":"user","content":"Hi"}]"#);
    let second = chat(
        r#"[{"role":"system","content":"S"},{"role":"user","content":"Hi"},{"role":"assistant","content":"Ho","tool_calls":[{"id":"1"}]},{"role":"user","content":"More"}]"#,
    );
    assert_eq!(first.routing, second.routing);
    let long = "y".repeat(64);
    let cut =
        |tail: &str| chat(&format!(r#"[{{"role":"user","content":"{long}{tail}"}}]"#)).routing;
    assert_eq!(cut("a"), cut("b"));
    assert_eq!(cut("a"), cut(""));
    let role_last = chat(&format!(r#"[{{"content":"{long}a","role":"user"}}]"#));
    assert_eq!(role_last.routing, cut("b"));
    let system_only = chat(r#"[{"role":"system","content":"S"}]"#);
    assert!(system_only.routing.is_some());
}

#[test]
fn h13_salt_images_and_models_separate_prefixes() {
    let plain = chat_with("", "\"Hi, this is more than one block\"");
    let salt = |salt: &str| {
        chat_with(
            &format!(r#""cache_salt": {salt}, "#),
            "\"Hi, this is more than one block\"",
        )
    };
    assert_ne!(salt("\"a\"").routing, plain.routing);
    assert_ne!(salt("\"a\"").routing, salt("\"b\"").routing);
    assert!(
        salt("\"a\"")
            .blocks
            .iter()
            .all(|block| !plain.blocks.contains(block))
    );
    assert_eq!(salt("null"), plain);

    let image = |url: &str| {
        chat_with(
            "",
            &format!(
                r#"[{{"type":"image_url","image_url":{{"url":"{url}"}}}},{{"type":"text","text":"What is this?"}}]"#
            ),
        )
    };
    let (a, b) = (
        image("data:image/png;base64,AAAA"),
        image("data:image/png;base64,AAAB"),
    );
    assert_ne!(a.routing, b.routing);
    assert!(a.blocks.iter().all(|block| !b.blocks.contains(block)));
    assert_eq!((a.images, a.text_bytes), (1, 13));
    assert_eq!(image("data:image\\/png;base64,AAAA"), a);
    let anthropic = scan(
        Api::Messages,
        r#"{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AAAA"}},{"type":"text","text":"Hm"}]}]}"#,
    );
    assert_eq!(
        (anthropic.prompt.images, anthropic.prompt.text_bytes),
        (1, 2)
    );
    let only_image = chat_with(
        "",
        r#"[{"type":"input_image","image_url":"http://x/y.png"}]"#,
    );
    assert_eq!((only_image.images, only_image.text_bytes), (1, 0));
    assert!(only_image.routing.is_some());

    assert_ne!(
        routing_key(Some("base"), &plain),
        routing_key(Some("lora"), &plain)
    );
    assert_ne!(
        block_keys(Some("base"), &[7]),
        block_keys(Some("lora"), &[7])
    );
}

#[test]
fn a_decision_before_the_end_uses_what_is_there() {
    let long = "z".repeat(200);
    let body = format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"{long}"}}]}}"#);
    let whole = scan(Api::ChatCompletions, &body);
    let early = |body: &str, bytes: usize| {
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &OPTIONS);
        scanner.push(&body.as_bytes()[..bytes]);
        assert!(!scanner.is_settled());
        scanner.finish_early()
    };
    let partial = early(&body, 150);
    assert_eq!(partial.scan, Scan::Partial);
    assert_eq!(partial.model.as_deref(), Some("tiny"));
    assert_eq!(partial.prompt.routing, whole.prompt.routing);
    assert!(whole.prompt.blocks.starts_with(&partial.prompt.blocks));
    let role_last = format!(
        r#"{{"model":"tiny","messages":[{{"content":[{{"text":"{long}"}}],"role":"user"}}]}}"#
    );
    assert_eq!(early(&role_last, 150).prompt.routing, whole.prompt.routing);

    let mut scanner = RequestScanner::new(Api::ChatCompletions, &OPTIONS);
    scanner.push(b"{]");
    assert_eq!(scanner.finish_early().scan, Scan::Malformed);
}

/// Every gateway, old or new, native or wasm, must come to the same keys, or they undo each other's
/// work: a change here moves every key of every user. The figures come from a separate program.
#[test]
fn hashes_stay_what_they_are() {
    let request = scan(
        Api::ChatCompletions,
        r#"{"model":"tiny","cache_salt":"s","tools":[{"type":"function","function":{"name":"f"}}],"messages":[
            {"role":"system","content":"You are brief."},{"role":"user","name":"n","content":[{"type":"text","text":"What is this?"},
            {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#,
    );
    let model = request.model.as_deref();
    assert_eq!(
        routing_key(model, &request.prompt),
        Some(11_818_347_583_089_358_205)
    );
    assert_eq!(
        block_keys(model, &request.prompt.blocks).last(),
        Some(&2_486_538_499_136_644_035)
    );
    assert_eq!(
        completion("[1, 2, 3, 4, 5]").routing,
        Some(17_404_874_831_337_876_648)
    );
}

#[test]
fn b5_an_image_that_is_cut_off_counts_as_one() {
    let read = |text: &str| {
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &OPTIONS);
        scanner.push(text.as_bytes());
        scanner.finish_early().prompt
    };
    let image = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"#;
    let only = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{image}"#
    ));
    assert_eq!((only.images, only.text_bytes, only.routing), (1, 0, None));
    let second = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{image}"}}}},{{"type":"text","text":"Hm"}},{image}"#
    ));
    assert_eq!((second.images, second.text_bytes), (2, 2));
    let between = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{image}"}}}},{{"type":"te"#
    ));
    assert_eq!(between.images, 1);
}
