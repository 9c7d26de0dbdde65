//! What one inference request says, as far as routing needs it.
//!
//! The scanner in this module reads the body once, as the bytes arrive, and never builds a tree.

mod body;
mod fields;
pub(crate) mod find;
pub(crate) mod json;
mod keep;
pub(crate) mod number;
#[cfg(test)]
mod tests;

use crate::prefix::PromptDigest;
use body::BodyReader;
use json::Tokenizer;

/// The API that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages` (Anthropic)
    Messages,
}

impl Api {
    /// The API at the value of `:path`, whatever its query. `None` for every other path.
    pub fn from_path(path: &[u8]) -> Option<Self> {
        let end = path
            .iter()
            .position(|byte| matches!(byte, b'?' | b'#'))
            .unwrap_or(path.len());
        match path.get(..end)? {
            b"/v1/chat/completions" => Some(Self::ChatCompletions),
            b"/v1/completions" => Some(Self::Completions),
            b"/v1/responses" => Some(Self::Responses),
            b"/v1/messages" => Some(Self::Messages),
            _ => None,
        }
    }
}

/// How far the scan of a body came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The whole top-level object was read.
    Complete,
    /// The body was not read at all: nothing needed it, or it could not be held.
    Unread,
    /// The decision was taken before the end of the object.
    Partial,
    /// Not a JSON object, or broken: fields read before the fault do not count.
    Malformed,
    /// `content-encoding` says that the bytes are compressed.
    Encoded,
}

/// What a scan looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanOptions {
    /// How much of the first user message, or of a raw prompt, goes into the routing key, in bytes.
    /// Token ids count as 4 bytes each.
    pub prefix_bytes: u32,
    /// Length of a prefix block in bytes of the canonical prompt; 0 for no blocks.
    pub block_bytes: u32,
    /// Most prefix blocks of a request; 0 for no blocks.
    pub max_blocks: u32,
    /// Dotted paths of body fields to keep, such as `user` or `metadata.session_id`: at most 8 paths
    /// of at most 4 keys of at most 127 bytes. Paths into the prompt itself find nothing.
    pub key_fields: Vec<String>,
}

/// One request, as far as routing needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferenceRequest {
    /// The API that was called.
    pub api: Api,
    /// How far the body was read.
    pub scan: Scan,
    /// Model or adapter. A name longer than 256 bytes is shortened, with a hash at its end.
    pub model: Option<String>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// The limit of output tokens that the request sets, if it makes sense.
    pub max_output_tokens: Option<u32>,
    /// Answers wanted for each prompt, at least 1: the larger of `n` and `best_of`.
    pub n: u32,
    /// The prompt.
    pub prompt: PromptDigest,
    /// The values at [`ScanOptions::key_fields`], in their order. Numbers and booleans count as
    /// their text; a text longer than 256 bytes is shortened, with a hash at its end.
    pub fields: Vec<Option<String>>,
}

impl InferenceRequest {
    /// A request of which nothing but its path is known.
    pub fn unknown(api: Api, scan: Scan) -> Self {
        Self {
            api,
            scan,
            model: None,
            stream: false,
            max_output_tokens: None,
            n: 1,
            prompt: PromptDigest::default(),
            fields: Vec::new(),
        }
    }
}

/// Reads a body in pieces of any size.
///
/// ```
/// use warmroute::request::{Api, RequestScanner, Scan, ScanOptions};
/// let mut scanner = RequestScanner::new(Api::ChatCompletions, &ScanOptions::default());
/// scanner.push(br#"{"model": "tiny", "mess"#);
/// scanner.push(br#"ages": [{"role": "user", "content": "hi"}]}"#);
/// assert!(scanner.is_settled());
/// let request = scanner.finish();
/// assert_eq!(request.scan, Scan::Complete);
/// assert_eq!(request.model.as_deref(), Some("tiny"));
/// ```
pub struct RequestScanner {
    tokens: Tokenizer,
    body: BodyReader,
}

impl std::fmt::Debug for RequestScanner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestScanner")
            .field("settled", &self.is_settled())
            .finish_non_exhaustive()
    }
}

impl RequestScanner {
    /// A scanner for one body.
    pub fn new(api: Api, options: &ScanOptions) -> Self {
        Self {
            tokens: Tokenizer::new(),
            body: BodyReader::new(api, options),
        }
    }

    /// Reads the next bytes. Never fails: what is wrong with them shows in the result.
    pub fn push(&mut self, bytes: &[u8]) {
        self.tokens.push(bytes, &mut self.body);
    }

    /// Whether the top-level object is closed or broken, so that further bytes change nothing.
    pub fn is_settled(&self) -> bool {
        self.tokens.is_settled()
    }

    /// The request, when the body has ended: a body that ends too early is malformed.
    pub fn finish(self) -> InferenceRequest {
        if self.tokens.is_done() {
            return self.body.finish(Scan::Complete);
        }
        self.body.unknown(Scan::Malformed)
    }

    /// The request as far as it was read, when the decision cannot wait for the rest of the body.
    pub fn finish_early(mut self) -> InferenceRequest {
        if self.is_settled() {
            return self.finish();
        }
        self.body.cut_short();
        self.body.finish(Scan::Partial)
    }
}
