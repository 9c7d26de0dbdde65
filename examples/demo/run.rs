//! One policy's run: a fresh fleet, all chats through it, and what the clients and the replicas saw.

use crate::Args;
use crate::load::{Chat, OUTPUT_TOKENS};
use crate::support::client::{Call, HttpClient, Protocol, Streaming};
use crate::support::config::Mode;
use crate::support::fleet::{Fleet, FleetOptions};
use crate::support::mock::Mock;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use warmroute::sim::{fleet, profiles};

const MODEL: &str = "tiny";
/// Threads begin one after the other over this time of the modelled hardware, so that the run does
/// not start with all chats in their first turn.
const RAMP: Duration = Duration::from_secs(12);

/// What one policy did to the load.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub policy: String,
    /// Requests sent.
    pub requests: usize,
    /// Those that did not get a whole, good answer.
    pub errors: usize,
    /// Times to first token of the good ones on the modelled hardware, ascending.
    pub ttft_ms: Vec<f64>,
    /// Share of all prompt tokens that the replicas found in their prefix caches.
    pub hit_rate: f64,
    /// Tokens (prompt and output) of the busiest replica over those of the average one.
    pub load_skew: f64,
    /// How long the load took on the modelled hardware.
    pub elapsed_s: f64,
}

/// Runs all of `chats` under `policy`.
pub async fn policy(args: &Args, policy: &str, chats: &[Chat]) -> Result<Outcome, String> {
    let mut options =
        FleetOptions::new(Mode::OriginalDst, args.workers, args.replicas).each_mock(|mock| {
            mock.model = MODEL.to_owned();
            mock.profile = profiles::l4_fp8();
            mock.time_scale = 1.0 / args.speed;
        });
    options.plugin = json!({ "policy": fleet::policy(policy) });
    let fleet = Fleet::try_start(options).await?;
    let bar = bar(policy, chats);
    let begun = Instant::now();
    let seen = play(args, &fleet, chats, &bar).await;
    let elapsed_s = begun.elapsed().as_secs_f64() * args.speed;
    bar.finish_and_clear();
    tell(policy, &seen, begun.elapsed(), &bar);
    Ok(outcome(policy, seen, &fleet.mocks, elapsed_s, args.speed))
}

fn bar(policy: &str, chats: &[Chat]) -> ProgressBar {
    let requests: usize = chats.iter().map(|chat| chat.turns.len()).sum();
    let style = ProgressStyle::with_template("{msg:24} {wide_bar} {pos}/{len} requests, {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(requests as u64)
        .with_style(style)
        .with_message(policy.to_owned())
}

/// One line for a log, where no bar is drawn, and one if something failed.
fn tell(policy: &str, seen: &[Seen], took: Duration, bar: &ProgressBar) {
    if bar.is_hidden() {
        eprintln!(
            "{policy}: {} requests in {:.1} s",
            seen.len(),
            took.as_secs_f64()
        );
    }
    let mut errors = seen.iter().filter_map(|s| s.as_ref().err());
    if let Some(first) = errors.next() {
        eprintln!(
            "{policy}: {} requests failed, the first: {first}",
            1 + errors.count()
        );
    }
}

/// What one request came to: its time to first token, or why it failed.
type Seen = Result<Duration, String>;

/// Plays the chats in `args.threads` closed loops.
async fn play(args: &Args, fleet: &Fleet, chats: &[Chat], bar: &ProgressBar) -> Vec<Seen> {
    let next = AtomicUsize::new(0);
    let seen = Mutex::new(Vec::new());
    let client = fleet.client(Protocol::Http1);
    let threads = (0..args.threads).map(|thread| {
        let (next, seen, client) = (&next, &seen, &client);
        async move {
            let share = f64::from(thread) / f64::from(args.threads);
            tokio::time::sleep(RAMP.mul_f64(share / args.speed)).await;
            while let Some(chat) = chats.get(next.fetch_add(1, Ordering::Relaxed)) {
                for result in talk(client, chat, args.speed, bar).await {
                    seen.lock().unwrap_or_else(|e| e.into_inner()).push(result);
                }
            }
        }
    });
    join_all(threads).await;
    seen.into_inner().unwrap_or_else(|e| e.into_inner())
}

/// Polls all of `futures` on this task. They only wait for sockets, so that one core is enough.
async fn join_all<F: Future<Output = ()>>(futures: impl Iterator<Item = F>) {
    let all: futures_util::stream::FuturesUnordered<F> = futures.collect();
    futures_util::StreamExt::collect::<()>(all).await;
}

/// One chat from its first turn to its last; each turn brings the whole history.
async fn talk(client: &HttpClient, chat: &Chat, speed: f64, bar: &ProgressBar) -> Vec<Seen> {
    let mut messages = vec![json!({"role": "system", "content": chat.system})];
    let mut seen = Vec::new();
    for turn in &chat.turns {
        tokio::time::sleep(turn.pause.div_f64(speed)).await;
        messages.push(json!({"role": "user", "content": turn.says}));
        let answer = ask(client, chat, &messages).await;
        bar.inc(1);
        let text = match answer {
            Ok((ttft, text)) => {
                seen.push(Ok(ttft));
                text
            }
            Err(why) => {
                seen.push(Err(format!("{}: {why}", chat.session)));
                String::new()
            }
        };
        messages.push(json!({"role": "assistant", "content": text}));
    }
    seen
}

async fn ask(
    client: &HttpClient,
    chat: &Chat,
    messages: &[Value],
) -> Result<(Duration, String), String> {
    let body = json!({
        "model": MODEL,
        "messages": messages,
        "max_tokens": OUTPUT_TOKENS,
        "ignore_eos": true,
        "stream": true,
    });
    let call = Call::chat(&body).header("x-session-id", &chat.session);
    let begun = Instant::now();
    let mut stream = client.open(call).await?;
    if stream.status != 200 {
        return Err(format!("status {}", stream.status));
    }
    // The headers come before prefill: the first token is in the first piece of the body.
    let first = stream.next().await.ok_or("an empty stream")??;
    let ttft = begun.elapsed();
    let text = rest(stream, first.to_vec()).await?;
    Ok((ttft, text))
}

/// The text of the whole stream, which must end as it should.
async fn rest(mut stream: Streaming, mut body: Vec<u8>) -> Result<String, String> {
    while let Some(piece) = stream.next().await {
        body.extend_from_slice(&piece?);
    }
    let body = String::from_utf8_lossy(&body);
    let mut text = String::new();
    let mut done = false;
    for data in body.lines().filter_map(|line| line.strip_prefix("data: ")) {
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let event: Value =
            serde_json::from_str(data).map_err(|e| format!("event {data:?}: {e}"))?;
        if let Some(error) = event.get("error") {
            return Err(format!("error in stream: {error}"));
        }
        let delta = event.pointer("/choices/0/delta/content");
        text.push_str(delta.and_then(Value::as_str).unwrap_or_default());
    }
    if done {
        Ok(text)
    } else {
        Err("the stream ended without [DONE]".to_owned())
    }
}

fn outcome(policy: &str, seen: Vec<Seen>, mocks: &[Mock], elapsed_s: f64, speed: f64) -> Outcome {
    let requests = seen.len();
    let mut ttft_ms: Vec<f64> = seen
        .into_iter()
        .flatten()
        .map(|ttft| ttft.as_secs_f64() * 1_000.0 * speed)
        .collect();
    ttft_ms.sort_by(f64::total_cmp);
    let totals: Vec<_> = mocks.iter().map(Mock::totals).collect();
    let prompt: u64 = totals.iter().map(|t| t.prompt_tokens).sum();
    let cached: u64 = totals.iter().map(|t| t.cached_tokens).sum();
    let tokens = totals.iter().map(|t| t.prompt_tokens + t.output_tokens);
    let mean = tokens.clone().sum::<u64>() as f64 / mocks.len().max(1) as f64;
    Outcome {
        policy: policy.to_owned(),
        requests,
        errors: requests - ttft_ms.len(),
        ttft_ms,
        hit_rate: cached as f64 / prompt.max(1) as f64,
        load_skew: tokens.max().unwrap_or_default() as f64 / mean.max(1.0),
        elapsed_s,
    }
}
