use super::*;
use crate::state::memory::MemoryStore;
use crate::state::{StoreError, Version};

const POOL: u64 = 99;

fn ids(count: u64) -> Vec<EndpointId> {
    (1..=count).map(EndpointId).collect()
}

fn cost(prefill_tokens: u64, decode_tokens: u64) -> Load {
    Load {
        requests: 1,
        prefill_tokens,
        decode_tokens,
        ..Load::default()
    }
}

/// Lets `choose` pick, at a cost that is the same everywhere.
fn with(
    cost: Load,
    mut choose: impl FnMut(&[Carried], u64) -> Option<usize>,
) -> impl FnMut(&[Carried], u64) -> Option<(usize, Load)> {
    move |carried, sequence| Some((choose(carried, sequence)?, cost))
}

fn least(carried: &[Carried], _: u64) -> Option<usize> {
    (0..carried.len()).min_by_key(|index| carried[*index].load.requests)
}

fn sum(totals: &BTreeMap<EndpointId, Load>) -> Load {
    totals
        .values()
        .fold(Load::default(), |sum, load| sum.plus(*load))
}

#[test]
fn a2_every_vm_sees_what_the_others_reserved() {
    let store = MemoryStore::new();
    let mut vms: Vec<Ledger> = (1..=4).map(Ledger::new).collect();
    let mut held = Vec::new();
    for turn in 0..8 {
        let reservation = vms[turn % 4]
            .reserve(&store, 1_000, POOL, &ids(8), with(cost(100, 10), least))
            .unwrap();
        held.push(reservation);
    }
    let totals = vms[0].totals(&store);
    assert_eq!(totals.len(), 8);
    assert!(
        totals.values().all(|load| *load == cost(100, 10)),
        "{totals:?}"
    );
    for (turn, reservation) in held.into_iter().enumerate() {
        vms[turn % 4].release(&store, 1_001, reservation);
    }
    assert!(sum(&vms[3].totals(&store)).is_zero());
}

#[test]
fn all_vms_see_when_a_queue_last_moved() {
    let store = MemoryStore::new();
    let (mut one, mut two) = (Ledger::new(1), Ledger::new(2));
    let request = Load {
        waiting: 1,
        ..cost(100, 10)
    };
    let moved = |now_ms, ledger: &mut Ledger| {
        let mut seen = 0;
        let reservation = ledger.reserve(&store, now_ms, POOL, &ids(2), |carried, _| {
            seen = carried[0].moved_ms;
            Some((0, request))
        });
        (seen, reservation.unwrap())
    };
    let (_, mut first) = moved(1_000, &mut one);
    let (seen_ms, second) = moved(1_400, &mut two);
    assert_eq!(seen_ms, 1_000, "it came to an empty queue");
    let (seen_ms, third) = moved(1_500, &mut one);
    assert_eq!(seen_ms, 1_000, "who joins a queue does not move it");
    one.release_prefill(&store, 1_700, &mut first);
    let (seen_ms, fourth) = moved(1_800, &mut two);
    assert_eq!(seen_ms, 1_700, "a first token does");
    one.release(&store, 1_900, first);
    two.release(&store, 1_900, second);
    let (seen_ms, fifth) = moved(2_000, &mut two);
    assert_eq!(seen_ms, 1_700, "an end says nothing of the queue");
    // A new endpoint changes the shape of the table, and nothing else.
    let mut seen_ms = 0;
    let sixth = one.reserve(&store, 2_100, POOL, &ids(3), |carried, _| {
        seen_ms = carried[0].moved_ms;
        Some((2, request))
    });
    assert_eq!(seen_ms, 1_700);
    for reservation in [third, fourth, fifth, sixth.unwrap()] {
        one.release(&store, 2_200, reservation);
    }
}

#[test]
fn a5_prefill_is_released_before_the_rest() {
    let store = MemoryStore::new();
    let mut ledger = Ledger::new(1);
    let mut reservation = ledger
        .reserve(&store, 0, POOL, &ids(1), with(cost(4_000, 50), least))
        .unwrap();
    ledger.release_prefill(&store, 1, &mut reservation);
    ledger.release_prefill(&store, 2, &mut reservation);
    assert_eq!(sum(&ledger.totals(&store)), cost(0, 50));
    ledger.release(&store, 3, reservation);
    assert!(sum(&ledger.totals(&store)).is_zero());
}

#[test]
fn the_sequence_counts_picks_of_a_pool_across_vms() {
    let store = MemoryStore::new();
    let mut seen = Vec::new();
    for turn in 0..6_u64 {
        let pool = turn % 2;
        let mut ledger = Ledger::new(turn + 1);
        let reservation = ledger
            .reserve(&store, 0, pool, &ids(2), |_, sequence| {
                seen.push((pool, sequence));
                Some((0, cost(1, 1)))
            })
            .unwrap();
        ledger.release(&store, 0, reservation);
    }
    assert_eq!(seen, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
}

#[test]
fn a_transfer_moves_what_is_held() {
    let store = MemoryStore::new();
    let mut ledger = Ledger::new(1);
    let reservation = ledger
        .reserve(&store, 0, POOL, &ids(2), with(cost(7, 3), |_, _| Some(0)))
        .unwrap();
    // The endpoint that served may be one that no pick has named before.
    let reservation = ledger.transfer(&store, 1, reservation, EndpointId(77));
    let totals = ledger.totals(&store);
    assert_eq!(totals[&EndpointId(77)], cost(7, 3));
    assert!(totals[&EndpointId(1)].is_zero());
    ledger.release(&store, 2, reservation);
    assert!(sum(&ledger.totals(&store)).is_zero());
}

#[test]
fn a_dead_vm_pins_its_load_no_longer_than_the_stated_time() {
    let store = MemoryStore::new();
    let mut dead = Ledger::new(1);
    let mut alive = Ledger::new(2);
    let lost = dead
        .reserve(&store, 0, POOL, &ids(2), with(cost(9, 9), least))
        .unwrap();
    let kept = alive
        .reserve(&store, 0, POOL, &ids(2), with(cost(5, 5), least))
        .unwrap();
    for now_ms in (500..=SLOT_TTL_MS).step_by(500) {
        alive.tick(&store, now_ms);
        assert_eq!(sum(&alive.totals(&store)).requests, 2, "at {now_ms}");
    }
    alive.tick(&store, SLOT_TTL_MS + 1);
    assert_eq!(sum(&alive.totals(&store)), cost(5, 5));

    // It was only slow: the next thing it does puts its row back.
    dead.tick(&store, SLOT_TTL_MS + 2);
    assert_eq!(sum(&alive.totals(&store)).requests, 2);
    dead.release(&store, SLOT_TTL_MS + 3, lost);
    alive.release(&store, SLOT_TTL_MS + 3, kept);
    assert!(sum(&alive.totals(&store)).is_zero());
}

#[test]
fn a_clock_that_is_set_back_pins_nothing() {
    let store = MemoryStore::new();
    let mut dead = Ledger::new(1);
    let mut alive = Ledger::new(2);
    let _lost = dead
        .reserve(&store, 100_000, POOL, &ids(2), with(cost(9, 9), least))
        .unwrap();
    let kept = alive
        .reserve(&store, 100_000, POOL, &ids(2), with(cost(5, 5), least))
        .unwrap();
    alive.tick(&store, 1_000);
    assert_eq!(sum(&alive.totals(&store)), cost(5, 5));
    alive.release(&store, 1_000, kept);
    assert!(sum(&alive.totals(&store)).is_zero());
}

#[test]
fn bytes_of_another_version_are_replaced() {
    let store = MemoryStore::new();
    store.put(KEY, b"something else entirely").unwrap();
    let mut ledger = Ledger::new(1);
    let reservation = ledger
        .reserve(&store, 0, POOL, &ids(3), with(cost(1, 1), least))
        .unwrap();
    assert_eq!(sum(&ledger.totals(&store)), cost(1, 1));
    ledger.release(&store, 0, reservation);
    assert!(sum(&ledger.totals(&store)).is_zero());
}

#[test]
fn endpoints_without_load_make_room_for_new_ones() {
    let store = MemoryStore::new();
    let mut ledger = Ledger::new(1);
    let mut held = Vec::new();
    for start in (0..6_000_u64).step_by(500) {
        let some: Vec<EndpointId> = (start..start + 500).map(EndpointId).collect();
        held.push(
            ledger
                .reserve(&store, 0, POOL, &some, with(cost(1, 1), |_, _| Some(7)))
                .unwrap(),
        );
    }
    let totals = ledger.totals(&store);
    assert!(totals.len() <= table::MAX_ENDPOINTS);
    assert_eq!(sum(&totals).requests, 12);
    for reservation in held {
        ledger.release(&store, 0, reservation);
    }
    assert!(sum(&ledger.totals(&store)).is_zero());
}

/// A store that refuses while `down`.
#[derive(Default)]
struct Flaky {
    inner: MemoryStore,
    down: std::cell::Cell<bool>,
}

impl Store for Flaky {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        if self.down.get() {
            None
        } else {
            self.inner.get(key)
        }
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        if self.down.get() {
            Err(StoreError::Unavailable)
        } else {
            self.inner.replace(key, value, expected)
        }
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        if self.down.get() {
            Err(StoreError::Unavailable)
        } else {
            self.inner.put(key, value)
        }
    }
}

#[test]
fn a_store_that_fails_stops_no_traffic_and_is_caught_up_with() {
    let store = Flaky::default();
    let mut ledger = Ledger::new(1);
    let early = ledger
        .reserve(&store, 0, POOL, &ids(2), with(cost(4, 4), least))
        .unwrap();
    store.down.set(true);
    let one = ledger
        .reserve(&store, 1, POOL, &ids(2), with(cost(1, 1), least))
        .unwrap();
    let two = ledger
        .reserve(&store, 1, POOL, &ids(2), with(cost(2, 2), least))
        .unwrap();
    assert_ne!(early.endpoint(), one.endpoint());
    ledger.release(&store, 2, early);
    store.down.set(false);
    ledger.tick(&store, 3);
    assert_eq!(
        sum(&ledger.totals(&store)),
        Load {
            requests: 2,
            prefill_tokens: 3,
            decode_tokens: 3,
            ..Load::default()
        }
    );
    ledger.release(&store, 4, one);
    ledger.release(&store, 4, two);
    assert!(sum(&ledger.totals(&store)).is_zero());
}

#[test]
fn threads_that_race_end_at_zero_and_never_pass_a_bound() {
    let store = MemoryStore::new();
    Ledger::new(9).tick(&store, 0);
    std::thread::scope(|scope| {
        for vm in 1..=4_u64 {
            let store = &store;
            scope.spawn(move || {
                let mut ledger = Ledger::new(vm);
                let mut held = std::collections::VecDeque::new();
                for turn in 0..1_000_u64 {
                    let reservation = ledger
                        .reserve(store, turn, POOL, &ids(4), |carried, _| {
                            let requests = |index: usize| carried[index].load.requests;
                            let total: u32 = (0..4).map(requests).sum();
                            let fits = (0..4).find(|index| requests(*index) <= total / 4);
                            fits.map(|index| (index, cost(10, 10)))
                        })
                        .expect("somebody is at or below the mean");
                    held.push_back(reservation);
                    if held.len() > 5 {
                        ledger.release(store, turn, held.pop_front().unwrap());
                    }
                    let totals = ledger.totals(store);
                    assert!(
                        totals.values().all(|load| load.requests <= 25),
                        "{totals:?}"
                    );
                }
                for reservation in held {
                    ledger.release(store, 1_000, reservation);
                }
            });
        }
    });
    let reader = Ledger::new(9);
    assert!(
        sum(&reader.totals(&store)).is_zero(),
        "{:?}",
        reader.totals(&store)
    );
}

/// What is refused on the load of all VMs is not granted on that of one.
#[test]
fn who_declines_what_all_carry_gets_nothing() {
    let store = MemoryStore::new();
    let mut vms: Vec<Ledger> = (1..=2).map(Ledger::new).collect();
    let mut below_one = with(cost(1, 1), |carried, _| {
        (carried[0].load.requests < 1).then_some(0)
    });
    let held = vms[0].reserve(&store, 0, POOL, &ids(1), &mut below_one);
    assert!(held.is_some());
    assert_eq!(
        vms[1].reserve(&store, 0, POOL, &ids(1), &mut below_one),
        None
    );
    vms[0].release(&store, 0, held.unwrap());
    let held = vms[1].reserve(&store, 0, POOL, &ids(1), &mut below_one);
    vms[1].release(&store, 0, held.unwrap());
    assert!(sum(&vms[0].totals(&store)).is_zero());
}

#[test]
fn columns_of_endpoints_that_left_go_after_a_while_and_those_in_use_stay() {
    let store = MemoryStore::new();
    let (mut one, mut two) = (Ledger::new(1), Ledger::new(2));
    let at = |number: u64| [EndpointId(number)];
    let pick = |ledger: &mut Ledger, now_ms, ids: &[EndpointId]| {
        let pool = ids.iter().map(|id| id.0).sum();
        let picked = ledger.reserve(&store, now_ms, pool, ids, with(cost(1, 1), least));
        picked.unwrap()
    };
    let columns = || -> Vec<u64> {
        let totals = Ledger::new(9).totals(&store);
        totals.keys().map(|id| id.0).collect()
    };
    // A stream that goes on at one that left; two that are done.
    let held = pick(&mut two, 1_000, &at(1));
    for number in [2, 3] {
        let done = pick(&mut two, 1_000, &at(number));
        two.release(&store, 1_000, done);
    }
    let late = pick(&mut one, 400_000, &at(3));
    one.release(&store, 400_000, late);
    let new = pick(&mut one, 600_999, &at(4));
    one.release(&store, 600_999, new);
    assert_eq!(columns(), [1, 2, 3, 4], "not yet");
    let new = pick(&mut one, 601_000, &at(5));
    assert_eq!(columns(), [1, 3, 4, 5]);
    one.release(&store, 601_000, new);
    // What is held stays exact, and the one that went comes back as any other.
    two.release(&store, 601_100, held);
    let back = pick(&mut two, 601_200, &at(2));
    assert_eq!(one.total(&store, EndpointId(2)), cost(1, 1));
    two.release(&store, 601_300, back);
    assert!(sum(&one.totals(&store)).is_zero());
}

/// Two pools with endpoints that never get a request must not throw out each other's.
#[test]
fn idle_endpoints_of_two_pools_leave_each_others_columns_alone() {
    let store = MemoryStore::new();
    let mut ledger = Ledger::new(1);
    let pools = [ids(3), (11..=13).map(EndpointId).collect()];
    let mut pick = |now_ms: u64, pool: usize| {
        let (number, ids) = (pool as u64, &pools[pool]);
        let choose = with(cost(1, 1), |_, _| Some(0));
        let picked = ledger.reserve(&store, now_ms, number, ids, choose);
        ledger.release(&store, now_ms, picked.unwrap());
        let bytes = store.get(KEY).unwrap().0;
        Table::new(&mut bytes.clone())
            .unwrap()
            .endpoints()
            .collect::<Vec<_>>()
    };
    for turn in 0..4_u64 {
        let now_ms = 10_000_000 + turn * 2 * IDLE_COLUMN_MS;
        // Who comes has the table built anew.
        let newcomer = [EndpointId(100 + turn)];
        let choose = with(cost(1, 1), least);
        let mut other = Ledger::new(100 + turn);
        let held = other.reserve(&store, now_ms, 2, &newcomer, choose).unwrap();
        pick(now_ms, 0);
        let all = pick(now_ms, 1);
        other.release(&store, now_ms, held);
        assert_eq!(all.len(), 7, "{all:?}");
        for pool in [0, 1, 0] {
            assert_eq!(pick(now_ms + 1_000, pool), all, "no reshaping at {now_ms}");
        }
    }
}

#[test]
fn what_is_remembered_of_pools_has_a_limit() {
    let store = MemoryStore::new();
    let mut ledger = Ledger::new(1);
    for pool in 0..1_000 {
        let picked = ledger.reserve(&store, 0, pool, &ids(3), with(cost(1, 1), least));
        ledger.release(&store, 0, picked.unwrap());
        assert!(ledger.hints.len() <= MAX_HINTS);
    }
    assert!(sum(&ledger.totals(&store)).is_zero());
}

proptest::proptest! {
    /// Whatever comes and goes over hours: all VMs see what is held, and nothing else stays.
    #[test]
    fn churn_loses_nothing(
        turns in proptest::collection::vec((0..3_usize, 0..20_u64, 0..900_000_u64, proptest::bool::ANY), 1..60),
    ) {
        let store = MemoryStore::new();
        let mut vms: Vec<Ledger> = (1..=3).map(Ledger::new).collect();
        let mut held: Vec<(usize, Reservation)> = Vec::new();
        let mut now_ms = 1_000_000;
        for (vm, first, pause_ms, ends) in turns {
            now_ms += pause_ms;
            let some: Vec<EndpointId> = (first..first + 3).map(EndpointId).collect();
            let picked = vms[vm].reserve(&store, now_ms, first, &some, with(cost(2, 1), least));
            held.push((vm, picked.unwrap()));
            if ends {
                let (owner, reservation) = held.remove(0);
                vms[owner].release(&store, now_ms, reservation);
            }
            for (endpoint, load) in vms[0].totals(&store) {
                let here = held.iter().filter(|(_, one)| one.endpoint() == endpoint);
                proptest::prop_assert_eq!(load.requests as usize, here.count());
                proptest::prop_assert_eq!(vms[1].total(&store, endpoint), load);
            }
            let requests = sum(&vms[2].totals(&store)).requests;
            proptest::prop_assert_eq!(requests as usize, held.len());
        }
        for (owner, reservation) in held {
            vms[owner].release(&store, now_ms, reservation);
        }
        proptest::prop_assert!(sum(&vms[0].totals(&store)).is_zero());
    }
}
