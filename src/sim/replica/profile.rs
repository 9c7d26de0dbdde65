//! What a replica can do, in figures.

/// What a replica can do. Times are of the modelled hardware, not of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Prompt tokens computed per second of prefill.
    pub prefill_tokens_per_s: u32,
    /// Cost of a step before any token: reading the weights once, launching kernels.
    pub step_base_us: u32,
    /// Additional cost of each sequence that decodes in a step.
    pub decode_us_per_seq: u32,
    /// Additional cost of reading the context of the decoding sequences, for 1,000 tokens.
    pub context_us_per_1k_tokens: u32,
    /// Most tokens in one step (vLLM's `--max-num-batched-tokens`).
    pub token_budget: u32,
    /// Most sequences in one step (vLLM's `--max-num-seqs`).
    pub max_running: u32,
    /// Blocks of KV cache (vLLM's `num_gpu_blocks`, of which vLLM keeps one to itself).
    pub blocks: u32,
    /// Tokens in a block (vLLM's `--block-size`, 16 by default on GPUs).
    pub block_tokens: u32,
}

impl Default for Profile {
    /// About an NVIDIA L4 with an 8B Llama in bfloat16. Derived, not measured: the L4 data sheet
    /// gives 300 GB/s and 121 TFLOPS (dense, 16 bits), 24 GB. 16 GB of weights take 53 ms to
    /// read; 16 GFLOP a token at half of the peak make 3,700 tokens/s and 270 µs per decode;
    /// 128 KiB of KV a token (32 layers × 8 heads × 128 × 2 × 2 bytes) take 437 µs per 1,000
    /// tokens to read; and the 5.2 GB left (at 0.9 of the memory) hold about 40,000 tokens.
    /// Budget and sequences are vLLM's defaults for this size of GPU.
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 3_700,
            step_base_us: 53_000,
            decode_us_per_seq: 270,
            context_us_per_1k_tokens: 437,
            token_budget: 2_048,
            max_running: 256,
            blocks: 2_500,
            block_tokens: 16,
        }
    }
}

impl Profile {
    /// For tests: near-zero times and a cache of a million tokens.
    pub fn fast() -> Self {
        Self {
            prefill_tokens_per_s: 1_000_000_000,
            step_base_us: 5,
            decode_us_per_seq: 0,
            context_us_per_1k_tokens: 0,
            token_budget: 65_536,
            max_running: 1_024,
            blocks: 65_536,
            block_tokens: 16,
        }
    }

    /// The same hardware with all times longer by `permille` thousandths: 2500 is 2.5 times slower.
    #[must_use]
    pub fn slowed(&self, permille: u32) -> Self {
        let permille = u64::from(permille.max(1));
        let longer = |us: u32| u32::try_from(u64::from(us) * permille / 1_000).unwrap_or(u32::MAX);
        let rate = u64::from(self.prefill_tokens_per_s) * 1_000 / permille;
        Self {
            prefill_tokens_per_s: u32::try_from(rate).unwrap_or(u32::MAX),
            step_base_us: longer(self.step_base_us),
            decode_us_per_seq: longer(self.decode_us_per_seq),
            context_us_per_1k_tokens: longer(self.context_us_per_1k_tokens),
            ..self.clone()
        }
    }

    /// Most tokens one request can have, prompt and output together.
    pub fn capacity_tokens(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_tokens)
    }
}
