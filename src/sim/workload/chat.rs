//! Chats of many turns, as KubeAI published them; in a closed loop, and as an open one.
//!
//! Source: "LLM Load Balancing at Scale: Consistent Hashing with Bounded Loads", Substratus.AI,
//! 26 February 2025 (kubeai.org/blog), and the notebook of that run in substratusai/kubeai:
//! benchmarks/multi-turn-chat-go/runs/llama-3.1-8x-l4/run.ipynb. 8,000 chats of ShareGPT, of which
//! only what the user said is taken (5 to 30 messages of together 500 to 3,000 characters), are held
//! with the model: each answer goes into the next prompt, at most 40 tokens are generated, and the
//! next message is sent at once. 300, 600, 1,200 or 2,400 chats are under way at any time. Reported:
//! 7.379 messages a chat, 59,031 requests, 22.78 million prompt tokens (386.0 a request) and 2.294
//! million output tokens (38.87 a request).
//!
//! Only those means are published, and only they are fitted. The rest is assumed:
//! - Messages a chat: 5 and a geometric rest of mean 2.379, at most 30.
//! - Outputs: 40 tokens, but for 5.65 % that end anywhere before, which makes 38.87.
//! - The template of Llama 3.1: 26 tokens before every chat, the only text that chats share, and 9
//!   around each message of the user (its header and end, and the header of the answer).
//! - Messages of the user: log-normal with sigma 1, drawn again for the whole chat until its text
//!   is of 125 to 750 tokens, at four characters a token. The median of 22 tokens is the one with
//!   which a prompt has 386 tokens in the mean.

use super::draw::{Draw, Poisson};
use super::{Request, Role, Segment, Start, Workload, mix};
use std::collections::BTreeSet;

/// Mean number of turns of a chat.
pub const MEAN_TURNS: f64 = 7.379;
const LEAST_TURNS: u32 = 5;
const MOST_TURNS: u32 = 30;
const TEXT_TOKENS: std::ops::RangeInclusive<u32> = 125..=750;
const MESSAGE_MEDIAN_TOKENS: f64 = 22.0;
const MESSAGE_SIGMA: f64 = 1.0;
const TEMPLATE_TOKENS: u32 = 9;
const OUTPUT_TOKENS: u32 = 40;
const EARLY_END: f64 = 0.0565;

/// A closed loop of chats.
#[derive(Clone, Debug)]
pub struct Closed {
    /// Requests in all; what the last chats have beyond is cut off.
    pub requests: u32,
    /// Chats under way at any time: each starts its next turn, or the next chat, at once.
    pub threads: u32,
    /// Text that all chats begin with; 0 for none.
    pub system_tokens: u32,
}

impl Default for Closed {
    /// The published run with the clearest difference: 150 chats for each of 8 replicas.
    fn default() -> Self {
        Self {
            requests: 59_031,
            threads: 1_200,
            system_tokens: 26,
        }
    }
}

/// Chats that come by themselves, at a set rate whatever becomes of them.
#[derive(Clone, Debug)]
pub struct Open {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second, from the beginning on: the chats under way at the beginning are
    /// in it with their remaining turns.
    pub rate_per_s: f64,
    /// Least time from one turn of a chat to the next: that of the answer.
    pub answer_ms: u32,
    /// Mean of what is added to it, exponential: reading and typing.
    pub think_ms: u32,
    /// Text that all chats begin with; 0 for none.
    pub system_tokens: u32,
}

impl Default for Open {
    /// The same chats, with answers of up to 5 s and 10 s to think.
    fn default() -> Self {
        Self {
            requests: 5_000,
            rate_per_s: 40.0,
            answer_ms: 5_000,
            think_ms: 10_000,
            system_tokens: 26,
        }
    }
}

/// A closed loop. The requests of all threads are in turn in the list: every thread's first, then
/// every thread's second, and so on. The next chat goes to the thread with the fewest turns so far.
/// Chats are whole but for the last few; so towards the end fewer are under way, as in the published
/// runs, and never as many as wanted if there are not so many chats.
pub fn closed(options: &Closed, seed: u64) -> Workload {
    let mut script = Script::new(seed, options.system_tokens);
    let mut threads: Vec<Vec<Request>> = vec![Vec::new(); options.threads.max(1) as usize];
    // By the number of their turns, then by index: the first is the next to be free.
    let mut free: BTreeSet<(usize, usize)> = (0..threads.len()).map(|index| (0, index)).collect();
    let wanted = options.requests as usize;
    let mut written = 0;
    while written < wanted {
        let chat = script.chat();
        written += chat.len();
        let Some((_, index)) = free.pop_first() else {
            break;
        };
        if let Some(thread) = threads.get_mut(index) {
            thread.extend(chat);
            free.insert((thread.len(), index));
        }
    }
    let about = format!(
        "Chats of {MEAN_TURNS:.1} turns in the mean without time to think, {} under way at any time (lengths as in KubeAI's published comparison)",
        options.threads
    );
    Workload {
        name: "chat".to_owned(),
        about,
        requests: interleaved(threads, wanted),
    }
}

/// Takes one request of each thread in turn, and lets each wait for the one before it.
fn interleaved(threads: Vec<Vec<Request>>, wanted: usize) -> Vec<Request> {
    let mut queues: Vec<_> = threads
        .into_iter()
        .map(|queue| (None, queue.into_iter()))
        .collect();
    let mut requests: Vec<Request> = Vec::with_capacity(wanted);
    loop {
        let before = requests.len();
        for (last, queue) in &mut queues {
            if requests.len() >= wanted {
                return requests;
            }
            let Some(mut request) = queue.next() else {
                continue;
            };
            if let Some(request_before) = *last {
                request.start = Start::After {
                    request: request_before,
                    pause_us: 0,
                };
            }
            *last = u32::try_from(requests.len()).ok();
            requests.push(request);
        }
        if requests.len() == before {
            return requests;
        }
    }
}

/// An open loop: chats come by Poisson, and their turns follow in set times.
pub fn open(options: &Open, seed: u64) -> Workload {
    let mut script = Script::new(seed, options.system_tokens);
    let mut draw = Draw::new(seed, "chat-open");
    let gap_us = |draw: &mut Draw| {
        let think_us = draw.exponential(f64::from(options.think_ms) * 1e3);
        u64::from(options.answer_ms) * 1_000 + think_us as u64
    };
    // Chats come from so long before the beginning that the first ones are over by then.
    let longest_us = f64::from(MOST_TURNS)
        * (f64::from(options.answer_ms) + 3.0 * f64::from(options.think_ms))
        * 1e3;
    let begin_us = longest_us as u64;
    let rate_per_s = options.rate_per_s.max(1e-3);
    let span_us = f64::from(options.requests) / rate_per_s * 1e6;
    // A tenth and a hundred requests more than needed, and cut.
    let end_us = begin_us.saturating_add((span_us * 1.1 + 1e8 / rate_per_s) as u64);
    let mut chats = Poisson::new(rate_per_s / MEAN_TURNS);
    let mut arrivals = Vec::new();
    loop {
        let mut at_us = chats.next_us(&mut draw);
        if at_us >= end_us {
            break;
        }
        for request in script.chat() {
            if (begin_us..end_us).contains(&at_us) {
                arrivals.push((at_us, request));
            }
            at_us = at_us.saturating_add(gap_us(&mut draw));
        }
    }
    let about = format!(
        "Chats of {MEAN_TURNS:.1} turns in the mean that come by Poisson, {} requests/s, {} ms and about {} ms of thought between turns (lengths as in KubeAI's published comparison)",
        options.rate_per_s, options.answer_ms, options.think_ms
    );
    Workload::of_arrivals("chat-open".to_owned(), about, arrivals)
        .truncated(options.requests as usize)
}

/// Writes one chat after the other.
struct Script {
    draw: Draw,
    system: Segment,
}

impl Script {
    fn new(seed: u64, system_tokens: u32) -> Self {
        let mut draw = Draw::new(seed, "chat");
        let system = Segment {
            id: draw.id(),
            tokens: system_tokens,
            role: Role::System,
        };
        Self { draw, system }
    }

    /// The requests of one chat; their starts are for the caller to set.
    fn chat(&mut self) -> Vec<Request> {
        let session = self.draw.id();
        let mut prompt = Vec::new();
        if self.system.tokens > 0 {
            prompt.push(self.system);
        }
        let mut requests = Vec::new();
        for (turn, text_tokens) in (0u64..).zip(self.messages()) {
            prompt.push(Segment {
                id: mix(session, 2 * turn),
                tokens: text_tokens + TEMPLATE_TOKENS,
                role: Role::User,
            });
            let output_tokens = self.output_tokens();
            requests.push(Request {
                start: Start::At { us: 0 },
                session,
                adapter: None,
                prompt: prompt.clone(),
                output_tokens,
            });
            prompt.push(Segment {
                id: mix(session, 2 * turn + 1),
                tokens: output_tokens,
                role: Role::Assistant,
            });
        }
        requests
    }

    /// Lengths of what the user says in one chat.
    fn messages(&mut self) -> Vec<u32> {
        let rest = self.draw.geometric(MEAN_TURNS - f64::from(LEAST_TURNS));
        let turns = LEAST_TURNS.saturating_add(rest).min(MOST_TURNS);
        loop {
            let message = |_| {
                let tokens = self.draw.log_normal(MESSAGE_MEDIAN_TOKENS, MESSAGE_SIGMA);
                (tokens.round() as u32).max(1)
            };
            let messages: Vec<u32> = (0..turns).map(message).collect();
            let text = messages
                .iter()
                .fold(0, |sum: u32, tokens| sum.saturating_add(*tokens));
            if TEXT_TOKENS.contains(&text) {
                return messages;
            }
        }
    }

    fn output_tokens(&mut self) -> u32 {
        if self.draw.chance(EARLY_END) {
            self.draw.between(1, OUTPUT_TOKENS - 1)
        } else {
            OUTPUT_TOKENS
        }
    }
}
