//! Strings: their end, their escapes, and what of them goes where.

use super::{KEY_BYTES, QUOTE, Sink, State, Text, Tokenizer};
use crate::request::find::find_any;

/// Decoded text that is gathered before the sink gets it.
const STAGED_BYTES: usize = 512;

impl Tokenizer {
    /// Reads on in a string, up to its end, a `\u` or the end of the input.
    pub(super) fn string_run<S: Sink + ?Sized>(&mut self, input: &[u8], sink: &mut S) -> usize {
        let mut used = 0usize;
        loop {
            let rest = input.get(used..).unwrap_or_default();
            let stop = find_any(rest, [b'"', b'\\']).unwrap_or(rest.len());
            if let Some(piece) = rest.get(..stop)
                && !piece.is_empty()
            {
                self.flush_high(sink);
                self.stage(piece, sink);
            }
            used += stop;
            match (rest.get(stop), rest.get(stop + 1)) {
                (Some(b'\\'), Some(b'u')) if self.unicode_at_once(rest, stop + 2, sink) => {
                    used += 6;
                }
                (Some(b'\\'), Some(&byte)) if byte != b'u' => {
                    used += 2;
                    self.escape(byte, sink);
                    if self.state != State::InString {
                        break;
                    }
                }
                (Some(b'\\'), _) => {
                    used += 1;
                    self.state = State::Escape;
                    break;
                }
                (Some(_), _) => {
                    used += 1;
                    self.flush_high(sink);
                    self.flush_staged(sink);
                    self.end_string(sink);
                    break;
                }
                (None, _) => break,
            }
        }
        self.flush_staged(sink);
        used
    }

    /// Gathers short pieces, since a sink takes one long piece much faster than many short ones.
    fn stage<S: Sink + ?Sized>(&mut self, piece: &[u8], sink: &mut S) {
        if self.text == Text::Skipped {
            return;
        }
        if self.staged.len() + piece.len() > STAGED_BYTES {
            self.flush_staged(sink);
        }
        if piece.len() >= STAGED_BYTES / 4 {
            self.flush_staged(sink);
            self.emit(piece, sink);
        } else {
            self.staged.extend_from_slice(piece);
        }
    }

    pub(super) fn flush_staged<S: Sink + ?Sized>(&mut self, sink: &mut S) {
        if !self.staged.is_empty() {
            let mut staged = std::mem::take(&mut self.staged);
            self.emit(&staged, sink);
            staged.clear();
            self.staged = staged;
        }
    }

    fn end_string<S: Sink + ?Sized>(&mut self, sink: &mut S) {
        self.state = match self.text {
            Text::Key => {
                sink.key(&self.key);
                State::Colon
            }
            Text::Value => {
                sink.end();
                State::After
            }
            Text::Digested => {
                sink.bytes(QUOTE);
                State::Within
            }
            Text::Skipped if self.nested > 0 => State::Within,
            Text::Skipped => State::After,
        };
    }

    fn emit<S: Sink + ?Sized>(&mut self, piece: &[u8], sink: &mut S) {
        match self.text {
            Text::Key => {
                let room = KEY_BYTES.saturating_sub(self.key.len()).min(piece.len());
                self.key
                    .extend_from_slice(piece.get(..room).unwrap_or_default());
            }
            Text::Value | Text::Digested => sink.bytes(piece),
            Text::Skipped => {}
        }
    }

    pub(super) fn escape<S: Sink + ?Sized>(&mut self, byte: u8, sink: &mut S) {
        self.state = State::InString;
        if self.text == Text::Skipped {
            return;
        }
        if byte == b'u' {
            self.digits = 0;
            self.code = 0;
            self.state = State::Unicode;
            return;
        }
        let decoded = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => {
                self.state = State::Malformed;
                return;
            }
        };
        self.flush_high(sink);
        self.stage(&[decoded], sink);
    }

    pub(super) fn unicode<S: Sink + ?Sized>(&mut self, byte: u8, sink: &mut S) {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = State::Malformed;
            return;
        };
        self.code = (self.code << 4) | digit;
        self.digits += 1;
        if self.digits < 4 {
            return;
        }
        self.state = State::InString;
        self.unit(self.code, sink);
    }

    /// The four digits of `\u` at `start`, if they are there; false leaves everything to the slow
    /// way.
    fn unicode_at_once<S: Sink + ?Sized>(
        &mut self,
        input: &[u8],
        start: usize,
        sink: &mut S,
    ) -> bool {
        let Some(digits) = input.get(start..start + 4) else {
            return false;
        };
        let code = digits.iter().try_fold(0u32, |code, &digit| {
            Some((code << 4) | char::from(digit).to_digit(16)?)
        });
        if let Some(code) = code {
            self.unit(code, sink);
        }
        code.is_some()
    }

    /// A UTF-16 code unit that was escaped.
    fn unit<S: Sink + ?Sized>(&mut self, code: u32, sink: &mut S) {
        if self.text == Text::Skipped {
            return;
        }
        if self.high != 0 && (0xDC00..0xE000).contains(&code) {
            let high = std::mem::take(&mut self.high);
            let code = 0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00);
            return self.emit_code(code, sink);
        }
        self.flush_high(sink);
        if (0xD800..0xDC00).contains(&code) {
            self.high = code;
        } else {
            self.emit_code(code, sink);
        }
    }

    /// Emits a first half that stayed alone.
    fn flush_high<S: Sink + ?Sized>(&mut self, sink: &mut S) {
        if self.high != 0 {
            let high = std::mem::take(&mut self.high);
            self.emit_code(high, sink);
        }
    }

    /// Emits a code point as UTF-8; a lone surrogate in the same manner, as three bytes.
    fn emit_code<S: Sink + ?Sized>(&mut self, code: u32, sink: &mut S) {
        let tail = |shift: u32| 0x80 | ((code >> shift) & 0x3F) as u8;
        match code {
            0..0x80 => self.stage(&[code as u8], sink),
            0x80..0x800 => self.stage(&[0xC0 | (code >> 6) as u8, tail(0)], sink),
            0x800..0x10000 => self.stage(&[0xE0 | (code >> 12) as u8, tail(6), tail(0)], sink),
            _ => self.stage(
                &[0xF0 | (code >> 18) as u8, tail(12), tail(6), tail(0)],
                sink,
            ),
        }
    }
}
