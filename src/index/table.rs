//! A set-associative table of fixed size: which block is held, and when it was last used.
//!
//! Nothing is ever allocated after the beginning. A tag lives in one of [`WAYS`] slots, which its own
//! bits name; when all are taken, the one that was used longest ago is given up.

/// Slots that a tag may be in.
const WAYS: usize = 8;

#[derive(Clone, Copy, Default)]
struct Slot {
    /// 0 for an empty slot.
    tag: u64,
    /// When it was last used, on the clock of the whole table.
    used: u32,
    /// What the caller keeps with it.
    stamp: u32,
}

/// The table.
pub(super) struct Table {
    slots: Vec<Slot>,
    sets: u64,
    clock: u32,
}

impl Table {
    /// Room for at least `blocks` tags, if they spread evenly.
    pub(super) fn new(blocks: u32) -> Self {
        let sets = u64::from(blocks).div_ceil(WAYS as u64).max(1);
        let slots = usize::try_from(sets).unwrap_or(1).saturating_mul(WAYS);
        Self {
            slots: vec![Slot::default(); slots],
            sets,
            clock: 0,
        }
    }

    /// Bytes that the table takes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len().saturating_mul(size_of::<Slot>())
    }

    /// Tags that it has room for.
    pub(super) fn blocks(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    fn set(&self, tag: u64) -> std::ops::Range<usize> {
        let wide = u128::from(tag).wrapping_mul(u128::from(self.sets));
        let start = usize::try_from(wide >> 64)
            .unwrap_or(0)
            .saturating_mul(WAYS);
        start..start.saturating_add(WAYS)
    }

    /// What is kept with `tag`.
    pub(super) fn get(&self, tag: u64) -> Option<u32> {
        let tag = tag.max(1);
        let set = self.slots.get(self.set(tag))?;
        let found = set.iter().find(|slot| slot.tag == tag)?;
        Some(found.stamp)
    }

    /// Keeps `stamp` with `tag`, as the last used; what was kept before.
    pub(super) fn put(&mut self, tag: u64, stamp: u32) -> Option<u32> {
        let tag = tag.max(1);
        self.clock = self.clock.wrapping_add(1);
        let (set, clock) = (self.set(tag), self.clock);
        let set = self.slots.get_mut(set)?;
        let found = set.iter_mut().find(|slot| slot.tag == tag);
        if let Some(slot) = found {
            slot.used = clock;
            return Some(std::mem::replace(&mut slot.stamp, stamp));
        }
        let age = |slot: &&mut Slot| match slot.tag {
            0 => u64::MAX,
            _ => u64::from(clock.wrapping_sub(slot.used)),
        };
        if let Some(slot) = set.iter_mut().max_by_key(age) {
            *slot = Slot {
                tag,
                used: clock,
                stamp,
            };
        }
        None
    }
}
