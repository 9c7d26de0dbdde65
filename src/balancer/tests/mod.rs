//! The balancer as sessions and the worker use it, with a store of its own.

mod candidates;
mod engines;
mod models;
mod picking;
mod pools;
mod serving;

use super::*;
use crate::scrape::Life;
use crate::state::memory::MemoryStore;
use crate::state::snapshots;

/// A request for the first pool, where it does not matter which.
pub(crate) const ASK: Ask<'static> = Ask {
    pool: 0,
    model: None,
    key: None,
    blocks: &[],
    cost: Load {
        requests: 1,
        waiting: 1,
        prefill_tokens: 100,
        decode_tokens: 50,
        context_tokens: 150,
    },
    share_permille: 1_000,
};

fn balancer(config: &str, vm: u64) -> Balancer {
    Balancer::new(Rc::new(Config::parse(config.as_bytes()).unwrap()), vm)
}

const TWO: &str = r#"[{"address": "10.0.0.1:80"}, {"address": "10.0.0.2:80"}]"#;

const LATENCY: &str = r#""policy": {"name": "expected_latency"}"#;

/// A prompt of 8,000 tokens that nobody has seen, and 100 of output.
fn long() -> Ask<'static> {
    Ask {
        cost: Load {
            requests: 1,
            waiting: 1,
            prefill_tokens: 8_000,
            decode_tokens: 100,
            context_tokens: 8_100,
        },
        ..ASK
    }
}

fn report(endpoint: &str, at_ms: u64, waiting: u32, ours: u32) -> Report {
    Report {
        endpoint: Endpoint::new(endpoint.parse().unwrap()).id(),
        at_ms,
        running: 0,
        waiting,
        kv_usage_permille: 0,
        ours,
        ours_held_tokens: 0,
        kv_tokens: 0,
        life: Life::default(),
    }
}

/// An engine's list of these models; those whose names begin otherwise than with `base` are adapters.
fn list(names: &[&str]) -> String {
    let card = |name: &&str| match name.strip_prefix("base") {
        Some(_) => format!(r#"{{"id":"{name}"}}"#),
        None => format!(r#"{{"id":"{name}","parent":"base"}}"#),
    };
    let cards: Vec<String> = names.iter().map(card).collect();
    format!(r#"{{"data":[{}]}}"#, cards.join(","))
}

/// One VM, whose endpoints say what they serve.
struct Gateway {
    store: MemoryStore,
    balancer: Balancer,
}

impl Gateway {
    fn new(members: &str) -> Self {
        let json = format!(r#"{{"policy": {{"name": "round_robin"}}, {members}}}"#);
        Self {
            store: MemoryStore::new(),
            balancer: balancer(&json, 1),
        }
    }

    /// Three endpoints that are asked what they serve.
    fn asking(more: &str) -> Self {
        let endpoints = [1, 2, 3].map(|number| format!(r#"{{"address": "10.0.0.{number}:80"}}"#));
        Self::new(&format!(
            r#""endpoints": [{}], "scrape": {{"cluster": "c"}}, "models": {{}} {more}"#,
            endpoints.join(",")
        ))
    }

    fn answered(&mut self, number: u8, status: u16, answer: &str) {
        let id = id(number);
        let body = answer.as_bytes();
        self.balancer
            .models_answered(&self.store, 1_000, id, status, body);
        self.balancer.tick(&self.store, 1_000);
    }

    fn pick(&mut self, model: Option<&str>) -> Result<Decision, Refusal> {
        let ask = Ask {
            pool: self.balancer.pool_for(model),
            model,
            ..ASK
        };
        let picked = self.balancer.pick(&self.store, 1_000, 7, ask);
        picked.map(|(decision, _)| decision)
    }

    /// Where this many requests for `model` go, as last numbers of addresses, each once.
    fn used(&mut self, model: &str, requests: usize) -> Vec<u16> {
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..requests {
            let decision = self.pick(Some(model)).unwrap();
            let endpoint = self.balancer.endpoint(decision.pool, decision.endpoints[0]);
            let name = endpoint.unwrap().name().to_owned();
            let last = name.split(['.', ':']).nth(3).unwrap();
            used.insert(last.parse().unwrap());
        }
        used.into_iter().collect()
    }
}

fn id(number: u8) -> EndpointId {
    Endpoint::new(format!("10.0.0.{number}:80").parse().unwrap()).id()
}
