//! One streamed chat completion: when its first and last token came, and what its usage says.

use crate::support::client::{Call, HttpClient, Streaming};
use serde_json::Value;
use std::time::Instant;
use warmroute::sim::fleet::Reading;
use warmroute::sim::workload::Request;
use warmroute::sim::workload::text::chat_body;

/// The response header that names the endpoint; see [`crate::drive`].
pub const SERVED_BY: &str = "x-served-by";
const LONGEST_EVENT_BYTES: usize = 1 << 20;

/// A whole, good answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// First piece of the body; the headers come before the prefill.
    pub first: Instant,
    /// End of the stream.
    pub end: Instant,
    /// Prompt, as the engine counts it.
    pub prompt_tokens: u32,
    /// Tokens of the prompt found in the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Address of the engine, if Envoy was asked to say it.
    pub served_by: String,
}

/// Sends `request` and reads its answer.
///
/// # Errors
/// Anything but a whole stream with usage, of the lengths that the request asks for.
pub async fn ask(client: &HttpClient, request: &Request) -> Result<Answer, String> {
    let body = chat_body(request, Reading::MODEL);
    let call = Call::post("/v1/chat/completions", body)
        .header("x-session-id", request.session.to_string());
    let mut stream = client.open(call).await?;
    let served_by = stream.header(SERVED_BY);
    if stream.status != 200 {
        let status = stream.status;
        let text = stream.finish().await?.text();
        let excerpt: String = text.chars().take(200).collect();
        return Err(format!("status {status}: {excerpt}"));
    }
    let mut events = Events::default();
    let first = stream.next().await.ok_or("an empty stream")??;
    let first_at = Instant::now();
    events.push(&first)?;
    events.rest(stream).await?;
    let usage = events.usage.ok_or("the stream ended without usage")?;
    let tokens = |path: &str| {
        let tokens = usage.pointer(path).and_then(Value::as_u64);
        let tokens = tokens.and_then(|tokens| u32::try_from(tokens).ok());
        tokens.ok_or_else(|| format!("the usage has no {path}: {usage}"))
    };
    let answer = Answer {
        first: first_at,
        end: Instant::now(),
        prompt_tokens: tokens("/prompt_tokens")?,
        cached_tokens: tokens("/prompt_tokens_details/cached_tokens")?,
        output_tokens: tokens("/completion_tokens")?,
        served_by,
    };
    let wanted = (request.prompt_tokens(), request.output_tokens);
    let counted = (answer.prompt_tokens, answer.output_tokens);
    // The prediction rests on it: a word is a token, and the template adds none.
    if counted != wanted {
        return Err(format!(
            "the engine counts {counted:?} tokens of prompt and output, not {wanted:?}"
        ));
    }
    Ok(answer)
}

/// Server-sent events as they come.
#[derive(Default)]
struct Events {
    unread: Vec<u8>,
    usage: Option<Value>,
    done: bool,
}

impl Events {
    async fn rest(&mut self, mut stream: Streaming) -> Result<(), String> {
        while let Some(piece) = stream.next().await {
            self.push(&piece?)?;
        }
        if self.done {
            Ok(())
        } else {
            Err("the stream ended without [DONE]".to_owned())
        }
    }

    fn push(&mut self, piece: &[u8]) -> Result<(), String> {
        self.unread.extend_from_slice(piece);
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data: ") {
                self.event(data.trim_ascii())?;
            }
        }
        if self.unread.len() > LONGEST_EVENT_BYTES {
            return Err("an event longer than 1 MiB".to_owned());
        }
        Ok(())
    }

    fn event(&mut self, data: &[u8]) -> Result<(), String> {
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value = serde_json::from_slice(data).map_err(|e| format!("an event: {e}"))?;
        if let Some(error) = event.get("error") {
            return Err(format!("error in stream: {error}"));
        }
        if let Some(usage) = event.get("usage").filter(|usage| !usage.is_null()) {
            self.usage = Some(usage.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_whatever_pieces_they_come_in() {
        let text = b"data: {\"choices\":[{}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7}}\n\ndata: [DONE]\n\n";
        for size in 1..=text.len() {
            let mut events = Events::default();
            for piece in text.chunks(size) {
                events.push(piece).unwrap();
            }
            assert!(events.done);
            let usage = events.usage.unwrap();
            assert_eq!(usage.pointer("/prompt_tokens"), Some(&7.into()));
        }
    }

    #[test]
    fn an_error_inside_a_stream_is_an_error() {
        let why = Events::default().push(b"data: {\"error\":{\"code\":503}}\n");
        assert_eq!(why, Err("error in stream: {\"code\":503}".to_owned()));
        assert!(Events::default().push(b"data: {oops\n").is_err());
    }
}
