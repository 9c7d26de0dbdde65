//! A prompt as blocks, and the prompts of a batch.

use super::*;

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
