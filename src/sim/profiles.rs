//! Hardware that replicas can be modelled after, with where the figures come from.
//!
//! Those of GPUs are derived from data sheets, not measured. The arithmetic rate counts two operations a
//! weight and token, at half of the peak that the data sheet gives without sparsity.

use super::replica::Profile;

/// Names of [`named`], for help texts.
pub const NAMES: [&str; 5] = ["l4", "l4-fp8", "h100x2", "vllm-cpu-tiny", "fast"];

/// The profile called `name`.
pub fn named(name: &str) -> Option<Profile> {
    Some(match name {
        "l4" => Profile::default(),
        "l4-fp8" => l4_fp8(),
        "h100x2" => h100x2(),
        "vllm-cpu-tiny" => vllm_cpu_tiny(),
        "fast" => Profile::fast(),
        _ => return None,
    })
}

/// An NVIDIA L4 with Llama-3.1-8B in FP8, the replica of KubeAI's published comparison.
///
/// As [`Profile::default`], which has 16-bit weights, but half the bytes to read in a step (27 ms),
/// twice the arithmetic rate (7,400 tokens/s), and 8 GB more for the cache, which makes about
/// 100,000 tokens of 16-bit KV.
pub fn l4_fp8() -> Profile {
    Profile {
        prefill_tokens_per_s: 7_400,
        step_base_us: 27_000,
        blocks: 6_250,
        ..Profile::default()
    }
}

/// Two NVIDIA H100 SXM with Qwen3-32B in bfloat16, tensor parallel: the replica of llm-d's and
/// Dynamo's published comparisons.
///
/// The data sheet gives 80 GB, 3.35 TB/s and 989 TFLOPS (dense, 16 bits) each; 32.8 billion weights
/// are 65.6 GB. At 70 % of both memories' bandwidth a step reads them in 14 ms; 65.6 GFLOP a token
/// at half of both peaks make 15,000 tokens/s and 66 µs per decode; 256 KiB of KV a token (64 layers
/// × 8 heads × 128 × 2 × 2 bytes) take 56 µs per 1,000 tokens to read; and the 72 GB left (at 0.9 of
/// the memory, 6 GB for activations) hold about 275,000 tokens. Budget and sequences are vLLM's
/// defaults for this size of GPU.
pub fn h100x2() -> Profile {
    Profile {
        prefill_tokens_per_s: 15_000,
        step_base_us: 14_000,
        decode_us_per_seq: 66,
        context_us_per_1k_tokens: 56,
        token_budget: 8_192,
        max_running: 1_024,
        blocks: 17_200,
        block_tokens: 16,
    }
}

/// vLLM 0.32.0 on one thread of a server CPU, with the tiny Llama of `examples/vllm/make_model.py`.
///
/// Measured by `make demo-vllm` on two engines at once, on two cores that had other work too: prompts
/// of 256 and 1,536 tokens, then one and eight sequences decoding, medians of three. It measures anew
/// in every run. 512 blocks, of which vLLM keeps one to itself.
pub fn vllm_cpu_tiny() -> Profile {
    Profile {
        prefill_tokens_per_s: 1_174,
        step_base_us: 12_813,
        decode_us_per_seq: 105,
        context_us_per_1k_tokens: 1_401,
        token_budget: 2_048,
        max_running: 16,
        blocks: 511,
        block_tokens: 32,
    }
}
