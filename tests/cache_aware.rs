//! `cache_aware` against the published rule of each router, written out with the router's own constants.
// The helpers of tests may fail as loudly as the tests themselves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use warmroute::endpoint::{Endpoint, Pool};
use warmroute::policy::{
    self, Candidate, Load, PolicySpec, Preset, RANKED, Reason, Thresholds, View,
};
use warmroute::random::Random;

const STATES: u64 = 10_000;

/// What a router knows of one worker.
#[derive(Clone, Copy)]
struct Worker {
    requests: u64,
    tokens: u64,
    matched_blocks: u64,
    tree_blocks: u64,
}

/// All workers at one instant, a prompt, and the chances of this pick.
struct State {
    workers: Vec<Worker>,
    prompt_blocks: u64,
    random: u64,
}

impl State {
    fn draw(random: &mut Random) -> Self {
        let prompt_blocks = random.below(40);
        let busy = [4, 90, 200][random.below(3) as usize];
        let base = random.below(100);
        let held = random.below(prompt_blocks + 1);
        let count = 1 + random.below(8);
        let worker = |_| Worker {
            requests: base + random.below(busy),
            tokens: random.below(3) * 1_000,
            // Often nothing, and often as much as another.
            matched_blocks: held.min(random.below(3) * random.below(20)),
            tree_blocks: random.below(5) * 100,
        };
        Self {
            workers: (0..count).map(worker).collect(),
            prompt_blocks,
            random: random.bits(),
        }
    }

    /// Of those `among`, the one with the fewest requests, then tokens; equals are drawn from.
    fn shortest_queue(&self, among: &[usize], of: fn(&Worker) -> u64) -> usize {
        let rank = |index: &usize| (self.workers[*index].requests, self.workers[*index].tokens);
        let shortest = among.iter().map(rank).min().unwrap();
        let drawn = self.drawn(&mut Random::new(self.random), &self.all(), of);
        assert!(among.contains(&drawn) && rank(&drawn) == shortest);
        drawn
    }

    /// How equals are drawn: all are gone through in their order, and each that is as good as the best
    /// so far takes its place with the chance that makes all of them alike.
    fn drawn(&self, chance: &mut Random, order: &[usize], of: fn(&Worker) -> u64) -> usize {
        let rank = |index: usize| {
            let worker = &self.workers[index];
            (of(worker), worker.requests, worker.tokens)
        };
        let (mut best, mut ties) = (order[0], 1);
        for &other in &order[1..] {
            if rank(other) < rank(best) {
                (best, ties) = (other, 1);
            } else if rank(other) == rank(best) {
                ties += 1;
                if chance.below(ties) == 0 {
                    best = other;
                }
            }
        }
        best
    }

    fn all(&self) -> Vec<usize> {
        (0..self.workers.len()).collect()
    }

    fn most(&self, of: fn(&Worker) -> u64) -> u64 {
        self.workers.iter().map(of).max().unwrap()
    }

    fn fewest(&self, of: fn(&Worker) -> u64) -> u64 {
        self.workers.iter().map(of).min().unwrap()
    }

    /// The workers that were sent the longest beginning of the prompt.
    fn best_matches(&self) -> Vec<usize> {
        let longest = self.most(|worker| worker.matched_blocks);
        let mut best = self.all();
        best.retain(|&index| self.workers[index].matched_blocks == longest);
        best
    }

    fn smallest_trees(&self) -> Vec<usize> {
        let smallest = self.fewest(|worker| worker.tree_blocks);
        let mut trees = self.all();
        trees.retain(|&index| self.workers[index].tree_blocks == smallest);
        trees
    }

    fn match_rate(&self) -> f64 {
        if self.prompt_blocks == 0 {
            return 0.0;
        }
        self.most(|worker| worker.matched_blocks) as f64 / self.prompt_blocks as f64
    }

    fn pick_of(&self, thresholds: Thresholds) -> (usize, Reason) {
        let endpoints = self.workers.iter().enumerate().map(|(index, _)| {
            let address = std::net::SocketAddr::from(([10, 0, 0, index as u8 + 1], 80));
            Endpoint::new(address)
        });
        let pool = Pool::new(endpoints.collect());
        let candidates: Vec<Candidate> = self
            .workers
            .iter()
            .zip(0..)
            .map(|(worker, endpoint)| Candidate {
                endpoint,
                weight: 1,
                load: Load {
                    requests: worker.requests as u32,
                    prefill_tokens: worker.tokens,
                    ..Load::default()
                },
                matched_blocks: worker.matched_blocks as u32,
                given_blocks: worker.tree_blocks as u32,
                ..Candidate::default()
            })
            .collect();
        let view = View {
            pool: &pool,
            candidates: &candidates,
            key: None,
            blocks: &vec![7; self.prompt_blocks as usize],
            cost: Load::default(),
            sequence: 0,
            random: self.random,
        };
        let built = policy::build(&PolicySpec::CacheAware(thresholds), &pool);
        let ranking = built.rank(&view).unwrap();
        assert_eq!(ranking.endpoints.len(), RANKED.min(candidates.len()));
        (ranking.endpoints[0] as usize, ranking.reason)
    }
}

fn unmatched(worker: &Worker) -> u64 {
    u64::MAX - worker.matched_blocks
}

/// vllm-router: `--cache-threshold 0.3 --balance-abs-threshold 64 --balance-rel-threshold 1.5`.
fn vllm_router(state: &State) -> (usize, Reason) {
    let max_load = state.most(|worker| worker.requests);
    let min_load = state.fewest(|worker| worker.requests);
    if max_load - min_load > 64 && max_load as f64 > min_load as f64 * 1.5 {
        let shortest = state.shortest_queue(&state.all(), |worker| worker.requests);
        return (shortest, Reason::Imbalanced);
    }
    if state.match_rate() > 0.3 {
        let matched = state.shortest_queue(&state.best_matches(), unmatched);
        return (matched, Reason::LongestMatch);
    }
    let least_loaded = state.shortest_queue(&state.all(), |worker| worker.requests);
    (least_loaded, Reason::NoMatch)
}

/// sglang-router, which has the same defaults, and another place for what nobody knows.
fn sglang_router(state: &State) -> (usize, Reason) {
    match vllm_router(state) {
        (_, Reason::NoMatch) => {
            let smallest = state.smallest_trees();
            let queue = state.shortest_queue(&smallest, |worker| worker.tree_blocks);
            (queue, Reason::NoMatch)
        }
        other => other,
    }
}

/// Ray Serve LLM: `imbalanced_threshold`, which is infinite by default, and `match_rate_threshold` 0.1.
fn ray(state: &State, imbalanced_threshold: f64) -> (usize, Reason) {
    let longest_queue = state.most(|worker| worker.requests);
    let shortest_queue = state.fewest(|worker| worker.requests);
    if (longest_queue - shortest_queue) as f64 > imbalanced_threshold {
        // Two choices: both are drawn, and the shorter queue wins.
        let mut chance = Random::new(state.random);
        let count = state.workers.len() as u64;
        let one = chance.below(count) as usize;
        let mut two = chance.below(count - 1) as usize;
        if two >= one {
            two += 1;
        }
        let shorter = state.drawn(&mut chance, &[one, two], |worker| worker.requests);
        return (shorter, Reason::Imbalanced);
    }
    if state.match_rate() >= 0.1 {
        let queue = state.shortest_queue(&state.best_matches(), unmatched);
        return (queue, Reason::LongestMatch);
    }
    let smallest = state.smallest_trees();
    let queue = state.shortest_queue(&smallest, |worker| worker.tree_blocks);
    (queue, Reason::NoMatch)
}

/// How often each branch was taken.
fn compare(
    thresholds: Thresholds,
    reference: impl Fn(&State) -> (usize, Reason),
) -> BTreeMap<&'static str, u32> {
    let mut random = Random::new(0xcafe);
    let mut branches = BTreeMap::new();
    for number in 0..STATES {
        let state = State::draw(&mut random);
        let expected = reference(&state);
        assert_eq!(state.pick_of(thresholds), expected, "state {number}");
        let name = warmroute::session::reason_name(expected.1);
        *branches.entry(name).or_insert(0) += 1;
    }
    branches
}

fn each_is_taken(branches: &BTreeMap<&str, u32>, names: &[&str]) {
    let taken: Vec<&str> = branches.keys().copied().collect();
    assert_eq!(taken, names);
    assert!(branches.values().all(|&count| count > 400), "{branches:?}");
}

const ALL_BRANCHES: [&str; 3] = ["imbalanced", "longest_match", "no_match"];

#[test]
fn every_pick_is_that_of_vllm_router() {
    let branches = compare(Preset::VllmRouter.thresholds(), vllm_router);
    each_is_taken(&branches, &ALL_BRANCHES);
}

#[test]
fn every_pick_is_that_of_sglang_router() {
    let branches = compare(Preset::SglangRouter.thresholds(), sglang_router);
    each_is_taken(&branches, &ALL_BRANCHES);
}

#[test]
fn every_pick_is_that_of_ray_as_it_ships() {
    let ray = |state: &State| ray(state, f64::INFINITY);
    let branches = compare(Preset::Ray.thresholds(), ray);
    each_is_taken(&branches, &ALL_BRANCHES[1..]);
}

#[test]
fn every_pick_is_that_of_ray_with_a_threshold() {
    let thresholds = Thresholds {
        imbalance_requests: 10,
        ..Preset::Ray.thresholds()
    };
    let branches = compare(thresholds, |state| ray(state, 10.0));
    each_is_taken(&branches, &ALL_BRANCHES);
}

#[test]
fn thresholds_are_passed_not_reached() {
    let worker = |requests, matched_blocks| Worker {
        requests,
        tokens: 0,
        matched_blocks,
        tree_blocks: 0,
    };
    let reason = |requests, matched_blocks, preset: Preset| {
        let state = State {
            workers: vec![worker(0, matched_blocks), worker(requests, 0)],
            prompt_blocks: 10,
            random: 1,
        };
        state.pick_of(preset.thresholds()).1
    };
    assert_eq!(reason(64, 4, Preset::VllmRouter), Reason::LongestMatch);
    assert_eq!(reason(65, 4, Preset::VllmRouter), Reason::Imbalanced);
    assert_eq!(reason(0, 3, Preset::VllmRouter), Reason::NoMatch);
    assert_eq!(reason(0, 1, Preset::Ray), Reason::LongestMatch);
    assert_eq!(reason(0, 0, Preset::Ray), Reason::NoMatch);
}

/// Weights are relative: only their proportions count, and twice the weight carries twice as much.
#[test]
fn load_counts_per_weight() {
    let rank = |loads: [u32; 2], weights: [u32; 2]| {
        let address = |index| std::net::SocketAddr::from(([10, 0, 0, index], 80));
        let pool = Pool::new((1..3).map(|index| Endpoint::new(address(index))).collect());
        let candidates = [0, 1].map(|endpoint: u32| Candidate {
            endpoint,
            weight: weights[endpoint as usize],
            load: Load {
                requests: loads[endpoint as usize],
                ..Load::default()
            },
            ..Candidate::default()
        });
        let view = View {
            pool: &pool,
            candidates: &candidates,
            key: None,
            blocks: &[],
            cost: Load::default(),
            sequence: 0,
            random: 3,
        };
        let spec = PolicySpec::CacheAware(Preset::VllmRouter.thresholds());
        let ranking = policy::build(&spec, &pool).rank(&view).unwrap();
        (ranking.endpoints[0], ranking.reason)
    };
    for scale in [1, 1_000] {
        let weights = [scale, 3 * scale];
        // 300 on three times the weight are 100 on one.
        assert_eq!(rank([100, 300], weights).1, Reason::NoMatch);
        // The mean weight is 2: 32 requests on the lighter one, or 96 on the other, are a load of 64.
        assert_eq!(rank([32, 0], weights), (1, Reason::NoMatch));
        assert_eq!(rank([33, 0], weights), (1, Reason::Imbalanced));
        assert_eq!(rank([0, 96], weights), (0, Reason::NoMatch));
        assert_eq!(rank([0, 97], weights), (0, Reason::Imbalanced));
    }
}
