//! Several LoRA adapters, few of them popular, each with a system prompt of its own.
//!
//! Popularity by Zipf's law is an assumption, as are the lengths. Adapters share no cache, whatever
//! their text. The session is the adapter.

use super::draw::{Draw, Poisson, Zipf};
use super::{Request, Role, Segment, Start, Workload};

/// How many adapters, how popular, how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second (Poisson).
    pub rate_per_s: f64,
    /// Number of adapters, which are numbered from 0, the most popular one first.
    pub adapters: u32,
    /// Exponent of Zipf's law; 0 for all alike.
    pub zipf: f64,
    /// Length of an adapter's system prompt; 0 for none.
    pub system_tokens: u32,
    /// Mean length of what the user says; uniform within a half of it.
    pub prompt_tokens: u32,
    /// Mean length of an output; uniform within a half of it.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 2_000,
            rate_per_s: 8.0,
            adapters: 16,
            zipf: 1.0,
            system_tokens: 1_500,
            prompt_tokens: 200,
            output_tokens: 100,
        }
    }
}

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "lora");
    let systems: Vec<u64> = (0..options.adapters.max(1)).map(|_| draw.id()).collect();
    let popularity = Zipf::new(options.adapters.max(1), options.zipf);
    let mut arrivals = Poisson::new(options.rate_per_s);
    let request = |_| {
        let at_us = arrivals.next_us(&mut draw);
        let rank = popularity.rank(&mut draw);
        let system = systems.get(rank).copied().unwrap_or_default();
        let prompt = [
            (system, options.system_tokens, Role::System),
            (draw.id(), draw.around(options.prompt_tokens), Role::User),
        ];
        let request = Request {
            start: Start::At { us: at_us },
            session: system,
            adapter: u32::try_from(rank).ok(),
            prompt: prompt
                .into_iter()
                .filter(|(_, tokens, _)| *tokens > 0)
                .map(|(id, tokens, role)| Segment { id, tokens, role })
                .collect(),
            output_tokens: draw.around(options.output_tokens),
        };
        (at_us, request)
    };
    let requests = (0..options.requests).map(request).collect();
    let about = format!(
        "{} LoRA adapters, popular by Zipf's law with exponent {}, each with a system prompt of {} tokens, {} requests/s",
        options.adapters, options.zipf, options.system_tokens, options.rate_per_s
    );
    Workload::of_arrivals("lora".to_owned(), about, requests)
}
