//! Strings that are kept for the decision, within a bound.

use xxhash_rust::xxh64::Xxh64;

/// Most bytes of one string that are kept.
pub(crate) const KEEP_BYTES: usize = 256;
/// Room for `#` and a 64-bit hash in hexadecimal.
const HASH_BYTES: usize = 17;

/// A string of a body. A longer one keeps its beginning and a hash of the whole, so that two long
/// strings stay apart.
#[derive(Clone)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    total: u64,
    hash: Xxh64,
}

impl Kept {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            total: 0,
            hash: Xxh64::new(0),
        }
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.total = self.total.saturating_add(piece.len() as u64);
        self.hash.update(piece);
        let room = KEEP_BYTES.saturating_sub(self.bytes.len()).min(piece.len());
        self.bytes
            .extend_from_slice(piece.get(..room).unwrap_or_default());
    }

    /// What is not UTF-8 is replaced.
    pub(crate) fn into_string(mut self) -> String {
        if self.total <= KEEP_BYTES as u64 {
            return String::from_utf8_lossy(&self.bytes).into_owned();
        }
        self.bytes.truncate(KEEP_BYTES - HASH_BYTES);
        let mut text = String::from_utf8_lossy(&self.bytes)
            .trim_end_matches(char::REPLACEMENT_CHARACTER)
            .to_owned();
        text.push_str(&format!("#{:016x}", self.hash.digest()));
        text
    }
}
