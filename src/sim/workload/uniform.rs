//! Prompts of like length, and nothing shared: where routing by prefix has nothing to win.
//!
//! The lengths are assumptions. Every request is a session.

use super::draw::{Draw, Poisson};
use super::{Request, Workload};

/// How long the requests are; lengths are uniform within a half of the mean.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second (Poisson).
    pub rate_per_s: f64,
    /// Mean length of a prompt.
    pub prompt_tokens: u32,
    /// Mean length of an output.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 2_000,
            rate_per_s: 10.0,
            prompt_tokens: 1_000,
            output_tokens: 100,
        }
    }
}

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "uniform");
    let mut arrivals = Poisson::new(options.rate_per_s);
    let request = |_| {
        let at_us = arrivals.next_us(&mut draw);
        let id = draw.id();
        let prompt_tokens = draw.around(options.prompt_tokens);
        let output_tokens = draw.around(options.output_tokens);
        let request = Request::alone(at_us, id, prompt_tokens, output_tokens);
        (at_us, request)
    };
    let requests = (0..options.requests).map(request).collect();
    let about = format!(
        "Prompts of about {} tokens, nothing shared, {} requests/s",
        options.prompt_tokens, options.rate_per_s
    );
    Workload::of_arrivals("uniform".to_owned(), about, requests)
}
