//! A bound that no router can pass: every request as if it were alone.
//!
//! The request meets an idle replica, the fastest of the fleet for it, whose cache has forgotten
//! nothing and holds every block that any request before it had, whichever replica that was on and
//! whether or not it was computed by then. Its tokens that are left take as few steps as the budget
//! allows, each with the fixed cost of a step, and every output token takes a step with nobody
//! beside. A real request meets at most those blocks and at least those steps, since engines admit
//! first come, first served; so both times are bounds for each request, and their means and
//! percentiles are bounds of means and percentiles. How near they can be come is another matter:
//! nobody ever waits here.
//!
//! "Before it" is by arrival. In a closed loop, where that depends on the routing, it is every request
//! but those that wait for this one.

use std::collections::HashMap;

use warmroute::sim::replica::Profile;
use warmroute::sim::workload::{Request, Start, Workload};

/// The least times of one request, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Least {
    pub ttft_us: u64,
    pub e2e_us: u64,
}

/// Of each request of `workload` on a fleet of `replicas`, which all have blocks of one size.
pub fn bounds(workload: &Workload, replicas: &[Profile]) -> Vec<Least> {
    let block_tokens = replicas.first().map_or(16, |profile| profile.block_tokens);
    let chains: Vec<Vec<u64>> = workload
        .requests
        .iter()
        .map(|request| request.chain(block_tokens))
        .collect();
    let threads = threads(workload);
    let mut blocks: HashMap<u64, Holders> = HashMap::new();
    for (index, (chain, thread)) in chains.iter().zip(&threads).enumerate() {
        for block in chain {
            let first = Holders {
                index,
                thread: *thread,
                has_other: false,
            };
            let holders = blocks.entry(*block).or_insert(first);
            holders.has_other |= thread.is_some() && holders.thread != *thread;
        }
    }
    let least = |(index, request): (usize, &Request)| {
        let chain = chains.get(index).map(Vec::as_slice).unwrap_or_default();
        let thread = threads.get(index).copied().flatten();
        let is_there = |block: &&u64| {
            let holders = blocks.get(*block);
            holders.is_some_and(|holders| holders.index < index || holders.is_beside(thread))
        };
        let found = chain.iter().take_while(is_there).count() as u64;
        // The last token is always computed.
        let most = u64::from(request.prompt_tokens().saturating_sub(1)) / u64::from(block_tokens);
        let cached_tokens = found.min(most) * u64::from(block_tokens);
        of(request, cached_tokens, replicas)
    };
    workload.requests.iter().enumerate().map(least).collect()
}

/// Who has a block.
struct Holders {
    /// The first of them in the list.
    index: usize,
    /// Its thread.
    thread: Option<usize>,
    /// Whether one of another thread has it too.
    has_other: bool,
}

impl Holders {
    /// Whether a thread beside this one has it.
    fn is_beside(&self, thread: Option<usize>) -> bool {
        thread.is_some() && (self.has_other || self.thread != thread)
    }
}

/// For each request of a closed loop the first of those that wait for each other; `None` in an open
/// loop.
fn threads(workload: &Workload) -> Vec<Option<usize>> {
    let waits = |request: &Request| matches!(request.start, Start::After { .. });
    if !workload.requests.iter().any(waits) {
        return vec![None; workload.requests.len()];
    }
    let mut threads: Vec<Option<usize>> = Vec::with_capacity(workload.requests.len());
    for (index, request) in workload.requests.iter().enumerate() {
        let thread = match request.start {
            Start::At { .. } => Some(index),
            Start::After { request, .. } => threads.get(request as usize).copied().flatten(),
        };
        threads.push(thread);
    }
    threads
}

fn of(request: &Request, cached_tokens: u64, replicas: &[Profile]) -> Least {
    let prompt_tokens = u64::from(request.prompt_tokens().max(1));
    let new_tokens = prompt_tokens.saturating_sub(cached_tokens);
    let least = replicas.iter().map(|profile| {
        let base_us = u64::from(profile.step_base_us);
        let steps = new_tokens.div_ceil(u64::from(profile.token_budget.max(1)));
        let prefill_us = new_tokens * 1_000_000 / u64::from(profile.prefill_tokens_per_s.max(1));
        // Each step may round down by less than one.
        let ttft_us = (steps * base_us + prefill_us).saturating_sub(steps);
        let outputs = u64::from(request.output_tokens.max(1)) - 1;
        let context_tokens = outputs * prompt_tokens + outputs * (outputs + 1) / 2;
        let context_us = context_tokens * u64::from(profile.context_us_per_1k_tokens) / 1_000;
        let decode_us = outputs * (base_us + u64::from(profile.decode_us_per_seq)) + context_us;
        Least {
            ttft_us,
            e2e_us: (ttft_us + decode_us).saturating_sub(outputs),
        }
    });
    let none = Least {
        ttft_us: 0,
        e2e_us: 0,
    };
    let least_of = |one: Least, other: Least| Least {
        ttft_us: one.ttft_us.min(other.ttft_us),
        e2e_us: one.e2e_us.min(other.e2e_us),
    };
    least.reduce(least_of).unwrap_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmroute::sim::fleet::{self, FleetOptions, policy};
    use warmroute::sim::peers::PeerKind;
    use warmroute::sim::profiles;
    use warmroute::sim::workload::{Role, Segment, burst, chat, rag};

    #[test]
    fn no_run_is_ever_faster_for_any_request() {
        let rag = rag::Options {
            requests: 120,
            rate_per_s: 25.0,
            ..rag::Options::default()
        };
        let burst = burst::Options {
            requests: 120,
            ..burst::Options::default()
        };
        let chat = chat::Closed {
            requests: 200,
            threads: 25,
            ..chat::Closed::default()
        };
        let workloads = [
            rag::workload(&rag, 1),
            burst::workload(&burst, 1),
            chat::closed(&chat, 1),
        ];
        let h100 = profiles::h100x2();
        let replicas = vec![h100.clone(), h100.slowed(2_500), h100];
        for workload in &workloads {
            let bounds = bounds(workload, &replicas);
            for (name, peer) in [
                ("round_robin", None),
                ("expected_latency", None),
                ("oracle", Some(PeerKind::Oracle)),
            ] {
                let options = FleetOptions {
                    peer,
                    ..FleetOptions::new(replicas.clone(), policy(name))
                };
                let outcome = fleet::run(&options, workload).unwrap();
                assert_eq!(outcome.faults, Vec::<String>::new());
                let mut met = 0;
                for (served, least) in outcome.run.served.iter().zip(&bounds) {
                    let ttft_us = served.first_us.unwrap() - served.due_us;
                    let e2e_us = served.end_us.unwrap() - served.due_us;
                    assert!(ttft_us >= least.ttft_us && e2e_us >= least.e2e_us);
                    met += u32::from(ttft_us <= least.ttft_us + 20_000);
                }
                // Some request does as well, within the rest of a step.
                assert!(met > 0, "{name} on {}", workload.name);
            }
        }
    }

    #[test]
    fn only_what_is_new_is_computed_in_as_few_steps_as_the_budget_allows() {
        let request = |id, at_us| Request {
            start: Start::At { us: at_us },
            session: id,
            adapter: None,
            prompt: [(1, 16_000), (id, 160)]
                .map(|(id, tokens)| Segment {
                    id,
                    tokens,
                    role: Role::User,
                })
                .to_vec(),
            output_tokens: 2,
        };
        let workload = Workload {
            requests: vec![request(2, 0), request(3, 1)],
            ..Workload::default()
        };
        let fast = profiles::h100x2();
        let bounds = bounds(&workload, &[fast.slowed(2_000), fast]);
        // Two steps of 8,192 and 7,968 tokens, and one of 160.
        assert_eq!(bounds[0].ttft_us, 2 * 14_000 + 1_077_333 - 2);
        assert_eq!(bounds[1].ttft_us, 14_000 + 10_666 - 1);
        // One step more, with 16,161 tokens of context.
        assert_eq!(bounds[1].e2e_us, bounds[1].ttft_us + 14_066 + 905 - 1);
    }
}
