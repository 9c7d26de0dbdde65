//! The routing policies against naive twins, and the field cases that the policies alone decide.
// The helpers of tests may fail as loudly as the tests themselves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use proptest::prelude::*;
use warmroute::endpoint::{Endpoint, Pool};
use warmroute::policy::{
    self, Candidate, Load, LoadKind, MAX_CYCLE, Measure, Policy, PolicySpec, Preset, RANKED,
    Ranking, Reason, Ring, View, bound, point, smooth_schedule,
};
use warmroute::rates::Pace;

/// A pool, what each endpoint carries, and the policy under test: the smallest balancer there is.
struct Table {
    pool: Pool,
    policy: Box<dyn Policy>,
    candidates: Vec<Candidate>,
    sequence: u64,
    random: u64,
}

impl Table {
    fn new(spec: PolicySpec, weights: &[u32]) -> Self {
        let pool = pool(weights);
        let candidates = pool
            .endpoints()
            .iter()
            .zip(0..)
            .map(|(endpoint, index)| Candidate {
                endpoint: index,
                weight: endpoint.weight,
                ..Candidate::default()
            });
        Self {
            candidates: candidates.collect(),
            policy: policy::build(&spec, &pool),
            pool,
            sequence: 0,
            random: 0x5eed,
        }
    }

    fn rank(&mut self, key: Option<u64>, cost: Load) -> Ranking {
        self.random = mix(self.random);
        let view = View {
            pool: &self.pool,
            candidates: &self.candidates,
            blocks: &[],
            key,
            cost,
            sequence: self.sequence,
            random: self.random,
        };
        self.sequence += 1;
        self.policy.rank(&view).unwrap()
    }

    /// Ranks and puts the cost on the first.
    fn pick(&mut self, key: Option<u64>, cost: Load) -> u32 {
        let first = self.rank(key, cost).endpoints[0];
        let load = &mut self.at(first).load;
        load.requests += cost.requests;
        load.prefill_tokens += cost.prefill_tokens;
        load.decode_tokens += cost.decode_tokens;
        first
    }

    fn complete(&mut self, endpoint: u32, cost: Load) {
        let load = &mut self.at(endpoint).load;
        load.requests -= cost.requests;
        load.prefill_tokens -= cost.prefill_tokens;
        load.decode_tokens -= cost.decode_tokens;
    }

    fn at(&mut self, endpoint: u32) -> &mut Candidate {
        self.candidates
            .iter_mut()
            .find(|candidate| candidate.endpoint == endpoint)
            .unwrap()
    }

    fn busiest(&self) -> u32 {
        self.candidates
            .iter()
            .map(|candidate| candidate.load.requests)
            .max()
            .unwrap()
    }
}

fn mix(seed: u64) -> u64 {
    xxhash_rust::xxh64::xxh64(&seed.to_le_bytes(), 1)
}

fn key(number: u64) -> u64 {
    mix(number ^ 0xabcd_0000_0000)
}

fn address(index: usize) -> String {
    format!(
        "10.{}.{}.{}:8000",
        index / 65536,
        index / 256 % 256,
        index % 256
    )
}

fn pool(weights: &[u32]) -> Pool {
    let endpoints = weights.iter().enumerate().map(|(index, &weight)| {
        let mut endpoint = Endpoint::new(address(index).parse().unwrap());
        endpoint.weight = weight;
        endpoint
    });
    Pool::new(endpoints.collect())
}

const ONE: Load = Load {
    requests: 1,
    prefill_tokens: 100,
    decode_tokens: 50,
    waiting: 1,
    context_tokens: 150,
};

const BY_REQUESTS: PolicySpec = PolicySpec::PrefixHash {
    load_factor_permille: 1250,
    bound: Measure::Requests,
    points: 128,
};
const BY_TOKENS: PolicySpec = PolicySpec::PrefixHash {
    load_factor_permille: 1250,
    bound: Measure::Tokens,
    points: 128,
};

const BY_TIME: PolicySpec = PolicySpec::PrefixHash {
    load_factor_permille: 1250,
    bound: Measure::ExpectedTime,
    points: 128,
};

const ALL: [PolicySpec; 17] = [
    PolicySpec::RoundRobin,
    PolicySpec::Random,
    PolicySpec::WeightedRoundRobin,
    PolicySpec::LeastRequest,
    PolicySpec::LeastOutstandingTokens,
    PolicySpec::PowerOfTwo {
        load: LoadKind::Requests,
    },
    PolicySpec::PowerOfTwo {
        load: LoadKind::Tokens,
    },
    PolicySpec::PowerOfTwo { load: LoadKind::Kv },
    PolicySpec::PowerOfTwo {
        load: LoadKind::ExpectedTime,
    },
    PolicySpec::ConsistentHash { points: 32 },
    BY_REQUESTS,
    BY_TOKENS,
    BY_TIME,
    PolicySpec::ExpectedLatency,
    PolicySpec::CacheAware(Preset::VllmRouter.thresholds()),
    PolicySpec::CacheAware(Preset::SglangRouter.thresholds()),
    PolicySpec::CacheAware(Preset::Ray.thresholds()),
];

/// A load in requests, or in tokens.
fn measured(measure: Measure, load: &Load) -> u64 {
    if measure == Measure::Requests {
        load.requests.into()
    } else {
        load.tokens()
    }
}

// Field cases.

/// So many equal requests at once on eight idle endpoints are shared equally.
fn equal_shares(requests: u32) {
    for spec in [PolicySpec::LeastRequest, PolicySpec::LeastOutstandingTokens] {
        let mut table = Table::new(spec, &[1; 8]);
        for _ in 0..requests {
            table.pick(None, ONE);
        }
        assert_eq!(table.busiest(), requests / 8, "{spec:?}");
    }
}

#[test]
fn a6_a_burst_between_scrapes_does_not_herd() {
    equal_shares(200);
}

#[test]
fn a2_as_many_requests_as_idle_endpoints_take_one_each() {
    equal_shares(8);
}

#[test]
fn h1_many_endpoints_few_requests_one_hot_prefix() {
    for (spec, measure) in [
        (BY_REQUESTS, Measure::Requests),
        (BY_TOKENS, Measure::Tokens),
    ] {
        let mut table = Table::new(spec, &[1; 300]);
        for number in 0..150u64 {
            let key = if number % 4 == 0 { key(0) } else { key(number) };
            let ranking = table.rank(Some(key), ONE);
            assert!(ranking.bound >= 1);
            let load = &mut table.at(ranking.endpoints[0]).load;
            assert!(
                measured(measure, load) < ranking.bound,
                "nobody was within its bound"
            );
            load.requests += ONE.requests;
            load.prefill_tokens += ONE.prefill_tokens;
            load.decode_tokens += ONE.decode_tokens;
        }
        assert!(table.busiest() <= 3, "{spec:?} {}", table.busiest());
    }
}

#[test]
fn h3_a_point_is_the_hash_of_name_and_fixed_width_number() {
    assert_ne!(point("pod1", 11), point("pod11", 1));
    assert_eq!(
        point("pod1", 11),
        xxhash_rust::xxh64::xxh64(b"pod1\x0b\0\0\0", 0)
    );
}

#[test]
fn h7_requests_without_a_key_spread_by_load() {
    for spec in [
        PolicySpec::ConsistentHash { points: 128 },
        BY_REQUESTS,
        BY_TOKENS,
    ] {
        let mut table = Table::new(spec, &[1; 8]);
        for _ in 0..200 {
            assert_eq!(table.rank(None, ONE).reason, Reason::NoKey);
            table.pick(None, ONE);
        }
        assert_eq!(table.busiest(), 25, "{spec:?}");
    }
}

#[test]
fn h7_requests_without_a_key_spread_when_all_is_idle() {
    let mut table = Table::new(PolicySpec::ConsistentHash { points: 128 }, &[1; 4]);
    let mut counts = [0; 4];
    for _ in 0..200 {
        counts[table.rank(None, ONE).endpoints[0] as usize] += 1;
    }
    assert!(counts.iter().all(|&count| count >= 25), "{counts:?}");
}

#[test]
fn h7_distinct_keys_spread_and_one_key_stays() {
    let mut table = Table::new(PolicySpec::ConsistentHash { points: 128 }, &[1; 8]);
    let fixed = table.rank(Some(key(5)), ONE).endpoints[0];
    for number in 0..200 {
        table.pick(Some(key(number)), ONE);
        let again = table.rank(Some(key(5)), ONE);
        assert_eq!((again.endpoints[0], again.reason), (fixed, Reason::Home));
    }
    assert!(
        table
            .candidates
            .iter()
            .all(|candidate| candidate.load.requests >= 5),
        "{:?}",
        table.candidates
    );
    assert!(table.busiest() <= 50);
}

#[test]
fn h10_equal_loads_are_not_always_the_first_ones() {
    for spec in [
        PolicySpec::LeastRequest,
        PolicySpec::LeastOutstandingTokens,
        PolicySpec::PowerOfTwo {
            load: LoadKind::Requests,
        },
        PolicySpec::PowerOfTwo {
            load: LoadKind::Tokens,
        },
        PolicySpec::PowerOfTwo { load: LoadKind::Kv },
        BY_TOKENS,
    ] {
        let mut table = Table::new(spec, &[1; 2]);
        let mut first = 0;
        for _ in 0..450 {
            let picked = table.pick(None, ONE);
            first += u32::from(picked == 0);
            table.complete(picked, ONE);
        }
        assert!((180..=270).contains(&first), "{spec:?} {first}");
    }
}

#[test]
fn h11_a_shared_prefix_does_not_fill_one_endpoint() {
    for spec in [BY_REQUESTS, BY_TOKENS] {
        let mut table = Table::new(spec, &[1; 2]);
        for _ in 0..60 {
            table.pick(Some(key(1)), ONE);
        }
        // ceil(1.25 × 60 / 2) for the last one; whole requests in the unit of tokens.
        assert!(table.busiest() <= 38, "{spec:?} {}", table.busiest());
    }
}

#[test]
fn h14_a_new_endpoint_takes_about_its_share_and_nothing_else_moves() {
    for ring in [Ring::new, Ring::weighted] {
        let (ten, eleven) = (ring(&pool(&[1; 10]), 128), ring(&pool(&[1; 11]), 128));
        let mut moved = 0;
        for number in 0..10_000 {
            let (before, after) = (
                ten.walk(key(number)).next(),
                eleven.walk(key(number)).next(),
            );
            if before != after {
                assert_eq!(after, Some(10));
                moved += 1;
            }
        }
        assert!((700..1150).contains(&moved), "{moved}");
    }
}

// Every policy.

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1u32..20, 1..12)
}

fn load() -> impl Strategy<Value = Load> {
    (0u32..5, 0u64..4, 0u64..4).prop_map(|(requests, prefill, decode)| Load {
        requests,
        prefill_tokens: prefill * 1000,
        decode_tokens: decode * 100,
        ..Load::default()
    })
}

fn extreme_load() -> impl Strategy<Value = Load> {
    let tokens = || prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()];
    (
        prop_oneof![Just(0u32), Just(u32::MAX), any::<u32>()],
        tokens(),
        tokens(),
    )
        .prop_map(|(requests, prefill_tokens, decode_tokens)| Load {
            requests,
            prefill_tokens,
            decode_tokens,
            waiting: requests,
            context_tokens: prefill_tokens,
        })
}

fn any_pace() -> impl Strategy<Value = Pace> {
    let figure = || prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    (figure(), figure(), figure(), figure()).prop_map(|(first, prefill, token, context)| Pace {
        first_us: first,
        prefill_us_per_1k_tokens: prefill,
        token_us: token,
        token_us_per_1k_context: context,
        ..Pace::default()
    })
}

proptest! {
    #[test]
    fn a_ranking_names_eligible_endpoints_once(
        which in 0..ALL.len(),
        entries in prop::collection::vec((any::<u32>(), extreme_load(), any::<bool>(), any::<u32>(), any_pace()), 1..80),
        blocks in 0..9_usize,
        key in any::<Option<u64>>(),
        cost in extreme_load(),
        sequence in any::<u64>(),
        random in any::<u64>(),
    ) {
        let weights: Vec<u32> = entries.iter().map(|entry| entry.0).collect();
        let table = Table::new(ALL[which], &weights);
        let candidates: Vec<Candidate> = entries.iter().zip(0..).filter(|(entry, _)| entry.2)
            .map(|(&(weight, load, _, kv_usage_permille, pace), endpoint)| Candidate {
                endpoint, weight, load, kv_usage_permille, pace,
                matched_blocks: kv_usage_permille % 9,
                given_blocks: kv_usage_permille / 9,
                ..Candidate::default()
            })
            .collect();
        let blocks = vec![1; blocks];
        let view = View { pool: &table.pool, candidates: &candidates, blocks: &blocks, key, cost, sequence, random };
        let ranking = table.policy.rank(&view);
        prop_assert_eq!(ranking.is_none(), candidates.is_empty());
        if let Some(ranking) = ranking {
            prop_assert_eq!(ranking.endpoints.len(), RANKED.min(candidates.len()));
            let mut distinct = ranking.endpoints.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), ranking.endpoints.len());
            prop_assert!(distinct.iter().all(|index| candidates.iter().any(|candidate| candidate.endpoint == *index)));
            prop_assert_eq!(table.policy.rank(&view), Some(ranking), "the same view, another answer");
        }
    }

    #[test]
    fn argmin_equals_the_naive_twin(loads in prop::collection::vec((load(), 1u32..4), 1..8), random in any::<u64>()) {
        // 12 is a common multiple of the weights: whole numbers without any fraction.
        let scaled = |amount: u64, weight: u32| amount * 12 / u64::from(weight);
        for spec in [PolicySpec::LeastRequest, PolicySpec::LeastOutstandingTokens] {
            let table = Table::new(spec, &vec![1; loads.len()]);
            let candidates: Vec<Candidate> = loads.iter().zip(0..)
                .map(|(&(load, weight), endpoint)| Candidate { endpoint, weight, load, ..Candidate::default() })
                .collect();
            let measure = |endpoint: u32| {
                let Candidate { load, weight, .. } = candidates[endpoint as usize];
                let (requests, tokens) = (scaled(load.requests.into(), weight), scaled(load.tokens(), weight));
                if spec == PolicySpec::LeastRequest { (requests, tokens) } else { (tokens, requests) }
            };
            let view = View { pool: &table.pool, candidates: &candidates, blocks: &[], key: Some(1), cost: ONE, sequence: 0, random };
            let ranked = table.policy.rank(&view).unwrap().endpoints;
            let mut sorted: Vec<_> = (0..).take(loads.len()).map(measure).collect();
            sorted.sort_unstable();
            sorted.truncate(RANKED);
            prop_assert_eq!(ranked.into_iter().map(measure).collect::<Vec<_>>(), sorted);
        }
    }

    #[test]
    fn the_better_of_two_comes_first(loads in prop::collection::vec(load(), 2..8), random in any::<u64>()) {
        let mut table = Table::new(PolicySpec::PowerOfTwo { load: LoadKind::Tokens }, &vec![1; loads.len()]);
        for (candidate, load) in table.candidates.iter_mut().zip(&loads) {
            candidate.load = *load;
        }
        table.random = random;
        let ranked = table.rank(None, ONE).endpoints;
        let tokens = |index: u32| loads[index as usize].tokens();
        prop_assert!(tokens(ranked[0]) <= tokens(ranked[1]));
    }

    #[test]
    fn round_robin_takes_turns(count in 1usize..9, rounds in 1usize..5) {
        let mut table = Table::new(PolicySpec::RoundRobin, &vec![1; count]);
        for turn in 0..count * rounds {
            let ranked = table.rank(None, ONE).endpoints;
            let expected: Vec<u32> = (0..RANKED.min(count)).map(|ahead| ((turn + ahead) % count) as u32).collect();
            prop_assert_eq!(ranked, expected);
        }
    }
}

// Smooth weighted round robin.

/// The textbook: state in, state out, one pick at a time.
struct Textbook {
    weights: Vec<i64>,
    current: Vec<i64>,
}

impl Textbook {
    fn next(&mut self) -> usize {
        let total: i64 = self.weights.iter().sum();
        for (current, weight) in self.current.iter_mut().zip(&self.weights) {
            *current += weight;
        }
        let largest = *self.current.iter().max().unwrap();
        let picked = self
            .current
            .iter()
            .position(|&current| current == largest)
            .unwrap();
        self.current[picked] -= total;
        picked
    }
}

#[test]
fn smooth_weighted_round_robin_as_in_nginx() {
    assert_eq!(smooth_schedule(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
    assert_eq!(smooth_schedule(&[10, 2, 2]), [0, 0, 1, 0, 2, 0, 0]);
    assert_eq!(smooth_schedule(&[7, 7, 7]), [0, 1, 2]);
    assert_eq!(smooth_schedule(&[]), [] as [u32; 0]);
}

proptest! {
    #[test]
    fn weighted_round_robin_equals_the_textbook(weights in weights(), rounds in 1usize..3) {
        let mut table = Table::new(PolicySpec::WeightedRoundRobin, &weights);
        let mut textbook = Textbook {
            weights: weights.iter().map(|&weight| weight.into()).collect(),
            current: vec![0; weights.len()],
        };
        let cycle: u32 = weights.iter().sum();
        for _ in 0..cycle as usize * rounds {
            prop_assert_eq!(table.rank(None, ONE).endpoints[0] as usize, textbook.next());
        }
    }

    #[test]
    fn a_cycle_is_bounded_and_names_everybody(weights in prop::collection::vec(any::<u32>(), 1..1100)) {
        let schedule = smooth_schedule(&weights);
        prop_assert!(schedule.len() as u64 <= MAX_CYCLE.max(weights.len() as u64));
        let mut named = schedule;
        named.sort_unstable();
        named.dedup();
        prop_assert_eq!(named.len(), weights.len());
    }
}

#[test]
fn weights_too_large_for_a_cycle_keep_their_proportions() {
    let schedule = smooth_schedule(&[1_000_003, 2_000_003, 4_000_037]);
    let count = |which| schedule.iter().filter(|&&index| index == which).count() as f64;
    assert!((count(1) / count(0) - 2.0).abs() < 0.02);
    assert!((count(2) / count(0) - 4.0).abs() < 0.04);
}

#[test]
fn power_of_two_compares_what_it_is_told_to() {
    // By weight, 2 requests on the second are half of one on the first.
    for (load, weights, expected) in [
        (LoadKind::Requests, [1, 1], 0),
        (LoadKind::Requests, [1, 4], 1),
        (LoadKind::Tokens, [1, 1], 1),
        (LoadKind::Tokens, [200, 1], 0),
        (LoadKind::Kv, [1, 1], 0),
        (LoadKind::Kv, [1, 4], 0),
    ] {
        let mut table = Table::new(PolicySpec::PowerOfTwo { load }, &weights);
        for (endpoint, requests, tokens, kv_usage_permille) in [(0, 1, 1000, 500), (1, 2, 10, 501)]
        {
            let candidate = table.at(endpoint);
            candidate.load = Load {
                requests,
                prefill_tokens: tokens,
                ..Load::default()
            };
            candidate.kv_usage_permille = kv_usage_permille;
        }
        for _ in 0..20 {
            let ranking = table.rank(None, ONE);
            assert_eq!(
                ranking.endpoints,
                [expected, 1 - expected],
                "{load:?} {weights:?}"
            );
            assert_eq!(ranking.reason, Reason::LessLoadedOfTwo);
        }
    }
}

#[test]
fn power_of_two_draws_every_pair_alike() {
    let mut table = Table::new(
        PolicySpec::PowerOfTwo {
            load: LoadKind::Requests,
        },
        &[1; 4],
    );
    let mut pairs = std::collections::BTreeMap::new();
    for _ in 0..6000 {
        let ranked = table.rank(None, ONE).endpoints;
        *pairs.entry((ranked[0], ranked[1])).or_insert(0) += 1;
    }
    assert_eq!(pairs.len(), 12);
    assert!(
        pairs.values().all(|count| (400..600).contains(count)),
        "{pairs:?}"
    );
}

#[test]
fn a_sole_candidate_is_picked_by_every_policy() {
    for spec in ALL {
        let ranking = Table::new(spec, &[7]).rank(Some(1), ONE);
        assert_eq!(ranking.endpoints, [0], "{spec:?}");
        assert_ne!(ranking.reason, Reason::LessLoadedOfTwo);
    }
}

#[test]
fn random_draws_by_weight() {
    let mut table = Table::new(PolicySpec::Random, &[1, 3]);
    let heavy = (0..4000)
        .filter(|_| table.rank(None, ONE).endpoints[0] == 1)
        .count();
    assert!((2850..3150).contains(&heavy), "{heavy}");
}

// The ring.

/// Every point of every endpoint, sorted by distance clockwise from the key, then each endpoint once.
fn naive_walk(pool: &Pool, points: u32, key: u64) -> Vec<u32> {
    let mut all: Vec<(u64, u32)> = Vec::new();
    for (endpoint, index) in pool.endpoints().iter().zip(0..) {
        for number in 0..points {
            let mut bytes = endpoint.address.to_string().into_bytes();
            bytes.extend(number.to_le_bytes());
            all.push((
                xxhash_rust::xxh64::xxh64(&bytes, 0).wrapping_sub(key),
                index,
            ));
        }
    }
    all.sort_unstable();
    let mut order = Vec::new();
    for (_, index) in all {
        if !order.contains(&index) {
            order.push(index);
        }
    }
    order
}

proptest! {
    #[test]
    fn the_walk_equals_a_scan_over_all_points(count in 1usize..100, points in 1u32..8, key in any::<u64>()) {
        let pool = pool(&vec![1; count]);
        let walked: Vec<u32> = Ring::new(&pool, points).walk(key).collect();
        prop_assert_eq!(walked, naive_walk(&pool, points, key));
    }

    #[test]
    fn h14_who_leaves_moves_only_its_keys(leaving in 0usize..11, weights in prop::collection::vec(1u32..4, 11), seed in any::<u64>()) {
        let all = pool(&weights);
        let rest = Pool::new(all.endpoints().iter().enumerate()
            .filter(|(index, _)| *index != leaving).map(|(_, endpoint)| endpoint.clone()).collect());
        let name = |pool: &Pool, index: Option<u32>| pool.get(index.unwrap()).unwrap().address;
        let (before, after) = (Ring::new(&all, 16), Ring::new(&rest, 16));
        for number in 0..50 {
            let key = key(seed ^ number);
            let home = before.walk(key).next();
            if home != Some(leaving as u32) {
                prop_assert_eq!(name(&all, home), name(&rest, after.walk(key).next()));
            }
        }
    }

    #[test]
    fn consistent_hash_is_the_walk_over_the_eligible(eligible in prop::collection::vec(any::<bool>(), 12), key in any::<u64>()) {
        let mut table = Table::new(PolicySpec::ConsistentHash { points: 16 }, &[1; 12]);
        table.candidates.retain(|candidate| eligible[candidate.endpoint as usize]);
        prop_assume!(!table.candidates.is_empty());
        let mut expected = naive_walk(&table.pool, 16, key);
        expected.retain(|&index| eligible[index as usize]);
        expected.truncate(RANKED);
        prop_assert_eq!(table.rank(Some(key), ONE).endpoints, expected);
    }
}

#[test]
fn weights_shape_the_shares_of_consistent_hash() {
    let mut table = Table::new(PolicySpec::ConsistentHash { points: 256 }, &[100, 300]);
    let heavy = (0..10_000)
        .filter(|&number| table.rank(Some(key(number)), ONE).endpoints[0] == 1)
        .count();
    assert!((7000..8000).contains(&heavy), "{heavy}");
}

// Bounded loads.

#[test]
fn the_bound_is_exact_at_its_edges() {
    assert_eq!(bound(1250, 1, 300, 149, 1), 1);
    assert_eq!(bound(1250, 1, 8, 63, 1), 10);
    assert_eq!(bound(1250, 1, 8, 64, 1), 11);
    assert_eq!(bound(1000, 1, 2, 9, 1), 5);
    assert_eq!(bound(1000, 1, 2, 10, 1), 6);
    assert_eq!(bound(1250, 3, 4, 0, 1000), 938);
    assert_eq!(bound(0, 1, 2, 9, 0), 5);
    assert_eq!(bound(1000, 1, 0, 0, 0), 1);
    assert_eq!(bound(u32::MAX, u64::MAX, 1, u128::MAX, u64::MAX), u64::MAX);
}

/// One pick or one completion.
#[derive(Clone, Debug)]
enum Step {
    Pick {
        key: u64,
        prefill_tokens: u64,
        decode_tokens: u64,
    },
    Complete(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u64..4, 0u64..3000, 0u64..500).prop_map(|(number, prefill_tokens, decode_tokens)| Step::Pick {
            key: key(number), prefill_tokens, decode_tokens,
        }),
        1 => any::<prop::sample::Index>().prop_map(Step::Complete),
    ]
}

proptest! {
    #[test]
    fn the_bound_is_never_passed_and_somebody_always_fits(
        weights in weights(),
        load_factor_permille in 1000u32..2000,
        tokens in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let measure = if tokens { Measure::Tokens } else { Measure::Requests };
        let mut table = Table::new(PolicySpec::PrefixHash { load_factor_permille, bound: measure, points: 8 }, &weights);
        let capacities: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
        let mut running: Vec<(u32, Load)> = Vec::new();
        for step in steps {
            match step {
                Step::Complete(_) if running.is_empty() => {}
                Step::Complete(index) => {
                    let (endpoint, cost) = running.swap_remove(index.index(running.len()));
                    table.complete(endpoint, cost);
                }
                Step::Pick { key, prefill_tokens, decode_tokens } => {
                    let cost = Load { requests: 1, prefill_tokens, decode_tokens, ..Load::default() };
                    let total: u128 = table.candidates.iter().map(|candidate| u128::from(measured(measure, &candidate.load))).sum();
                    // load < max(1, ceil(x / y)), in whole numbers: load = 0, or load × y < x.
                    let fits = |candidate: &Candidate| {
                        let load = u128::from(measured(measure, &candidate.load));
                        let after = total + u128::from(measured(measure, &cost).max(1));
                        load == 0 || load * capacities * 1000
                            < u128::from(load_factor_permille) * u128::from(candidate.weight) * after
                    };
                    let order = naive_walk(&table.pool, 8, key);
                    let (mut expected, beyond): (Vec<u32>, Vec<u32>) =
                        order.iter().partition(|&&index| fits(&table.candidates[index as usize]));
                    prop_assert!(!expected.is_empty(), "nobody fits");
                    expected.extend(beyond);
                    expected.truncate(RANKED);
                    let ranking = table.rank(Some(key), cost);
                    prop_assert_eq!(&ranking.endpoints, &expected);
                    let first = ranking.endpoints[0];
                    prop_assert_eq!(ranking.reason, if first == order[0] { Reason::Home } else { Reason::Overflow });
                    let load = &mut table.at(first).load;
                    load.requests += 1;
                    load.prefill_tokens += prefill_tokens;
                    load.decode_tokens += decode_tokens;
                    if measure == Measure::Requests {
                        prop_assert!(u64::from(load.requests) <= ranking.bound);
                    }
                    running.push((first, cost));
                }
            }
        }
    }

    #[test]
    fn somebody_fits_at_any_load(loads in prop::collection::vec((any::<u64>(), any::<u32>()), 1..40), factor in any::<u32>(), cost in any::<u64>()) {
        let total = loads.iter().map(|&(load, _)| u128::from(load)).sum();
        let capacities = loads.iter().map(|&(_, weight)| u64::from(weight.max(1))).sum();
        let somebody = loads
            .iter()
            .any(|&(load, weight)| load < bound(factor, u64::from(weight.max(1)), capacities, total, cost));
        prop_assert!(somebody);
    }
}

/// What is queued somewhere, in microseconds, as the documentation has it.
fn naive_queue_us(pace: &Pace, load: &Load, context_tokens: u64, running: u64) -> f64 {
    let per_1k = |tokens: u64, us: u32| tokens as f64 * f64::from(us) / 1e3;
    let beside_us = per_1k(context_tokens, pace.token_us_per_1k_context).floor();
    let step_us = f64::from(pace.token_us) + beside_us;
    f64::from(load.waiting) * f64::from(pace.first_us)
        + per_1k(load.prefill_tokens, pace.prefill_us_per_1k_tokens)
        + 0.1 * load.decode_tokens as f64 * step_us / running as f64
}

/// A load such as an endpoint has, or a request if it is of one.
fn busy_load(requests: u32) -> impl Strategy<Value = Load> {
    (0..=requests, 0..30_000_u64, 0..20_000_u64).prop_map(
        move |(waiting, prefill_tokens, decode_tokens)| Load {
            requests,
            waiting,
            prefill_tokens,
            decode_tokens,
            context_tokens: prefill_tokens + 2_000 * u64::from(requests),
        },
    )
}

/// The default pace so many times slower, in thousandths.
fn slowed(permille: u32) -> Pace {
    let pace = Pace::default();
    Pace {
        first_us: pace.first_us / 1_000 * permille,
        prefill_us_per_1k_tokens: pace.prefill_us_per_1k_tokens / 1_000 * permille,
        token_us: pace.token_us / 1_000 * permille,
        token_us_per_1k_context: pace.token_us_per_1k_context * permille / 1_000,
        ..pace
    }
}

proptest! {
    #[test]
    fn no_queue_passes_the_bound_in_time_while_another_is_within(
        loads in prop::collection::vec((0_u32..9).prop_flat_map(busy_load), 1..10),
        slowness in prop::collection::vec(1_000_u32..5_000, 10),
        cost in busy_load(1),
        load_factor_permille in 1_000_u32..2_000,
        key in any::<u64>(),
        twisted in any::<bool>(),
    ) {
        let spec = PolicySpec::PrefixHash { load_factor_permille, bound: Measure::ExpectedTime, points: 8 };
        let mut table = Table::new(spec, &vec![1; loads.len()]);
        for ((candidate, load), permille) in table.candidates.iter_mut().zip(&loads).zip(&slowness) {
            candidate.load = *load;
            candidate.pace = slowed(*permille);
            if twisted && candidate.endpoint % 2 == 0 {
                candidate.pace.prefill_us_per_1k_tokens *= 20;
            }
        }
        let ranking = table.rank(Some(key), cost);
        let count = loads.len() as u64;
        let total = loads.iter().fold(cost, |sum, load| sum.plus(*load));
        let context_tokens = total.context_tokens.div_ceil(count);
        let running = u64::from(total.requests).div_ceil(count);
        let us = |candidate: &Candidate, load: &Load| naive_queue_us(&candidate.pace, load, context_tokens, running);
        // All that there is to do, shared by speed.
        let rates: f64 = table.candidates.iter().map(|one| 1.0 / us(one, &total).max(1.0)).sum();
        let bound_us = (f64::from(load_factor_permille) / 1e3 / rates).max(1.0);
        let queue_us = |endpoint: u32| us(&table.candidates[endpoint as usize], &loads[endpoint as usize]);
        let slack_us = bound_us * 1e-3 + 4.0;
        let order = naive_walk(&table.pool, 8, key);
        let somebody = order.iter().any(|&one| queue_us(one) < bound_us - slack_us);
        let first = ranking.endpoints[0];
        prop_assert!((ranking.bound as f64 - bound_us).abs() <= slack_us, "{} is not {bound_us}", ranking.bound);
        for (endpoint, counted_us) in (0..).zip(&ranking.costs_us) {
            prop_assert!((queue_us(endpoint) - *counted_us as f64).abs() <= 3.0);
        }
        prop_assert_eq!(ranking.costs_us.len(), loads.len());
        if somebody {
            prop_assert!(queue_us(first) < bound_us + slack_us, "above, and another is not");
            let passed = order.iter().take_while(|&&one| one != first);
            for &one in passed {
                prop_assert!(queue_us(one) > bound_us - slack_us, "{one} was passed over");
            }
        }
        if !twisted {
            let within = |one: &u64| *one < ranking.bound;
            prop_assert!(ranking.costs_us.iter().any(within), "nobody fits");
        }
    }

    #[test]
    fn the_earlier_of_two_comes_first_by_time(
        loads in prop::collection::vec((0_u32..9).prop_flat_map(busy_load), 2..8),
        slowness in prop::collection::vec(1_000_u32..5_000, 8),
        cost in busy_load(1),
        random in any::<u64>(),
    ) {
        let spec = PolicySpec::PowerOfTwo { load: LoadKind::ExpectedTime };
        let mut table = Table::new(spec, &vec![1; loads.len()]);
        for ((candidate, load), permille) in table.candidates.iter_mut().zip(&loads).zip(&slowness) {
            (candidate.load, candidate.pace) = (*load, slowed(*permille));
        }
        table.random = random;
        let count = loads.len() as u64;
        let total = loads.iter().fold(cost, |sum, load| sum.plus(*load));
        let context_tokens = total.context_tokens.div_ceil(count);
        let running = u64::from(total.requests).div_ceil(count);
        let ranked = table.rank(None, cost).endpoints;
        let through_us = |endpoint: u32| {
            let candidate = &table.candidates[endpoint as usize];
            naive_queue_us(&candidate.pace, &candidate.load.plus(cost), context_tokens, running)
        };
        prop_assert!(through_us(ranked[0]) <= through_us(ranked[1]) + 3.0);
    }
}

#[test]
fn a_prefix_stays_home_while_there_is_room() {
    let mut table = Table::new(BY_REQUESTS, &[1; 4]);
    let home = table.rank(Some(key(9)), ONE).endpoints[0];
    for _ in 0..50 {
        let picked = table.pick(Some(key(9)), ONE);
        assert_eq!(picked, home);
        table.complete(picked, ONE);
    }
    table.pick(Some(key(9)), ONE);
    // ceil(1.25 × (1 + 1) / 4) = 1: the second has to go on.
    let next = table.rank(Some(key(9)), ONE);
    assert_eq!((next.reason, next.bound), (Reason::Overflow, 1));
    assert_ne!(next.endpoints[0], home);
    assert_eq!(next.endpoints[0], naive_walk(&table.pool, 128, key(9))[1]);
}

#[test]
fn names_and_needs() {
    let facts: Vec<(&str, bool)> = ALL
        .iter()
        .map(|spec| {
            let policy = policy::build(spec, &pool(&[1]));
            (policy.name(), policy.reads_body())
        })
        .collect();
    assert_eq!(
        facts,
        [
            ("round_robin", false),
            ("random", false),
            ("weighted_round_robin", false),
            ("least_request", false),
            ("least_outstanding_tokens", true),
            ("power_of_two", false),
            ("power_of_two", true),
            ("power_of_two", false),
            ("power_of_two", true),
            ("consistent_hash", true),
            ("prefix_hash", true),
            ("prefix_hash", true),
            ("prefix_hash", true),
            ("expected_latency", true),
            ("cache_aware", true),
            ("cache_aware", true),
            ("cache_aware", true),
        ]
    );
    let asking = |what: fn(&dyn Policy) -> bool| {
        let asks = |spec: &&PolicySpec| what(&*policy::build(spec, &pool(&[1])));
        ALL.iter().filter(asks).copied().collect::<Vec<_>>()
    };
    let by_time = PolicySpec::PowerOfTwo {
        load: LoadKind::ExpectedTime,
    };
    let paced = asking(|policy| policy.reads_pace());
    assert_eq!(paced, [by_time, BY_TIME, PolicySpec::ExpectedLatency]);
    let indexed = asking(|policy| policy.reads_index());
    assert_eq!(indexed, ALL[13..]);
    assert!(
        ALL.iter()
            .all(|spec| spec.reads_index() == indexed.contains(spec))
    );
}
