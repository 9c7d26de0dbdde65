//! Which prompts have a key, and which of them share it.

use super::*;
use crate::prefix::{block_keys, routing_key};

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
