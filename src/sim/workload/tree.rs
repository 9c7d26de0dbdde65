//! Agents that branch: many candidates of one path at once, of which some are pursued.
//!
//! The search is breadth first, as in "Tree of Thoughts" (Yao and others, NeurIPS 2023): for every
//! path that is pursued, some candidates for its next step are asked for at once; the best of all
//! candidates of that depth become longer paths, with what the model said and what a tool answered.
//! All agents begin with the same instructions, each has a task of its own. That steps come in set
//! times, and the lengths, are assumptions. The session is the agent.

use super::draw::{Draw, Poisson};
use super::{Request, Role, Segment, Start, Workload};

/// How the agents branch, and how long what they say is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests in all.
    pub requests: u32,
    /// Mean requests per second; agents come by Poisson.
    pub rate_per_s: f64,
    /// Steps of a path.
    pub depth: u32,
    /// Candidates that are asked for at once for each path.
    pub candidates: u32,
    /// Paths that are pursued at every depth below the first.
    pub paths: u32,
    /// Mean time from one step to the next; uniform within a half of it.
    pub step_ms: u32,
    /// Instructions that all agents begin with.
    pub system_tokens: u32,
    /// Length of a task; uniform within a half of it.
    pub task_tokens: u32,
    /// Length of a tool's answer; uniform within a half of it.
    pub tool_tokens: u32,
    /// Length of an output; uniform within a half of it.
    pub output_tokens: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 6_000,
            rate_per_s: 10.0,
            depth: 4,
            candidates: 4,
            paths: 3,
            step_ms: 8_000,
            system_tokens: 800,
            task_tokens: 1_500,
            tool_tokens: 400,
            output_tokens: 150,
        }
    }
}

impl Options {
    /// Requests of one agent.
    fn agent_requests(&self) -> u32 {
        let below = self.depth.max(1) - 1;
        let first = self.candidates.max(1);
        first.saturating_add(below.saturating_mul(first.saturating_mul(self.paths.max(1))))
    }
}

/// The requests, in the order of their arrival.
pub fn workload(options: &Options, seed: u64) -> Workload {
    let mut draw = Draw::new(seed, "tree");
    let system = segment(draw.id(), options.system_tokens, Role::System);
    let mut agents =
        Poisson::new(options.rate_per_s.max(1e-3) / f64::from(options.agent_requests()));
    // Agents come from so long before the beginning that the first ones are over by then.
    let begin_us = u64::from(options.step_ms) * 1_500 * u64::from(options.depth);
    let rate_per_s = options.rate_per_s.max(1e-3);
    let span_us = f64::from(options.requests) / rate_per_s * 1e6;
    // A tenth and ten agents more than needed, and cut.
    let more_us = f64::from(options.agent_requests()) * 1e7 / rate_per_s;
    let end_us = begin_us.saturating_add((span_us * 1.1 + more_us) as u64);
    let mut arrivals = Vec::new();
    loop {
        let start_us = agents.next_us(&mut draw);
        if start_us >= end_us {
            break;
        }
        let requests = agent(options, system, start_us, &mut draw);
        let is_in_time = |(at_us, _): &(u64, Request)| (begin_us..end_us).contains(at_us);
        arrivals.extend(requests.into_iter().filter(is_in_time));
    }
    let about = format!(
        "Agents that branch, {} candidates for each of {} paths and {} steps, {} requests/s",
        options.candidates, options.paths, options.depth, options.rate_per_s
    );
    Workload::of_arrivals("tree".to_owned(), about, arrivals).truncated(options.requests as usize)
}

/// All requests of one agent, with their times.
fn agent(
    options: &Options,
    system: Segment,
    start_us: u64,
    draw: &mut Draw,
) -> Vec<(u64, Request)> {
    let mut arrivals = Vec::new();
    let session = draw.id();
    let task = segment(draw.id(), draw.around(options.task_tokens), Role::User);
    let beginning = [system, task].into_iter();
    let mut paths: Vec<Vec<Segment>> = vec![beginning.filter(|one| one.tokens > 0).collect()];
    let mut at_us = start_us;
    for _ in 0..options.depth.max(1) {
        let mut next: Vec<Vec<Segment>> = Vec::new();
        for path in &paths {
            for _ in 0..options.candidates.max(1) {
                let output_tokens = draw.around(options.output_tokens);
                let request = Request {
                    start: Start::At { us: at_us },
                    session,
                    adapter: None,
                    prompt: path.clone(),
                    output_tokens,
                };
                arrivals.push((at_us, request));
                let mut longer = path.clone();
                longer.push(segment(draw.id(), output_tokens, Role::Assistant));
                let tool_tokens = draw.around(options.tool_tokens);
                longer.push(segment(draw.id(), tool_tokens, Role::User));
                next.push(longer);
            }
        }
        // Which candidates are best is chance.
        while next.len() > options.paths.max(1) as usize {
            let last = u32::try_from(next.len() - 1).unwrap_or(u32::MAX);
            next.swap_remove(draw.between(0, last) as usize);
        }
        paths = next;
        at_us = at_us.saturating_add(u64::from(draw.around(options.step_ms)) * 1_000);
    }
    arrivals
}

fn segment(id: u64, tokens: u32, role: Role) -> Segment {
    Segment { id, tokens, role }
}
