//! What the engines can do on this machine, measured while they have nothing else to do.

use crate::call::ask;
use crate::engine::{BLOCK_TOKENS, Engine, MAX_RUNNING, TOKEN_BUDGET};
use std::time::Instant;
use warmroute::sim::replica::Profile;
use warmroute::sim::workload::{Request, Role, Segment, Start};

const SHORT_TOKENS: u32 = 256;
const LONG_TOKENS: u32 = 1_536;
const DECODES: u32 = 48;
const BATCH: u32 = 8;
const REPETITIONS: u32 = 3;

/// Of one engine, in microseconds; medians.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    short_prefill: f64,
    long_prefill: f64,
    /// Steps with one sequence of a short context, with one of a long one, and with a batch.
    step: f64,
    long_step: f64,
    batch_step: f64,
}

/// The profile of both engines, measured at the same time as they share this machine's cores.
/// Of an engine's `blocks`, one is vLLM's own placeholder. The caches are emptied afterwards.
///
/// # Errors
/// An engine that does not answer as it should.
pub async fn profile(engines: &[Engine], blocks: u32) -> Result<Profile, String> {
    let measured = futures_util::future::join_all(engines.iter().map(measure)).await;
    let measured: Vec<Times> = measured.into_iter().collect::<Result<_, _>>()?;
    let mean = |of: fn(&Times) -> f64| measured.iter().map(of).sum::<f64>() / measured.len() as f64;
    let us_per_token = (mean(|t| t.long_prefill) - mean(|t| t.short_prefill))
        / f64::from(LONG_TOKENS - SHORT_TOKENS);
    let decode_us = (mean(|t| t.batch_step) - mean(|t| t.step)) / f64::from(BATCH - 1);
    let context_us =
        (mean(|t| t.long_step) - mean(|t| t.step)) / f64::from(LONG_TOKENS - SHORT_TOKENS);
    // On a busy machine a difference of two times may come out below nothing.
    let whole = |value: f64, least: f64| value.max(least).round() as u32;
    Ok(Profile {
        prefill_tokens_per_s: whole(1e6 / us_per_token.max(1.0), 1.0),
        step_base_us: whole(mean(|t| t.step) - decode_us.max(0.0), 1.0),
        decode_us_per_seq: whole(decode_us, 0.0),
        context_us_per_1k_tokens: whole(context_us * 1_000.0, 0.0),
        token_budget: TOKEN_BUDGET,
        max_running: MAX_RUNNING,
        blocks: blocks.saturating_sub(1),
        block_tokens: BLOCK_TOKENS,
    })
}

async fn measure(engine: &Engine) -> Result<Times, String> {
    let mut probe = Probe { engine, sent: 0 };
    // The first request of an engine's life is slow.
    probe.alone(SHORT_TOKENS).await?;
    let (mut short, mut long, mut batch) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        short.push(probe.alone(SHORT_TOKENS).await?);
        long.push(probe.alone(LONG_TOKENS).await?);
        batch.push(probe.batch().await?);
    }
    engine.reset().await?;
    let of =
        |pairs: &[(f64, f64)], at: fn(&(f64, f64)) -> f64| median(pairs.iter().map(at).collect());
    Ok(Times {
        short_prefill: of(&short, |pair| pair.0),
        long_prefill: of(&long, |pair| pair.0),
        step: of(&short, |pair| pair.1),
        long_step: of(&long, |pair| pair.1),
        batch_step: median(batch),
    })
}

struct Probe<'a> {
    engine: &'a Engine,
    sent: u64,
}

impl Probe<'_> {
    /// A prompt that no cache has.
    fn request(&mut self, tokens: u32) -> Request {
        self.sent += 1;
        Request {
            start: Start::At { us: 0 },
            session: 0,
            adapter: None,
            prompt: vec![Segment {
                id: u64::MAX - self.sent,
                tokens,
                role: Role::User,
            }],
            output_tokens: DECODES + 1,
        }
    }

    /// Microseconds to the first token, and for each further one.
    async fn alone(&mut self, tokens: u32) -> Result<(f64, f64), String> {
        let request = self.request(tokens);
        let begun = Instant::now();
        let answer = ask(&self.engine.client, &request).await?;
        let decoding = answer.end - answer.first;
        Ok((us(answer.first - begun), us(decoding) / f64::from(DECODES)))
    }

    /// Microseconds of a step in which a batch decodes, from the last first token to the first end.
    async fn batch(&mut self) -> Result<f64, String> {
        let requests: Vec<Request> = (0..BATCH).map(|_| self.request(BLOCK_TOKENS)).collect();
        let asked = requests
            .iter()
            .map(|request| ask(&self.engine.client, request));
        let answers = futures_util::future::join_all(asked).await;
        let answers: Vec<_> = answers.into_iter().collect::<Result<_, _>>()?;
        let first = answers.iter().map(|answer| answer.first).max();
        let end = answers.iter().map(|answer| answer.end).max();
        let (first, end) = first.zip(end).ok_or("no answers")?;
        Ok(us(end.saturating_duration_since(first)) / f64::from(DECODES))
    }
}

fn us(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The middle one; 0 if there is none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
