//! Cases of request bodies.

mod blocks;
mod early;
mod members;
mod notation;
mod prefix;

use super::*;

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
