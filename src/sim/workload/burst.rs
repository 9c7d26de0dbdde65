//! A hot prefix in bursts: many requests with one long beginning at once, over unrelated traffic.
//!
//! What is sent when an agent fans out, or when a batch is run over one document. It is the worst
//! case for routing by prefix alone: all of a burst has one home. The shape and the lengths are
//! assumptions. The session of a burst's requests is the prefix, that of others their own.

use super::draw::{Draw, Poisson};
use super::{Request, Role, Segment, Start, Workload};

/// How large the bursts are, and over what.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all, of bursts and others.
    pub requests: u32,
    /// Mean requests per second of the unrelated traffic (Poisson).
    pub rate_per_s: f64,
    /// Time from the beginning of one burst to the next; the first comes after half of it.
    pub every_ms: u32,
    /// Requests of a burst.
    pub burst_requests: u32,
    /// Time in which a burst is sent, evenly.
    pub burst_ms: u32,
    /// Length of the beginning that all bursts share.
    pub prefix_tokens: u32,
    /// Length of what follows it, and of an unrelated prompt; uniform within a half of it.
    pub prompt_tokens: u32,
    /// Mean length of an output; uniform within a half of it.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 2_000,
            rate_per_s: 10.0,
            every_ms: 5_000,
            burst_requests: 50,
            burst_ms: 500,
            prefix_tokens: 4_000,
            prompt_tokens: 300,
            output_tokens: 100,
        }
    }
}

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "burst");
    let hot = draw.id();
    let mut background = Poisson::new(options.rate_per_s);
    let mut next_us = background.next_us(&mut draw);
    let every_us = u64::from(options.every_ms.max(1)) * 1_000;
    let mut burst_us = every_us / 2;
    let mut arrivals = Vec::with_capacity(options.requests as usize);
    while arrivals.len() < options.requests as usize {
        if next_us <= burst_us {
            arrivals.push((next_us, request(options, &mut draw, None)));
            next_us = background.next_us(&mut draw);
            continue;
        }
        let count = u64::from(options.burst_requests.max(1));
        for index in 0..count {
            let at_us = burst_us + u64::from(options.burst_ms) * 1_000 * index / count;
            arrivals.push((at_us, request(options, &mut draw, Some(hot))));
        }
        burst_us = burst_us.saturating_add(every_us);
    }
    let about = format!(
        "Every {} ms a burst of {} requests that share {} tokens, over {} unrelated requests/s",
        options.every_ms, options.burst_requests, options.prefix_tokens, options.rate_per_s
    );
    Workload::of_arrivals("burst".to_owned(), about, arrivals).truncated(options.requests as usize)
}

fn request(options: &Options, draw: &mut Draw, hot: Option<u64>) -> Request {
    let own = draw.id();
    let shared = hot.map(|id| (id, options.prefix_tokens));
    let stretches = [shared, Some((own, draw.around(options.prompt_tokens)))];
    let prompt = stretches
        .into_iter()
        .flatten()
        .filter(|(_, tokens)| *tokens > 0);
    Request {
        start: Start::At { us: 0 },
        session: hot.unwrap_or(own),
        adapter: None,
        prompt: prompt
            .map(|(id, tokens)| Segment {
                id,
                tokens,
                role: Role::User,
            })
            .collect(),
        output_tokens: draw.around(options.output_tokens),
    }
}
