//! What answers show of prompts and outputs to come: bytes of text in a token, and how long outputs are.
//!
//! Per model (an adapter is one of its own), and outputs also per routing key, since prompts that begin
//! alike ask for alike. The configured figures are what is assumed before anything is known, and fade.
//! Tables are of fixed size; everything is whole numbers, so that the same answers teach the same.
//!
//! Only a whole, good answer teaches, so that no client makes room here with names of its own
//! invention. What an engine reports is believed within bounds only.

use super::recent::{Ratio, Recent};
use super::{MAX_TOKENS, TokenEstimator, Usage};
use crate::prefix::routing_key;
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
const PRIOR_ANSWERS: u64 = 4;
/// An answer counts 15/16 of the next.
const OUTPUT_MEMORY: u64 = 16;

/// What the answer to a request can teach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lesson {
    /// Under which the model's text and outputs are remembered.
    text: u64,
    output: u64,
    key: Option<u64>,
    /// Bytes of the prompt; `None` if its tokens say nothing of them.
    text_bytes: Option<u64>,
    /// Whether the engine's count of prompt tokens may leave out the cached ones.
    may_leave_out_cached: bool,
    /// Outputs that were asked for; `None` if their limit is not known.
    outputs: Option<u64>,
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
        let outputs = u64::from(request.n.max(1)).saturating_mul(u64::from(prompt.items.max(1)));
        Self {
            text: text_hash(model),
            output: model_hash(model, 1),
            key: routing_key(model, prompt),
            text_bytes: (is_text && is_whole).then_some(prompt.text_bytes),
            may_leave_out_cached: request.api == Api::Messages,
            outputs: (request.scan != Scan::Partial).then_some(outputs),
            limit_tokens: request.max_output_tokens.map(u64::from),
        }
    }
}

fn model_hash(model: Option<&str>, seed: u64) -> u64 {
    xxhash_rust::xxh64::xxh64(model.unwrap_or_default().as_bytes(), seed)
}

fn text_hash(model: Option<&str>) -> u64 {
    model_hash(model, 0)
}

/// What is assumed of an output's length.
fn assumed_output(tokens: u64) -> Ratio {
    Ratio::new(
        tokens.min(MOST_OUTPUT_TOKENS) * PRIOR_ANSWERS,
        PRIOR_ANSWERS,
    )
}

fn mean_tokens(output: Ratio) -> u64 {
    (output.permille().saturating_add(500) / 1_000).max(1)
}

/// What one worker has learned.
#[derive(Debug)]
pub struct Learned {
    /// Bytes over tokens, and tokens over outputs.
    models: Recent,
    /// Tokens over outputs.
    keys: Recent,
}

impl Default for Learned {
    fn default() -> Self {
        let (sets, places) = KEYS;
        Self {
            models: Recent::new(1, 2 * MODELS),
            keys: Recent::new(sets, places),
        }
    }
}

impl Learned {
    /// The configured estimator with what is known by now in place of what was assumed. Outputs are
    /// those of the routing key, else those of the model.
    pub fn estimator(&self, prior: &TokenEstimator, lesson: &Lesson) -> TokenEstimator {
        let of_key = lesson.key.and_then(|key| self.keys.get(key));
        let output = of_key.or_else(|| self.models.get(lesson.output));
        let output_tokens = output.map(mean_tokens).map(u32::try_from);
        TokenEstimator {
            bytes_per_token_milli: self.bytes_per_token_milli(prior, lesson.text),
            output_tokens: output_tokens
                .and_then(Result::ok)
                .unwrap_or(prior.output_tokens),
            image_tokens: prior.image_tokens,
        }
    }

    /// The same for the text of a model or adapter alone.
    pub fn text_estimator(&self, prior: &TokenEstimator, model: Option<&str>) -> TokenEstimator {
        TokenEstimator {
            bytes_per_token_milli: self.bytes_per_token_milli(prior, text_hash(model)),
            ..*prior
        }
    }

    fn bytes_per_token_milli(&self, prior: &TokenEstimator, text: u64) -> u32 {
        let known = self.models.get(text).map(|text| text.permille());
        let known = known.and_then(|milli| u32::try_from(milli).ok());
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
        if let Some((bytes, tokens)) = usage.and_then(|usage| text_of(lesson, &usage)) {
            let bytes_per_token_milli = u64::from(prior.bytes_per_token_milli.max(1));
            let assumed = || Ratio::new(PRIOR_TOKENS * bytes_per_token_milli / 1_000, PRIOR_TOKENS);
            let mut text = self.models.get(lesson.text).unwrap_or_else(assumed);
            text.observe(bytes, tokens, TEXT_MEMORY);
            self.models.put(lesson.text, text);
        }
        let Some(tokens) = output_of(lesson, usage, events) else {
            return;
        };
        // Cut off by its limit, it would have been longer: below the mean, that says nothing.
        let is_cut = lesson.limit_tokens.is_some_and(|limit| tokens >= limit);
        let observe = |output: &mut Ratio| {
            if !is_cut || tokens > mean_tokens(*output) {
                output.observe(tokens, 1, OUTPUT_MEMORY);
            }
        };
        let assumed = || assumed_output(u64::from(prior.output_tokens));
        let mut of_model = self.models.get(lesson.output).unwrap_or_else(assumed);
        if let Some(key) = lesson.key {
            let assumed = || assumed_output(mean_tokens(of_model));
            let mut of_key = self.keys.get(key).unwrap_or_else(assumed);
            observe(&mut of_key);
            self.keys.put(key, of_key);
        }
        observe(&mut of_model);
        self.models.put(lesson.output, of_model);
    }
}

/// Bytes and tokens of the prompt, if the answer tells and can be believed.
fn text_of(lesson: &Lesson, usage: &Usage) -> Option<(u64, u64)> {
    let (bytes, tokens) = (lesson.text_bytes?, usage.prompt_tokens);
    let leaves_out = lesson.may_leave_out_cached && usage.cached_tokens > Some(0);
    let is_believed = (LEAST_TEXT_BYTES..=MAX_TOKENS).contains(&bytes)
        && tokens.saturating_mul(MOST_BYTES_PER_TOKEN) >= bytes
        && tokens <= bytes.saturating_mul(2);
    (is_believed && !leaves_out).then_some((bytes, tokens))
}

/// Tokens of one output, if the answer tells. An event of a stream is about a token.
fn output_of(lesson: &Lesson, usage: Option<Usage>, events: u64) -> Option<u64> {
    let reported = usage.map(|usage| usage.completion_tokens);
    let all = reported.filter(|tokens| *tokens > 0).unwrap_or(events);
    let each = all.div_ceil(lesson.outputs?.max(1));
    (1..=MAX_TOKENS)
        .contains(&each)
        .then_some(each.min(MOST_OUTPUT_TOKENS))
}

#[cfg(test)]
mod tests;
