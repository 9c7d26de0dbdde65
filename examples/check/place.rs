//! Where something stands in a YAML or JSON document, and how to get at it.

use serde_json::Value;

/// A step down from an object or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Into a member.
    Key(String),
    /// Into an element. The first step of a path chooses the document.
    Index(usize),
}

/// A path as people write it: `static_resources.listeners[0]`, with the number of the document in
/// front if there are several.
pub fn text(documents: &[Value], path: &[Step]) -> String {
    let mut text = String::new();
    for (depth, step) in path.iter().enumerate() {
        match step {
            Step::Index(document) if depth == 0 => {
                if documents.len() > 1 {
                    text = format!("document {}, ", document + 1);
                }
            }
            Step::Index(index) => text.push_str(&format!("[{index}]")),
            Step::Key(key) => {
                if depth > 1 {
                    text.push('.');
                }
                text.push_str(key);
            }
        }
    }
    text
}

/// What stands at `path`.
pub fn at<'a>(documents: &'a [Value], path: &[Step]) -> Option<&'a Value> {
    let (Step::Index(document), rest) = path.split_first()? else {
        return None;
    };
    rest.iter()
        .try_fold(documents.get(*document)?, |value, step| match step {
            Step::Key(key) => value.get(key),
            Step::Index(index) => value.get(index),
        })
}

/// A member by its protobuf name, also where it is written in camel case.
pub fn get<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.get(name).or_else(|| value.get(camel(name)))
}

/// Members of members.
pub fn down<'a>(value: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().try_fold(value, |value, name| get(value, name))
}

/// A text below `value`; empty if there is none.
pub fn string<'a>(value: &'a Value, names: &[&str]) -> &'a str {
    down(value, names).and_then(Value::as_str).unwrap_or("")
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or("").to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

/// Every value with its path, outer ones first. No recursion: documents come from anywhere.
pub fn walk(documents: &[Value]) -> Vec<(Vec<Step>, &Value)> {
    let mut seen = Vec::new();
    let mut stack: Vec<(Vec<Step>, &Value)> = documents
        .iter()
        .enumerate()
        .rev()
        .map(|(index, document)| (vec![Step::Index(index)], document))
        .collect();
    while let Some((path, value)) = stack.pop() {
        let below: Vec<(Step, &Value)> = match value {
            Value::Object(members) => members
                .iter()
                .map(|(key, value)| (Step::Key(key.clone()), value))
                .collect(),
            Value::Array(elements) => elements
                .iter()
                .enumerate()
                .map(|(index, value)| (Step::Index(index), value))
                .collect(),
            _ => Vec::new(),
        };
        for (step, value) in below.into_iter().rev() {
            let mut path = path.clone();
            path.push(step);
            stack.push((path, value));
        }
        seen.push((path, value));
    }
    seen
}
