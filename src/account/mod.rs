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
//!  "idle":[figures],              those of an idle endpoint of which nothing is known
//!  "candidates":[["10.0.0.1:8000",figures],…],                     below
//!  "costs_us":[…]}                only of a policy that counts costs, in the order of the candidates
//! ```
//!
//! The figures of a candidate are those of [`Candidate`], then those of its [`Pace`], in the order of the
//! fields; its load is as `cost`.
//!
//! It is printable ASCII on one line, whatever a pool is called. Of a candidate's figures, those at the
//! end that are as in `idle` are left out. Of the prefix blocks, those are written at which some
//! candidate's match ends, and the last: a ring key is one of them.

#[cfg(not(target_arch = "wasm32"))]
mod again;
#[cfg(not(target_arch = "wasm32"))]
mod find;
#[cfg(not(target_arch = "wasm32"))]
mod read;

#[cfg(not(target_arch = "wasm32"))]
pub use self::again::{Outcome, Replay, decide_again};
#[cfg(not(target_arch = "wasm32"))]
pub use self::find::find;
#[cfg(not(target_arch = "wasm32"))]
pub use self::read::{Account, AccountError};

use std::fmt::Write;

use crate::balancer::{Ask, Balancer, Decision};
use crate::endpoint::Endpoint;
use crate::policy::{Candidate, Load};
use crate::quote::quote;
use crate::rates::Pace;
use crate::session::reason_name;

/// What an account begins with, before its version.
pub const BEGINNING: &str = "{\"warmroute\":";
/// Version of the format.
pub const VERSION: u64 = 1;
/// Most candidates that an account lists: about 60 KB.
pub const LISTED: usize = 512;

/// How many figures a candidate has, and a load.
const FIGURES: usize = 20;
const LOAD_FIGURES: usize = 5;

/// Where a figure is kept.
enum Place<'a> {
    /// In 32 bits.
    Small(&'a mut u32),
    /// In 64 bits.
    Large(&'a mut u64),
}

impl Place<'_> {
    fn figure(self) -> u64 {
        match self {
            Self::Small(figure) => u64::from(*figure),
            Self::Large(figure) => *figure,
        }
    }
}

/// The figures of a candidate in the order of the line, to be written or read.
fn places(candidate: &mut Candidate) -> [Place<'_>; FIGURES] {
    use Place::{Large, Small};
    // All of them by name: what is new must be written, or nothing can be decided again.
    let Candidate {
        endpoint: _,
        weight,
        load,
        other_requests,
        kv_usage_permille,
        matched_blocks,
        matched_tokens,
        matched_age_permille,
        given_blocks,
        queue_tokens,
        kv_tokens,
        kv_used_tokens,
        pace,
    } = candidate;
    let Pace {
        first_us,
        prefill_us_per_1k_tokens,
        token_us,
        token_us_per_1k_context,
        residence_us,
    } = pace;
    let [requests, waiting, prefill, decode, context] = load_places(load);
    [
        Small(weight),
        requests,
        waiting,
        prefill,
        decode,
        context,
        Small(other_requests),
        Small(kv_usage_permille),
        Small(matched_blocks),
        Large(matched_tokens),
        Small(matched_age_permille),
        Small(given_blocks),
        Large(queue_tokens),
        Large(kv_tokens),
        Large(kv_used_tokens),
        Small(first_us),
        Small(prefill_us_per_1k_tokens),
        Small(token_us),
        Small(token_us_per_1k_context),
        Large(residence_us),
    ]
}

fn load_places(load: &mut Load) -> [Place<'_>; LOAD_FIGURES] {
    let Load {
        requests,
        waiting,
        prefill_tokens,
        decode_tokens,
        context_tokens,
    } = load;
    [
        Place::Small(requests),
        Place::Small(waiting),
        Place::Large(prefill_tokens),
        Place::Large(decode_tokens),
        Place::Large(context_tokens),
    ]
}

fn figures(mut candidate: Candidate) -> [u64; FIGURES] {
    places(&mut candidate).map(Place::figure)
}

/// The account of a decision that `balancer` took on `ask` with these random bits.
pub fn line(balancer: &Balancer, ask: &Ask<'_>, random: u64, decision: &Decision) -> String {
    let listed = decision.candidates.len().min(LISTED);
    let candidates = decision.candidates.get(..listed).unwrap_or_default();
    let mut line = Line(String::with_capacity(
        listed.saturating_mul(64).saturating_add(512),
    ));
    let name = |index: u32| {
        let endpoint = balancer.endpoint(decision.pool, index);
        endpoint.map_or("?", Endpoint::name)
    };
    origin(&mut line, balancer, decision);
    line.put(",\"ranked\":[");
    for index in &decision.endpoints {
        line.next();
        line.quote(name(*index));
    }
    line.put("],\"bound\":");
    line.number(decision.bound);
    line.put(",\"sequence\":");
    line.number(decision.sequence);
    line.put(",\"random\":");
    line.hash(random);
    if let Some(key) = decision.key {
        line.put(",\"key\":");
        line.hash(key);
    }
    line.put(",\"cost\":[");
    let mut cost = ask.cost;
    line.numbers(&load_places(&mut cost).map(Place::figure));
    if !ask.blocks.is_empty() {
        line.put("],\"blocks\":[");
        blocks(&mut line, ask.blocks, candidates);
    }
    let complete = listed == decision.candidates.len();
    line.put("],\"complete\":");
    line.put(if complete { "true" } else { "false" });
    listing(&mut line, candidates, &name);
    if !decision.costs_us.is_empty() {
        line.put("],\"costs_us\":[");
        line.numbers(decision.costs_us.get(..listed).unwrap_or_default());
    }
    line.put("]}");
    line.0
}

/// By which configuration, where, and why.
fn origin(line: &mut Line, balancer: &Balancer, decision: &Decision) {
    let pool = balancer.pool(decision.pool);
    line.put(BEGINNING);
    line.number(VERSION);
    line.put(",\"config\":");
    line.hash(balancer.config().fingerprint);
    for (key, text) in [
        (",\"pool\":", pool.map_or("?", |pool| pool.name.as_str())),
        (",\"policy\":", decision.policy),
        (",\"reason\":", reason_name(decision.reason)),
    ] {
        line.put(key);
        line.quote(text);
    }
}

/// The figures of an idle endpoint, and each candidate's as far as they differ. The list stays open.
fn listing<'a>(line: &mut Line, candidates: &[Candidate], name: &dyn Fn(u32) -> &'a str) {
    let idle = figures(Candidate::default());
    line.put(",\"idle\":[");
    line.numbers(&idle);
    line.put("],\"candidates\":[");
    for candidate in candidates {
        line.next();
        line.put("[");
        line.quote(name(candidate.endpoint));
        line.numbers(told(&figures(*candidate), &idle));
        line.put("]");
    }
}

/// The figures without those at the end that are as of an idle endpoint.
fn told<'a>(given: &'a [u64; FIGURES], idle: &[u64; FIGURES]) -> &'a [u64] {
    let differ = given
        .iter()
        .zip(idle)
        .rposition(|(one, other)| one != other);
    let told = differ.map_or(0, |last| last.saturating_add(1));
    given.get(..told).unwrap_or_default()
}

/// How many there are, and those at which a candidate's match ends, with their numbers.
fn blocks(line: &mut Line, blocks: &[u64], candidates: &[Candidate]) {
    let last = blocks.len().saturating_sub(1);
    let mut shown = vec![false; blocks.len()];
    let ends = candidates.iter().map(|one| one.matched_blocks as usize);
    for end in ends.chain(std::iter::once(last)) {
        if let Some(shown) = shown.get_mut(end.min(last)) {
            *shown = true;
        }
    }
    line.number(blocks.len() as u64);
    for ((block, index), _) in blocks
        .iter()
        .zip(0..)
        .zip(&shown)
        .filter(|(_, shown)| **shown)
    {
        line.put(",[");
        line.number(index);
        line.put(",");
        line.hash(*block);
        line.put("]");
    }
}

/// A line of JSON as it grows. What is not inlined keeps the module small.
struct Line(String);

impl Line {
    #[inline(never)]
    fn put(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// The comma before an element, unless it is the first.
    fn next(&mut self) {
        if !self.0.ends_with('[') {
            self.put(",");
        }
    }

    #[inline(never)]
    fn number(&mut self, number: u64) {
        // Writing into a String cannot fail.
        let _ = write!(self.0, "{number}");
    }

    #[inline(never)]
    fn hash(&mut self, hash: u64) {
        let _ = write!(self.0, "\"{hash:016x}\"");
    }

    #[inline(never)]
    fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.next();
            self.number(*number);
        }
    }

    fn quote(&mut self, text: &str) {
        quote(&mut self.0, text);
    }
}

#[cfg(test)]
mod tests;
