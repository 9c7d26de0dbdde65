//! How the workers of one Envoy keep their indexes alike: a log in shared data.
//!
//! Every worker has the whole index in its own memory, where a look-up costs no call to the host,
//! and tells the others what it has sent where. The log is a ring of segments, each one value:
//!
//! ```text
//! head                 number of the segment that is written to, u64
//! segment, n mod 64    number n u64, records
//! record               kind u8, writer u64, endpoint u64, blocks u32, blocks × u64
//! ```
//!
//! Who falls behind by more than the ring holds misses what was said in between. That is no harm beyond
//! a worse guess: a copy that is not known of, or a block that was given up for another.

use crate::endpoint::EndpointId;
use crate::state::codec::{read_u32, read_u64};
use crate::state::{Store, update};

const SEGMENTS: u64 = 64;
/// A segment that has reached this length is followed by the next.
const SEGMENT_BYTES: usize = 8_192;
const NUMBER: usize = 8;
const RECORD_HEAD: usize = 21;

/// What a worker tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// The endpoint was sent a prompt of these blocks.
    Sent(EndpointId, &'a [u64]),
    /// The endpoint has lost everything.
    Lost(EndpointId),
}

/// One worker's place in the log.
#[derive(Debug)]
pub(super) struct Log {
    writer: u64,
    /// Keys of the log begin with this.
    prefix: String,
    segment: u64,
    /// Bytes of `segment` that have been read.
    read: usize,
}

impl Log {
    /// `writer` is unique among the VMs; `group` is that of those with one configuration.
    pub(super) fn new(writer: u64, group: u64) -> Self {
        Self {
            writer,
            prefix: format!("warmroute/1/index/{group:016x}"),
            segment: 0,
            read: NUMBER,
        }
    }

    fn key(&self, segment: u64) -> String {
        format!("{}/{}", self.prefix, segment % SEGMENTS)
    }

    fn head<S: Store + ?Sized>(&self, store: &S) -> u64 {
        let head = store.get(&self.prefix);
        head.and_then(|(bytes, _)| read_u64(&bytes, 0)).unwrap_or(0)
    }

    /// Appends an entry; a store that refuses loses it.
    pub(super) fn append<S: Store + ?Sized>(&self, store: &S, entry: Entry<'_>) {
        let record = self.encode(entry);
        let head = self.head(store);
        let mut full = false;
        update(store, &self.key(head), |bytes| {
            if read_u64(bytes, 0) != Some(head) {
                // The ring has come round, or this is the beginning.
                bytes.clear();
                bytes.extend_from_slice(&head.to_le_bytes());
            }
            bytes.extend_from_slice(&record);
            full = bytes.len() >= SEGMENT_BYTES;
            true
        });
        if full {
            update(store, &self.prefix, |bytes| {
                let current = read_u64(bytes, 0).unwrap_or(0);
                let ours = current == head;
                if ours {
                    bytes.clear();
                    bytes.extend_from_slice(&head.wrapping_add(1).to_le_bytes());
                }
                ours
            });
        }
    }

    /// Empties the whole log: keys cannot be deleted, and a configuration that is gone may never come back.
    pub(super) fn clear<S: Store + ?Sized>(&self, store: &S) {
        let keys = (0..SEGMENTS).map(|segment| self.key(segment));
        for key in keys.chain([self.prefix.clone()]) {
            // What was never written takes nothing.
            if store.get(&key).is_some_and(|(bytes, _)| !bytes.is_empty()) {
                let _ = store.put(&key, &[]);
            }
        }
    }

    fn encode(&self, entry: Entry<'_>) -> Vec<u8> {
        let (kind, endpoint, blocks) = match entry {
            Entry::Sent(endpoint, blocks) => (1_u8, endpoint, blocks),
            Entry::Lost(endpoint) => (2, endpoint, [].as_slice()),
        };
        let length = blocks.len().saturating_mul(8).saturating_add(RECORD_HEAD);
        let mut record = Vec::with_capacity(length);
        record.push(kind);
        record.extend_from_slice(&self.writer.to_le_bytes());
        record.extend_from_slice(&endpoint.0.to_le_bytes());
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        record.extend_from_slice(&count.to_le_bytes());
        for block in blocks {
            record.extend_from_slice(&block.to_le_bytes());
        }
        record
    }

    /// Gives everything that others have said since the last time to `apply`.
    pub(super) fn read<S: Store + ?Sized>(&mut self, store: &S, mut apply: impl FnMut(Entry<'_>)) {
        let head = self.head(store);
        if self.segment > head {
            // The log has begun anew.
            self.segment = head;
            self.read = NUMBER;
        }
        if self.segment.saturating_add(SEGMENTS) <= head {
            self.segment = head.saturating_sub(SEGMENTS - 1);
            self.read = NUMBER;
        }
        while self.segment <= head {
            if let Some((bytes, _)) = store.get(&self.key(self.segment))
                && read_u64(&bytes, 0) == Some(self.segment)
            {
                let from = match self.read <= bytes.len() {
                    true => self.read,
                    // This segment has.
                    false => NUMBER,
                };
                self.read = self.apply_from(&bytes, from, &mut apply);
            }
            if self.segment == head {
                break;
            }
            self.segment = self.segment.saturating_add(1);
            self.read = NUMBER;
        }
    }

    fn apply_from(&self, bytes: &[u8], mut at: usize, apply: &mut impl FnMut(Entry<'_>)) -> usize {
        let mut blocks = Vec::new();
        while let (Some(kind), Some(writer), Some(endpoint), Some(count)) = (
            bytes.get(at),
            read_u64(bytes, at.saturating_add(1)),
            read_u64(bytes, at.saturating_add(9)).map(EndpointId),
            read_u32(bytes, at.saturating_add(17)),
        ) {
            let start = at.saturating_add(RECORD_HEAD);
            let length = usize::try_from(count)
                .unwrap_or(usize::MAX)
                .saturating_mul(8);
            let end = start.saturating_add(length);
            let Some(words) = bytes.get(start..end) else {
                break;
            };
            if writer != self.writer {
                blocks.clear();
                blocks.extend(words.chunks_exact(8).filter_map(|word| read_u64(word, 0)));
                match kind {
                    1 => apply(Entry::Sent(endpoint, &blocks)),
                    2 => apply(Entry::Lost(endpoint)),
                    _ => {}
                }
            }
            at = end;
        }
        at
    }
}
