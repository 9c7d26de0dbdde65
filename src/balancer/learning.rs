//! What the balancer learns from requests and their answers, and what it expects of them.

use super::Balancer;
use crate::endpoint::EndpointId;
use crate::index::{BLOCK_BYTES, Belief};
use crate::policy::Load;
use crate::rates::Rates;
use crate::state::Store;
use crate::tokens::{Lesson, TokenEstimator, Usage};

impl Balancer {
    /// The estimator for requests like that of `lesson`: as configured, until answers have shown more.
    pub fn estimator(&self, lesson: &Lesson) -> TokenEstimator {
        self.learned.estimator(&self.config.tokens, lesson)
    }

    /// A whole, good answer has come: what the engine reported, and how many events carried output.
    pub fn learn_tokens(&mut self, lesson: &Lesson, usage: Option<Usage>, events: u64) {
        self.learned
            .learn(&self.config.tokens, lesson, usage, events);
    }

    /// The endpoint gets a prompt, and holds its blocks from now on; what was believed before.
    pub fn sent<S: Store + ?Sized>(
        &mut self,
        store: &S,
        endpoint: EndpointId,
        blocks: &[u64],
    ) -> Belief {
        match &mut self.index {
            Some(index) => index.insert(store, endpoint, blocks),
            None => Belief::default(),
        }
    }

    /// The engine has told how much of a prompt of `prompt_bytes` was in its cache.
    pub fn correct(
        &mut self,
        endpoint: EndpointId,
        belief: &Belief,
        prompt_bytes: u64,
        usage: &Usage,
    ) {
        let (Some(index), Some(cached_tokens)) = (&mut self.index, usage.cached_tokens) else {
            return;
        };
        // Some count what is cached apart from the prompt: then the share is not known.
        if cached_tokens > usage.prompt_tokens {
            return;
        }
        // Bytes per token are those of this very prompt.
        let bytes = cached_tokens.saturating_mul(prompt_bytes);
        let Some(cached_bytes) = bytes.checked_div(usage.prompt_tokens) else {
            return;
        };
        let blocks = cached_bytes / u64::from(BLOCK_BYTES);
        index.correct(endpoint, belief, u32::try_from(blocks).unwrap_or(u32::MAX));
    }

    /// What answers show of their endpoints' speed; `None` if the pool's policy does not ask for it: how
    /// long its queues are is not known then either.
    pub fn rates(&mut self, pool: usize) -> Option<&mut Rates> {
        let reads_pace = self.pools.get(pool)?.policy.reads_pace();
        reads_pace.then_some(&mut self.rates)
    }

    /// Learns what an inference call costs here: other people's are priced as our last few dozen.
    pub fn learn_typical(&mut self, cost: Load) {
        let blend = |old: u64, new: u64| old.saturating_mul(15).saturating_add(new) / 16;
        self.typical.prefill_tokens =
            blend(self.typical.prefill_tokens, cost.prefill_tokens).max(1);
        self.typical.context_tokens =
            blend(self.typical.context_tokens, cost.context_tokens).max(1);
        self.typical.decode_tokens = blend(self.typical.decode_tokens, cost.decode_tokens).max(1);
    }
}
