//! A set-associative table of fixed size: which block is held, and when it was last used.
//!
//! It is allocated with the first block, since not every VM picks, and never again. A tag lives in one of [`WAYS`] places of its set,
//! which its own bits name; when all are taken, the one that was used longest ago is given up.

/// Places of a set.
const WAYS: usize = 8;

/// The tags of a set share a line of the processor's cache: most look-ups need no other.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Set {
    /// 0 for an empty place.
    tags: [u64; WAYS],
    /// When each was last used, on the clock of the whole table.
    used: [u32; WAYS],
    /// What the caller keeps with each.
    stamps: [u32; WAYS],
}

impl Set {
    /// Where `tag` is. Every place is compared, so that nothing has to be guessed.
    fn find(&self, tag: u64) -> Option<usize> {
        let mut found = WAYS;
        for (place, other) in self.tags.iter().enumerate() {
            found = if *other == tag { place } else { found };
        }
        (found < WAYS).then_some(found)
    }

    /// An empty place, or the one that was used longest ago.
    fn oldest(&self, clock: u32) -> usize {
        let (mut oldest, mut most) = (0, 0);
        for ((place, tag), used) in self.tags.iter().enumerate().zip(&self.used) {
            let age = match tag {
                0 => u64::MAX,
                _ => u64::from(clock.wrapping_sub(*used)),
            };
            (oldest, most) = if age >= most {
                (place, age)
            } else {
                (oldest, most)
            };
        }
        oldest
    }
}

/// The table.
pub(super) struct Table {
    /// None before the first block.
    sets: Vec<Set>,
    /// How many there will be.
    count: usize,
    clock: u32,
}

impl Table {
    /// Room for at least `blocks` tags, if they spread evenly.
    pub(super) fn new(blocks: u32) -> Self {
        Self {
            sets: Vec::new(),
            count: (blocks as usize).div_ceil(WAYS).max(1),
            clock: 0,
        }
    }

    /// Bytes that the table takes: none before the first block, then always the same.
    pub(super) fn bytes(&self) -> usize {
        self.sets.len().saturating_mul(size_of::<Set>())
    }

    #[cold]
    #[inline(never)]
    fn allocate(&mut self) {
        self.sets = vec![Set::default(); self.count];
    }

    fn place(&self, tag: u64) -> usize {
        let wide = u128::from(tag).wrapping_mul(self.sets.len() as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Has the sets of several tags read from memory at once, for those who then `put` them: by itself,
    /// each would be waited for before the next is asked.
    pub(super) fn fetch(&self, tags: impl Iterator<Item = u64>) {
        let both = |set: &Set| {
            let used = set.used.first().copied().unwrap_or(0);
            set.tags.first().copied().unwrap_or(0) ^ u64::from(used)
        };
        let sets = tags.filter_map(|tag| self.sets.get(self.place(tag)));
        std::hint::black_box(sets.fold(0, |sum, set| sum ^ both(set)));
    }

    /// What is kept with `tag`.
    pub(super) fn get(&self, tag: u64) -> Option<u32> {
        let tag = tag.max(1);
        let set = self.sets.get(self.place(tag))?;
        set.stamps.get(set.find(tag)?).copied()
    }

    /// Keeps `stamp` with `tag`, as the last used.
    pub(super) fn put(&mut self, tag: u64, stamp: u32) {
        if self.sets.is_empty() {
            self.allocate();
        }
        let tag = tag.max(1);
        self.clock = self.clock.wrapping_add(1);
        let (place, clock) = (self.place(tag), self.clock);
        let Some(set) = self.sets.get_mut(place) else {
            return;
        };
        let at = set.find(tag).unwrap_or_else(|| set.oldest(clock));
        if let (Some(own), Some(used), Some(kept)) = (
            set.tags.get_mut(at),
            set.used.get_mut(at),
            set.stamps.get_mut(at),
        ) {
            (*own, *used, *kept) = (tag, clock, stamp);
        }
    }
}
