//! What clients send: requests with their lengths, shared beginnings and times, without any text.
//!
//! A prompt is a list of [`Segment`]s. Equal segments after equal beginnings are equal text, so a
//! workload says exactly what a prefix cache can share, and both the simulator (which needs block
//! ids) and the replay (which needs text) can be made from it.

pub mod burst;
pub mod chat;
pub mod csv;
mod draw;
mod facts;
pub mod lora;
pub mod mix;
pub mod mooncake;
pub mod rag;
mod shape;
pub mod tenants;
pub mod text;
mod trace;
pub mod tree;
pub mod uniform;

pub use facts::Facts;
pub use trace::TraceError;

use crate::random::Random;

/// Who says a stretch of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The system prompt.
    System,
    /// The user.
    User,
    /// The model, in an earlier turn.
    Assistant,
}

/// A stretch of a prompt, whose text follows from `id` alone: a shorter segment of the same id is
/// the beginning of a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Names the text.
    pub id: u64,
    /// Its length.
    pub tokens: u32,
    /// Who says it. Neighbours of one role are one message.
    pub role: Role,
}

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At a set time after the beginning, whatever happens to others (open loop).
    At {
        /// Microseconds after the beginning.
        us: u64,
    },
    /// When another request is over, well or not (closed loop).
    After {
        /// Index of that request; smaller than that of this one.
        request: u32,
        /// Silence between its end and this request.
        pause_us: u64,
    },
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it is sent.
    pub start: Start,
    /// What an application would send as its session id: the conversation, the document.
    pub session: u64,
    /// Number of its LoRA adapter; `None` for the base model.
    pub adapter: Option<u32>,
    /// The prompt.
    pub prompt: Vec<Segment>,
    /// Tokens that the model will generate.
    pub output_tokens: u32,
}

impl Request {
    /// One of a session of its own, at a set time, whose prompt nobody shares.
    fn alone(at_us: u64, id: u64, prompt_tokens: u32, output_tokens: u32) -> Self {
        Self {
            start: Start::At { us: at_us },
            session: id,
            adapter: None,
            prompt: vec![Segment {
                id,
                tokens: prompt_tokens,
                role: Role::User,
            }],
            output_tokens,
        }
    }

    /// Length of the prompt.
    pub fn prompt_tokens(&self) -> u32 {
        let tokens = self.prompt.iter().map(|segment| segment.tokens);
        tokens.fold(0, u32::saturating_add)
    }

    /// Ids of the prompt's full blocks of `block_tokens` tokens, each chained to the one before and
    /// to the adapter, as an engine's prefix cache has them.
    pub fn chain(&self, block_tokens: u32) -> Vec<u64> {
        let block_tokens = block_tokens.max(1);
        let mut chain = Vec::with_capacity((self.prompt_tokens() / block_tokens) as usize);
        let mut id = mix(0, self.adapter.map_or(0, |adapter| u64::from(adapter) + 1));
        let mut missing = block_tokens;
        for segment in &self.prompt {
            let mut offset = 0;
            while offset < segment.tokens {
                let piece = missing.min(segment.tokens - offset);
                // The length counts: a block of 10 and 6 tokens is not one of 8 and 8.
                let place = (u64::from(offset) << 32) | u64::from(piece);
                id = mix(mix(id, segment.id), place);
                offset += piece;
                missing -= piece;
                if missing == 0 {
                    chain.push(id);
                    missing = block_tokens;
                }
            }
        }
        chain
    }
}

/// A hash of both, in this order.
pub(crate) fn mix(left: u64, right: u64) -> u64 {
    Random::new(left.rotate_left(23) ^ right).bits()
}

/// Requests in the order in which they may start: a request comes after the one that it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// A short name for tables and files.
    pub name: String,
    /// What it is made of, in one sentence, for the report.
    pub about: String,
    /// The requests.
    pub requests: Vec<Request>,
}
