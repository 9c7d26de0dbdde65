use super::*;
use crate::random::Random;
use crate::state::memory::MemoryStore;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const A: EndpointId = EndpointId(0xaaaa);
const B: EndpointId = EndpointId(0xbbbb);

/// The chain of prompt `root` and its first `length` blocks; chains of one root share beginnings.
fn chain(root: u64, length: usize) -> Vec<u64> {
    let mut random = Random::new(root);
    (0..length).map(|_| random.bits()).collect()
}

#[test]
fn what_was_sent_is_found_again_where_it_was_sent() {
    let mut index = PrefixIndex::new(1_000);
    assert_eq!(index.insert(A, &chain(1, 5)), Belief::default());
    assert_eq!(index.matched_blocks(A, &chain(1, 9)), 5);
    assert_eq!(index.matched_blocks(A, &chain(1, 3)), 3);
    assert_eq!(index.matched_blocks(A, &chain(2, 9)), 0);
    assert_eq!(index.matched_blocks(B, &chain(1, 9)), 0);
    assert_eq!(index.insert(A, &chain(1, 9)).blocks, 5);
}

#[test]
fn a_restarted_endpoint_holds_nothing_of_before() {
    let mut index = PrefixIndex::new(1_000);
    index.insert(A, &chain(1, 5));
    index.insert(B, &chain(1, 5));
    index.forget(A);
    assert_eq!(index.matched_blocks(A, &chain(1, 5)), 0);
    assert_eq!(index.matched_blocks(B, &chain(1, 5)), 5);
    assert_eq!(index.insert(A, &chain(1, 5)).blocks, 0);
    assert_eq!(index.matched_blocks(A, &chain(1, 5)), 5);
}

#[test]
fn who_tells_the_size_of_the_cache_is_believed() {
    let mut index = PrefixIndex::new(10_000);
    index.size(A, 100);
    index.insert(A, &chain(1, 20));
    index.insert(A, &chain(2, 90));
    assert_eq!(index.matched_blocks(A, &chain(1, 20)), 20);
    // A quarter more than it holds, tail first.
    index.insert(A, &chain(3, 20));
    assert_eq!(index.matched_blocks(A, &chain(1, 20)), 15);
    index.insert(A, &chain(4, 20));
    assert_eq!(index.matched_blocks(A, &chain(1, 20)), 0);
}

#[test]
fn what_was_used_before_a_block_that_is_gone_is_gone_too() {
    for size in [0, 1_000] {
        let mut index = PrefixIndex::new(10_000);
        index.size(A, size);
        for root in 1..=4 {
            index.insert(A, &chain(root, 20));
        }
        let belief = index.insert(A, &chain(2, 20));
        index.correct(A, &belief, 0);
        // The first is older, the others are younger, and the second has just been computed.
        let found = [1, 2, 3, 4].map(|root| index.matched_blocks(A, &chain(root, 20)));
        assert_eq!((found[0], found[1]), (0, 20), "{size}");
        if size > 0 {
            assert_eq!((found[2], found[3]), (20, 20));
            // And the size stands.
            index.insert(A, &chain(5, 900));
            assert_eq!(index.matched_blocks(A, &chain(4, 20)), 20);
        }
    }
}

/// Found tokens become blocks by the mean of the whole prompt, of which its parts may depart.
#[test]
fn a_report_that_is_a_little_less_than_believed_is_no_miss() {
    let mut index = PrefixIndex::new(10_000);
    index.size(A, 1_000);
    index.insert(A, &chain(1, 20));
    index.insert(A, &chain(2, 100));
    let belief = index.insert(A, &chain(2, 100));
    for found in [99, 90, 74] {
        index.correct(A, &belief, found);
        assert_eq!(index.matched_blocks(A, &chain(1, 20)), 20, "{found}");
    }
    index.correct(A, &belief, 73);
    assert_eq!(index.matched_blocks(A, &chain(1, 20)), 0);
}

#[test]
fn how_long_ago_the_last_block_was_used() {
    let mut index = PrefixIndex::new(10_000);
    index.size(A, 80);
    let found = |index: &PrefixIndex| index.longest_match(A, &chain(1, 20));
    assert_eq!(
        (found(&index).blocks, found(&index).age_permille),
        (0, 1_000)
    );
    index.insert(A, &chain(1, 20));
    assert_eq!((found(&index).blocks, found(&index).age_permille), (20, 0));
    index.insert(A, &chain(2, 50));
    assert_eq!(
        (found(&index).blocks, found(&index).age_permille),
        (20, 500)
    );
}

#[test]
fn what_an_endpoint_was_given_counts_what_was_new_to_it_and_ages() {
    let mut index = PrefixIndex::new(1_000);
    assert_eq!(index.given_blocks(A), 0);
    index.insert(A, &chain(1, 5));
    index.insert(A, &chain(1, 9));
    index.insert(A, &chain(2, 4));
    index.insert(B, &chain(1, 5));
    assert_eq!((index.given_blocks(A), index.given_blocks(B)), (13, 5));
    // Whoever is forgotten again and again must not seem the emptiest.
    index.forget(A);
    assert_eq!((index.given_blocks(A), index.given_blocks(B)), (13, 5));
    index.insert(A, &chain(1, 1_000));
    for root in 10..10 + 64 {
        index.insert(B, &chain(root, 1_024));
    }
    assert_eq!(
        (index.given_blocks(A), index.given_blocks(B)),
        (506, 32_770)
    );
}

/// An engine whose cache is smaller than what is sent to it, and a client that comes back late: the
/// index learns when the engine gives blocks up, and no longer believes in older ones.
#[test]
fn what_the_engine_gave_up_is_learned_from_its_reports() {
    let mut index = PrefixIndex::new(100_000);
    // Holds the last 50 prompts of 20 blocks.
    let kept = 50;
    for turn in 0..400_u64 {
        let fresh = chain(1_000 + turn, 20);
        let belief = index.insert(A, &fresh);
        index.correct(A, &belief, 0);
        // Somebody returns after 100 others: too late.
        if turn >= 100 && turn % 10 == 0 {
            let late = chain(1_000 + turn - 100, 20);
            let belief = index.insert(A, &late);
            index.correct(A, &belief, 0);
        }
    }
    let age = |back: u64| index.matched_blocks(A, &chain(1_399 - back, 20));
    assert_eq!((age(1), age(kept / 2)), (20, 20));
    assert_eq!(age(110), 0);
}

#[test]
fn an_engine_that_keeps_more_than_was_thought_is_believed_again() {
    let mut index = PrefixIndex::new(100_000);
    let visit = |index: &mut PrefixIndex, root: u64, found: u32| {
        let belief = index.insert(A, &chain(root, 20));
        index.correct(A, &belief, found);
        belief.blocks
    };
    for root in 0..10 {
        visit(&mut index, root, 0);
    }
    // Something is missed once, for whatever reason.
    visit(&mut index, 5, 0);
    assert_eq!(index.matched_blocks(A, &chain(0, 20)), 0);
    // It was the exception.
    visit(&mut index, 0, 20);
    for root in 10..15 {
        visit(&mut index, root, 0);
    }
    assert_eq!(index.matched_blocks(A, &chain(7, 20)), 20);
}

#[test]
fn memory_is_the_same_whatever_comes() {
    let mut index = PrefixIndex::new(1_024);
    // A VM that never picks has no need of it.
    assert_eq!(index.matched_blocks(A, &chain(1, 20)), 0);
    index.forget(A);
    assert_eq!(index.bytes(), 0);
    index.insert(B, &chain(1, 1));
    let bytes = index.bytes();
    assert_eq!(bytes, 16 * 1_024);
    let mut random = Random::new(1);
    for _ in 0..5_000 {
        index.insert(EndpointId(random.below(4)), &chain(random.bits(), 20));
    }
    assert_eq!(index.bytes(), bytes);
    index.insert(A, &chain(1, 20));
    assert_eq!(index.matched_blocks(A, &chain(1, 20)), 20);
}

proptest! {
    /// A table that is large enough, and an engine that gives nothing up, against sets of blocks.
    #[test]
    fn the_longest_match_equals_that_of_the_naive_twin(
        prompts in prop::collection::vec((0..3_u64, 0..6_u64, 0..40_usize), 1..60),
    ) {
        let mut index = PrefixIndex::new(100_000);
        let mut twin: BTreeMap<EndpointId, BTreeSet<u64>> = BTreeMap::new();
        for (endpoint, root, length) in prompts {
            let endpoint = EndpointId(endpoint);
            let prompt = chain(root, length);
            let held = twin.entry(endpoint).or_default();
            let expected = prompt.iter().take_while(|block| held.contains(block)).count();
            prop_assert_eq!(index.matched_blocks(endpoint, &prompt) as usize, expected);
            prop_assert_eq!(index.insert(endpoint, &prompt).blocks as usize, expected);
            held.extend(prompt);
        }
    }

    /// A table that is far too small never finds what was not sent.
    #[test]
    fn a_small_table_forgets_but_never_invents(
        prompts in prop::collection::vec((0..3_u64, 0..50_u64, 1..40_usize), 1..80),
    ) {
        let mut index = PrefixIndex::new(64);
        let mut sent: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        for (endpoint, root, length) in prompts {
            let matched = index.matched_blocks(EndpointId(endpoint), &chain(root, length)) as usize;
            let longest = sent.entry((endpoint, root)).or_default();
            prop_assert!(matched <= *longest);
            index.insert(EndpointId(endpoint), &chain(root, length));
            *longest = length.max(*longest);
        }
    }

    /// Whatever bytes lie under the log's keys.
    #[test]
    fn any_bytes_in_the_log_are_harmless(
        head in prop::collection::vec(any::<u8>(), 0..20),
        segment in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let store = MemoryStore::new();
        let mut index = SharedIndex::new(100, 1, 7);
        store.put("warmroute/1/index/0000000000000007", &head).unwrap();
        for key in 0..64 {
            store.put(&format!("warmroute/1/index/0000000000000007/{key}"), &segment).unwrap();
        }
        index.latest(&store);
        index.insert(&store, A, &chain(1, 5));
        prop_assert_eq!(index.latest(&store).matched_blocks(A, &chain(1, 5)), 5);
    }
}

#[test]
fn what_one_worker_sends_all_workers_know() {
    let store = MemoryStore::new();
    let mut workers: Vec<SharedIndex> = (1..=3).map(|vm| SharedIndex::new(10_000, vm, 7)).collect();
    let mut stranger = SharedIndex::new(10_000, 9, 8);
    for turn in 0..300_u64 {
        let prompt = chain(turn, 30);
        workers[turn as usize % 3].insert(&store, A, &prompt);
        for worker in &mut workers {
            assert_eq!(worker.latest(&store).matched_blocks(A, &prompt), 30);
        }
    }
    assert_eq!(stranger.latest(&store).matched_blocks(A, &chain(5, 30)), 0);
    workers[0].forget(&store, A);
    assert_eq!(
        workers[1].latest(&store).matched_blocks(A, &chain(299, 30)),
        0
    );
}

#[test]
fn a_log_that_is_emptied_takes_nothing_and_those_who_go_on_hear_each_other() {
    let store = MemoryStore::new();
    let mut workers: Vec<SharedIndex> = (1..=2).map(|vm| SharedIndex::new(10_000, vm, 7)).collect();
    for turn in 0..300_u64 {
        workers[0].insert(&store, A, &chain(turn, 30));
        workers[1].latest(&store);
    }
    let kept = || {
        let key = |segment: u64| format!("warmroute/1/index/{:016x}/{segment}", 7);
        let bytes = |key: String| store.get(&key).map_or(0, |(bytes, _)| bytes.len());
        (0..64).map(key).map(bytes).sum::<usize>()
    };
    assert!(kept() > 50_000);
    workers[0].clear(&store);
    assert_eq!(kept(), 0);
    for turn in 300..400_u64 {
        workers[0].insert(&store, A, &chain(turn, 30));
        let found = workers[1].latest(&store);
        assert_eq!(found.matched_blocks(A, &chain(turn, 30)), 30, "{turn}");
    }
}

#[test]
fn who_falls_far_behind_goes_on_with_what_is_left_of_the_log() {
    let store = MemoryStore::new();
    let mut writer = SharedIndex::new(100_000, 1, 7);
    let mut late = SharedIndex::new(100_000, 2, 7);
    for turn in 0..3_000_u64 {
        writer.insert(&store, A, &chain(turn, 50));
    }
    let index = late.latest(&store);
    assert_eq!(index.matched_blocks(A, &chain(2_999, 50)), 50);
    assert_eq!(index.matched_blocks(A, &chain(0, 50)), 0);
}
