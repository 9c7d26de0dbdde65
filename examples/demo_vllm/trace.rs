//! The public trace, made small enough for a model on a CPU.

use crate::Args;
use crate::engine::BLOCK_TOKENS;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use warmroute::random::Random;
use warmroute::sim::workload::{Request, Start, Workload, mooncake};

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
    let mut workload = kept.sped_up(args.rate / rate);
    spread(&mut workload.requests);
    Ok((workload, left_out))
}

/// Spreads the requests of one instant evenly up to the next instant. The clock of the trace ticks
/// every three seconds, and the order of requests sent at the same moment is nobody's to predict:
/// it is not even the same twice, and with round robin it decides which engine gets which of them.
fn spread(requests: &mut [Request]) {
    let times: Vec<u64> = requests.iter().map(at_us).collect();
    let mut from = 0;
    let mut gap_us = 0;
    while let Some(&now_us) = times.get(from) {
        let rest = times.get(from..).unwrap_or_default();
        let tied = rest.iter().take_while(|us| **us == now_us).count();
        // After the last instant there is no next one: its requests take the gap before it.
        if let Some(next_us) = times.get(from + tied) {
            gap_us = next_us.saturating_sub(now_us);
        }
        for (request, index) in requests.iter_mut().skip(from).take(tied).zip(0_u64..) {
            request.start = Start::At {
                us: now_us + gap_us * index / tied as u64,
            };
        }
        from += tied;
    }
}

/// When it is sent; a trace has set times only, which its rate has shown.
fn at_us(request: &Request) -> u64 {
    match request.start {
        Start::At { us } => us,
        Start::After { pause_us, .. } => pause_us,
    }
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
         {} requests at {} a second, those of one instant spread up to the next, on average {:.0} tokens of prompt and {:.0} of output; \
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

#[cfg(test)]
mod tests {
    use super::*;

    fn spread_out(times: &[u64]) -> Vec<u64> {
        let request = |us: &u64| Request {
            start: Start::At { us: *us },
            session: 0,
            adapter: None,
            prompt: Vec::new(),
            output_tokens: 1,
        };
        let mut requests: Vec<Request> = times.iter().map(request).collect();
        spread(&mut requests);
        requests.iter().map(at_us).collect()
    }

    #[test]
    fn requests_of_one_instant_are_spread_up_to_the_next() {
        assert_eq!(
            spread_out(&[0, 0, 0, 3_000, 9_000, 9_000]),
            [0, 1_000, 2_000, 3_000, 9_000, 12_000]
        );
        assert_eq!(spread_out(&[5, 6, 7]), [5, 6, 7]);
        assert_eq!(spread_out(&[]), [0_u64; 0]);
    }
}
