//! A table of fixed size, in which what was put longest ago makes room.

/// Values by the hash of what they belong to. Two that hash alike (once in 2^64) are one.
///
/// Set-associative: a hash names a set, and each of the set's places may hold it. With one set, what
/// makes room is the oldest of the whole table.
#[derive(Clone, Debug)]
pub(super) struct Recent<V> {
    /// Set after set, each of `places`.
    slots: Vec<Slot<V>>,
    places: usize,
    /// How often something was put.
    clock: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot<V> {
    hash: u64,
    /// The clock when it was put; 0 if it never was.
    put: u64,
    value: V,
}

impl<V: Copy + Default> Recent<V> {
    /// An empty table.
    pub(super) fn new(sets: usize, places: usize) -> Self {
        let slots = sets.max(1).saturating_mul(places.max(1));
        Self {
            slots: vec![Slot::default(); slots],
            places: places.max(1),
            clock: 0,
        }
    }

    /// Where the set of a hash begins.
    fn start(&self, hash: u64) -> usize {
        let sets = (self.slots.len() / self.places).max(1) as u64;
        // Less than the number of slots, which is a `usize`.
        (hash % sets) as usize * self.places
    }

    /// The value, if it is still there.
    pub(super) fn get(&self, hash: u64) -> Option<V> {
        let set = self.slots.iter().skip(self.start(hash)).take(self.places);
        let mut known = set.filter(|slot| slot.put > 0 && slot.hash == hash);
        known.next().map(|slot| slot.value)
    }

    /// Puts a value in place of its last one, or of the oldest of the set.
    pub(super) fn put(&mut self, hash: u64, value: V) {
        self.clock = self.clock.saturating_add(1);
        let start = self.start(hash);
        let set = self.slots.iter_mut().skip(start).take(self.places);
        let place = set.min_by_key(|slot| match slot.hash == hash && slot.put > 0 {
            true => (false, 0),
            false => (true, slot.put),
        });
        if let Some(slot) = place {
            *slot = Slot {
                hash,
                put: self.clock,
                value,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// With one set it is a queue of the latest, and memory never grows.
        #[test]
        fn the_latest_are_there_and_no_others(
            puts in proptest::collection::vec((0_u64..12, any::<u32>()), 0..60)
        ) {
            let mut table = Recent::new(1, 4);
            let mut twin: VecDeque<(u64, u32)> = VecDeque::new();
            for (hash, value) in puts {
                table.put(hash, value);
                twin.retain(|(known, _)| *known != hash);
                twin.push_back((hash, value));
                if twin.len() > 4 {
                    twin.pop_front();
                }
                for hash in 0..12 {
                    let expected = twin.iter().find(|(known, _)| *known == hash);
                    prop_assert_eq!(table.get(hash), expected.map(|(_, value)| *value));
                }
                prop_assert_eq!(table.slots.len(), 4);
            }
        }

        #[test]
        fn with_many_sets_what_was_put_last_is_there(
            puts in proptest::collection::vec((any::<u64>(), any::<u32>()), 1..60)
        ) {
            let mut table = Recent::new(8, 2);
            for (hash, value) in puts {
                table.put(hash, value);
                prop_assert_eq!(table.get(hash), Some(value));
                prop_assert_eq!(table.slots.len(), 16);
            }
        }
    }
}
