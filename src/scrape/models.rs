//! What an engine serves: the answer of its `/v1/models` to [`Card`]s.
//!
//! All of the answer is read by the tokenizer, so that the text of a card is a whole JSON object and
//! may go into another list as it stands.

use std::fmt;

use crate::request::json::{Kind, Sink, Take, Tokenizer};
use crate::state::models::hash;

/// Most cards of one list.
pub const MAX_CARDS: usize = 1_024;
/// Longest card, in bytes.
pub const MAX_CARD_BYTES: usize = 4_096;
/// Longest name of a model or adapter, in bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest list, in bytes.
pub const MAX_LIST_BYTES: usize = 1 << 20;

/// Depths of the containers: the list, its `data`, a card.
const LIST: u32 = 1;
const DATA: u32 = 2;
const CARD: u32 = 3;
/// Deeper than any card; the tokenizer itself follows no further than 32.
const MAX_DEPTH: u32 = 16;

/// One model or adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// What requests name.
    pub id: String,
    /// The base model of an adapter; `None` for a base model.
    pub parent: Option<String>,
    /// The card as the engine wrote it: one JSON object.
    pub json: String,
    /// The hash of all of it but what is another with every answer of vLLM's: `created`, `permission`.
    pub stamp: u64,
}

/// Why an answer is no list of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelsError {
    /// Not a whole JSON object with a list of named cards in `data`.
    NotAList,
    /// More cards, a longer card or a longer name than is taken.
    TooLarge,
}

impl fmt::Display for ModelsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAList => "no list of models",
            Self::TooLarge => "the list of models is too large",
        })
    }
}

impl std::error::Error for ModelsError {}

/// Reads the answer of an engine's `/v1/models`. A name that repeats counts once.
///
/// # Errors
///
/// All that is no list, or is larger than the limits of this module: never half a list.
pub fn parse(answer: &[u8]) -> Result<Vec<Card>, ModelsError> {
    if answer.len() > MAX_LIST_BYTES {
        return Err(ModelsError::TooLarge);
    }
    let text = std::str::from_utf8(answer).map_err(|_| ModelsError::NotAList)?;
    let mut tokens = Tokenizer::new();
    let mut reader = Reader::default();
    let mut cards: Vec<Card> = Vec::new();
    let mut at = 0_usize;
    // The tokenizer does not tell where it is. A card begins and ends with a brace, so that pieces which
    // end with one show it.
    for piece in text.split_inclusive(['{', '}']) {
        tokens.push::<dyn Sink>(piece.as_bytes(), &mut reader);
        at = at.saturating_add(piece.len());
        match reader.seen.take() {
            Some(Seen::Opened) => reader.start = at.saturating_sub(1),
            Some(Seen::Closed) => {
                let json = text.get(reader.start..at).unwrap_or_default();
                let card = reader.card(json)?;
                if cards.len() >= MAX_CARDS {
                    return Err(ModelsError::TooLarge);
                }
                if cards.iter().all(|other| other.id != card.id) {
                    cards.push(card);
                }
            }
            None => {}
        }
    }
    match tokens.is_done() && reader.listed && !reader.broken {
        true => Ok(cards),
        false => Err(ModelsError::NotAList),
    }
}

/// What the last piece did to a card.
#[derive(Debug)]
enum Seen {
    Opened,
    Closed,
}

/// The member whose value comes next, where it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Member {
    #[default]
    Other,
    Data,
    Id,
    Parent,
}

#[derive(Debug, Default)]
struct Reader {
    depth: u32,
    member: Member,
    in_data: bool,
    in_card: bool,
    /// There was a list.
    listed: bool,
    broken: bool,
    /// Where the card under way begins.
    start: usize,
    seen: Option<Seen>,
    id: Vec<u8>,
    parent: Vec<u8>,
    /// The text that is being read.
    text: Vec<u8>,
    /// All of the card under way but what is another with every answer.
    lasting: Vec<u8>,
    passing: bool,
}

impl Reader {
    fn card(&mut self, json: &str) -> Result<Card, ModelsError> {
        let (id, parent) = (
            std::mem::take(&mut self.id),
            std::mem::take(&mut self.parent),
        );
        let longest = id.len().max(parent.len());
        if json.len() > MAX_CARD_BYTES || longest > MAX_NAME_BYTES {
            return Err(ModelsError::TooLarge);
        }
        // Half of a surrogate pair is no text.
        let name = |bytes| String::from_utf8(bytes).map_err(|_| ModelsError::NotAList);
        let (id, parent) = (name(id)?, name(parent)?);
        if id.is_empty() {
            return Err(ModelsError::NotAList);
        }
        Ok(Card {
            id,
            parent: Some(parent).filter(|parent| !parent.is_empty()),
            json: json.to_owned(),
            stamp: hash(&self.lasting),
        })
    }
}

impl Reader {
    fn keep(&mut self, piece: &[u8]) {
        if self.in_card && !self.passing {
            self.lasting.extend_from_slice(piece);
        }
    }
}

impl Sink for Reader {
    fn key(&mut self, key: &[u8]) {
        if self.depth == CARD {
            self.passing = matches!(key, b"created" | b"permission");
        }
        self.keep(key);
        self.keep(b":");
        self.member = match (self.depth, key) {
            (LIST, b"data") => Member::Data,
            (CARD, b"id") if self.in_card => Member::Id,
            (CARD, b"parent") if self.in_card => Member::Parent,
            _ => Member::Other,
        };
    }

    fn begin(&mut self, kind: Kind) -> Take {
        let list = self.depth == LIST && self.member == Member::Data;
        let card = self.depth == DATA && self.in_data;
        match kind {
            Kind::Object | Kind::Array => {
                self.depth = self.depth.saturating_add(1);
                self.broken |= self.depth > MAX_DEPTH;
            }
            Kind::String => self.text.clear(),
            Kind::Scalar => {}
        }
        if list {
            // A second list would be another one.
            self.broken |= kind != Kind::Array || self.listed;
            self.in_data = true;
            self.listed = true;
        }
        if card {
            self.broken |= kind != Kind::Object;
            self.in_card = true;
            self.passing = false;
            self.lasting.clear();
            self.seen = Some(Seen::Opened);
        }
        // What a container holds is not what the key before it named.
        if kind != Kind::String {
            self.broken |= self.member == Member::Id;
            self.member = Member::Other;
        }
        Take::Read
    }

    fn bytes(&mut self, piece: &[u8]) {
        self.keep(piece);
        if matches!(self.member, Member::Id | Member::Parent) {
            // One byte more than a name may have tells that it is too long.
            let room = (MAX_NAME_BYTES + 1).saturating_sub(self.text.len());
            let taken = piece.get(..room.min(piece.len()));
            self.text.extend_from_slice(taken.unwrap_or_default());
        }
    }

    fn end(&mut self) {
        self.keep(b"\xFF");
        let text = std::mem::take(&mut self.text);
        match self.member {
            Member::Id => self.id = text,
            Member::Parent => self.parent = text,
            Member::Data | Member::Other => {}
        }
        self.member = Member::Other;
    }

    fn scalar(&mut self, text: &[u8]) {
        self.keep(text);
        self.keep(b",");
    }

    fn close(&mut self) {
        self.keep(b"}");
        if self.depth == CARD && self.in_card {
            self.in_card = false;
            self.seen = Some(Seen::Closed);
        }
        if self.depth == DATA {
            self.in_data = false;
        }
        self.depth = self.depth.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(answer: &str) -> Vec<(String, Option<String>)> {
        let cards = parse(answer.as_bytes()).unwrap();
        cards
            .into_iter()
            .map(|card| (card.id, card.parent))
            .collect()
    }

    #[test]
    fn the_list_of_a_real_engine_is_read_and_its_cards_are_kept_as_they_are() {
        let answer = include_bytes!("../../tests/data/vllm-0.32.0/models.body");
        let cards = parse(answer).unwrap();
        let named: Vec<_> = cards
            .iter()
            .map(|card| (card.id.as_str(), card.parent.as_deref()))
            .collect();
        let expected = [
            ("tiny", None),
            ("lora-a", Some("tiny")),
            ("lora-b", Some("tiny")),
        ];
        assert_eq!(named, expected);
        let whole: serde_json::Value = serde_json::from_slice(answer).unwrap();
        for (at, card) in cards.iter().enumerate() {
            let json: serde_json::Value = serde_json::from_str(&card.json).unwrap();
            assert_eq!(json, whole["data"][at]);
        }
    }

    #[test]
    fn what_is_another_with_every_answer_does_not_change_a_card() {
        let stamp = |card: &str| {
            let answer = format!(r#"{{"data":[{card}]}}"#);
            parse(answer.as_bytes()).unwrap().remove(0).stamp
        };
        let one = r#"{"id":"a","created":1,"n":5,"permission":[{"id":"x","created":1}]}"#;
        let same = r#"{"id": "a", "created":2,"n":5,"permission":[{"id":"y","created":[3]}]}"#;
        assert_eq!(stamp(one), stamp(same));
        for other in [
            r#"{"id":"b","created":1,"n":5,"permission":[]}"#,
            r#"{"id":"a","created":1,"n":6,"permission":[]}"#,
            r#"{"id":"a","created":1,"n":"5","permission":[]}"#,
            r#"{"id":"a","parent":"b","created":1,"n":5,"permission":[]}"#,
            r#"{"id":"a","created":1,"n":5,"x":{"created":1},"permission":[]}"#,
        ] {
            assert_ne!(stamp(one), stamp(other), "{other}");
        }
        let within = |created: u32| stamp(&format!(r#"{{"id":"a","x":{{"created":{created}}}}}"#));
        assert_ne!(within(1), within(2));
    }

    #[test]
    fn braces_in_names_and_members_of_other_objects_mislead_nobody() {
        let answer = r#"{"data": [ {"root": {"id": "no", "parent": "no"}, "id": "a}{\"b",
            "x": [{"id": "no"}]} , {"id":"b","parent":""}], "id": "no", "object": "list"}"#;
        assert_eq!(ids(answer), [("a}{\"b".into(), None), ("b".into(), None)]);
        let first = parse(answer.as_bytes()).unwrap().remove(0).json;
        assert!(
            first.starts_with(r#"{"root""#) && first.ends_with("}]}"),
            "{first}"
        );
        assert_eq!(ids(r#"{"data":[]}"#), []);
        let twice = r#"{"data":[{"id":"a","n":1},{"id":"a","n":2}]}"#;
        assert_eq!(
            parse(twice.as_bytes()).unwrap()[0].json,
            r#"{"id":"a","n":1}"#
        );
        assert_eq!(ids(twice).len(), 1);
    }

    #[test]
    fn what_is_no_list_is_an_error_and_never_half_a_list() {
        for answer in [
            "",
            "{}",
            "[]",
            "<html>",
            r#"{"data":null}"#,
            r#"{"data":{"id":"a"}}"#,
            r#"{"data":["a"]}"#,
            r#"{"data":[{"id":"a"},{}]}"#,
            r#"{"data":[{"id":"a"},{"id":5}]}"#,
            r#"{"data":[{"id":"a"},{"id":{"x":"b"}}]}"#,
            r#"{"data":[{"id":""}]}"#,
            r#"{"data":[{"id":"a"}]"#,
            r#"{"data":[{"id":"a"},{"id":"#,
            r#"{"data":[{"id":"a"}],"data":[{"id":"b"}]}"#,
            r#"{"data":[{"id":"a","x":[}]}]}"#,
            r#"{"data":[{"id":"\ud800"}]}"#,
            r#"{"x":{"data":[{"id":"a"}]}}"#,
        ] {
            assert_eq!(
                parse(answer.as_bytes()),
                Err(ModelsError::NotAList),
                "{answer}"
            );
        }
        let deep = format!(
            r#"{{"data":[{{"id":"a","x":{}{}}}]}}"#,
            "[".repeat(40),
            "]".repeat(40)
        );
        assert_eq!(parse(deep.as_bytes()), Err(ModelsError::NotAList));
    }

    #[test]
    fn what_is_too_large_is_an_error() {
        let list = |cards: usize, name: &str, rest: usize| {
            let card = |at| format!(r#"{{"id":"{name}{at}","x":"{}"}}"#, "x".repeat(rest));
            let cards: Vec<String> = (0..cards).map(card).collect();
            parse(format!(r#"{{"data":[{}]}}"#, cards.join(",")).as_bytes())
        };
        assert_eq!(list(MAX_CARDS, "a", 0).unwrap().len(), MAX_CARDS);
        assert_eq!(list(MAX_CARDS + 1, "a", 0), Err(ModelsError::TooLarge));
        assert!(list(1, &"n".repeat(MAX_NAME_BYTES - 1), 0).is_ok());
        let long = "n".repeat(MAX_NAME_BYTES);
        assert_eq!(list(1, &long, 0), Err(ModelsError::TooLarge));
        assert_eq!(list(1, "a", MAX_CARD_BYTES), Err(ModelsError::TooLarge));
        assert_eq!(list(600, "a", 2_000), Err(ModelsError::TooLarge));
    }

    proptest! {
        #[test]
        fn any_answer_is_harmless(answer: Vec<u8>, cut in 0_usize..1_400, put: u8) {
            let _ = parse(&answer);
            let mut real = include_bytes!("../../tests/data/vllm-0.32.0/models.body").to_vec();
            let end = cut.min(real.len() - 1);
            real[end] = put;
            if let Ok(cards) = parse(&real) {
                for card in cards {
                    let whole = card.json.starts_with('{') && card.json.ends_with('}');
                    prop_assert!(whole, "{}", card.json);
                }
            }
            prop_assert!(parse(&real[..end]).is_err());
        }

        /// Whatever a card holds, what is taken of it is what a JSON parser finds.
        #[test]
        fn cards_are_those_that_a_parser_finds(names in proptest::collection::vec("[^\u{0}]{1,12}", 0..6)) {
            let data: Vec<_> = names
                .iter()
                .map(|name| serde_json::json!({"a": {"b": [name]}, "id": name, "parent": null}))
                .collect();
            let cards = parse(serde_json::json!({"data": data}).to_string().as_bytes()).unwrap();
            for card in &cards {
                let value: serde_json::Value = serde_json::from_str(&card.json).unwrap();
                prop_assert_eq!(value["id"].as_str(), Some(card.id.as_str()));
            }
            let distinct: std::collections::BTreeSet<_> = names.iter().collect();
            prop_assert_eq!(cards.len(), distinct.len());
        }
    }
}
