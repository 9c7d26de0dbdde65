//! Tokens: what a request is expected to cost, and what a response says it did cost.

mod answer;
mod first_event;
mod learned;
mod recent;
mod response;
#[cfg(test)]
mod tests;

pub use answer::Usage;
pub use first_event::{FirstEvent, MAX_FIRST_EVENT_BYTES};
pub use learned::{Learned, Lesson};
pub use response::ResponseReader;

use crate::policy::Load;
use crate::request::{InferenceRequest, Scan};

/// Most tokens that any single figure may come to; no engine takes a longer prompt.
pub const MAX_TOKENS: u64 = 16 << 20;

/// Most prompt tokens that the mere length of a body may stand for: the longest context that models
/// offer today. A client chooses its `content-length` freely, and what it claims counts as load.
pub const MAX_TOKENS_BY_LENGTH: u64 = 1 << 20;

/// Turns bytes, token ids and images into expected tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenEstimator {
    /// Bytes of text for each token, in thousandths; 0 counts as 1.
    pub bytes_per_token_milli: u32,
    /// Output tokens of a request that sets no lower limit.
    pub output_tokens: u32,
    /// Prompt tokens of an image.
    pub image_tokens: u32,
}

impl TokenEstimator {
    /// What `request` is expected to cost. A body that was not read, or not wholly, is estimated by
    /// its length in bytes, if that is known. At least one prompt token, at most [`MAX_TOKENS`]
    /// each.
    pub fn estimate(&self, request: &InferenceRequest, content_length: Option<u64>) -> Load {
        let prompt = &request.prompt;
        let images = u64::from(prompt.images).saturating_mul(u64::from(self.image_tokens));
        let read = self
            .text_tokens(prompt.text_bytes)
            .saturating_add(prompt.token_ids)
            .saturating_add(images);
        let by_length = content_length.map_or(0, |bytes| self.text_tokens(bytes));
        let by_length = by_length.min(MAX_TOKENS_BY_LENGTH);
        let prefill = match request.scan {
            Scan::Complete => read,
            // Images are read, if at all, as images: the length would count them as text.
            Scan::Partial if prompt.images > 0 => read,
            Scan::Partial => read.max(by_length),
            Scan::Unread | Scan::Encoded => by_length,
            // The engine refuses it without computing anything, however long it claims to be.
            Scan::Malformed => 0,
        };
        let output = request
            .max_output_tokens
            .map_or(self.output_tokens, |limit| limit.min(self.output_tokens));
        let decode = u64::from(output)
            .saturating_mul(u64::from(request.n.max(1)))
            .saturating_mul(u64::from(prompt.items.max(1)));
        let prefill_tokens = prefill.clamp(1, MAX_TOKENS);
        let decode_tokens = decode.min(MAX_TOKENS);
        Load {
            requests: 1,
            waiting: 1,
            prefill_tokens,
            decode_tokens,
            context_tokens: prefill_tokens.saturating_add(decode_tokens),
        }
    }

    /// Bytes of so many tokens of text.
    pub fn text_bytes(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(u64::from(self.bytes_per_token_milli)) / 1_000
    }

    /// Tokens of so many bytes of text, rounded up.
    pub fn text_tokens(&self, bytes: u64) -> u64 {
        bytes
            .saturating_mul(1000)
            .div_ceil(u64::from(self.bytes_per_token_milli.max(1)))
    }
}
