//! Containers that are skipped or digested: brackets counted outside strings, nothing more.

use super::{QUOTE, Sink, State, Take, Text, Tokenizer, is_space};
use crate::request::find::find_any;

impl Tokenizer {
    /// Reads on in such a container, up to a string, its end or the end of the input.
    pub(super) fn within_run<S: Sink + ?Sized>(&mut self, input: &[u8], sink: &mut S) -> usize {
        match self.take {
            Take::Digest => self.digest_run(input, sink),
            Take::Read | Take::Skip => self.skip_run(input),
        }
    }

    fn skip_run(&mut self, input: &[u8]) -> usize {
        let Some(stop) = find_any(input, [b'"', b'{', b'}', b'[', b']']) else {
            return input.len();
        };
        match input.get(stop) {
            Some(b'"') => {
                self.text = Text::Skipped;
                self.state = State::InString;
            }
            Some(b'{' | b'[') => self.nested = self.nested.saturating_add(1),
            _ => {
                self.nested = self.nested.saturating_sub(1);
                if self.nested == 0 {
                    self.state = State::After;
                }
            }
        }
        stop + 1
    }

    fn digest_run<S: Sink + ?Sized>(&mut self, input: &[u8], sink: &mut S) -> usize {
        let mut used = 0usize;
        let mut start = 0usize;
        for &byte in input {
            match byte {
                b'{' | b'[' => self.nested = self.nested.saturating_add(1),
                b'}' | b']' => self.nested = self.nested.saturating_sub(1),
                b'"' => break,
                _ if is_space(byte) => {
                    emit_run(input, start, used, sink);
                    start = used + 1;
                }
                _ => {}
            }
            used += 1;
            if self.nested == 0 {
                break;
            }
        }
        emit_run(input, start, used, sink);
        if self.nested == 0 {
            sink.end();
            self.state = State::After;
        } else if used < input.len() {
            sink.bytes(QUOTE);
            self.text = Text::Digested;
            self.state = State::InString;
            used += 1;
        }
        used
    }
}

fn emit_run<S: Sink + ?Sized>(input: &[u8], start: usize, end: usize, sink: &mut S) {
    if let Some(run) = input.get(start..end)
        && !run.is_empty()
    {
        sink.bytes(run);
    }
}
