//! Naive twins: they parse everything with serde_json, lay the canonical prompt out in memory, and
//! hash prefixes of it.

use std::fmt;

use proptest::prelude::*;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use warmroute::prefix::PromptDigest;
use warmroute::request::{Api, InferenceRequest, Scan, ScanOptions};
use warmroute::tokens::Usage;
use xxhash_rust::xxh64::xxh64;

use crate::document::{Node, any_node};

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.to_string()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        // As the generator writes them.
        Ok(Node::Number(if value == 1e300 {
            "1e300".to_owned()
        } else {
            format!("{value:?}")
        }))
    }
    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Node::Array(all))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Node, A::Error> {
        let mut all = Vec::new();
        while let Some(member) = members.next_entry()? {
            all.push(member);
        }
        Ok(Node::Object(all))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

impl Node {
    /// The last member of that name, as Python's `json` has it.
    fn get(&self, key: &str) -> &Node {
        self.members()
            .iter()
            .rev()
            .find(|(name, _)| name == key)
            .map_or(&Node::Null, |(_, value)| value)
    }
    fn members(&self) -> &[(String, Node)] {
        if let Node::Object(members) = self {
            members
        } else {
            &[]
        }
    }
    fn text(&self) -> Option<&str> {
        if let Node::Text(text) = self {
            Some(text)
        } else {
            None
        }
    }
    fn items(&self) -> &[Node] {
        if let Node::Array(items) = self {
            items
        } else {
            &[]
        }
    }
    fn whole(&self) -> Option<u64> {
        let Node::Number(text) = self else {
            return None;
        };
        if let Ok(number) = text.parse::<u64>() {
            return Some(number);
        }
        let number: f64 = text.parse().ok()?;
        (number >= 0.0 && number < 2f64.powi(53) && number.trunc() == number)
            .then_some(number as u64)
    }
    fn small(&self) -> Option<u32> {
        u32::try_from(self.whole()?).ok()
    }
    fn scalar(&self) -> Option<String> {
        match self {
            Node::Bool(value) => Some(value.to_string()),
            Node::Number(text) => Some(text.clone()),
            _ => None,
        }
    }
    /// Without white space, strings between 0xFF.
    fn canonical(&self, out: &mut Vec<u8>) {
        let quote = |text: &str, out: &mut Vec<u8>| {
            out.push(0xFF);
            out.extend_from_slice(text.as_bytes());
            out.push(0xFF);
        };
        match self {
            Node::Null => out.extend_from_slice(b"null"),
            Node::Bool(_) | Node::Number(_) => {
                out.extend_from_slice(self.scalar().unwrap_or_default().as_bytes())
            }
            Node::Text(text) => quote(text, out),
            Node::Array(items) => {
                out.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    item.canonical(out);
                }
                out.push(b']');
            }
            Node::Object(members) => {
                out.push(b'{');
                for (index, (key, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    quote(key, out);
                    out.push(b':');
                    value.canonical(out);
                }
                out.push(b'}');
            }
        }
    }
    /// What is hashed for the value by itself, if anything.
    fn aside(&self) -> Option<Vec<u8>> {
        let bytes = match self {
            Node::Null | Node::Bool(_) | Node::Number(_) => return None,
            Node::Text(text) => text.clone().into_bytes(),
            Node::Array(_) | Node::Object(_) => {
                let mut out = Vec::new();
                self.canonical(&mut out);
                if out.len() == 2 { Vec::new() } else { out }
            }
        };
        (!bytes.is_empty()).then_some(bytes)
    }
}

/// The canonical prompt, laid out.
#[derive(Default)]
struct Layout {
    stream: Vec<u8>,
    content_bytes: u64,
    extra_bytes: u64,
    token_ids: u64,
    images: u32,
    items: u32,
    routing: Option<u64>,
    blocks: Vec<u64>,
    /// Lengths of the stream after each byte of text so far.
    text_ends: Vec<usize>,
}

impl Layout {
    fn text(&mut self, text: &str) {
        for byte in text.bytes() {
            self.stream.push(byte);
            self.text_ends.push(self.stream.len());
            self.content_bytes += 1;
        }
    }
    fn mark(&mut self, mark: u8, value: u64) {
        self.stream.push(mark);
        self.stream.extend_from_slice(&value.to_le_bytes());
    }
    /// Hash up to `prefix` bytes of text after the first `skip`, or of all there is.
    fn cut(&self, start: usize, skip: usize, prefix: usize) -> u64 {
        let end = match prefix {
            0 => start,
            _ => self
                .text_ends
                .get(skip + prefix - 1)
                .copied()
                .unwrap_or(self.stream.len()),
        };
        xxh64(&self.stream[..end], 0)
    }
    fn push_blocks(&mut self, seed: u64, options: &ScanOptions) {
        if options.block_bytes == 0 {
            return;
        }
        let size = options.block_bytes as usize;
        for index in 1..=self.stream.len() / size {
            if self.blocks.len() < options.max_blocks as usize {
                self.blocks.push(xxh64(&self.stream[..index * size], seed));
            }
        }
    }
}

fn is_media(key: &str) -> bool {
    [
        "image_url",
        "image",
        "image_embeds",
        "input_audio",
        "audio",
        "audio_url",
        "video",
        "video_url",
        "source",
        "file",
        "file_data",
        "file_id",
        "file_url",
    ]
    .contains(&key)
}

/// Sum of the digests, their bytes as text, images, and whether there was anything.
fn extras(node: &Node, known: &[&str]) -> (u64, u64, u32, bool) {
    let mut all = (0u64, 0u64, 0u32, false);
    for (key, value) in node.members() {
        if known.contains(&key.as_str()) {
            continue;
        }
        let media = known.contains(&"text") && is_media(key);
        let scalar = if media {
            None
        } else {
            value.scalar().map(String::into_bytes)
        };
        let Some(bytes) = value.aside().or(scalar) else {
            continue;
        };
        // Of a long key the first 128 bytes count.
        let key = key.as_bytes().get(..128).unwrap_or(key.as_bytes());
        all.0 = all.0.wrapping_add(xxh64(&bytes, xxh64(key, 0)));
        all.1 += if media { 0 } else { bytes.len() as u64 };
        all.2 += u32::from(media);
        all.3 = true;
    }
    all
}

fn lay_out_content(layout: &mut Layout, content: &Node) {
    if let Some(text) = content.text() {
        layout.text(text);
    }
    for part in content.items() {
        if let Some(text) = part.text().or(part.get("text").text()) {
            layout.text(text);
        }
        let (sum, bytes, images, seen) = extras(part, &["text", "type", "cache_control"]);
        if seen {
            layout.mark(0xFE, sum);
            layout.extra_bytes += bytes;
            layout.images += images;
        }
    }
}

fn lay_out_chat(chat: &Node, prefix: usize) -> Layout {
    let mut layout = Layout {
        items: 1,
        ..Layout::default()
    };
    for message in chat
        .items()
        .iter()
        .filter(|item| matches!(item, Node::Object(_)))
    {
        let (start, skip) = (layout.stream.len(), layout.text_ends.len());
        lay_out_content(&mut layout, message.get("content"));
        let role = message.get("role").text().unwrap_or_default();
        if role == "user" && layout.routing.is_none() {
            layout.routing = Some(layout.cut(start, skip, prefix));
        }
        let (sum, bytes, _, _) = extras(message, &["role", "content", "type", "id", "status"]);
        // Of a long role the beginning counts.
        let role = role.as_bytes().get(..64).unwrap_or(role.as_bytes());
        layout.mark(0xFF, xxh64(&sum.to_le_bytes(), xxh64(role, 0)));
        layout.extra_bytes += bytes;
    }
    if layout.routing.is_none() {
        layout.routing = Some(layout.cut(0, 0, prefix));
    }
    layout
}

fn lay_out_prompts(prompt: &Node, options: &ScanOptions) -> Layout {
    enum Item {
        Text(String),
        Ids(Vec<u32>),
    }
    let id = |node: &Node| node.whole().map(|id| id as u32);
    let mut items = Vec::new();
    let mut flat = false;
    match prompt {
        Node::Text(text) => items.push(Item::Text(text.clone())),
        _ => {
            for item in prompt.items() {
                match item {
                    Node::Text(text) => items.push(Item::Text(text.clone())),
                    Node::Array(ids) => items.push(Item::Ids(ids.iter().filter_map(id).collect())),
                    Node::Object(_) => {}
                    scalar => {
                        if !flat {
                            items.push(Item::Ids(Vec::new()));
                        }
                        if let Some(Item::Ids(ids)) = items.last_mut() {
                            ids.extend(id(scalar));
                        }
                    }
                }
                flat = !matches!(item, Node::Text(_) | Node::Array(_) | Node::Object(_));
            }
        }
    }
    let mut layout = Layout::default();
    for item in items {
        let (bytes, seed, step) = match item {
            Item::Text(text) => {
                layout.content_bytes += text.len() as u64;
                (text.into_bytes(), 0, 1)
            }
            Item::Ids(ids) => {
                layout.token_ids += ids.len() as u64;
                (ids.iter().flat_map(|id| id.to_le_bytes()).collect(), 1, 4)
            }
        };
        layout.items += 1;
        if layout.routing.is_none() && !bytes.is_empty() {
            let end = (options.prefix_bytes as usize / step * step).min(bytes.len());
            layout.routing = Some(xxh64(&bytes[..end], seed));
        }
        layout.stream = bytes;
        layout.push_blocks(seed, options);
    }
    layout
}

fn system(node: &Node) -> Option<Vec<u8>> {
    let Node::Array(parts) = node else {
        return node.aside();
    };
    let text: String = parts
        .iter()
        .flat_map(Node::members)
        .filter(|(key, _)| key == "text")
        .filter_map(|(_, value)| value.text())
        .collect();
    (!text.is_empty()).then(|| text.into_bytes())
}

fn digest(api: Api, options: &ScanOptions, body: &Node) -> PromptDigest {
    let prefix = options.prefix_bytes as usize;
    let main = match api {
        Api::ChatCompletions | Api::Messages => body.get("messages"),
        Api::Completions => body.get("prompt"),
        Api::Responses => body.get("input"),
    };
    let layout = match (api, main) {
        (Api::Completions, prompt) => lay_out_prompts(prompt, options),
        (Api::Responses, Node::Text(text)) => {
            let user = [
                ("role".to_owned(), Node::Text("user".to_owned())),
                ("content".to_owned(), Node::Text(text.clone())),
            ];
            chat_with_blocks(
                &Node::Array(vec![Node::Object(user.to_vec())]),
                prefix,
                options,
            )
        }
        (_, Node::Array(_)) => chat_with_blocks(main, prefix, options),
        _ => Layout::default(),
    };
    let of = |apis: &[Api], key: &str| {
        if apis.contains(&api) {
            body.get(key)
        } else {
            &Node::Null
        }
    };
    let chats = [Api::ChatCompletions, Api::Messages, Api::Responses];
    let tools = of(&chats, "tools").aside();
    let system = system(if api == Api::Responses {
        body.get("instructions")
    } else {
        of(&[Api::Messages], "system")
    });
    let documents = of(&[Api::ChatCompletions], "documents").aside();
    let template = of(&[Api::ChatCompletions], "chat_template").aside();
    let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
    let text_bytes = layout.content_bytes
        + layout.extra_bytes
        + length(&tools)
        + length(&system)
        + length(&documents);
    let preambles = [
        tools,
        system,
        body.get("cache_salt").aside(),
        documents,
        template,
    ];
    let seed = if preambles.iter().all(Option::is_none) {
        0
    } else {
        let mut joined = Vec::new();
        for preamble in &preambles {
            joined.push(u8::from(preamble.is_some()));
            joined.extend_from_slice(
                &preamble
                    .as_ref()
                    .map_or(0, |bytes| xxh64(bytes, 0))
                    .to_le_bytes(),
            );
        }
        xxh64(&joined, 0)
    };
    let mix = |hash: u64| xxh64(&hash.to_le_bytes(), seed);
    let empty = layout.content_bytes == 0 && layout.token_ids == 0 && layout.images == 0;
    PromptDigest {
        text_bytes,
        token_ids: layout.token_ids,
        images: layout.images,
        items: layout.items,
        routing: layout.routing.filter(|_| !empty).map(mix),
        blocks: layout.blocks.iter().map(|&block| mix(block)).collect(),
    }
}

fn chat_with_blocks(chat: &Node, prefix: usize, options: &ScanOptions) -> Layout {
    let mut layout = lay_out_chat(chat, prefix);
    layout.push_blocks(0, options);
    layout
}

fn kept(text: &str) -> String {
    if text.len() <= 256 {
        return text.to_owned();
    }
    let mut end = 239;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!(
        "{}#{:016x}",
        text[..end].trim_end_matches('\u{fffd}'),
        xxh64(text.as_bytes(), 0)
    )
}

fn field(body: &Node, path: &str) -> Option<String> {
    let value = path.split('.').fold(body, |node, key| node.get(key));
    value
        .text()
        .map(str::to_owned)
        .or(value.scalar())
        .map(|text| kept(&text))
}

/// `None` if serde_json refuses the body.
pub fn read(api: Api, options: &ScanOptions, bytes: &[u8]) -> Option<InferenceRequest> {
    let body: Node = serde_json::from_slice(bytes).ok()?;
    let older = |key: &str| {
        if api == Api::Responses {
            None
        } else {
            body.get(key).small()
        }
    };
    let limit = match api {
        Api::ChatCompletions => body.get("max_completion_tokens").small(),
        Api::Responses => body.get("max_output_tokens").small(),
        Api::Completions | Api::Messages => None,
    };
    let counts = matches!(api, Api::ChatCompletions | Api::Completions);
    let count = |key: &str| {
        if counts {
            body.get(key).small().unwrap_or(1)
        } else {
            1
        }
    };
    Some(InferenceRequest {
        api,
        scan: Scan::Complete,
        model: body.get("model").text().map(kept),
        stream: matches!(body.get("stream"), Node::Bool(true))
            || body.get("stream").scalar().as_deref() == Some("1"),
        max_output_tokens: limit.or(older("max_tokens")),
        n: count("n").max(count("best_of")).max(1),
        prompt: digest(api, options, &body),
        fields: options
            .key_fields
            .iter()
            .map(|path| field(&body, path))
            .collect(),
    })
}

/// One event of a stream, with members that matter and others that do not.
pub fn any_event() -> impl Strategy<Value = Node> {
    let number = || {
        prop_oneof![
            (0u32..5000).prop_map(|number| Node::Number(number.to_string())),
            Just(Node::Null)
        ]
    };
    let object = |members: Vec<(&str, Node)>| {
        Node::Object(
            members
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        )
    };
    let usage = (number(), number(), number(), any::<bool>()).prop_map(
        move |(prompt, completion, cached, openai)| {
            if openai {
                let details = object(vec![("cached_tokens", cached)]);
                object(vec![
                    ("prompt_tokens", prompt),
                    ("completion_tokens", completion),
                    ("prompt_tokens_details", details),
                ])
            } else {
                object(vec![
                    ("input_tokens", prompt),
                    ("output_tokens", completion),
                    ("cache_read_input_tokens", cached),
                ])
            }
        },
    );
    let content = prop_oneof![
        "[a\"\\\\é😀{}]{1,10}",
        Just(String::new()),
        Just("\"usage\":{\"prompt_tokens\":1}".to_owned())
    ];
    (
        prop::option::of(usage),
        prop::option::of(content),
        prop::option::weighted(0.1, 400u32..600),
        any_node(),
    )
        .prop_map(move |(usage, content, code, noise)| {
            let mut members = vec![("noise", noise)];
            if let Some(content) = content {
                let delta = object(vec![
                    ("role", Node::Text("assistant".to_owned())),
                    ("content", Node::Text(content)),
                ]);
                members.push(("choices", Node::Array(vec![object(vec![("delta", delta)])])));
            }
            if let Some(usage) = usage {
                members.push(("usage", usage));
            }
            if let Some(code) = code {
                members.push((
                    "error",
                    object(vec![("code", Node::Number(code.to_string()))]),
                ));
            }
            object(members)
        })
}

/// What the events say together: usage, events with output, the last error.
pub fn read_events<'a>(
    events: impl Iterator<Item = &'a Node>,
) -> (Option<Usage>, u64, Option<u32>) {
    let (mut prompt, mut completion, mut cached) = (None, None, None);
    let (mut outputs, mut error) = (0, None);
    for event in events {
        let usage = event.get("usage");
        let first = |keys: [&str; 2]| keys.iter().find_map(|key| usage.get(key).whole());
        prompt = first(["prompt_tokens", "input_tokens"]).or(prompt);
        completion = first(["completion_tokens", "output_tokens"]).or(completion);
        let details = usage
            .get("prompt_tokens_details")
            .get("cached_tokens")
            .whole();
        cached = details
            .or(usage.get("cache_read_input_tokens").whole())
            .or(cached);
        outputs += u64::from(event.get("choices").items().iter().any(|choice| {
            choice
                .get("delta")
                .get("content")
                .text()
                .is_some_and(|text| !text.is_empty())
        }));
        error = event.get("error").get("code").small().or(error);
    }
    let usage = (prompt.is_some() || completion.is_some()).then(|| Usage {
        prompt_tokens: prompt.unwrap_or(0),
        completion_tokens: completion.unwrap_or(0),
        cached_tokens: cached,
    });
    (usage, outputs, error)
}
