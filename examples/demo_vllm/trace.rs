//! The public trace, made small enough for a model on a CPU.

use crate::Args;
use crate::engine::BLOCK_TOKENS;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use warmroute::random::Random;
use warmroute::sim::workload::{Workload, mooncake};

/// The workload, and how many requests were left out for their length.
///
/// # Errors
/// A file that is not there or no trace, or nothing left of it.
pub fn load(args: &Args) -> Result<(Workload, usize), String> {
    let file = file(args);
    let name = file.display().to_string();
    let input = File::open(&file).map_err(|e| {
        format!("{name}: {e} (the public traces are in kvcache-ai/Mooncake on GitHub; --traces says where they lie)")
    })?;
    let mut whole = mooncake::read(BufReader::new(input), &name).map_err(|e| e.to_string())?;
    let one_in = u64::from(args.one_in);
    whole
        .requests
        .retain(|request| Random::new(request.session).below(one_in) == 0);
    let small = whole.truncated(args.requests as usize).shrunk(args.shrink);
    let (kept, left_out) = small.without_longer_than(args.max_tokens);
    let rate = kept
        .rate_per_s()
        .ok_or_else(|| format!("{name}: nothing is left of it"))?;
    Ok((kept.sped_up(args.rate / rate), left_out))
}

fn file(args: &Args) -> PathBuf {
    let named = || args.traces.join("conversation_trace.jsonl");
    args.trace.clone().unwrap_or_else(named)
}

/// What is sent, in one sentence.
pub fn describe(args: &Args, workload: &Workload, left_out: usize) -> String {
    let facts = workload.facts(BLOCK_TOKENS);
    format!(
        "The first {} requests of one in {} conversations of {}, lengths divided by {}; {left_out} of more than {} tokens left out. \
         {} requests at {} a second, on average {:.0} tokens of prompt and {:.0} of output; \
         one cache that never evicts would find {:.3} of the prompt tokens.",
        args.requests,
        args.one_in,
        file(args).file_name().unwrap_or_default().to_string_lossy(),
        args.shrink,
        args.max_tokens,
        workload.requests.len(),
        args.rate,
        facts.mean_prompt_tokens,
        facts.mean_output_tokens,
        facts.cacheable_share,
    )
}
