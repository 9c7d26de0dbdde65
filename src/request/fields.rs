//! Follows the dotted body paths of configured key fields through the objects of a body.

use super::keep::Kept;

/// Most paths that are followed; further ones never get a value.
pub(crate) const MAX_FIELDS: usize = 8;
/// Most segments of a path; a longer path never gets a value.
pub(crate) const MAX_SEGMENTS: usize = 4;

/// The values found at the configured paths. A set of paths is a bit mask.
pub(crate) struct Fields {
    paths: Vec<Vec<Vec<u8>>>,
    values: Vec<Option<Kept>>,
    /// For each depth, the paths whose beginning led to the object there.
    alive: [u8; MAX_SEGMENTS],
    depth: usize,
    /// Paths that end at the key just read.
    hit: u8,
    /// Paths that go on below the key just read.
    below: u8,
    /// Paths that the string under way belongs to.
    active: u8,
}

impl Fields {
    pub(crate) fn new(paths: &[String]) -> Self {
        let split = |path: &String| {
            path.split('.')
                .map(|part| part.as_bytes().to_vec())
                .collect()
        };
        let paths: Vec<Vec<Vec<u8>>> = paths.iter().map(split).collect();
        let all = paths
            .iter()
            .enumerate()
            .filter(|(_, path)| path.len() <= MAX_SEGMENTS)
            .fold(0, |mask, (index, _)| mask | bit(index));
        let mut alive = [0; MAX_SEGMENTS];
        if let Some(top) = alive.first_mut() {
            *top = all;
        }
        Self {
            values: vec![None; paths.len()],
            paths,
            alive,
            depth: 0,
            hit: 0,
            below: 0,
            active: 0,
        }
    }

    /// A key of the object under way. A path that leads here loses its value: the last one counts.
    pub(crate) fn key(&mut self, key: &[u8]) {
        let alive = self.alive.get(self.depth).copied().unwrap_or(0);
        self.hit = 0;
        self.below = 0;
        if alive == 0 {
            return;
        }
        for (index, path) in self.paths.iter().enumerate() {
            let segment = path.get(self.depth);
            if alive & bit(index) == 0 || segment.is_none_or(|segment| segment != key) {
                continue;
            }
            if let Some(value) = self.values.get_mut(index) {
                *value = None;
            }
            if path.len() == self.depth + 1 {
                self.hit |= bit(index);
            } else {
                self.below |= bit(index);
            }
        }
    }

    /// Whether an object under the key just read is worth reading.
    pub(crate) fn leads_on(&self) -> bool {
        self.below != 0
    }

    pub(crate) fn open(&mut self) {
        self.depth += 1;
        if let Some(alive) = self.alive.get_mut(self.depth) {
            *alive = self.below;
        }
        self.hit = 0;
        self.below = 0;
    }

    /// Whether the object that closes leaves us at the top again.
    pub(crate) fn close(&mut self) -> bool {
        self.depth = self.depth.saturating_sub(1);
        self.depth == 0
    }

    /// Begins the string under the key just read; true if a path ends there.
    pub(crate) fn begin_string(&mut self) -> bool {
        self.active = std::mem::take(&mut self.hit);
        for (index, value) in self.values.iter_mut().enumerate() {
            if self.active & bit(index) != 0 {
                *value = Some(Kept::new());
            }
        }
        self.active != 0
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        if self.active == 0 {
            return;
        }
        for (index, value) in self.values.iter_mut().enumerate() {
            if self.active & bit(index) != 0
                && let Some(value) = value
            {
                value.push(piece);
            }
        }
    }

    /// Drops the value under way: half of it would be another one.
    pub(crate) fn cut_short(&mut self) {
        for (index, value) in self.values.iter_mut().enumerate() {
            if self.active & bit(index) != 0 {
                *value = None;
            }
        }
    }

    pub(crate) fn end_string(&mut self) {
        self.active = 0;
    }

    /// A number or literal under the key just read; counts as its text, `null` as nothing.
    pub(crate) fn scalar(&mut self, text: &[u8]) {
        if self.hit != 0 && text != b"null" && !text.is_empty() {
            self.begin_string();
            self.push(text);
            self.end_string();
        }
    }

    pub(crate) fn into_values(self) -> Vec<Option<String>> {
        self.values
            .into_iter()
            .map(|value| value.map(Kept::into_string))
            .collect()
    }
}

fn bit(index: usize) -> u8 {
    if index < MAX_FIELDS { 1 << index } else { 0 }
}
