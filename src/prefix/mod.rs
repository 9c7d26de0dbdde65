//! The prompt as chained prefix blocks and one routing key, without keeping the prompt.
//!
//! Everything that the engine sees is turned into one canonical stream of bytes and hashed as it
//! comes. What may stand before or after the messages in the body but comes before them in the
//! prompt (tools, system, salt) is hashed aside and mixed into every result at the end, so that the
//! order of keys in the body does not matter.

mod hasher;

pub(crate) use hasher::{Author, Limits, Preamble, PromptHasher};

use xxhash_rust::xxh64::Xxh64;

/// What a prompt comes down to.
///
/// Left out, since they hardly change what is shared: `chat_template_kwargs`, `cache_control`, and the
/// `type`, `id` and `status` of a message. Also left out: `prompt_embeds`, and the turns that
/// `previous_response_id` stands for, which only the engine knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptDigest {
    /// Text that the engine turns into tokens, in decoded bytes: messages with their tool calls,
    /// system, tools, documents. Never the data of images and sounds.
    pub text_bytes: u64,
    /// Tokens that came as token ids.
    pub token_ids: u64,
    /// Images and sounds.
    pub images: u32,
    /// Prompts of a batch; 1 for a chat, 0 if there is no prompt.
    pub items: u32,
    /// Hash of what later turns of the same conversation will share with this one: tools, system,
    /// salt, the messages before the first of the user, and the beginning of that one; without a
    /// user, the beginning of all text. Of a batch, the first prompt that is not empty. `None` if
    /// there is neither text nor image nor token id in any message or prompt.
    pub routing: Option<u64>,
    /// Hash of everything up to the end of each full block, so that two prompts have as many
    /// leading blocks in common as they share whole blocks of their beginning. Items of a batch
    /// follow each other, each chained by itself.
    pub blocks: Vec<u64>,
}

impl PromptDigest {
    /// Length of the text, a token id counting as four bytes.
    pub fn bytes(&self) -> u64 {
        self.text_bytes
            .saturating_add(self.token_ids.saturating_mul(4))
    }
}

/// Key for consistent hashing of a prompt under a model or adapter: `None` without a prompt.
///
/// Model and prefix are joined with the length of the model, so that no two pairs run together.
pub fn routing_key(model: Option<&str>, digest: &PromptDigest) -> Option<u64> {
    digest.routing.map(|routing| joined(&under(model), routing))
}

/// [`PromptDigest::blocks`] under a model or adapter, which never share a cache.
///
/// The model is hashed once: a long prompt has thousands of blocks.
pub fn block_keys(model: Option<&str>, blocks: &[u64]) -> Vec<u64> {
    let under = under(model);
    blocks.iter().map(|block| joined(&under, *block)).collect()
}

fn under(model: Option<&str>) -> Xxh64 {
    let mut under = Xxh64::new(u64::from(model.is_some()));
    let name = model.unwrap_or_default().as_bytes();
    under.update(&(name.len() as u64).to_le_bytes());
    under.update(name);
    under
}

fn joined(under: &Xxh64, hash: u64) -> u64 {
    let mut joined = under.clone();
    joined.update(&hash.to_le_bytes());
    joined.digest()
}
