//! What answers show of prompts and outputs to come: bytes of text in a token, and how long outputs are.
//!
//! Per model (an adapter is one of its own), and outputs also per routing key, since prompts that begin
//! alike ask for alike. The configured figures are what is assumed before anything is known, and fade.
//! Tables are of fixed size; everything is whole numbers, so that the same answers teach the same.
//!
//! Only a whole, good answer teaches, so that no client makes room here with names of its own
//! invention. What an engine reports is believed within bounds only.

use super::recent::Recent;
use super::{MAX_TOKENS, TokenEstimator, Usage};
use crate::prefix::{block_key, routing_key};
use crate::request::{Api, InferenceRequest, Scan};

/// Models and adapters that are remembered.
const MODELS: usize = 64;
/// Routing keys that are remembered: sets, and places in each.
const KEYS: (usize, usize) = (128, 8);

/// A prompt with less text shows more of the chat template than of the tokenizer, in bytes.
const LEAST_TEXT_BYTES: u64 = 1_024;
/// A report of fewer tokens is not believed, nor one of more than two tokens a byte. In bytes.
const MOST_BYTES_PER_TOKEN: u64 = 64;
/// Tokens that the configured bytes per token count for at the beginning.
const PRIOR_TOKENS: u64 = 256;
/// A prompt counts 31/32 of the next of its length.
const TEXT_MEMORY: u64 = 32;

/// No output counts for more tokens than the longest that models offer today.
const MOST_OUTPUT_TOKENS: u64 = 1 << 17;
/// Answers that what is assumed at the beginning counts for.
const PRIOR_ANSWERS: u32 = 4;
/// Answers that a mean goes back, about.
const OUTPUT_MEMORY: u32 = 16;
/// Means are kept in fractions of a token, so that small steps are not lost.
const FRACTIONS: u64 = 256;

/// What the answer to a request can teach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lesson {
    model: u64,
    key: Option<u64>,
    /// Bytes of the prompt; `None` if its tokens say nothing of them.
    text_bytes: Option<u64>,
    /// Whether the engine's count of prompt tokens may leave out the cached ones.
    may_leave_out_cached: bool,
    /// Outputs that were asked for.
    outputs: u64,
    /// Most tokens of an output.
    limit_tokens: Option<u64>,
}

impl Lesson {
    /// The lesson in the answer to `request`.
    pub fn of(request: &InferenceRequest) -> Self {
        let prompt = &request.prompt;
        let is_text = request.scan == Scan::Complete && prompt.images == 0 && prompt.token_ids == 0;
        // It may stand for turns that only the engine knows.
        let is_whole = request.api != Api::Responses;
        let model = request.model.as_deref();
        Self {
            model: model_hash(model),
            key: routing_key(model, prompt),
            text_bytes: (is_text && is_whole).then_some(prompt.text_bytes),
            may_leave_out_cached: request.api == Api::Messages,
            outputs: u64::from(request.n.max(1)).saturating_mul(u64::from(prompt.items.max(1))),
            limit_tokens: request.max_output_tokens.map(u64::from),
        }
    }
}

fn model_hash(model: Option<&str>) -> u64 {
    block_key(model, 0)
}

/// Sums over prompts that forget.
#[derive(Clone, Copy, Debug, Default)]
struct Text {
    bytes: u64,
    tokens: u64,
}

impl Text {
    fn assumed(prior: &TokenEstimator) -> Self {
        let tokens = PRIOR_TOKENS * FRACTIONS;
        let milli = u64::from(prior.bytes_per_token_milli.max(1));
        Self {
            bytes: tokens.saturating_mul(milli) / 1_000,
            tokens,
        }
    }

    fn observe(&mut self, bytes: u64, tokens: u64) {
        let is_believed = (LEAST_TEXT_BYTES..=MAX_TOKENS).contains(&bytes)
            && tokens.saturating_mul(MOST_BYTES_PER_TOKEN) >= bytes
            && tokens <= bytes.saturating_mul(2);
        if is_believed {
            let faded = |sum: u64| sum - sum / TEXT_MEMORY;
            self.bytes = faded(self.bytes).saturating_add(bytes * FRACTIONS);
            self.tokens = faded(self.tokens).saturating_add(tokens * FRACTIONS);
        }
    }

    fn bytes_per_token_milli(&self) -> Option<u32> {
        let milli = self.bytes.saturating_mul(1_000).checked_div(self.tokens)?;
        u32::try_from(milli).ok()
    }
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    /// Tokens of an output, in [`FRACTIONS`].
    fractions: u64,
    /// Answers that it stands for.
    answers: u32,
}

impl Mean {
    fn assumed(tokens: u64) -> Self {
        Self {
            fractions: tokens.min(MOST_OUTPUT_TOKENS) * FRACTIONS,
            answers: PRIOR_ANSWERS,
        }
    }

    fn tokens(&self) -> u64 {
        (self.fractions.saturating_add(FRACTIONS / 2) / FRACTIONS).max(1)
    }

    fn observe(&mut self, tokens: u64, limit_tokens: Option<u64>) {
        // Cut off by its limit, it would have been longer: below the mean, that says nothing.
        if limit_tokens.is_some_and(|limit| tokens >= limit) && tokens <= self.tokens() {
            return;
        }
        let answers = u64::from(self.answers);
        let sum = self.fractions.saturating_mul(answers);
        let sum = sum.saturating_add(tokens.saturating_mul(FRACTIONS));
        self.fractions = sum / answers.saturating_add(1);
        self.answers = self.answers.saturating_add(1).min(OUTPUT_MEMORY - 1);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Model {
    text: Text,
    output: Mean,
}

impl Model {
    fn assumed(prior: &TokenEstimator) -> Self {
        Self {
            text: Text::assumed(prior),
            output: Mean::assumed(u64::from(prior.output_tokens)),
        }
    }
}

/// What one worker has learned.
#[derive(Debug)]
pub struct Learned {
    models: Recent<Model>,
    outputs: Recent<Mean>,
}

impl Default for Learned {
    fn default() -> Self {
        let (sets, places) = KEYS;
        Self {
            models: Recent::new(1, MODELS),
            outputs: Recent::new(sets, places),
        }
    }
}

impl Learned {
    /// The configured estimator with what is known by now in place of what was assumed. Outputs are
    /// those of the routing key, else those of the model.
    pub fn estimator(&self, prior: &TokenEstimator, lesson: &Lesson) -> TokenEstimator {
        let model = self.models.get(lesson.model);
        let of_key = lesson.key.and_then(|key| self.outputs.get(key));
        let output = of_key.or(model.map(|model| model.output));
        let output_tokens = output.and_then(|output| u32::try_from(output.tokens()).ok());
        TokenEstimator {
            bytes_per_token_milli: self.bytes_per_token_milli(prior, model),
            output_tokens: output_tokens.unwrap_or(prior.output_tokens),
            image_tokens: prior.image_tokens,
        }
    }

    /// Tokens of so many bytes of text under a model or adapter, rounded up.
    pub fn text_tokens(&self, prior: &TokenEstimator, model: Option<&str>, bytes: u64) -> u64 {
        let model = self.models.get(model_hash(model));
        let estimator = TokenEstimator {
            bytes_per_token_milli: self.bytes_per_token_milli(prior, model),
            ..*prior
        };
        estimator.text_tokens(bytes)
    }

    fn bytes_per_token_milli(&self, prior: &TokenEstimator, model: Option<Model>) -> u32 {
        let known = model.and_then(|model| model.text.bytes_per_token_milli());
        known.unwrap_or(prior.bytes_per_token_milli).max(1)
    }

    /// A whole, good answer: what the engine reported, and how many events carried output.
    pub fn learn(
        &mut self,
        prior: &TokenEstimator,
        lesson: &Lesson,
        usage: Option<Usage>,
        events: u64,
    ) {
        let known = self.models.get(lesson.model);
        let mut model = known.unwrap_or_else(|| Model::assumed(prior));
        if let (Some(bytes), Some(usage)) = (lesson.text_bytes, usage)
            && !(lesson.may_leave_out_cached && usage.cached_tokens > Some(0))
        {
            model.text.observe(bytes, usage.prompt_tokens);
        }
        if let Some(tokens) = output_tokens(lesson, usage, events) {
            if let Some(key) = lesson.key {
                let known = self.outputs.get(key);
                let mut output = known.unwrap_or_else(|| Mean::assumed(model.output.tokens()));
                output.observe(tokens, lesson.limit_tokens);
                self.outputs.put(key, output);
            }
            model.output.observe(tokens, lesson.limit_tokens);
        }
        self.models.put(lesson.model, model);
    }
}

/// Tokens of one output, if the answer tells. An event of a stream is about a token.
fn output_tokens(lesson: &Lesson, usage: Option<Usage>, events: u64) -> Option<u64> {
    let reported = usage.map(|usage| usage.completion_tokens);
    let all = reported.filter(|tokens| *tokens > 0).unwrap_or(events);
    let each = all.div_ceil(lesson.outputs.max(1));
    (1..=MAX_TOKENS)
        .contains(&each)
        .then_some(each.min(MOST_OUTPUT_TOKENS))
}

#[cfg(test)]
mod tests;
