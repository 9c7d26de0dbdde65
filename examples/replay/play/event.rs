//! The events of a streamed chat completion: when tokens came, and what the engine counted.
//!
//! Most events are one token each and are not parsed: the client shares two cores with the router
//! that it measures.

use serde_json::Value;

/// Longest line that is waited for; vLLM's longest are a few kilobytes.
const LINE_MOST_BYTES: usize = 1 << 20;

/// What a stream has told so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// Events that carried output.
    pub token_events: u32,
    /// What the engine counted, once it said so.
    pub usage: Option<Usage>,
    /// `[DONE]` was there.
    pub done: bool,
    /// The beginning of a line whose end has not come.
    rest: Vec<u8>,
}

/// `usage` of the OpenAI API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the prefix cache; many engines do not say.
    pub cached_tokens: Option<u32>,
    /// Generated.
    pub output_tokens: u32,
}

impl Stream {
    /// Takes the next piece of the body, cut anywhere. Returns whether output came with it.
    ///
    /// # Errors
    /// The engine reported an error inside the stream, or this is no stream of events.
    pub fn take(&mut self, piece: &[u8]) -> Result<bool, String> {
        let before = self.token_events;
        let mut left = piece;
        while let Some(end) = left.iter().position(|byte| *byte == b'\n') {
            let (line, after) = left.split_at(end);
            left = after.get(1..).unwrap_or_default();
            if self.rest.is_empty() {
                self.line(line)?;
            } else {
                let mut whole = std::mem::take(&mut self.rest);
                whole.extend_from_slice(line);
                self.line(&whole)?;
            }
        }
        if self.rest.len() + left.len() > LINE_MOST_BYTES {
            return Err(format!("a line of more than {LINE_MOST_BYTES} bytes"));
        }
        self.rest.extend_from_slice(left);
        Ok(self.token_events > before)
    }

    /// Takes the end of the body, where a last line may lack its end.
    ///
    /// # Errors
    /// What the stream came to is no whole, good answer.
    pub fn finish(&mut self) -> Result<(), String> {
        let rest = std::mem::take(&mut self.rest);
        self.line(&rest)?;
        match (self.done, self.token_events) {
            (false, _) => Err("the stream ended without [DONE]".to_owned()),
            (true, 0) => Err("the stream had no output".to_owned()),
            (true, _) => Ok(()),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let line = line.trim_ascii_end();
        let Some(data) = line.strip_prefix(b"data:") else {
            return match line {
                b"" => Ok(()),
                _ if line.starts_with(b":") || line.starts_with(b"event:") => Ok(()),
                _ => Err(format!("no event: {}", excerpt(line))),
            };
        };
        let data = data.trim_ascii_start();
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        // The first output and whatever is no plain token are worth a look.
        let plain = self.token_events > 0
            && !has(data, b"\"error\"")
            && !has(data, b"\"usage\":{")
            && !has(data, b"\"usage\": {")
            && !has(data, b"\"choices\":[]");
        if plain {
            self.token_events += 1;
            return Ok(());
        }
        self.parsed(data)
    }

    fn parsed(&mut self, data: &[u8]) -> Result<(), String> {
        let event: Value = serde_json::from_slice(data)
            .map_err(|_| format!("an event that is no JSON: {}", excerpt(data)))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let code = error.get("code").map(Value::to_string).unwrap_or_default();
            let said = error.get("message").and_then(Value::as_str);
            let said = said.map_or_else(|| error.to_string(), str::to_owned);
            return Err(format!(
                "error {code} in the stream: {}",
                excerpt(said.as_bytes())
            ));
        }
        let delta = event.pointer("/choices/0/delta");
        let has_output = ["content", "reasoning", "reasoning_content"]
            .iter()
            .filter_map(|field| delta?.get(field)?.as_str())
            .any(|text| !text.is_empty());
        self.token_events += u32::from(has_output);
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(usage_of(usage));
        }
        Ok(())
    }
}

fn usage_of(usage: &Value) -> Usage {
    let count = |pointer: &str| {
        let value = usage.pointer(pointer).and_then(Value::as_u64);
        value.map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    };
    Usage {
        prompt_tokens: count("/prompt_tokens").unwrap_or_default(),
        cached_tokens: count("/prompt_tokens_details/cached_tokens"),
        output_tokens: count("/completion_tokens").unwrap_or_default(),
    }
}

fn has(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

/// The beginning of a text on one line, for an error.
pub fn excerpt(text: &[u8]) -> String {
    const MOST_CHARS: usize = 160;
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str =
        r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
    const TOKEN: &str = r#"data: {"choices":[{"index":0,"delta":{"content":" a"}}]}"#;
    const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;

    fn stream(lines: &[&str]) -> String {
        lines.iter().map(|line| format!("{line}\n\n")).collect()
    }

    #[test]
    fn counts_tokens_and_usage_however_the_stream_is_cut() {
        let text = stream(&[ROLE, TOKEN, TOKEN, TOKEN, USAGE, "data: [DONE]"]);
        for size in [1, 2, 7, 64, text.len()] {
            let mut seen = Stream::default();
            let mut with_output = 0;
            for piece in text.as_bytes().chunks(size) {
                with_output += u32::from(seen.take(piece).unwrap_or_default());
            }
            assert_eq!(seen.token_events, 3, "pieces of {size} bytes");
            assert!(seen.done && seen.rest.is_empty());
            assert!((1..=3).contains(&with_output));
            let usage = Usage {
                prompt_tokens: 9,
                cached_tokens: Some(4),
                output_tokens: 3,
            };
            assert_eq!(seen.usage, Some(usage));
        }
    }

    #[test]
    fn the_event_that_names_the_role_is_no_token() {
        let mut seen = Stream::default();
        assert_eq!(seen.take(stream(&[ROLE]).as_bytes()), Ok(false));
        assert_eq!(seen.take(stream(&[TOKEN]).as_bytes()), Ok(true));
    }

    #[test]
    fn an_error_in_a_stream_is_an_error_before_and_after_tokens() {
        let error = r#"data: {"error": {"message": "engine is dead", "code": 503}}"#;
        for before in [vec![], vec![ROLE, TOKEN]] {
            let mut seen = Stream::default();
            let text = stream(&[before, vec![error]].concat());
            let why = "error 503 in the stream: engine is dead";
            assert_eq!(seen.take(text.as_bytes()), Err(why.to_owned()));
        }
    }

    #[test]
    fn a_stream_is_whole_only_with_output_and_done() {
        let came_to = |text: &str| {
            let mut seen = Stream::default();
            seen.take(text.as_bytes())?;
            seen.finish()
        };
        assert_eq!(came_to(&stream(&[ROLE, TOKEN, "data: [DONE]"])), Ok(()));
        let why = "the stream had no output".to_owned();
        assert_eq!(came_to(&stream(&[ROLE, "data: [DONE]"])), Err(why));
        let why = "the stream ended without [DONE]".to_owned();
        assert_eq!(came_to(&stream(&[ROLE, TOKEN])), Err(why.clone()));
        assert_eq!(came_to(""), Err(why));
        let why = r#"no event: {"error":{}}"#.to_owned();
        assert_eq!(came_to(r#"{"error":{}}"#), Err(why));
    }

    #[test]
    fn what_is_no_stream_is_said_shortly() {
        let mut seen = Stream::default();
        let page = format!("<html>{}\n", "x".repeat(1_000));
        let why = seen.take(page.as_bytes()).unwrap_err();
        assert!(why.starts_with("no event: <html>x"), "{why}");
        assert!(why.len() < 200);
    }

    #[test]
    fn usage_without_details_says_nothing_of_the_cache() {
        let mut seen = Stream::default();
        let usage = r#"data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":null}}"#;
        assert_eq!(seen.take(stream(&[usage]).as_bytes()), Ok(false));
        assert_eq!(seen.usage.map(|usage| usage.cached_tokens), Some(None));
    }
}
