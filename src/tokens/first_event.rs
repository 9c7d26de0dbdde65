//! The first event of a stream of server-sent events.
//!
//! An engine that refuses a streamed request says so there, inside a 200.

use super::ResponseReader;

/// Most bytes that are read in search of the event's end: errors are shorter, and whoever waits for it keeps
/// them all.
pub const MAX_FIRST_EVENT_BYTES: usize = 16_384;

/// Reads a stream until its first event with data is whole, in pieces of any size. Comments and events
/// without data are passed over.
///
/// ```
/// use warmroute::tokens::FirstEvent;
/// let mut first = FirstEvent::default();
/// first.push(b": queued\n\ndata: {\"error\":{\"co");
/// assert!(!first.is_settled());
/// first.push(b"de\":503}}\n\ndata: [DONE]\n\n");
/// assert_eq!(first.data(), Some(&b"{\"error\":{\"code\":503}}"[..]));
/// assert_eq!(first.error_code(), Some(503));
/// ```
#[derive(Debug, Default)]
pub struct FirstEvent {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The byte before was a carriage return, which a line feed may belong to.
    after_return: bool,
    read_bytes: usize,
    whole: bool,
}

impl FirstEvent {
    /// Reads the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.is_settled() {
                return;
            }
            self.read_bytes = self.read_bytes.saturating_add(1);
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => self.end_line(),
                _ => self.line.push(byte),
            }
        }
    }

    /// The stream has ended: an event that lacks its blank line counts all the same.
    pub fn finish(&mut self) {
        if self.is_settled() {
            // What was left unread may have been the rest of the line.
            self.line = Vec::new();
            return;
        }
        if !self.line.is_empty() {
            self.end_line();
        }
        self.whole |= self.data.is_some();
        self.read_bytes = MAX_FIRST_EVENT_BYTES;
    }

    /// Whether nothing that follows makes a difference: the event is whole, or there is none.
    pub fn is_settled(&self) -> bool {
        self.whole || self.read_bytes >= MAX_FIRST_EVENT_BYTES
    }

    /// What the event carries, its lines joined by line feeds; `None` if it is not whole.
    pub fn data(&self) -> Option<&[u8]> {
        self.data.as_deref().filter(|_| self.whole)
    }

    /// The status that the event stands for, if it is an error.
    pub fn error_code(&self) -> Option<u32> {
        let mut reader = ResponseReader::default();
        reader.push(self.data()?);
        reader.finish();
        reader.error_code()
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            self.whole = self.data.is_some();
            return;
        }
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line);
        let Some(value) = line.strip_prefix(b"data:") else {
            return;
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            None => self.data = Some(value.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pieces: &[&[u8]]) -> FirstEvent {
        let mut first = FirstEvent::default();
        for piece in pieces {
            first.push(piece);
        }
        first
    }

    fn data(stream: &str) -> Option<String> {
        let first = read(&[stream.as_bytes()]);
        first
            .data()
            .map(|data| String::from_utf8_lossy(data).into_owned())
    }

    #[test]
    fn an_event_ends_with_a_blank_line_of_any_kind() {
        for end in ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"] {
            assert_eq!(
                data(&format!("data: a{end}data: b{end}")).as_deref(),
                Some("a"),
                "{end:?}"
            );
        }
        assert_eq!(data("data: a\n"), None);
        assert_eq!(data("data: a\r\n\r"), Some("a".into()));
    }

    #[test]
    fn what_carries_no_data_is_passed_over() {
        let before = "\u{feff}: comment\n\nevent: ping\nid: 1\n\nretry: 5\ndatabase: x\n\n";
        assert_eq!(data(before), None);
        assert_eq!(
            data(&format!("{before}event: error\ndata:a\ndata:  b\n\n")),
            Some("a\n b".into())
        );
        assert_eq!(data("\u{feff}data: a\n\n"), Some("a".into()));
    }

    #[test]
    fn an_end_without_a_blank_line_is_an_end() {
        let mut first = read(&[b"data: {\"error\":{\"code\":429}}"]);
        assert!(!first.is_settled() && first.error_code().is_none());
        first.finish();
        assert!(first.is_settled());
        assert_eq!(first.error_code(), Some(429));
        let mut none = read(&[b": nothing"]);
        none.finish();
        assert!(none.is_settled() && none.data().is_none());
    }

    #[test]
    fn errors_are_those_of_all_apis_and_nothing_else() {
        let code = |data: &str| read(&[format!("data: {data}\n\n").as_bytes()]).error_code();
        assert_eq!(
            code(r#"{"error":{"message":"full","code":503}}"#),
            Some(503)
        );
        let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"full"}}"#;
        assert_eq!(code(overloaded), Some(503));
        assert_eq!(
            code(r#"{"type":"error","code":400,"message":"no"}"#),
            Some(400)
        );
        assert_eq!(
            code(r#"{"choices":[{"delta":{"role":"assistant"}}]}"#),
            None
        );
        assert_eq!(code("[DONE]"), None);
        assert_eq!(code("error"), None);
    }

    #[test]
    fn a_first_event_that_is_too_long_is_none() {
        let mut first = read(&[b"data: ", &[b'x'; MAX_FIRST_EVENT_BYTES], b"\n\n"]);
        assert!(first.is_settled() && first.data().is_none());
        first.finish();
        assert!(first.is_settled() && first.line.len() < MAX_FIRST_EVENT_BYTES);
        // Nor is one of which only the beginning was read.
        let filler = [b'x'; MAX_FIRST_EVENT_BYTES - 12];
        let mut first = read(&[&filler, b"\ndata: {\"error\":{\"code\":503}}\n\n"]);
        first.finish();
        assert_eq!(first.error_code(), None);
    }

    proptest! {
        #[test]
        fn a_first_event_is_read_alike_under_any_split(
            words in prop::collection::vec(prop::sample::select(vec![
                "data:", "data: ", "{\"error\":", "{\"code\":503}}", "\n", "\r", "\r\n", "\n\n", ": x", "event: e", "[DONE]", "\u{feff}",
            ]), 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let text = words.concat().into_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let (mut whole, mut split) = (read(&[&text]), read(&pieces));
            prop_assert_eq!(whole.data(), split.data());
            whole.finish();
            split.finish();
            prop_assert_eq!(whole.data(), split.data());
            prop_assert_eq!(whole.error_code(), split.error_code());
        }

        #[test]
        fn any_bytes_of_a_stream_are_harmless(bytes: Vec<u8>) {
            let mut first = read(&[&bytes]);
            first.finish();
            prop_assert!(first.is_settled());
            first.error_code();
        }
    }
}
