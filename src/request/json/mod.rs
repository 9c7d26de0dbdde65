//! A push tokenizer for JSON: bytes in, calls out, constant memory, no tree and no recursion.
//!
//! The [`Sink`] says of each value whether it wants to read it, to have it digested, or to have it
//! skipped. Only what is read is checked against the grammar; skipped and digested values are
//! followed by counting brackets outside strings, so that their nesting costs nothing.

mod nested;
mod text;

/// Longest object key that is told apart; longer ones are cut, so that they equal no known key.
pub(crate) const KEY_BYTES: usize = 128;
/// Longest number that is understood.
const SCALAR_BYTES: usize = 48;
/// Whole numbers that are handed over together.
const INTEGERS: usize = 64;
/// Deepest container that a sink may read.
const READ_DEPTH: u32 = 32;
/// Stands for a string's quotes in a digest; no UTF-8 text contains it.
const QUOTE: &[u8] = &[0xFF];

/// What kind of value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Scalar,
}

/// What the sink wants of the value that begins. Numbers and literals always come as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Containers: their members. Strings: their decoded bytes.
    Read,
    /// The whole value as bytes: no white space, strings decoded and set off by 0xFF.
    Digest,
    /// Nothing.
    Skip,
}

/// Receives what the tokenizer finds.
pub(crate) trait Sink {
    /// The key of the member whose value begins next.
    fn key(&mut self, key: &[u8]);
    /// A value begins. A [`Kind::Scalar`] is followed by [`Sink::scalar`] whatever the answer.
    fn begin(&mut self, kind: Kind) -> Take;
    /// The next piece of a string that is read, or of a value that is digested.
    fn bytes(&mut self, piece: &[u8]);
    /// The string or the digested value ends.
    fn end(&mut self);
    /// A number, `true`, `false` or `null`; empty if it was too long to keep.
    fn scalar(&mut self, text: &[u8]);
    /// The innermost container that is read ends.
    fn close(&mut self);
    /// Whether plain whole numbers of the array under way may come by [`Sink::integers`].
    fn takes_integers(&self) -> bool {
        false
    }
    /// Some elements of the array under way, in place of `begin` and `scalar` for each.
    fn integers(&mut self, _numbers: &[u64]) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    FirstElement,
    Value,
    FirstKey,
    Key,
    Colon,
    After,
    InString,
    Escape,
    Unicode,
    InScalar,
    /// Between the strings of a container that is skipped or digested.
    Within,
    Done,
    Malformed,
}

/// Whom the string under way belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Key,
    Value,
    /// Part of a digested container.
    Digested,
    Skipped,
}

/// The tokenizer's state between two pushes.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    state: State,
    /// One bit for each container that is read, innermost lowest: 1 is an object.
    kinds: u32,
    depth: u32,
    /// Open brackets of the container that is skipped or digested.
    nested: u64,
    take: Take,
    text: Text,
    key: Vec<u8>,
    scalar: Vec<u8>,
    scalar_overlong: bool,
    /// Decoded text that the sink has not got yet; empty between two pushes.
    staged: Vec<u8>,
    /// Hexadecimal digits of `\u` so far, and their value.
    digits: u8,
    code: u32,
    /// First half of a surrogate pair whose second half may follow; 0 is none.
    high: u32,
}

impl Tokenizer {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Start,
            kinds: 0,
            depth: 0,
            nested: 0,
            take: Take::Skip,
            text: Text::Skipped,
            key: Vec::new(),
            scalar: Vec::new(),
            scalar_overlong: false,
            staged: Vec::new(),
            digits: 0,
            code: 0,
            high: 0,
        }
    }

    /// Ready for the next document, keeping the buffers.
    pub(crate) fn reset(&mut self) {
        let old = std::mem::replace(self, Self::new());
        self.key = old.key;
        self.scalar = old.scalar;
        self.staged = old.staged;
    }

    /// Whether the top-level object is closed.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the document is broken.
    pub(crate) fn is_malformed(&self) -> bool {
        self.state == State::Malformed
    }

    /// Whether further bytes change nothing.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_done() || self.is_malformed()
    }

    pub(crate) fn push<S: Sink + ?Sized>(&mut self, input: &[u8], sink: &mut S) {
        let mut rest = input;
        while !rest.is_empty() && !self.is_settled() {
            let used = match self.state {
                State::InString => self.string_run(rest, sink),
                State::Within => self.within_run(rest, sink),
                State::InScalar => self.scalar_run(rest, sink),
                State::Value if sink.takes_integers() => self.integer_run(rest, sink),
                _ => match rest.first() {
                    Some(&byte) => {
                        self.step(byte, sink);
                        1
                    }
                    None => 0,
                },
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        self.flush_staged(sink);
    }

    /// One byte outside the long runs.
    fn step<S: Sink + ?Sized>(&mut self, byte: u8, sink: &mut S) {
        match self.state {
            State::Escape => return self.escape(byte, sink),
            State::Unicode => return self.unicode(byte, sink),
            // White space, and the bytes of a byte order mark.
            State::Start if matches!(byte, 0xEF | 0xBB | 0xBF) => return,
            _ if is_space(byte) => return,
            _ => {}
        }
        self.state = match (self.state, byte) {
            (State::Start, b'{') | (State::Value | State::FirstElement, _) => {
                return self.value(byte, sink);
            }
            (State::FirstKey | State::Key, b'"') => {
                self.key.clear();
                self.text = Text::Key;
                State::InString
            }
            (State::FirstKey, b'}') => return self.close(1, sink),
            (State::Colon, b':') => State::Value,
            (State::After, b',') if self.kinds & 1 == 1 => State::Key,
            (State::After, b',') => State::Value,
            (State::After, b'}') => return self.close(1, sink),
            (State::After, b']') => return self.close(0, sink),
            _ => State::Malformed,
        };
    }

    /// The first byte of a value, or the end of an empty array.
    fn value<S: Sink + ?Sized>(&mut self, byte: u8, sink: &mut S) {
        match byte {
            b'{' => self.open(Kind::Object, sink),
            b'[' => self.open(Kind::Array, sink),
            b'"' => {
                self.text = match sink.begin(Kind::String) {
                    Take::Skip => Text::Skipped,
                    Take::Read | Take::Digest => Text::Value,
                };
                self.state = State::InString;
            }
            b']' if self.state == State::FirstElement => self.close(0, sink),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I' => {
                sink.begin(Kind::Scalar);
                self.scalar.clear();
                self.scalar_overlong = false;
                self.scalar.push(byte);
                self.state = State::InScalar;
            }
            _ => self.state = State::Malformed,
        }
    }

    fn open<S: Sink + ?Sized>(&mut self, kind: Kind, sink: &mut S) {
        let mut take = sink.begin(kind);
        if take == Take::Read && self.depth >= READ_DEPTH {
            take = Take::Skip;
        }
        match (take, kind) {
            (Take::Read, _) => {
                self.depth += 1;
                self.kinds = (self.kinds << 1) | u32::from(kind == Kind::Object);
                self.state = match kind {
                    Kind::Object => State::FirstKey,
                    _ => State::FirstElement,
                };
            }
            (Take::Digest | Take::Skip, _) => {
                self.take = take;
                self.nested = 1;
                self.state = State::Within;
                if take == Take::Digest {
                    let bracket: &[u8] = if kind == Kind::Object { b"{" } else { b"[" };
                    sink.bytes(bracket);
                }
            }
        }
    }

    fn close<S: Sink + ?Sized>(&mut self, kind_bit: u32, sink: &mut S) {
        if self.depth == 0 || self.kinds & 1 != kind_bit {
            self.state = State::Malformed;
            return;
        }
        self.kinds >>= 1;
        self.depth -= 1;
        sink.close();
        self.state = if self.depth == 0 {
            State::Done
        } else {
            State::After
        };
    }

    /// Whole numbers, each with its comma; whatever is not so simple goes the ordinary way.
    fn integer_run<S: Sink + ?Sized>(&mut self, input: &[u8], sink: &mut S) -> usize {
        let mut numbers = [0u64; INTEGERS];
        let mut count = 0usize;
        let mut used = 0usize;
        while let Some(slot) = numbers.get_mut(count) {
            let Some((number, length)) = input.get(used..).and_then(integer_and_comma) else {
                break;
            };
            *slot = number;
            count += 1;
            used += length;
        }
        sink.integers(numbers.get(..count).unwrap_or_default());
        match input.get(used) {
            Some(&byte) if count < INTEGERS => {
                self.step(byte, sink);
                used + 1
            }
            _ => used,
        }
    }

    fn scalar_run<S: Sink + ?Sized>(&mut self, input: &[u8], sink: &mut S) -> usize {
        let is_part =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let end = input
            .iter()
            .position(|byte| !is_part(byte))
            .unwrap_or(input.len());
        let piece = input.get(..end).unwrap_or_default();
        let room = SCALAR_BYTES.saturating_sub(self.scalar.len());
        self.scalar_overlong |= piece.len() > room;
        self.scalar
            .extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
        if end < input.len() {
            let numeric = self.scalar.iter().all(|byte| !byte.is_ascii_alphabetic());
            if self.scalar_overlong && numeric {
                sink.scalar(b"");
                self.state = State::After;
            } else if is_scalar(&self.scalar) && !self.scalar_overlong {
                sink.scalar(&self.scalar);
                self.state = State::After;
            } else {
                self.state = State::Malformed;
            }
        }
        end
    }
}

/// A number of at most 18 digits with the comma behind it, and how many bytes that is.
fn integer_and_comma(input: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0u64;
    let mut length = 0usize;
    if input.first() == Some(&b' ') {
        length = 1;
    }
    let start = length;
    loop {
        let byte = *input.get(length)?;
        if !byte.is_ascii_digit() {
            let plain = byte == b',' && length > start && length - start <= 18;
            return plain.then_some((number, length + 1));
        }
        number = number.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'));
        length += 1;
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Whether `text` is a number or one of the literals that Python's `json` reads.
fn is_scalar(text: &[u8]) -> bool {
    if text.iter().all(u8::is_ascii_digit) {
        return true;
    }
    match text {
        b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity" => true,
        [b'-' | b'0'..=b'9', ..] => {
            !text
                .iter()
                .any(|byte| byte.is_ascii_alphabetic() && !matches!(byte, b'e' | b'E'))
                && std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
        }
        _ => false,
    }
}
