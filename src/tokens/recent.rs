//! Ratios that forget, in a table of fixed size in which what was put longest ago makes room.

/// Sums are kept in fractions, so that what fades from small ones is not rounded away.
const FRACTIONS: u64 = 256;

/// The ratio of two sums, in which what was observed earlier counts less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ratio {
    amount: u64,
    per: u64,
}

impl Ratio {
    /// As if so much had been observed.
    pub(super) fn new(amount: u64, per: u64) -> Self {
        Self {
            amount: amount.saturating_mul(FRACTIONS),
            per: per.saturating_mul(FRACTIONS),
        }
    }

    /// Adds an observation; all earlier ones count 1/`memory` less.
    pub(super) fn observe(&mut self, amount: u64, per: u64, memory: u64) {
        let faded = |sum: u64| sum.saturating_sub(sum / memory.max(1));
        let new = Self::new(amount, per);
        self.amount = faded(self.amount).saturating_add(new.amount);
        self.per = faded(self.per).saturating_add(new.per);
    }

    /// In thousandths; 0 if nothing was observed.
    pub(super) fn permille(self) -> u64 {
        let amount = self.amount.saturating_mul(1_000);
        amount.checked_div(self.per).unwrap_or(0)
    }
}

/// Ratios by the hash of what they belong to. Two that hash alike (once in 2^64) are one.
///
/// Set-associative: a hash names a set, and each of the set's places may hold it. With one set, what
/// makes room is the oldest of the whole table.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// Set after set, each of `places`: hash, the clock when it was put or 0 if it never was, and the
    /// two sums of the ratio.
    slots: Vec<[u64; 4]>,
    places: usize,
    /// How often something was put.
    clock: u64,
}

impl Recent {
    /// An empty table.
    pub(super) fn new(sets: usize, places: usize) -> Self {
        let places = places.max(1);
        Self {
            slots: vec![[0; 4]; sets.max(1).saturating_mul(places)],
            places,
            clock: 0,
        }
    }

    /// Where the set of a hash begins and ends.
    fn set(&self, hash: u64) -> std::ops::Range<usize> {
        let sets = (self.slots.len() / self.places).max(1) as u64;
        // Less than the number of slots, which is a `usize`.
        let start = (hash % sets) as usize * self.places;
        start..start.saturating_add(self.places)
    }

    /// The ratio, if it is still there.
    pub(super) fn get(&self, hash: u64) -> Option<Ratio> {
        let set = self.slots.get(self.set(hash))?;
        set.iter().find_map(|[known, put, amount, per]| {
            let ratio = Ratio {
                amount: *amount,
                per: *per,
            };
            (*put > 0 && *known == hash).then_some(ratio)
        })
    }

    /// Puts a ratio in place of its last one, or of the oldest of the set.
    pub(super) fn put(&mut self, hash: u64, ratio: Ratio) {
        self.clock = self.clock.saturating_add(1);
        let set = self.set(hash);
        let slots = self.slots.get_mut(set).unwrap_or_default();
        // Its own place counts as the oldest of all.
        let age = |slot: &&mut [u64; 4]| {
            let [known, put, ..] = **slot;
            let is_own = put > 0 && known == hash;
            if is_own { 0 } else { put.saturating_add(1) }
        };
        if let Some(slot) = slots.iter_mut().min_by_key(age) {
            *slot = [hash, self.clock, ratio.amount, ratio.per];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn ratio() -> impl Strategy<Value = Ratio> {
        (any::<u64>(), any::<u64>()).prop_map(|(amount, per)| Ratio { amount, per })
    }

    proptest! {
        /// With one set it is a queue of the latest, and memory never grows.
        #[test]
        fn the_latest_are_there_and_no_others(
            puts in proptest::collection::vec((0_u64..12, ratio()), 0..60)
        ) {
            let mut table = Recent::new(1, 4);
            let mut twin: VecDeque<(u64, Ratio)> = VecDeque::new();
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
            puts in proptest::collection::vec((any::<u64>(), ratio()), 1..60)
        ) {
            let mut table = Recent::new(8, 2);
            for (hash, value) in puts {
                table.put(hash, value);
                prop_assert_eq!(table.get(hash), Some(value));
                prop_assert_eq!(table.slots.len(), 16);
            }
        }

        /// Nothing overflows, and the ratio is one between those that were observed.
        #[test]
        fn a_ratio_stays_among_what_was_observed(
            observed in proptest::collection::vec((0_u64..1 << 30, 1_u64..1 << 24), 1..40),
            memory: u64,
        ) {
            let (first, rest) = observed.split_first().unwrap();
            let mut ratio = Ratio::new(first.0, first.1);
            for (amount, per) in rest {
                ratio.observe(*amount, *per, memory);
            }
            let permille = |(amount, per): &(u64, u64)| amount * 1_000 / per;
            let low = observed.iter().map(permille).min().unwrap();
            let high = observed.iter().map(permille).max().unwrap();
            // Sums are rounded up by a fraction at most.
            prop_assert!(ratio.permille() + 1 >= low - low / 100, "{ratio:?} {low}");
            prop_assert!(ratio.permille() <= high + high / 100 + 1_000, "{ratio:?} {high}");
        }

        #[test]
        fn no_sum_overflows(observed in proptest::collection::vec(any::<(u64, u64, u64)>(), 0..20)) {
            let mut ratio = Ratio::default();
            for (amount, per, memory) in observed {
                ratio.observe(amount, per, memory);
                ratio.permille();
            }
        }
    }
}
