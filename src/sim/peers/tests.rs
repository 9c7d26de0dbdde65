//! Each algorithm on cases small enough to be worked out by hand.

use super::*;
use crate::sim::workload::{Role, Segment, Start};

const BLOCK: u32 = 16;

/// Asks a router one request after the other, and names them.
struct Desk {
    router: Box<dyn PeerRouter>,
    next_id: u32,
    now_us: u64,
    cached_tokens: Vec<u64>,
    random: u64,
}

impl Desk {
    fn new(kind: PeerKind, endpoints: usize) -> Self {
        let names: Vec<String> = (1..=endpoints)
            .map(|n| format!("10.0.0.{n}:8000"))
            .collect();
        Self {
            router: kind.router(&vec![Profile::default(); endpoints], &names),
            next_id: 0,
            now_us: 0,
            cached_tokens: vec![0; endpoints],
            random: 0,
        }
    }

    /// Where a prompt of these segments (id and tokens) goes.
    fn send(&mut self, prompt: &[(u64, u32)]) -> usize {
        self.next_id += 1;
        let request = request(prompt);
        self.router.pick(&Ask {
            now_us: self.now_us,
            id: self.next_id,
            chain: &request.chain(BLOCK),
            request: &request,
            block_tokens: BLOCK,
            cached_tokens: &self.cached_tokens,
            replicas: &[],
            random: self.random,
        })
    }

    /// The same, and it is over at once.
    fn serve(&mut self, prompt: &[(u64, u32)]) -> usize {
        let endpoint = self.send(prompt);
        self.router.first_token(self.next_id);
        self.router.finished(self.next_id);
        endpoint
    }

    fn finish_all(&mut self) {
        (1..=self.next_id).for_each(|id| self.router.finished(id));
        assert_eq!(self.router.in_flight(), 0);
    }
}

fn request(prompt: &[(u64, u32)]) -> Request {
    let segment = |(id, tokens): &(u64, u32)| Segment {
        id: *id,
        tokens: *tokens,
        role: Role::User,
    };
    Request {
        start: Start::At { us: 0 },
        session: 0,
        adapter: None,
        prompt: prompt.iter().map(segment).collect(),
        output_tokens: 1,
    }
}

fn waiting(waiting: u32, kv_usage: f64) -> Gauges {
    Gauges {
        waiting,
        kv_usage,
        ..Gauges::default()
    }
}

#[test]
fn every_name_is_its_own() {
    for kind in PeerKind::ALL {
        assert_eq!(PeerKind::named(kind.name()), Some(kind));
    }
    assert_eq!(PeerKind::named("nobody"), None);
}

#[test]
fn every_router_forgets_what_is_over() {
    for kind in PeerKind::ALL {
        let mut desk = Desk::new(kind, 3);
        for id in 0..50 {
            desk.random = id * 7;
            desk.send(&[(id % 5, 200), (id, 33)]);
        }
        assert!(desk.router.in_flight() >= 50, "{}", kind.name());
        desk.router.first_token(3);
        desk.finish_all();
    }
}

#[test]
fn cache_aware_needs_more_than_three_tenths_of_the_prompt() {
    let mut desk = Desk::new(PeerKind::VllmCacheAware, 2);
    assert_eq!(desk.send(&[(1, 300)]), 0, "the first of the idle ones");
    // 300 of 1,000 tokens are known at 0, which is not more than 0.3: the fewest requests.
    assert_eq!(desk.send(&[(1, 300), (2, 700)]), 1);
    // 300 of 999: the first that was sent them.
    assert_eq!(desk.send(&[(1, 300), (3, 699)]), 0);
    // All of it is known, at 1 alone.
    assert_eq!(desk.send(&[(1, 300), (2, 700)]), 1);
}

#[test]
fn cache_aware_gives_up_affinity_when_load_is_out_of_balance() {
    let mut desk = Desk::new(PeerKind::VllmCacheAware, 2);
    let picks: Vec<usize> = (0..70).map(|_| desk.send(&[(1, 100)])).collect();
    // 65 is more than 64 above 0, and more than 1.5 times 0. Then 65 and 1 are balanced again.
    assert_eq!(picks[..65], [0; 65]);
    assert_eq!(picks[65..68], [1, 0, 1]);
}

#[test]
fn cache_aware_by_tree_size_fills_the_smallest_tree() {
    let mut desk = Desk::new(PeerKind::SglangCacheAware, 2);
    assert_eq!(desk.serve(&[(1, 1_000)]), 0);
    assert_eq!(desk.serve(&[(2, 300)]), 1);
    // Both idle, so the fewest requests would be at 0; the smallest tree is at 1.
    assert_eq!(desk.serve(&[(3, 600)]), 1);
    assert_eq!(desk.serve(&[(4, 200)]), 1);
    assert_eq!(desk.serve(&[(5, 100)]), 0);
}

#[test]
fn ray_takes_the_shortest_queue_of_those_that_match_best() {
    let mut desk = Desk::new(PeerKind::Ray, 3);
    let first = desk.send(&[(1, 100)]);
    // A tenth is enough, whatever the queue there.
    assert_eq!(desk.send(&[(1, 100), (2, 900)]), first);
    // Less is not: one with the smallest tree, which is empty.
    let second = desk.send(&[(1, 100), (3, 901)]);
    assert_ne!(second, first);
    // The beginning is at both now, and `second` has one request to the other's two.
    assert_eq!(desk.send(&[(1, 100), (4, 500)]), second);
}

#[test]
fn llmd_weighs_queue_and_cache_two_and_prefix_three() {
    let mut desk = Desk::new(PeerKind::Llmd, 2);
    assert_eq!(desk.router.scrape_interval_us(), 50_000);
    assert_eq!(
        PeerKind::LlmdSlow.router(&[], &[]).scrape_interval_us(),
        1_000_000
    );
    desk.router.scraped(1, &waiting(0, 0.1));
    assert_eq!(desk.serve(&[(1, 320)]), 0, "more free cache");
    // 0 has the prefix (3) and the longest queue (0), with 0.9 free (1.8): 4.8. At 1: 2 + 1.8.
    desk.router.scraped(0, &waiting(9, 0.1));
    assert_eq!(desk.serve(&[(1, 320)]), 0);
    // With 0.3 free, 0 comes to 3.6.
    desk.router.scraped(0, &waiting(9, 0.7));
    assert_eq!(desk.serve(&[(1, 320)]), 1);
}

#[test]
fn llmd_counts_the_first_256_blocks() {
    let mut desk = Desk::new(PeerKind::Llmd, 2);
    let at = desk.serve(&[(1, 4_096)]);
    // Of 8,192 tokens the first half is all that counts: 3 for the prefix, against a queue and
    // 0.4 of the cache.
    desk.router.scraped(at, &waiting(1, 0.4));
    assert_eq!(desk.serve(&[(1, 4_096), (2, 4_096)]), at);
}

#[test]
fn sticky_leaves_a_warm_endpoint_when_it_is_18_seconds_behind() {
    let mut desk = Desk::new(PeerKind::LlmdSticky, 2);
    let warm = desk.serve(&[(1, 16_000)]);
    // Eight tenths of the blocks, and less.
    assert_eq!(desk.serve(&[(1, 16_000), (2, 4_000)]), warm);
    desk.random = 1 - warm as u64;
    // 286,704 tokens are 18 s.
    let other = 1 - warm;
    let mut queued = 0;
    while queued <= 286_704 {
        assert_eq!(desk.send(&[(1, 16_000), (1_000 + queued, 4_000)]), warm);
        queued += 4_000;
    }
    assert_eq!(desk.send(&[(1, 16_000), (3, 4_000)]), other);
}

#[test]
fn token_load_goes_where_the_fewest_tokens_are_to_compute() {
    let mut desk = Desk::new(PeerKind::LlmdTokenLoad, 2);
    let first = desk.send(&[(1, 3_200)]);
    let other = 1 - first;
    assert_eq!(desk.send(&[(2, 1_600)]), other, "1,600, not 4,800");
    assert_eq!(desk.send(&[(3, 160)]), other, "1,760, not 3,360");
    // 3,200 of 4,800 are known at `first`: 3,200 + 1,600 there, 1,760 + 4,800 here.
    assert_eq!(desk.send(&[(1, 3_200), (4, 1_600)]), first);
    // What has begun to answer is computed: 1,600 + 10 there, 1,760 + 10 here.
    desk.router.first_token(1);
    assert_eq!(desk.send(&[(5, 10)]), first);
}

#[test]
fn dynamo_adds_prefill_and_decode_blocks() {
    let mut desk = Desk::new(PeerKind::Dynamo, 2);
    assert!(desk.router.hears_of_caches());
    // 10 blocks, 8 of them cached at 1: 2 + 10 there, 10 + 10 here.
    desk.cached_tokens = vec![0, 128];
    assert_eq!(desk.send(&[(1, 160)]), 1);
    // Now 2 blocks are to compute at 1 and 10 are active, all of this request's too: 2 + 2 + 10.
    assert_eq!(desk.send(&[(1, 160)]), 1);
    // Another prompt of 10 blocks: 4 + 10 + 10 + 10 there, 10 + 10 here.
    desk.cached_tokens = vec![0, 0];
    assert_eq!(desk.send(&[(2, 160)]), 0);
    desk.finish_all();
}

#[test]
fn the_product_rule_trades_cached_tokens_for_requests() {
    let mut desk = Desk::new(PeerKind::UncachedInFlight, 2);
    let warm = desk.send(&[(1, 160)]);
    let other = 1 - warm;
    // 96 uncached × 2 against 256 × 1.
    assert_eq!(desk.send(&[(1, 160), (2, 96)]), warm);
    // 96 × 3 against 256 × 1.
    assert_eq!(desk.send(&[(1, 160), (3, 96)]), other);
}

#[test]
fn kubeai_sees_100_characters_and_bounds_the_requests() {
    let mut desk = Desk::new(PeerKind::Kubeai, 4);
    let home = desk.serve(&[(1, 25), (2, 100)]);
    for id in 3..20 {
        assert_eq!(
            desk.serve(&[(1, 25), (id, 100)]),
            home,
            "the same 100 characters"
        );
    }
    let homes = (100..200).map(|id| desk.serve(&[(id, 25)]));
    assert_eq!(homes.collect::<std::collections::BTreeSet<_>>().len(), 4);
    // One alone anywhere; then 2 are more than 1.25 × 2 / 4, and so is 1: the first of all.
    assert_eq!(desk.send(&[(1, 25)]), home);
    assert_eq!(desk.send(&[(1, 25)]), home);
    // With three under way 1 is within 1.25 × 4 / 4, but not at home.
    let third = desk.send(&[(1, 25)]);
    let fourth = desk.send(&[(1, 25)]);
    assert_eq!(third, home);
    assert_ne!(fourth, home);
}

#[test]
fn the_ring_without_bound_never_moves() {
    let mut desk = Desk::new(PeerKind::PrefixRing, 4);
    let home = desk.send(&[(1, 512), (2, 512)]);
    for id in 3..300 {
        assert_eq!(desk.send(&[(1, 512), (id, 512)]), home);
    }
}

#[test]
fn ties_are_broken_by_chance_and_nothing_else_is() {
    let picks: Vec<usize> = (0..4)
        .map(|random| least([(0, 2), (1, 1), (2, 1)], random))
        .collect();
    assert_eq!(picks, [1, 2, 1, 2]);
}

#[test]
fn a_tree_forgets_the_oldest_leaves_first() {
    let mut tree = tree::Tree::new(2);
    let (old, new) = (request(&[(1, 100), (2, 50)]), request(&[(1, 100), (3, 50)]));
    tree.insert(&old, 0, 1);
    tree.insert(&new, 0, 2);
    tree.insert(&new, 1, 3);
    assert_eq!(
        tree.sizes_tokens().collect::<Vec<_>>(),
        [(0, 200), (1, 150)]
    );
    tree.evict(150);
    assert_eq!(
        tree.sizes_tokens().collect::<Vec<_>>(),
        [(0, 150), (1, 150)]
    );
    assert_eq!(tree.matched(&old).tokens, 100);
    assert_eq!(tree.matched(&new).owner, Some(0));
    // 0 loses its last leaf, and keeps the beginning; 1 has the rest.
    tree.evict(149);
    let matched = tree.matched(&new);
    assert_eq!((matched.tokens, matched.holders), (100, vec![0, 1]));
}

#[test]
fn an_index_keeps_what_was_sent_last() {
    let mut index = index::Index::new([4]);
    index.insert(0, &[1, 2, 3]);
    assert_eq!(index.matched_blocks(0, &[1, 2, 9]), 2);
    index.insert(0, &[11, 12]);
    // One block had to go: the tail.
    assert_eq!(index.matched_blocks(0, &[1, 2, 3]), 2);
    assert_eq!(index.matched_blocks(0, &[11, 12]), 2);
    // A chain longer than the cache leaves its head.
    index.insert(0, &[21, 22, 23, 24, 25]);
    assert_eq!(index.matched_blocks(0, &[21, 22, 23, 24, 25]), 4);
}
