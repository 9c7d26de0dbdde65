//! Several VMs over one store.

use super::twin::Twin;
use super::*;
use crate::state::memory::MemoryStore;
use crate::state::{Store, StoreError, Version};
use std::collections::BTreeMap;
use std::sync::Barrier;

const ENDPOINTS: [EndpointId; 3] = [EndpointId(1), EndpointId(2), EndpointId(u64::MAX)];
const KEY: &str = "warmroute/1/health";

#[derive(Clone, Copy, Debug)]
enum Act {
    Hear(Signal),
    Claim,
}

fn acts() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => signals().prop_map(Act::Hear),
        1 => Just(Act::Claim),
    ]
}

proptest! {
    /// Whichever VM hears what: each endpoint is in the state that a naive twin says, for all of them.
    #[test]
    fn any_sequence_over_several_boards_is_that_of_the_naive_twin(
        acts in proptest::collection::vec((acts(), pauses(), 0..3_usize, 0..3_usize), 1..80),
        settings in prop_oneof![Just(SCRAPED), Just(UNSCRAPED)],
    ) {
        let store = MemoryStore::new();
        let mut boards = [0; 3].map(|_| Board::new(settings));
        let mut twins: BTreeMap<EndpointId, Twin> = BTreeMap::new();
        let mut now_ms = 1_000_000;
        for (act, pause_ms, board, endpoint) in acts {
            now_ms += pause_ms;
            for endpoint in ENDPOINTS {
                let twin = twins.entry(endpoint).or_default();
                for board in &mut boards {
                    board.refresh(&store, now_ms);
                    prop_assert_eq!(board.state(endpoint, now_ms), twin.state(now_ms, &settings));
                }
            }
            let (board, endpoint) = (&mut boards[board], ENDPOINTS[endpoint]);
            let twin = twins.get_mut(&endpoint).unwrap();
            let (from, _) = twin.state(now_ms, &settings);
            match act {
                Act::Hear(signal) => {
                    twin.hear(signal, now_ms, &settings);
                    let (to, why) = twin.state(now_ms, &settings);
                    let turn = (from != to).then_some(Turn { endpoint, from, to, why });
                    prop_assert_eq!(board.hear(&store, now_ms, endpoint, signal), turn);
                }
                Act::Claim => {
                    let claimed = twin.claim(now_ms, &settings);
                    prop_assert_eq!(board.claim_probe(&store, now_ms, endpoint), claimed);
                }
            }
            prop_assert_eq!(board.state(endpoint, now_ms), twin.state(now_ms, &settings));
        }
    }

    /// Boards that have not heard of each other for long, clocks that go anywhere: no claim is given twice,
    /// and good news makes all of them ready.
    #[test]
    fn boards_that_lag_never_probe_twice_and_come_back(
        acts in proptest::collection::vec((acts(), 0..2_000_000_u64, 0..3_usize, any::<bool>()), 1..60),
    ) {
        let store = MemoryStore::new();
        let mut boards = [0; 3].map(|_| Board::new(UNSCRAPED));
        let endpoint = ENDPOINTS[0];
        for (act, now_ms, board, refreshes) in acts {
            let board = &mut boards[board];
            if refreshes {
                board.refresh(&store, now_ms);
            }
            match act {
                Act::Hear(signal) => {
                    board.hear(&store, now_ms, endpoint, signal);
                }
                Act::Claim => {
                    let claimed = board.claim_probe(&store, now_ms, endpoint);
                    for other in &mut boards {
                        prop_assert!(!other.claim_probe(&store, now_ms, endpoint) || !claimed);
                    }
                }
            }
        }
        let now_ms = 10_000_000;
        for board in &mut boards {
            board.refresh(&store, now_ms);
            board.hear(&store, now_ms, endpoint, Signal::Good);
            prop_assert_eq!(board.standing(endpoint, now_ms), Standing::Ready);
        }
    }

    #[test]
    fn any_bytes_are_harmless(
        magic: bool,
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        acts in proptest::collection::vec((acts(), pauses()), 0..20),
    ) {
        let store = MemoryStore::new();
        let mut value = if magic { b"WRH2".to_vec() } else { Vec::new() };
        value.extend_from_slice(&bytes);
        store.put(KEY, &value).unwrap();
        let mut board = Board::new(SCRAPED);
        let mut now_ms = 1_000_000;
        for (act, pause_ms) in acts {
            now_ms += pause_ms;
            board.refresh(&store, now_ms);
            match act {
                Act::Hear(signal) => {
                    board.hear(&store, now_ms, ENDPOINTS[0], signal);
                }
                Act::Claim => {
                    board.claim_probe(&store, now_ms, ENDPOINTS[0]);
                }
            }
            let (bytes, _) = store.get(KEY).unwrap();
            prop_assert!(bytes.len() <= value.len() + 4 + codec::ROW);
        }
        board.hear(&store, now_ms, ENDPOINTS[1], Signal::Refused);
        let mut other = Board::new(SCRAPED);
        other.refresh(&store, now_ms);
        prop_assert_eq!(other.standing(ENDPOINTS[1], now_ms), board.standing(ENDPOINTS[1], now_ms));
    }
}

/// A store that counts, and that can be switched off.
#[derive(Default)]
struct Counting {
    inner: MemoryStore,
    calls: std::cell::Cell<u32>,
    puts: std::cell::Cell<u32>,
    off: std::cell::Cell<bool>,
}

impl Store for Counting {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        self.calls.set(self.calls.get() + 1);
        (!self.off.get()).then(|| self.inner.get(key)).flatten()
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        self.calls.set(self.calls.get() + 1);
        match self.off.get() {
            true => Err(StoreError::Unavailable),
            false => self.inner.replace(key, value, expected),
        }
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.calls.set(self.calls.get() + 1);
        self.puts.set(self.puts.get() + 1);
        match self.off.get() {
            true => Err(StoreError::Unavailable),
            false => self.inner.put(key, value),
        }
    }
}

#[test]
fn good_news_of_a_clean_endpoint_costs_no_access_to_the_store() {
    let store = Counting::default();
    let mut board = Board::new(SCRAPED);
    for _ in 0..100 {
        let turn = board.hear(&store, 1_000_000, ENDPOINTS[0], Signal::Good);
        assert_eq!(turn, None);
    }
    assert_eq!(store.calls.get(), 0);
    assert!(board.is_clean());
    board.hear(&store, 1_000_000, ENDPOINTS[0], Signal::Failed);
    board.hear(&store, 1_000_000, ENDPOINTS[0], Signal::Good);
    assert!(board.is_clean(), "what says nothing is not kept");
    assert_eq!(store.inner.get(KEY).unwrap().0, b"WRH2");
}

#[test]
fn a_store_that_fails_leaves_a_vm_to_itself() {
    let store = Counting::default();
    store.off.set(true);
    let mut board = Board::new(UNSCRAPED);
    let turn = board.hear(&store, 1_000_000, ENDPOINTS[0], Signal::Refused);
    assert_eq!(turn.map(|turn| turn.to), Some(State::Ejected));
    assert_eq!(board.standing(ENDPOINTS[0], 1_000_500), Standing::Out);
    assert!(board.claim_probe(&store, 1_001_000, ENDPOINTS[0]));
    assert!(!board.claim_probe(&store, 1_001_000, ENDPOINTS[0]));
}

#[test]
fn what_one_vm_hears_all_know_with_their_next_tick() {
    use Standing::{Probing, Ready};
    let store = MemoryStore::new();
    let mut boards = [0; 2].map(|_| Board::new(UNSCRAPED));
    for endpoint in ENDPOINTS {
        boards[0].hear(&store, 1_000_000, endpoint, Signal::Refused);
    }
    assert_eq!(boards[1].standing(ENDPOINTS[1], 1_000_001), Ready);
    boards[1].refresh(&store, 1_000_001);
    for endpoint in ENDPOINTS {
        assert_eq!(boards[1].standing(endpoint, 1_000_001), Standing::Out);
    }
    // The one in the middle leaves the others as they are.
    boards[1].hear(&store, 1_001_000, ENDPOINTS[1], Signal::Good);
    boards[0].refresh(&store, 1_001_000);
    let standings = ENDPOINTS.map(|endpoint| boards[0].standing(endpoint, 1_001_000));
    assert_eq!(standings, [Probing, Ready, Probing]);
}

#[test]
fn of_vms_that_race_for_a_probe_one_gets_it() {
    let store = MemoryStore::new();
    for round in 0..50_u64 {
        let endpoint = EndpointId(round);
        let now_ms = 1_000_000 + round * 20_000;
        let mut first = Board::new(UNSCRAPED);
        first.hear(&store, now_ms, endpoint, Signal::Refused);
        let barrier = Barrier::new(8);
        let claims: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut board = Board::new(UNSCRAPED);
                        board.refresh(&store, now_ms);
                        barrier.wait();
                        board.claim_probe(&store, now_ms + 1_000, endpoint)
                    })
                })
                .collect();
            racers
                .into_iter()
                .map(|racer| usize::from(racer.join().unwrap()))
                .sum()
        });
        assert_eq!(claims, 1);
    }
}

#[test]
fn of_more_endpoints_than_rows_those_that_were_heard_of_last_are_kept() {
    let store = MemoryStore::new();
    let mut board = Board::new(UNSCRAPED);
    let most = MAX_ROWS as u64;
    let now_ms = |number: u64| 1_000_000 + number * 1_000;
    // The second one is heard of again, and ten more come.
    let again = [(most, 1)];
    let more = (most..most + 10).map(|number| (number, number));
    let heard = (0..most).map(|number| (number, number)).chain(again);
    for (time, number) in heard.chain(more) {
        board.hear(&store, now_ms(time), EndpointId(number), Signal::Failed);
    }
    let (bytes, _) = store.get(KEY).unwrap();
    assert_eq!(bytes.len(), 4 + MAX_ROWS * codec::ROW);
    let mut other = Board::new(UNSCRAPED);
    other.refresh(&store, now_ms(most + 10));
    for (number, is_kept) in [
        (0, false),
        (1, true),
        (10, false),
        (11, true),
        (most + 9, true),
    ] {
        for board in [&board, &other] {
            let row = board.row(EndpointId(number));
            assert_eq!(row != Row::default(), is_kept, "{number}");
        }
    }
}

#[test]
fn a_store_that_fails_does_not_let_the_copy_grow() {
    let store = Counting::default();
    store.off.set(true);
    let mut board = Board::new(UNSCRAPED);
    for number in 0..=MAX_ROWS as u64 {
        let now_ms = 1_000_000 + number * 1_000;
        board.hear(&store, now_ms, EndpointId(number), Signal::Failed);
    }
    assert_eq!(board.row(EndpointId(0)), Row::default());
    assert_ne!(board.row(EndpointId(1)), Row::default());
}

#[test]
fn who_left_is_forgotten_and_the_board_is_clean_again() {
    let store = MemoryStore::new();
    let mut boards = [0; 2].map(|_| Board::new(SCRAPED));
    boards[0].hear(&store, 1_000_000, ENDPOINTS[0], Signal::Left);
    boards[1].refresh(&store, 1_000_000 + LEFT_MS - 1);
    assert!(!boards[1].is_clean());
    // Nobody needs to write for that.
    for board in &mut boards {
        board.refresh(&store, 1_000_000 + LEFT_MS);
        assert!(board.is_clean());
    }
    // Whatever is written next takes it out of the store.
    boards[0].hear(&store, 1_010_000, ENDPOINTS[1], Signal::Failed);
    let (bytes, _) = store.get(KEY).unwrap();
    assert_eq!(bytes.len(), 4 + codec::ROW);
    // Its address may be somebody else's by now.
    boards[1].hear(&store, 1_020_000, ENDPOINTS[0], Signal::Came);
    assert_eq!(boards[1].state(ENDPOINTS[0], 1_020_000).0, State::Warming);
}

#[test]
fn whoever_was_not_heard_of_for_a_day_is_forgotten() {
    let store = MemoryStore::new();
    let mut board = Board::new(UNSCRAPED);
    board.hear(&store, 1_000_000, ENDPOINTS[0], Signal::Failed);
    board.hear(&store, 1_000_000, ENDPOINTS[1], Signal::Refused);
    board.refresh(&store, 1_000_000 + FORGET_MS - 1);
    assert_eq!(
        board.state(ENDPOINTS[1], 1_000_000 + FORGET_MS - 1).0,
        State::Probing
    );
    board.refresh(&store, 1_000_000 + FORGET_MS);
    assert!(board.is_clean());
    // Two more failures are not three in a row.
    board.hear(&store, 1_000_000 + FORGET_MS, ENDPOINTS[0], Signal::Failed);
    board.hear(&store, 1_000_000 + FORGET_MS, ENDPOINTS[0], Signal::Failed);
    let (state, _) = board.state(ENDPOINTS[0], 1_000_000 + FORGET_MS);
    assert_eq!(state, State::Ready);
    assert_eq!(store.get(KEY).unwrap().0.len(), 4 + codec::ROW);
}

#[test]
fn the_key_is_born_with_the_first_tick_and_never_overwritten() {
    let store = Counting::default();
    let mut boards = [0; 2].map(|_| Board::new(UNSCRAPED));
    boards[0].refresh(&store, 1_000_000);
    assert_eq!(store.inner.get(KEY).unwrap().0, b"WRH2");
    assert_eq!(store.puts.get(), 1);
    boards[0].hear(&store, 1_000_000, ENDPOINTS[0], Signal::Refused);
    boards[1].refresh(&store, 1_000_001);
    boards[1].hear(&store, 1_000_001, ENDPOINTS[1], Signal::Refused);
    assert_eq!(store.puts.get(), 1, "changes only ever compare and swap");
    assert_eq!(boards[1].standing(ENDPOINTS[0], 1_000_001), Standing::Out);
    // A store that fails is no reason to give up.
    let store = Counting::default();
    store.off.set(true);
    boards[0].refresh(&store, 1_000_002);
    store.off.set(false);
    boards[0].refresh(&store, 1_000_003);
    assert_eq!(store.inner.get(KEY).unwrap().0, b"WRH2");
}
