//! Field cases of picking by cache and by time, through the balancer with all that it has learned.
// The helpers of tests may fail as loudly as the tests themselves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};
use warmroute::balancer::{Ask, Balancer};
use warmroute::config::Config;
use warmroute::index::BLOCK_BYTES;
use warmroute::policy::Load;
use warmroute::random::Random;
use warmroute::state::ledger::Reservation;
use warmroute::state::memory::MemoryStore;

const NOW_MS: u64 = 1_000;
/// At four bytes a token.
const BLOCK_TOKENS: u64 = BLOCK_BYTES as u64 / 4;

fn expected_latency() -> Value {
    json!({"name": "expected_latency"})
}

fn cache_aware() -> Value {
    json!({"name": "cache_aware"})
}

fn config(policy: &Value, endpoints: usize) -> Rc<Config> {
    let endpoints = (0..endpoints)
        .map(|host| json!({"address": format!("10.0.{}.{}:80", host / 250, host % 250 + 1)}));
    let config = json!({"policy": policy, "endpoints": endpoints.collect::<Vec<Value>>()});
    Rc::new(Config::parse(config.to_string().as_bytes()).unwrap())
}

/// Some leading blocks of a text that others have too, then blocks of its own.
#[derive(Clone, Copy)]
struct Prompt {
    shared: u64,
    shared_blocks: u64,
    own: u64,
    own_blocks: u64,
}

impl Prompt {
    fn blocks(self) -> Vec<u64> {
        let block = |text: u64, index: u64| xxhash_rust::xxh64::xxh64(&index.to_le_bytes(), text);
        let own = self.shared_blocks..self.shared_blocks + self.own_blocks;
        let shared = (0..self.shared_blocks).map(|index| block(self.shared, index));
        shared
            .chain(own.map(|index| block(!self.own, index)))
            .collect()
    }

    fn cost(self) -> Load {
        // The end of a prompt fills no block.
        let prompt_tokens = (self.shared_blocks + self.own_blocks) * BLOCK_TOKENS + 20;
        Load {
            requests: 1,
            waiting: 1,
            prefill_tokens: prompt_tokens,
            decode_tokens: 100,
            context_tokens: prompt_tokens + 100,
        }
    }
}

/// An Envoy: workers that share a store, and take turns.
struct Envoy {
    store: MemoryStore,
    workers: Vec<Balancer>,
    random: Random,
    picks: usize,
}

impl Envoy {
    fn new(config: &Rc<Config>, workers: u64) -> Self {
        Self {
            store: MemoryStore::new(),
            workers: (1..=workers)
                .map(|vm| Balancer::new(Rc::clone(config), vm))
                .collect(),
            random: Random::new(9),
            picks: 0,
        }
    }

    /// Picks and sends: the place in the pool, and what is held there.
    fn send(&mut self, prompt: Prompt) -> (u32, Held) {
        let worker = self.picks % self.workers.len();
        self.picks += 1;
        let blocks = prompt.blocks();
        let ask = Ask {
            pool: 0,
            model: None,
            key: blocks.last().copied(),
            blocks: &blocks,
            cost: prompt.cost(),
            share_permille: 1_000,
        };
        let balancer = &mut self.workers[worker];
        let picked = balancer.pick(&self.store, NOW_MS, self.random.bits(), ask);
        let (decision, reservation) = picked.unwrap();
        balancer.sent(&self.store, reservation.endpoint(), &blocks);
        (
            decision.endpoints[0],
            Held {
                worker,
                reservation,
            },
        )
    }

    fn complete(&mut self, held: Held) {
        self.workers[held.worker].complete(&self.store, NOW_MS, held.reservation);
    }

    /// Sends all at once; how many each endpoint got.
    fn at_once(&mut self, prompts: impl Iterator<Item = Prompt>) -> BTreeMap<u32, u32> {
        let sent: Vec<(u32, Held)> = prompts.map(|prompt| self.send(prompt)).collect();
        let mut counts = BTreeMap::new();
        for (endpoint, held) in sent {
            *counts.entry(endpoint).or_default() += 1;
            self.complete(held);
        }
        let totals = self.workers[0].totals(&self.store);
        assert!(totals.values().all(Load::is_zero), "{totals:?}");
        counts
    }

    /// Sends each when the one before is over.
    fn one_by_one(&mut self, prompts: impl Iterator<Item = Prompt>) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for prompt in prompts {
            let (endpoint, held) = self.send(prompt);
            *counts.entry(endpoint).or_default() += 1;
            self.complete(held);
        }
        counts
    }
}

/// What a worker has reserved, which only it may give back.
struct Held {
    worker: usize,
    reservation: Reservation,
}

/// A prompt that shares nothing.
fn alone(number: u64, blocks: u64) -> Prompt {
    about(0, number, blocks)
}

/// A prompt with so many blocks that others have too.
fn about(shared_blocks: u64, own: u64, own_blocks: u64) -> Prompt {
    Prompt {
        shared: 7,
        shared_blocks,
        own,
        own_blocks,
    }
}

/// Lengths in blocks: none at all, so that nothing is cached; a short chat; and a long one.
const LENGTHS: [u64; 4] = [0, 1, 8, 120];

/// So many prompts of one length at once, none like another, are shared equally.
fn equal_shares(requests: u32) {
    for policy in [expected_latency(), cache_aware()] {
        // Below.
        let is_less = |blocks: &u64| *blocks == 0 && policy == expected_latency();
        let lengths = LENGTHS.into_iter().filter(|blocks| !is_less(blocks));
        for (blocks, workers) in lengths.flat_map(|one| [(one, 1), (one, 4)]) {
            let mut envoy = Envoy::new(&config(&policy, 8), workers);
            let counts = envoy.at_once((0..requests.into()).map(|own| alone(own, blocks)));
            let place = format!("{policy}, {blocks} blocks, {workers} workers: {counts:?}");
            assert_eq!(counts.len(), 8, "{place}");
            assert!(
                counts.values().all(|count| *count == requests / 8),
                "{place}"
            );
        }
    }
}

#[test]
fn a2_as_many_requests_as_idle_endpoints_take_one_each() {
    equal_shares(8);
}

#[test]
fn a6_a_burst_between_scrapes_does_not_herd() {
    equal_shares(200);
}

/// Of what fills no cache and hardly costs anything, `expected_latency` promises less: no endpoint that has
/// more than twice the mean gets another. To spread it by who waits costs chats 6 to 12 % of the mean time
/// to first token, since many begin with a prompt shorter than a block.
#[test]
fn a2_a6_short_prompts_stay_near_twice_the_mean() {
    for (requests, workers) in [(8, 1), (8, 4), (200, 1), (200, 4)] {
        let mut envoy = Envoy::new(&config(&expected_latency(), 8), workers);
        envoy.one_by_one((0..50).map(|own| alone(own, 1 + own % 90)));
        let counts = envoy.at_once((0..requests.into()).map(|own| alone(own, 0)));
        let busiest = counts.values().max().copied().unwrap();
        assert!(busiest <= 2 * requests / 8 + 3, "{requests}: {counts:?}");
    }
}

/// An endpoint that leaves the pool with requests under way, and comes back.
#[test]
fn a4_who_leaves_and_comes_back_ends_at_zero() {
    for policy in [expected_latency(), cache_aware()] {
        let store = MemoryStore::new();
        let (whole, rest) = (config(&policy, 2), config(&policy, 1));
        let mut before = Balancer::new(Rc::clone(&whole), 1);
        let mut turn = 0;
        let mut pick = |balancer: &mut Balancer| {
            turn += 1;
            let blocks = alone(turn, 8).blocks();
            let ask = Ask {
                pool: 0,
                model: None,
                key: Some(turn),
                blocks: &blocks,
                cost: alone(turn, 8).cost(),
                share_permille: 1_000,
            };
            balancer.pick(&store, NOW_MS, turn, ask).unwrap()
        };
        let held: Vec<_> = (0..6).map(|_| pick(&mut before).1).collect();
        assert_ne!(held[0].endpoint(), held[1].endpoint(), "both have some");
        // The one that stays is alone for a while.
        let mut without = Balancer::new(rest, 2);
        let (decision, kept) = pick(&mut without);
        assert_eq!(decision.candidates.len(), 1);
        let mut held = held.into_iter();
        for reservation in held.by_ref().take(2) {
            before.complete(&store, NOW_MS, reservation);
        }
        let mut after = Balancer::new(whole, 3);
        let (decision, again) = pick(&mut after);
        let carried: u32 = decision
            .candidates
            .iter()
            .map(|one| one.load.requests)
            .sum();
        assert_eq!(carried, 5, "{:?}", decision.candidates);
        without.complete(&store, NOW_MS, kept);
        after.complete(&store, NOW_MS, again);
        for reservation in held {
            before.complete(&store, NOW_MS, reservation);
        }
        let totals = after.totals(&store);
        assert!(totals.values().all(Load::is_zero), "{policy}: {totals:?}");
        assert_eq!(totals.len(), 2);
    }
}

/// `cache_aware` is the rule of other routers, which has no such bound.
#[test]
fn h1_many_endpoints_few_requests_one_hot_prefix() {
    for shared_blocks in [1, 8, 60] {
        let mut envoy = Envoy::new(&config(&expected_latency(), 300), 4);
        let counts = envoy.at_once((0..150).map(|own| match own % 4 {
            0 => about(shared_blocks, own, 2),
            _ => alone(own, shared_blocks + 2),
        }));
        let busiest = counts.values().max().copied().unwrap();
        assert!(busiest <= 3, "{shared_blocks} shared blocks: {busiest}");
    }
}

#[test]
fn h10_idle_endpoints_share_what_has_no_prefix() {
    for policy in [expected_latency(), cache_aware()] {
        for blocks in LENGTHS {
            let mut envoy = Envoy::new(&config(&policy, 2), 4);
            let counts = envoy.one_by_one((0..450).map(|own| alone(own, blocks)));
            let first = counts.get(&0).copied().unwrap_or(0);
            assert!((180..=270).contains(&first), "{policy}, {blocks}: {first}");
        }
    }
}

/// `cache_aware` leaves the match only when loads are as far apart as it is told.
#[test]
fn h11_a_shared_prefix_does_not_fill_one_endpoint() {
    let close = json!({"name": "cache_aware", "imbalance_requests": 8});
    for policy in [expected_latency(), close] {
        for (shared_blocks, own_blocks) in [(1, 0), (8, 0), (60, 0), (8, 2), (60, 2)] {
            let mut envoy = Envoy::new(&config(&policy, 2), 4);
            let prompts = (0..60).map(|own| about(shared_blocks, own, own_blocks));
            let counts = envoy.at_once(prompts);
            let busiest = counts.values().max().copied().unwrap();
            let place = format!("{policy}, {shared_blocks} and {own_blocks}: {counts:?}");
            assert!(busiest <= 38, "{place}");
        }
    }
}

/// Who all have it in common: each question goes by load once there is any.
#[test]
fn h12_a_shared_system_prompt_does_not_pile_everything_up() {
    for policy in [expected_latency(), cache_aware()] {
        for (shared_blocks, own_blocks) in [(10, 0), (10, 2), (60, 2), (60, 10)] {
            let mut envoy = Envoy::new(&config(&policy, 4), 4);
            let prompts = (0..200).map(|own| about(shared_blocks, own, own_blocks));
            let counts = envoy.at_once(prompts);
            let place = format!("{policy}, {shared_blocks} and {own_blocks}: {counts:?}");
            assert_eq!(counts.len(), 4, "{place}");
            assert!(
                counts.values().all(|count| (40..=90).contains(count)),
                "{place}"
            );
        }
    }
}
