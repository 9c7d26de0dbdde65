//! The text of prompts: what a workload says in numbers, as an OpenAI chat body.
//!
//! A token is a word of three letters and a blank, so that it has four bytes (what the mock replica
//! counts as a token) and a tokenizer trained on [`vocabulary`] has one token a word.

use super::{Request, Role};
use crate::random::Random;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write;

/// Bytes of a word with its blank.
pub const WORD_BYTES: u32 = 4;

const CONSONANTS: [char; 20] = [
    'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'w', 'x', 'y',
    'z',
];
const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];

/// Every word there is: consonant, vowel, consonant; 2,000 in all, without their blanks.
pub fn vocabulary() -> impl Iterator<Item = String> {
    CONSONANTS.iter().flat_map(|first| {
        let ends = VOWELS
            .iter()
            .flat_map(|vowel| CONSONANTS.iter().map(move |last| (vowel, last)));
        ends.map(move |(vowel, last)| [*first, *vowel, *last].iter().collect())
    })
}

/// Appends the text that the segment id `id` names, as long as `tokens` tokens. A shorter text of
/// the same id is the beginning of a longer one.
pub fn push_text(text: &mut String, id: u64, tokens: u32) {
    text.reserve((tokens as usize).saturating_mul(WORD_BYTES as usize));
    let mut random = Random::new(id);
    for _ in 0..tokens {
        text.push(letter(&CONSONANTS, &mut random));
        text.push(letter(&VOWELS, &mut random));
        text.push(letter(&CONSONANTS, &mut random));
        text.push(' ');
    }
}

fn letter(letters: &[char], random: &mut Random) -> char {
    let index = random.below(letters.len() as u64) as usize;
    letters.get(index).copied().unwrap_or('a')
}

/// The messages of a request. Neighbours of one role are one message.
pub fn messages(request: &Request) -> Vec<(Role, String)> {
    let mut messages: Vec<(Role, String)> = Vec::new();
    for segment in &request.prompt {
        match messages.last_mut() {
            Some((role, text)) if *role == segment.role => {
                push_text(text, segment.id, segment.tokens);
            }
            _ => {
                let mut text = String::new();
                push_text(&mut text, segment.id, segment.tokens);
                messages.push((segment.role, text));
            }
        }
    }
    messages
}

/// What a request calls its model: `lora-N` with adapter N, else `model`.
pub fn model_name<'a>(request: &Request, model: &'a str) -> Cow<'a, str> {
    match request.adapter {
        Some(adapter) => Cow::Owned(format!("lora-{adapter}")),
        None => Cow::Borrowed(model),
    }
}

/// The body of `POST /v1/chat/completions`: a stream with usage at its end, of exactly
/// [`Request::output_tokens`] tokens (by vLLM's `ignore_eos`). JSON.
pub fn chat_body(request: &Request, model: &str) -> String {
    let tokens = request.prompt_tokens() as usize;
    let mut body = String::with_capacity(
        tokens
            .saturating_mul(WORD_BYTES as usize)
            .saturating_add(512),
    );
    let name = Value::from(model_name(request, model));
    // Writing to a string cannot fail. The generated text needs no escapes.
    let _ = write!(body, r#"{{"model":{name},"messages":["#);
    let mut role = None;
    for segment in &request.prompt {
        if role != Some(segment.role) {
            let end = if role.is_some() { r#""},"# } else { "" };
            let said_by = role_name(segment.role);
            let _ = write!(body, r#"{end}{{"role":"{said_by}","content":""#);
            role = Some(segment.role);
        }
        push_text(&mut body, segment.id, segment.tokens);
    }
    if role.is_some() {
        body.push_str(r#""}"#);
    }
    let output_tokens = request.output_tokens;
    let _ = write!(
        body,
        r#"],"stream":true,"stream_options":{{"include_usage":true}},"max_tokens":{output_tokens},"ignore_eos":true}}"#
    );
    body
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::workload::{Segment, Start};
    use std::collections::HashSet;

    fn segment(id: u64, tokens: u32, role: Role) -> Segment {
        Segment { id, tokens, role }
    }

    fn request(prompt: Vec<Segment>) -> Request {
        Request {
            start: Start::At { us: 0 },
            session: 1,
            adapter: None,
            prompt,
            output_tokens: 7,
        }
    }

    #[test]
    fn words_are_of_the_vocabulary_and_four_bytes_each() {
        let words: HashSet<String> = vocabulary().collect();
        assert_eq!(words.len(), 2_000);
        let mut text = String::new();
        push_text(&mut text, 3, 5_000);
        assert_eq!(text.len(), 20_000);
        let mut seen = HashSet::new();
        for word in text.split_terminator(' ') {
            assert!(words.contains(word), "{word}");
            seen.insert(word);
        }
        // 5,000 draws leave 2,000 / e^2.5 = 164 of 2,000 words out.
        assert!((1_700..1_950).contains(&seen.len()), "{}", seen.len());
    }

    #[test]
    fn a_shorter_segment_is_the_beginning_of_a_longer_one() {
        let (mut short, mut long, mut other) = (String::new(), String::new(), String::new());
        push_text(&mut short, 9, 10);
        push_text(&mut long, 9, 11);
        push_text(&mut other, 10, 11);
        assert!(long.starts_with(&short));
        assert_ne!(long, other);
    }

    #[test]
    fn the_body_is_what_the_messages_are() {
        let mut request = request(vec![
            segment(1, 3, Role::System),
            segment(2, 2, Role::User),
            segment(3, 1, Role::User),
            segment(4, 2, Role::Assistant),
            segment(5, 1, Role::User),
        ]);
        let said = messages(&request);
        let lengths: Vec<usize> = said.iter().map(|(_, text)| text.len()).collect();
        assert_eq!(lengths, [12, 12, 8, 4]);
        let body: Value = serde_json::from_str(&chat_body(&request, "a \"b\"")).unwrap();
        let expected = serde_json::json!({
            "model": "a \"b\"",
            "messages": [
                {"role": "system", "content": said[0].1},
                {"role": "user", "content": said[1].1},
                {"role": "assistant", "content": said[2].1},
                {"role": "user", "content": said[3].1},
            ],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 7,
            "ignore_eos": true,
        });
        assert_eq!(body, expected);
        request.adapter = Some(3);
        let body: Value = serde_json::from_str(&chat_body(&request, "base")).unwrap();
        assert_eq!(body["model"], "lora-3");
    }
}
