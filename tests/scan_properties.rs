//! Properties of the scanner and of the response reader, against twins that build the whole tree.
#![cfg(not(target_arch = "wasm32"))]
#![allow(missing_docs, clippy::indexing_slicing)]

#[path = "scan_properties/document.rs"]
mod document;
#[path = "scan_properties/twin.rs"]
mod twin;

use document::{Node, Noise, any_node, body, render};
use proptest::prelude::*;
use warmroute::request::{Api, InferenceRequest, RequestScanner, Scan, ScanOptions};
use warmroute::tokens::ResponseReader;

const FIELDS: [&str; 6] = [
    "user",
    "metadata.session_id",
    "metadata.a.b",
    "model",
    "cache_salt",
    "x",
];

fn any_api() -> impl Strategy<Value = Api> {
    prop_oneof![
        Just(Api::ChatCompletions),
        Just(Api::Completions),
        Just(Api::Responses),
        Just(Api::Messages)
    ]
}

fn any_options() -> impl Strategy<Value = ScanOptions> {
    (0u32..70, 0u32..40, 0u32..30).prop_map(|(prefix_bytes, block_bytes, max_blocks)| ScanOptions {
        prefix_bytes,
        block_bytes,
        max_blocks,
        key_fields: FIELDS.iter().map(|path| (*path).to_owned()).collect(),
    })
}

/// The bytes in pieces whose lengths repeat `sizes`.
fn pieces<'a>(bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = bytes;
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let size = sizes.next().copied().unwrap_or(1).clamp(1, rest.len());
        let (head, tail) = rest.split_at(size);
        rest = tail;
        Some(head)
    })
}

fn scan(api: Api, options: &ScanOptions, bytes: &[u8], sizes: &[usize]) -> InferenceRequest {
    let mut scanner = RequestScanner::new(api, options);
    for piece in pieces(bytes, sizes) {
        scanner.push(piece);
    }
    scanner.finish()
}

fn read(bytes: &[u8], sizes: &[usize]) -> ResponseReader {
    let mut reader = ResponseReader::default();
    for piece in pieces(bytes, sizes) {
        reader.push(piece);
    }
    reader.finish();
    reader
}

fn any_sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![Just(vec![1]), prop::collection::vec(1usize..80, 1..6)]
}

/// Bytes that look enough like JSON to get far into the scanner.
fn jsonish() -> impl Strategy<Value = Vec<u8>> {
    let word = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u",
        "d83d",
        "de00",
        "1",
        "-",
        "e5",
        "null",
        "true",
        "\"messages\":",
        "\"content\":",
        "\"role\":",
        "\"user\"",
        "\"prompt\":",
        "\"tools\":",
        "\"system\":",
        "\"input\":",
        "\"text\":",
        " ",
        "\n",
        "\u{feff}",
        "data:",
        "\"usage\":",
        "\"choices\":",
        "\"error\":",
        "\"delta\":",
    ]);
    let raw = prop::collection::vec(any::<u8>(), 0..40);
    let words = prop::collection::vec(word, 0..60).prop_map(|words| words.concat().into_bytes());
    let opened = words
        .clone()
        .prop_map(|words| [b"{\"messages\":[{".to_vec(), words].concat());
    prop_oneof![1 => raw, 3 => words, 3 => opened]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_scan_equals_a_reading_of_the_whole_tree(
        (api, document) in any_api().prop_flat_map(|api| (Just(api), body(api))),
        options in any_options(),
        noise in any::<u64>(),
        sizes in any_sizes(),
    ) {
        let bytes = render(&document, &mut Noise(noise));
        let expected = twin::read(api, &options, &bytes);
        prop_assert!(expected.is_some(), "serde_json refuses {}", String::from_utf8_lossy(&bytes));
        prop_assert_eq!(Some(scan(api, &options, &bytes, &[usize::MAX])), expected.clone(), "{}", String::from_utf8_lossy(&bytes));
        prop_assert_eq!(Some(scan(api, &options, &bytes, &sizes)), expected);
    }

    #[test]
    fn notation_makes_no_difference(
        (api, document) in any_api().prop_flat_map(|api| (Just(api), body(api))),
        options in any_options(),
        noise in any::<(u64, u64)>(),
    ) {
        let one = render(&document, &mut Noise(noise.0));
        let other = render(&document, &mut Noise(noise.1));
        prop_assert_eq!(scan(api, &options, &one, &[usize::MAX]), scan(api, &options, &other, &[usize::MAX]));
    }

    #[test]
    fn the_order_of_members_makes_no_difference(
        (api, document, shuffled) in any_api().prop_flat_map(|api| {
            let tidy = body(api).prop_map(Node::without_repetition);
            (Just(api), tidy).prop_flat_map(|(api, tidy)| {
                let Node::Object(members) = tidy.clone() else { return (Just(api), Just(tidy), Just(Vec::new()).prop_shuffle()) };
                (Just(api), Just(tidy), Just(members).prop_shuffle())
            })
        }),
        options in any_options(),
    ) {
        let one = render(&document, &mut Noise(0));
        let other = render(&Node::Object(shuffled), &mut Noise(0));
        prop_assert_eq!(scan(api, &options, &one, &[usize::MAX]), scan(api, &options, &other, &[usize::MAX]));
    }

    #[test]
    fn a_truncated_body_is_malformed_and_harmless(
        (api, document) in any_api().prop_flat_map(|api| (Just(api), body(api))),
        options in any_options(),
        noise in any::<u64>(),
        at in any::<prop::sample::Index>(),
    ) {
        let bytes = render(&document, &mut Noise(noise));
        let cut = &bytes[..at.index(bytes.len())];
        let request = scan(api, &options, cut, &[usize::MAX]);
        if cut.trim_ascii_end() != bytes.trim_ascii() {
            prop_assert_eq!(request.scan, if cut.trim_ascii_end().len() < bytes.trim_ascii_end().len() { Scan::Malformed } else { Scan::Complete });
        }
        let mut scanner = RequestScanner::new(api, &options);
        scanner.push(cut);
        let settled = scanner.is_settled();
        let early = scanner.finish_early();
        prop_assert_eq!(early.scan, if settled { request.scan } else { Scan::Partial });
        prop_assert!(early.prompt.blocks.len() <= options.max_blocks as usize);
    }

    #[test]
    fn any_bytes_are_harmless_and_their_split_makes_no_difference(
        api in any_api(),
        options in any_options(),
        bytes in jsonish(),
        sizes in any_sizes(),
    ) {
        let whole = scan(api, &options, &bytes, &[usize::MAX]);
        prop_assert_eq!(&scan(api, &options, &bytes, &sizes), &whole);
        if serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&bytes).is_ok() {
            prop_assert_eq!(whole.scan, Scan::Complete);
        }
        let mut scanner = RequestScanner::new(api, &options);
        scanner.push(&bytes);
        let _ = scanner.finish_early();
        for begin in [b"".as_slice(), b"data: "] {
            let bytes = [begin, bytes.as_slice()].concat();
            let one = read(&bytes, &[usize::MAX]);
            let other = read(&bytes, &sizes);
            prop_assert_eq!(one.usage(), other.usage());
            prop_assert_eq!(one.events(), other.events());
            prop_assert_eq!(one.error_code(), other.error_code());
            prop_assert_eq!(one.done(), other.done());
        }
    }

    #[test]
    fn any_document_in_a_known_place_is_read_through(
        api in any_api(),
        key in prop::sample::select(vec!["messages", "prompt", "input", "tools", "system", "model", "stream", "n", "metadata", "user"]),
        value in any_node(),
        options in any_options(),
        noise in any::<u64>(),
    ) {
        let document = Node::Object(vec![(key.to_owned(), value), ("model".to_owned(), Node::Text("last".to_owned()))]);
        let bytes = render(&document, &mut Noise(noise));
        let request = scan(api, &options, &bytes, &[usize::MAX]);
        prop_assert_eq!(request.model.as_deref(), Some("last"));
        prop_assert_eq!(Some(request), twin::read(api, &options, &bytes));
    }

    #[test]
    fn a_stream_is_read_alike_under_any_split(
        events in prop::collection::vec((twin::any_event(), prop::sample::select(vec!["\n", "\r\n", "\r"]), any::<u64>()), 0..12),
        sizes in any_sizes(),
    ) {
        let mut bytes = Vec::new();
        for (event, end, noise) in &events {
            bytes.extend_from_slice(b"event: x");
            bytes.extend_from_slice(end.as_bytes());
            bytes.extend_from_slice(b"data: ");
            let text: Vec<u8> = render(event, &mut Noise(*noise)).into_iter().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }).collect();
            bytes.extend_from_slice(&text);
            bytes.extend_from_slice(end.as_bytes());
            bytes.extend_from_slice(end.as_bytes());
        }
        let reader = read(&bytes, &sizes);
        let expected = twin::read_events(events.iter().map(|(event, _, _)| event));
        prop_assert_eq!((reader.usage(), reader.events(), reader.error_code()), expected, "{}", String::from_utf8_lossy(&bytes));
    }
}
