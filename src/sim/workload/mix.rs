//! Few very long prompts among many short ones, and nothing shared.
//!
//! One in ten requests brings 100,000 tokens, the others 500: what a request costs, not how many
//! there are, is what a router has to see. The sizes are assumptions. Every request is a session.

use super::draw::{Draw, Poisson};
use super::{Request, Workload};

/// How long, and how many of each.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second (Poisson).
    pub rate_per_s: f64,
    /// Share of the long prompts, in percent.
    pub long_percent: u32,
    /// Length of a long prompt.
    pub long_tokens: u32,
    /// Length of a short one.
    pub short_tokens: u32,
    /// Length of every output.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 2_000,
            rate_per_s: 1.0,
            long_percent: 10,
            long_tokens: 100_000,
            short_tokens: 500,
            output_tokens: 100,
        }
    }
}

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "mix");
    let mut arrivals = Poisson::new(options.rate_per_s);
    let request = |_| {
        let at_us = arrivals.next_us(&mut draw);
        let id = draw.id();
        let is_long = draw.chance(f64::from(options.long_percent) / 100.0);
        let tokens = if is_long {
            options.long_tokens
        } else {
            options.short_tokens
        };
        let output_tokens = options.output_tokens.max(1);
        let request = Request::alone(at_us, id, tokens.max(1), output_tokens);
        (at_us, request)
    };
    let requests = (0..options.requests).map(request).collect();
    let about = format!(
        "{} % prompts of {} tokens among prompts of {}, nothing shared, {} requests/s",
        options.long_percent, options.long_tokens, options.short_tokens, options.rate_per_s
    );
    Workload::of_arrivals("mix".to_owned(), about, requests)
}
