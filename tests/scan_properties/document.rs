//! Generated request bodies, and their rendering in any notation that JSON allows.

use proptest::prelude::*;
use warmroute::request::Api;

/// A JSON value that keeps the order and the repetition of members, and numbers as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// Keeps the first of repeated members, at every level.
    pub fn without_repetition(self) -> Self {
        match self {
            Node::Array(items) => {
                Node::Array(items.into_iter().map(Self::without_repetition).collect())
            }
            Node::Object(members) => {
                let mut kept: Vec<(String, Node)> = Vec::new();
                for (key, value) in members {
                    if kept.iter().all(|(known, _)| *known != key) {
                        kept.push((key, value.without_repetition()));
                    }
                }
                Node::Object(kept)
            }
            other => other,
        }
    }
}

/// Where rendering takes its whims from (splitmix64).
pub struct Noise(pub u64);

impl Noise {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }
}

pub fn render(node: &Node, noise: &mut Noise) -> Vec<u8> {
    let mut out = String::new();
    write(node, noise, &mut out);
    out.into_bytes()
}

fn space(noise: &mut Noise, out: &mut String) {
    match noise.next(8) {
        0 => out.push(' '),
        1 => out.push_str("\n\t"),
        2 => out.push('\r'),
        _ => {}
    }
}

fn write(node: &Node, noise: &mut Noise, out: &mut String) {
    space(noise, out);
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Node::Number(text) => out.push_str(text),
        Node::Text(text) => quote(text, noise, out),
        Node::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, noise, out);
            }
            out.push(']');
        }
        Node::Object(members) => {
            out.push('{');
            for (index, (key, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                space(noise, out);
                quote(key, noise, out);
                space(noise, out);
                out.push(':');
                write(value, noise, out);
            }
            out.push('}');
        }
    }
    space(noise, out);
}

fn quote(text: &str, noise: &mut Noise, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        let short = match letter {
            '"' => Some("\\\""),
            '\\' => Some("\\\\"),
            '/' => Some("\\/"),
            '\n' => Some("\\n"),
            '\r' => Some("\\r"),
            '\t' => Some("\\t"),
            '\u{8}' => Some("\\b"),
            '\u{c}' => Some("\\f"),
            _ => None,
        };
        let must = letter < ' ' || letter == '"' || letter == '\\';
        match (noise.next(10), short) {
            (0, _) => hexadecimal(letter, noise, out),
            (1..=4, Some(short)) => out.push_str(short),
            _ if !must => out.push(letter),
            (_, Some(short)) => out.push_str(short),
            _ => hexadecimal(letter, noise, out),
        }
    }
    out.push('"');
}

fn hexadecimal(letter: char, noise: &mut Noise, out: &mut String) {
    for unit in letter.encode_utf16(&mut [0; 2]) {
        if noise.next(2) == 0 {
            out.push_str(&format!("\\u{unit:04x}"));
        } else {
            out.push_str(&format!("\\u{unit:04X}"));
        }
    }
}

fn text() -> impl Strategy<Value = Node> {
    any_text().prop_map(Node::Text)
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-c \"\\\\/\n\t\u{0}-\u{1f}ü語😀]{0,60}",
        1 => "[a-z]{0,200}",
        1 => any::<String>(),
        1 => Just(String::new()),
        1 => Just("\"user\": \"bob\", \"content\": [".to_owned()),
    ]
}

fn number() -> impl Strategy<Value = Node> {
    prop_oneof![
        4 => any::<i32>().prop_map(|number| number.to_string()),
        4 => (0u32..3000).prop_map(|number| number.to_string()),
        1 => prop::sample::select(vec!["5.0", "2.5", "-0.5", "1e300", "99999999999", "18446744073709551615"]).prop_map(str::to_owned),
    ]
    .prop_map(Node::Number)
}

const KEYS: &[&str] = &[
    "role",
    "content",
    "text",
    "type",
    "name",
    "a",
    "b",
    "session_id",
    "user",
    "model",
    "image_url",
    "url",
    "source",
    "tool_calls",
    "x",
    "messages",
    "prompt",
    "cache_control",
    "",
];

fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(KEYS).prop_map(str::to_owned),
        1 => any_text(),
    ]
}

pub fn any_node() -> impl Strategy<Value = Node> {
    let leaf = prop_oneof![
        Just(Node::Null),
        any::<bool>().prop_map(Node::Bool),
        number(),
        text(),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Node::Array),
            prop::collection::vec((any_key(), inner), 0..5).prop_map(Node::Object),
        ]
    })
}

/// Mostly the right thing, now and then anything.
fn mostly(right: impl Strategy<Value = Node> + 'static) -> BoxedStrategy<Node> {
    prop_oneof![9 => right.boxed(), 1 => any_node().boxed()].boxed()
}

fn object(members: Vec<BoxedStrategy<(String, Node)>>) -> BoxedStrategy<Node> {
    let most = members.len();
    prop::collection::vec(prop::strategy::Union::new(members), 0..=most + 1)
        .prop_map(Node::Object)
        .boxed()
}

fn member(
    key: &'static str,
    value: impl Strategy<Value = Node> + 'static,
) -> BoxedStrategy<(String, Node)> {
    mostly(value)
        .prop_map(move |value| (key.to_owned(), value))
        .boxed()
}

fn part() -> BoxedStrategy<Node> {
    object(vec![
        member("text", text()),
        member("text", text()),
        member("type", text()),
        member("image_url", text()),
        member("source", any_node()),
        member("thinking", text()),
        member("cache_control", any_node()),
    ])
}

fn content() -> BoxedStrategy<Node> {
    prop_oneof![
        3 => text(),
        3 => prop::collection::vec(mostly(part()), 0..4).prop_map(Node::Array),
        1 => Just(Node::Null),
    ]
    .boxed()
}

fn message() -> BoxedStrategy<Node> {
    let role = prop::sample::select(vec!["user", "user", "system", "assistant", "tool", ""])
        .prop_map(|role| Node::Text(role.to_owned()));
    object(vec![
        member("role", role.clone()),
        member("role", role),
        member("content", content()),
        member("content", content()),
        member("name", text()),
        member("tool_calls", any_node()),
        member("type", text()),
    ])
}

fn messages() -> BoxedStrategy<Node> {
    prop::collection::vec(mostly(message()), 0..5)
        .prop_map(Node::Array)
        .boxed()
}

fn prompt() -> BoxedStrategy<Node> {
    let ids = prop::collection::vec(mostly(number()), 0..20)
        .prop_map(Node::Array)
        .boxed();
    let batch = prop::collection::vec(
        prop_oneof![text().boxed(), ids.clone(), number().boxed()],
        0..5,
    )
    .prop_map(Node::Array)
    .boxed();
    prop_oneof![text().boxed(), ids, batch].boxed()
}

fn metadata() -> BoxedStrategy<Node> {
    object(vec![
        member("session_id", text()),
        member("a", object(vec![member("b", text())])),
        member("user", text()),
    ])
}

/// A body for `api`: the members it knows, in any order, missing, repeated or of the wrong type.
pub fn body(api: Api) -> BoxedStrategy<Node> {
    let system = prop_oneof![
        text().boxed(),
        prop::collection::vec(mostly(part()), 0..3)
            .prop_map(Node::Array)
            .boxed()
    ];
    let main = match api {
        Api::ChatCompletions | Api::Messages => member("messages", messages()),
        Api::Completions => member("prompt", prompt()),
        Api::Responses => member("input", prop_oneof![text().boxed(), messages()]),
    };
    let members = vec![
        main.clone(),
        main.clone(),
        main,
        member("model", text()),
        member("stream", any::<bool>().prop_map(Node::Bool)),
        member("max_tokens", number()),
        member("max_completion_tokens", number()),
        member("max_output_tokens", number()),
        member("n", number()),
        member("best_of", number()),
        member("tools", any_node()),
        member("documents", any_node()),
        member("chat_template", text()),
        member("cache_salt", text()),
        member("system", system.clone()),
        member("instructions", system),
        member("metadata", metadata()),
        member("user", text()),
        (any_key(), any_node()).boxed(),
    ];
    object(members)
}
