//! Consistent hashing of prefixes: KubeAI's with bounded loads, and one without any bound.
//!
//! Source: "LLM Load Balancing at Scale: Consistent Hashing with Bounded Loads" (kubeai.org/blog,
//! February 2025) and the strategy PrefixHash of KubeAI's documentation: the key is the adapter and
//! the first 100 characters of the first user message, on a ring with 256 points an endpoint; the
//! first endpoint clockwise gets the request whose requests, this one included, are at most 1.25
//! times the mean; if all are idle or none is within, the first of all. Without a bound, the key is
//! all up to the end of the first user message, which in a trace of blocks is the second block.

use super::ledger::Ledger;
use super::{Ask, PeerRouter};
use crate::endpoint::{Endpoint, Pool};
use crate::policy::Ring;
use crate::sim::workload::{Request, Role, mix};

const POINTS: u32 = 256;
/// 1.25, as a fraction.
const LOAD_FACTOR: (u64, u64) = (5, 4);
/// 100 characters, at four to a token.
const KEY_TOKENS: u32 = 25;

pub(super) struct Hashing {
    key: fn(&Request) -> u64,
    is_bounded: bool,
    ring: Ring,
    ledger: Ledger,
}

impl Hashing {
    pub(super) fn kubeai(names: &[String]) -> Self {
        Self {
            key: first_characters,
            is_bounded: true,
            ..Self::prefix_ring(names)
        }
    }

    pub(super) fn prefix_ring(names: &[String]) -> Self {
        let addresses = names.iter().filter_map(|name| name.parse().ok());
        let pool = Pool::new(addresses.map(Endpoint::new).collect());
        Self {
            key: first_message,
            is_bounded: false,
            ring: Ring::new(&pool, POINTS),
            ledger: Ledger::new(names.len()),
        }
    }

    fn is_within(&self, endpoint: usize) -> bool {
        let requests = |endpoint: usize| u64::from(self.ledger.of(endpoint).requests);
        let endpoints = self.ledger.loads().len();
        let total: u64 = (0..endpoints).map(requests).sum();
        let (factor, of) = LOAD_FACTOR;
        total == 0 || (requests(endpoint) + 1) * endpoints as u64 * of <= (total + 1) * factor
    }
}

fn adapter(request: &Request) -> u64 {
    request.adapter.map_or(0, |adapter| u64::from(adapter) + 1)
}

/// The first user message has no more than [`KEY_TOKENS`] tokens in the key.
fn first_characters(request: &Request) -> u64 {
    let mut left = KEY_TOKENS;
    let mut key = adapter(request);
    let message = request
        .prompt
        .iter()
        .skip_while(|segment| segment.role != Role::User)
        .take_while(|segment| segment.role == Role::User);
    for segment in message {
        let tokens = segment.tokens.min(left);
        key = mix(mix(key, segment.id), u64::from(tokens));
        left -= tokens;
        if left == 0 {
            break;
        }
    }
    key
}

/// Up to the end of the first segment of the user, as this crate's own routing key.
fn first_message(request: &Request) -> u64 {
    let mut key = adapter(request);
    for segment in &request.prompt {
        key = mix(mix(key, segment.id), u64::from(segment.tokens));
        if segment.role == Role::User {
            break;
        }
    }
    key
}

impl PeerRouter for Hashing {
    fn pick(&mut self, ask: &Ask<'_>) -> usize {
        let mut walk = self.ring.walk((self.key)(ask.request));
        let home = walk.next().unwrap_or(0) as usize;
        let endpoint = if !self.is_bounded || self.is_within(home) {
            home
        } else {
            let others = walk.map(|endpoint| endpoint as usize);
            let mut within = others.filter(|endpoint| self.is_within(*endpoint));
            within.next().unwrap_or(home)
        };
        self.ledger.begin(ask.id, endpoint, 0);
        endpoint
    }

    fn finished(&mut self, id: u32) {
        self.ledger.finish(id);
    }

    fn in_flight(&self) -> usize {
        self.ledger.in_flight()
    }
}
