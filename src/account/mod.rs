//! A Decision as one line of JSON from which it can be taken again: what the access log holds.
//!
//! ```text
//! {"warmroute":1,                 version of this format
//!  "config":"8c2f…",              fingerprint of the configuration, 16 hexadecimal digits
//!  "pool":"default","policy":"expected_latency",
//!  "reason":"fastest","ranked":["10.0.0.1:8000",…],"bound":0,      what came out
//!  "sequence":3,"random":"1f…","key":"74…",                        key: only if there is one
//!  "cost":[requests,waiting,prefill,decode,context],               of the request, nothing taken off
//!  "blocks":[60,[12,"9a…"],…],    how many prefix blocks there are, and those that a policy may look at
//!  "complete":true,               whether all candidates are listed
//!  "candidates":[["10.0.0.1:8000",weight,…],…],                    see `figures`
//!  "costs_us":[…]}                only of a policy that counts costs, in the order of the candidates
//! ```
//!
//! It is printable ASCII on one line, whatever a pool is called. Of a candidate's figures, those at the
//! end that are as of an idle endpoint of which nothing is known are left out. Of the prefix blocks,
//! those are written at which some candidate's match ends, and the last: a ring key is one of them.

#[cfg(not(target_arch = "wasm32"))]
mod again;
#[cfg(not(target_arch = "wasm32"))]
mod read;

#[cfg(not(target_arch = "wasm32"))]
pub use self::again::{Outcome, Replay, decide_again};
#[cfg(not(target_arch = "wasm32"))]
pub use self::read::{Account, AccountError, find};

use std::fmt::Write;

use crate::balancer::{Ask, Balancer, Decision};
use crate::policy::{Candidate, Load};
use crate::rates::Pace;
use crate::session::reason_name;

/// What an account begins with, before its version.
pub const BEGINNING: &str = "{\"warmroute\":";
/// Version of the format.
pub const VERSION: u64 = 1;
/// Most candidates that an account lists: about 60 KB.
pub const LISTED: usize = 512;

/// How many figures a candidate has.
const FIGURES: usize = 15;

/// The figures of a candidate, in the order of the line.
fn figures(candidate: &Candidate) -> [u64; FIGURES] {
    // All of them by name: what is new must be written, or nothing can be decided again.
    let Candidate {
        endpoint: _,
        weight,
        load,
        kv_usage_permille,
        matched_blocks,
        matched_tokens,
        pace,
    } = *candidate;
    let Pace {
        first_us,
        prefill_us_per_1k_tokens,
        token_us,
        token_us_per_1k_context,
        kv_tokens,
        residence_us,
    } = pace;
    let [requests, waiting, prefill, decode, context] = load_figures(&load);
    [
        u64::from(weight),
        requests,
        waiting,
        prefill,
        decode,
        context,
        u64::from(kv_usage_permille),
        u64::from(matched_blocks),
        matched_tokens,
        u64::from(first_us),
        u64::from(prefill_us_per_1k_tokens),
        u64::from(token_us),
        u64::from(token_us_per_1k_context),
        kv_tokens,
        residence_us,
    ]
}

fn load_figures(load: &Load) -> [u64; 5] {
    let Load {
        requests,
        waiting,
        prefill_tokens,
        decode_tokens,
        context_tokens,
    } = *load;
    [
        u64::from(requests),
        u64::from(waiting),
        prefill_tokens,
        decode_tokens,
        context_tokens,
    ]
}

/// The account of a decision that `balancer` took on `ask` with these random bits.
pub fn line(balancer: &Balancer, ask: &Ask<'_>, random: u64, decision: &Decision) -> String {
    let listed = decision.candidates.len().min(LISTED);
    let mut line = String::with_capacity(listed.saturating_mul(64).saturating_add(512));
    let pool = balancer.pool(decision.pool);
    let name = |line: &mut String, index: u32| {
        let endpoint = balancer.endpoint(decision.pool, index);
        quote(line, endpoint.map_or("?", |endpoint| endpoint.name()));
    };
    // Writing into a String cannot fail.
    let fingerprint = balancer.config().fingerprint;
    let _ = write!(
        line,
        "{BEGINNING}{VERSION},\"config\":\"{fingerprint:016x}\""
    );
    line.push_str(",\"pool\":");
    quote(&mut line, pool.map_or("?", |pool| pool.name.as_str()));
    let _ = write!(
        line,
        ",\"policy\":\"{}\",\"reason\":\"{}\",\"ranked\":",
        decision.policy,
        reason_name(decision.reason)
    );
    list(&mut line, &decision.endpoints, |line, index| {
        name(line, *index);
    });
    let _ = write!(
        line,
        ",\"bound\":{},\"sequence\":{},\"random\":\"{random:016x}\"",
        decision.bound, decision.sequence
    );
    if let Some(key) = decision.key {
        let _ = write!(line, ",\"key\":\"{key:016x}\"");
    }
    line.push_str(",\"cost\":");
    list(&mut line, &load_figures(&ask.cost), number);
    if !ask.blocks.is_empty() {
        blocks(&mut line, ask.blocks, &decision.candidates);
    }
    let complete = decision.candidates.len() <= LISTED;
    let _ = write!(line, ",\"complete\":{complete},\"candidates\":");
    let (idle, candidates) = (figures(&Candidate::default()), &decision.candidates);
    let candidates = candidates.get(..listed).unwrap_or_default();
    list(&mut line, candidates, |line, candidate| {
        line.push('[');
        name(line, candidate.endpoint);
        let figures = figures(candidate);
        let differ = figures
            .iter()
            .zip(&idle)
            .rposition(|(one, other)| one != other);
        let written = differ.map_or(0, |last| last.saturating_add(1));
        for figure in figures.iter().take(written) {
            line.push(',');
            number(line, figure);
        }
        line.push(']');
    });
    if !decision.costs_us.is_empty() {
        line.push_str(",\"costs_us\":");
        let costs_us = decision.costs_us.get(..listed);
        list(&mut line, costs_us.unwrap_or_default(), number);
    }
    line.push('}');
    line
}

/// How many there are, and those at which a candidate's match ends, with their numbers.
fn blocks(line: &mut String, blocks: &[u64], candidates: &[Candidate]) {
    let last = blocks.len().saturating_sub(1);
    let ends = candidates.iter().take(LISTED);
    let mut shown: Vec<usize> = ends
        .map(|candidate| (candidate.matched_blocks as usize).min(last))
        .chain(std::iter::once(last))
        .collect();
    shown.sort_unstable();
    shown.dedup();
    let _ = write!(line, ",\"blocks\":[{}", blocks.len());
    for index in shown {
        if let Some(block) = blocks.get(index) {
            let _ = write!(line, ",[{index},\"{block:016x}\"]");
        }
    }
    line.push(']');
}

fn list<T>(line: &mut String, items: &[T], mut write: impl FnMut(&mut String, &T)) {
    line.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            line.push(',');
        }
        write(line, item);
    }
    line.push(']');
}

fn number(line: &mut String, number: &u64) {
    let _ = write!(line, "{number}");
}

/// As a JSON string of printable ASCII: a log line must not break, whatever a pool is called.
fn quote(line: &mut String, text: &str) {
    line.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => line.extend(['\\', letter]),
            ' '..='~' => line.push(letter),
            _ => {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    let _ = write!(line, "\\u{unit:04x}");
                }
            }
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests;
