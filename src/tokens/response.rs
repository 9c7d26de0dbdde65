//! Reads the body of a response as it passes: a JSON document, or a stream of server-sent events.
//!
//! Which of them it is shows in the first byte; asking Envoy for the content type would cost more
//! than reading does.

use super::answer::{Answer, Usage};
use crate::request::find::find_any;
use crate::request::json::Tokenizer;

/// Ends an OpenAI-style stream.
const DONE: &[u8] = b"[DONE]";
/// The field of an event that carries its document.
const DATA: &[u8] = b"data:";
/// Beginning of an event's data that is kept to tell [`DONE`] apart.
const HEAD_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Nothing has come yet but white space.
    Unknown,
    Json,
    Events,
    Ignored,
}

/// Where in a stream of events we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// So many bytes of [`DATA`] matched at the beginning of a line.
    Name(usize),
    /// After `data:`.
    Data,
    /// Another field, or a comment.
    Other,
}

/// Reads a response in pieces of any size. Never fails; what makes no sense is passed over.
///
/// ```
/// use warmroute::tokens::ResponseReader;
/// let mut reader = ResponseReader::default();
/// reader.push(b"data: {\"choices\":[{\"text\":\"Hi\"}],\"usage\":{\"prompt_to");
/// reader.push(b"kens\":5,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n");
/// reader.finish();
/// assert_eq!(reader.events(), 1);
/// assert!(reader.done());
/// assert_eq!(reader.usage().map(|usage| usage.prompt_tokens), Some(5));
/// ```
#[derive(Debug)]
pub struct ResponseReader {
    format: Format,
    tokens: Tokenizer,
    answer: Answer,
    line: Line,
    /// The byte before was a carriage return, which a line feed may belong to.
    after_return: bool,
    /// An event with data is under way.
    open: bool,
    head: Vec<u8>,
    events: u64,
    done: bool,
}

impl Default for ResponseReader {
    fn default() -> Self {
        Self {
            format: Format::Unknown,
            tokens: Tokenizer::new(),
            answer: Answer::default(),
            line: Line::Name(0),
            after_return: false,
            open: false,
            head: Vec::new(),
            events: 0,
            done: false,
        }
    }
}

impl ResponseReader {
    /// Reads the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.format == Format::Unknown {
            self.format = format_of(bytes);
        }
        match self.format {
            Format::Json => self.tokens.push(bytes, &mut self.answer),
            Format::Events => self.push_events(bytes),
            Format::Unknown | Format::Ignored => {}
        }
    }

    /// The body has ended: an event that lacks its blank line counts all the same.
    pub fn finish(&mut self) {
        match self.format {
            Format::Json => {
                self.answer.end_document();
            }
            Format::Events => self.end_event(),
            Format::Unknown | Format::Ignored => {}
        }
    }

    /// Whether the body is a stream of server-sent events.
    pub fn is_stream(&self) -> bool {
        self.format == Format::Events
    }

    /// Whether the body is a JSON document that has been read to its end.
    pub fn is_whole(&self) -> bool {
        self.format == Format::Json && self.tokens.is_done()
    }

    /// What the engine reported so far; the last report of each figure counts.
    pub fn usage(&self) -> Option<Usage> {
        self.answer.usage()
    }

    /// Events so far that carried output: about the number of chunks the engine produced.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The status that an error inside the body stands for, if there was one. Known once its event,
    /// or with JSON the body, has ended.
    pub fn error_code(&self) -> Option<u32> {
        self.answer.error_code()
    }

    /// Whether the stream said that it is complete: `[DONE]`, or the last event of the APIs that
    /// name one (`message_stop`, `response.completed`, …).
    pub fn done(&self) -> bool {
        self.done || (self.format == Format::Events && self.answer.is_last())
    }

    fn push_events(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if let Some(&first) = rest.first()
            && std::mem::take(&mut self.after_return)
            && first == b'\n'
        {
            rest = rest.get(1..).unwrap_or_default();
        }
        while !rest.is_empty() {
            let stop = find_any(rest, [b'\n', b'\r']).unwrap_or(rest.len());
            self.in_line(rest.get(..stop).unwrap_or_default());
            let end = rest.get(stop).copied();
            rest = rest.get(stop.saturating_add(1)..).unwrap_or_default();
            if end.is_none() {
                break;
            }
            self.end_line();
            if end == Some(b'\r') {
                if rest.first() == Some(&b'\n') {
                    rest = rest.get(1..).unwrap_or_default();
                } else {
                    self.after_return = rest.is_empty();
                }
            }
        }
    }

    /// Bytes of one line, without its end.
    fn in_line(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let (Line::Name(matched), Some(&byte)) = (self.line, rest.first()) {
            if DATA.get(matched) != Some(&byte) {
                // A byte order mark before the first field is no field.
                if !(matched == 0 && matches!(byte, 0xEF | 0xBB | 0xBF)) {
                    self.line = Line::Other;
                }
            } else if matched + 1 == DATA.len() {
                self.line = Line::Data;
                self.begin_data();
            } else {
                self.line = Line::Name(matched + 1);
            }
            rest = rest.get(1..).unwrap_or_default();
        }
        if self.line == Line::Data && !rest.is_empty() {
            let room = HEAD_BYTES.saturating_sub(self.head.len()).min(rest.len());
            self.head
                .extend_from_slice(rest.get(..room).unwrap_or_default());
            self.tokens.push(rest, &mut self.answer);
        }
    }

    fn begin_data(&mut self) {
        if self.open && self.tokens.is_settled() {
            // The blank line in between is missing.
            self.end_event();
        }
        if self.open {
            self.tokens.push(b"\n", &mut self.answer);
        }
        self.open = true;
    }

    fn end_line(&mut self) {
        if self.line == Line::Name(0) {
            self.end_event();
        }
        self.line = Line::Name(0);
    }

    fn end_event(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        self.done |= self.head.trim_ascii() == DONE;
        self.head.clear();
        self.tokens.reset();
        if self.answer.end_document() {
            self.events = self.events.saturating_add(1);
        }
    }
}

/// A document opens with a brace; an event with the name of a field, or a colon if it is a comment.
fn format_of(bytes: &[u8]) -> Format {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => Format::Unknown,
        Some(b'{') => Format::Json,
        Some(b':' | b'd' | b'e' | b'i' | b'r' | 0xEF) => Format::Events,
        Some(_) => Format::Ignored,
    }
}
