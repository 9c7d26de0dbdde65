//! Bodies of the cases B: what vLLM takes and others refuse, what is large, and what nobody can read.
//!
//! It stands by itself, so that a test can use it too.
// Each user takes a part of it.
#![allow(dead_code)]

use serde_json::{Value, json};

/// Path of chats.
pub const CHAT: &str = "/v1/chat/completions";
/// Path of raw prompts.
pub const COMPLETIONS: &str = "/v1/completions";

/// One body to send.
pub struct Sample {
    /// Path with query.
    pub path: &'static str,
    /// The header `content-encoding`.
    pub encoding: Option<&'static str>,
    /// The body.
    pub bytes: Vec<u8>,
}

/// All of them.
pub fn all() -> Vec<Sample> {
    let mut all = Vec::new();
    let mut add = |path, bytes: Vec<u8>| {
        all.push(Sample {
            path,
            encoding: None,
            bytes,
        });
    };
    for body in valid_and_odd().into_iter().chain(unknown_fields()) {
        add(CHAT, body.into_bytes());
    }
    // B3.
    add(
        "/v1/chat/completions?beta=true",
        chat("Hello").to_string().into_bytes(),
    );
    for body in batches() {
        add(COMPLETIONS, body.into_bytes());
    }
    // B5; the largest one as an image, and as text.
    for kilobytes in [100, 1_000, 20_000] {
        add(CHAT, large_text(kilobytes));
        add(CHAT, large_image(kilobytes));
    }
    for bytes in broken() {
        add(CHAT, bytes);
    }
    all.push(Sample {
        path: CHAT,
        encoding: Some("gzip"),
        bytes: b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x03\0\0\0\0\0\0\0\0\0".to_vec(),
    });
    all
}

/// A chat of one message.
pub fn chat(text: &str) -> Value {
    json!({
        "model": "tiny",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 2,
    })
}

/// B1: what vLLM takes and others refuse, with white space and escapes that a rewrite would lose.
pub fn valid_and_odd() -> Vec<String> {
    let messages = r#""model":"tiny","messages":[{"role":"user","content":"Hi"}]"#;
    [
        format!(r#"{{{messages},"stream":null,"max_tokens":2}}"#),
        format!(r#"{{{messages},"max_tokens":5.0}}"#),
        format!(r#"{{{messages},"response_format":{{"type":"structural_tag","structures":[],"triggers":[]}}}}"#),
        format!(r#"{{"model":"other",{messages},"max_tokens":2,"max_tokens":3}}"#),
        r#"{"model":"tiny","messages":[{"role":"critic","content":"Hi"},{"role":"user","content":"Hi"}]}"#.to_owned(),
        format!(r#"{{{messages},"logprobs":true,"top_logprobs":25}}"#),
        r#"{"model":"tiny","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}]}]}"#.to_owned(),
        format!(r#"{{{messages},"tools":[{{"type":"function","function":{{"name":"now"}}}}]}}"#),
        format!("\r\n {{ {messages} ,\t\"max_tokens\" : 2 , \"x\" : \"\\u00e9\\/\\ud83d\\ude00\" }} \n\n"),
        format!(r#"{{{messages},"seed":123456789012345678901234567890,"temperature":1e-7,"y":1.10}}"#),
    ]
    .to_vec()
}

/// B2, and B6 for the answers that come with it.
pub fn unknown_fields() -> Vec<String> {
    let mut bodies = vec![
        json!({"guided_json": {"type": "object", "properties": {"b": {}, "a": {}}}}),
        json!({"vllm_xargs": {"x": [1, 2.50, null]}, "priority": -3}),
        json!({"kv_transfer_params": {"do_remote_decode": true, "remote_block_ids": null}}),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
        json!({"stream": true}),
    ];
    for body in &mut bodies {
        let mut whole = chat("Hello");
        if let (Value::Object(all), Value::Object(own)) = (&mut whole, body.take()) {
            all.extend(own);
        }
        *body = whole;
    }
    bodies.iter().map(Value::to_string).collect()
}

/// B4: prompts in bulk, for `/v1/completions`.
pub fn batches() -> Vec<String> {
    let prompts = [
        json!(["one", "two", "three"]),
        json!([1, 2, 3, 4, 5]),
        json!([[1, 2, 3], [4, 5]]),
    ];
    let body = |prompt| json!({"model": "tiny", "prompt": prompt, "max_tokens": 2}).to_string();
    prompts.into_iter().map(body).collect()
}

/// B5: a chat of about this size in one text.
pub fn large_text(kilobytes: usize) -> Vec<u8> {
    let text =
        "All work and no play makes Jack a dull boy. \u{e9}\n".repeat(kilobytes * 1_000 / 47);
    chat(&text).to_string().into_bytes()
}

/// B5: a chat of about this size with an image.
pub fn large_image(kilobytes: usize) -> Vec<u8> {
    let data = "iVBORw0KGgo/AAAA+NSUhEUg".repeat(kilobytes * 1_000 / 24);
    let url = format!("data:image/png;base64,{data}");
    let parts = json!([
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is this?"},
    ]);
    let body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": parts}], "max_tokens": 2});
    body.to_string().into_bytes()
}

/// B7: what is no JSON, or hardly.
pub fn broken() -> Vec<Vec<u8>> {
    let deep = 100_000;
    vec![
        b"not JSON at all".to_vec(),
        b"\0\x01\xff\xfe".to_vec(),
        br#"{"model":"tiny","messages":[{"role":"user","content":"cut o"#.to_vec(),
        ["[".repeat(deep), "]".repeat(deep)].concat().into_bytes(),
        [r#"{"x":"#, &"[".repeat(deep), &"]".repeat(deep), "}"]
            .concat()
            .into_bytes(),
        b"{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xc3\x28\xff\"}]}"
            .to_vec(),
        br#"{"model":"tiny","messages":[{"role":"user","content":"\ud800 alone \udc00"}]}"#
            .to_vec(),
        br#"{"model":"tiny","messages":[{"role":"user","content":"Hi"}]} and more"#.to_vec(),
        b"null".to_vec(),
    ]
}
