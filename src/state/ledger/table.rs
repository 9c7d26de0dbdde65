//! The ledger's bytes: endpoints and when their queues last moved, turn counters, and one row of loads a VM.
//!
//! ```text
//! magic u32 · endpoints u32 · counters u32 · slots u32
//! endpoints × (id u64, moved_ms u64)
//! counters  × (pool u64, picks u64)
//! slots     × (vm u64, heartbeat_ms u64, endpoints × (requests u32, waiting u32, prefill u64, decode u64, context u64))
//! ```
//!
//! The common case touches a few cells of this in place ([`Table`]). Whatever changes the shape (a
//! new endpoint, VM or pool, a dead VM) goes through [`Image`], which is slow and rare.

use crate::endpoint::EndpointId;
use crate::policy::Load;
use crate::state::codec::{read_u32, read_u64, write};

const MAGIC: u32 = u32::from_le_bytes(*b"WRL3");
const HEADER: usize = 16;
const COLUMN: usize = 16;
const COUNTER: usize = 16;
const SLOT_HEAD: usize = 16;
const CELL: usize = 32;

/// Most endpoints with a column; those without load make room for new ones.
pub(super) const MAX_ENDPOINTS: usize = 4_096;
/// Most VMs with a row.
pub(super) const MAX_SLOTS: usize = 1_024;
/// Most pools with a counter.
const MAX_COUNTERS: usize = 1_024;

/// A valid ledger, read and written in place.
pub(super) struct Table<'a> {
    bytes: &'a mut [u8],
    endpoints: usize,
    counters: usize,
    slots: usize,
}

impl<'a> Table<'a> {
    /// `None` if the bytes are not a ledger of this version.
    pub(super) fn new(bytes: &'a mut [u8]) -> Option<Self> {
        if read_u32(bytes, 0)? != MAGIC {
            return None;
        }
        let endpoints = usize::try_from(read_u32(bytes, 4)?).ok()?;
        let counters = usize::try_from(read_u32(bytes, 8)?).ok()?;
        let slots = usize::try_from(read_u32(bytes, 12)?).ok()?;
        if endpoints > MAX_ENDPOINTS || counters > MAX_COUNTERS || slots > MAX_SLOTS {
            return None;
        }
        let length = HEADER
            + endpoints * COLUMN
            + counters * COUNTER
            + slots * (SLOT_HEAD + endpoints * CELL);
        (bytes.len() == length).then_some(Self {
            bytes,
            endpoints,
            counters,
            slots,
        })
    }

    fn slot_at(&self, slot: usize) -> usize {
        HEADER
            + self.endpoints * COLUMN
            + self.counters * COUNTER
            + slot * (SLOT_HEAD + self.endpoints * CELL)
    }

    fn endpoint_at(&self, column: usize) -> Option<EndpointId> {
        if column >= self.endpoints {
            return None;
        }
        read_u64(self.bytes, HEADER + column * COLUMN).map(EndpointId)
    }

    /// The endpoint's column; `hint` is where it was last time.
    pub(super) fn column(&self, id: EndpointId, hint: usize) -> Option<usize> {
        if self.endpoint_at(hint) == Some(id) {
            return Some(hint);
        }
        (0..self.endpoints).find(|column| self.endpoint_at(*column) == Some(id))
    }

    /// When the endpoint's queue last moved, by any VM's account.
    pub(super) fn moved_ms(&self, column: usize) -> u64 {
        read_u64(self.bytes, HEADER + column * COLUMN + 8).unwrap_or(0)
    }

    /// The queue has moved. `column` must be one of this ledger's.
    pub(super) fn set_moved_ms(&mut self, column: usize, now_ms: u64) {
        write(
            self.bytes,
            HEADER + column * COLUMN + 8,
            &now_ms.to_le_bytes(),
        );
    }

    /// The VM's row.
    pub(super) fn slot(&self, vm: u64) -> Option<usize> {
        (0..self.slots).find(|slot| read_u64(self.bytes, self.slot_at(*slot)) == Some(vm))
    }

    /// Where the pool's counter lies and what it says.
    pub(super) fn counter(&self, pool: u64) -> Option<(usize, u64)> {
        (0..self.counters)
            .map(|index| HEADER + self.endpoints * COLUMN + index * COUNTER)
            .find(|at| read_u64(self.bytes, *at) == Some(pool))
            .and_then(|at| Some((at, read_u64(self.bytes, at + 8)?)))
    }

    /// Advances the counter found at `at`.
    pub(super) fn set_counter(&mut self, at: usize, picks: u64) {
        write(self.bytes, at + 8, &picks.to_le_bytes());
    }

    /// The endpoints, by column.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        (0..self.endpoints).filter_map(|column| self.endpoint_at(column))
    }

    /// What all VMs together carry on one endpoint.
    pub(super) fn sum(&self, column: usize) -> Load {
        let mut sum = Load::default();
        for slot in 0..self.slots {
            let at = self.slot_at(slot) + SLOT_HEAD + column * CELL;
            if let Some(cell) = self.bytes.get(at..at + CELL) {
                sum.add(decode_cell(cell));
            }
        }
        sum
    }

    /// What all VMs together carry on each endpoint, by column.
    pub(super) fn sums(&self) -> Vec<Load> {
        let mut sums = vec![Load::default(); self.endpoints];
        for slot in 0..self.slots {
            let start = self.slot_at(slot) + SLOT_HEAD;
            let Some(cells) = self.bytes.get(start..start + self.endpoints * CELL) else {
                break;
            };
            for (sum, cell) in sums.iter_mut().zip(cells.chunks_exact(CELL)) {
                sum.add(decode_cell(cell));
            }
        }
        sums
    }

    /// Marks the VM alive.
    pub(super) fn set_heartbeat(&mut self, slot: usize, now_ms: u64) {
        write(self.bytes, self.slot_at(slot) + 8, &now_ms.to_le_bytes());
    }

    /// Writes one cell.
    pub(super) fn set_cell(&mut self, slot: usize, column: usize, load: Load) {
        let at = self.slot_at(slot) + SLOT_HEAD + column * CELL;
        write(self.bytes, at, &encode_cell(load));
    }

    /// Whether a VM other than `vm` has been silent for longer than `ttl_ms`.
    pub(super) fn has_dead(&self, vm: u64, now_ms: u64, ttl_ms: u64) -> bool {
        (0..self.slots).map(|slot| self.slot_at(slot)).any(|at| {
            read_u64(self.bytes, at) != Some(vm)
                && read_u64(self.bytes, at + 8)
                    .is_none_or(|heartbeat_ms| is_dead(heartbeat_ms, now_ms, ttl_ms))
        })
    }
}

/// Silent for too long; or in the future, after the clock was set back. A VM that is taken for dead
/// by mistake writes its whole row again the next time it does anything.
fn is_dead(heartbeat_ms: u64, now_ms: u64, ttl_ms: u64) -> bool {
    heartbeat_ms.saturating_add(ttl_ms) < now_ms || heartbeat_ms > now_ms.saturating_add(ttl_ms)
}

fn decode_cell(cell: &[u8]) -> Load {
    Load {
        requests: read_u32(cell, 0).unwrap_or(0),
        waiting: read_u32(cell, 4).unwrap_or(0),
        prefill_tokens: read_u64(cell, 8).unwrap_or(0),
        decode_tokens: read_u64(cell, 16).unwrap_or(0),
        context_tokens: read_u64(cell, 24).unwrap_or(0),
    }
}

fn encode_cell(load: Load) -> [u8; CELL] {
    let mut cell = [0; CELL];
    write(&mut cell, 0, &load.requests.to_le_bytes());
    write(&mut cell, 4, &load.waiting.to_le_bytes());
    write(&mut cell, 8, &load.prefill_tokens.to_le_bytes());
    write(&mut cell, 16, &load.decode_tokens.to_le_bytes());
    write(&mut cell, 24, &load.context_tokens.to_le_bytes());
    cell
}

/// One VM's row, unpacked.
pub(super) struct Slot {
    pub(super) vm: u64,
    pub(super) heartbeat_ms: u64,
    /// By column.
    pub(super) loads: Vec<Load>,
}

/// The whole ledger, unpacked, for changes of its shape.
#[derive(Default)]
pub(super) struct Image {
    pub(super) endpoints: Vec<EndpointId>,
    /// When the queue of each last moved.
    pub(super) moved_ms: Vec<u64>,
    pub(super) counters: Vec<(u64, u64)>,
    pub(super) slots: Vec<Slot>,
}

impl Image {
    /// Unpacks; bytes that are no ledger of this version give an empty one.
    pub(super) fn decode(bytes: &mut [u8]) -> Self {
        let Some(table) = Table::new(bytes) else {
            return Self::default();
        };
        let endpoints = (0..table.endpoints)
            .filter_map(|column| table.endpoint_at(column))
            .collect();
        let moved_ms = (0..table.endpoints)
            .map(|column| table.moved_ms(column))
            .collect();
        let counters = (0..table.counters)
            .map(|index| HEADER + table.endpoints * COLUMN + index * COUNTER)
            .filter_map(|at| Some((read_u64(table.bytes, at)?, read_u64(table.bytes, at + 8)?)))
            .collect();
        let slots = (0..table.slots)
            .filter_map(|slot| {
                let at = table.slot_at(slot);
                let cells = table
                    .bytes
                    .get(at + SLOT_HEAD..at + SLOT_HEAD + table.endpoints * CELL)?;
                Some(Slot {
                    vm: read_u64(table.bytes, at)?,
                    heartbeat_ms: read_u64(table.bytes, at + 8)?,
                    loads: cells.chunks_exact(CELL).map(decode_cell).collect(),
                })
            })
            .collect();
        Self {
            endpoints,
            moved_ms,
            counters,
            slots,
        }
    }

    /// Packs into `bytes`.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let count = |length: usize| u32::try_from(length).unwrap_or(0).to_le_bytes();
        bytes.clear();
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&count(self.endpoints.len()));
        bytes.extend_from_slice(&count(self.counters.len()));
        bytes.extend_from_slice(&count(self.slots.len()));
        for (id, moved_ms) in self.endpoints.iter().zip(&self.moved_ms) {
            bytes.extend_from_slice(&id.0.to_le_bytes());
            bytes.extend_from_slice(&moved_ms.to_le_bytes());
        }
        for (pool, picks) in &self.counters {
            bytes.extend_from_slice(&pool.to_le_bytes());
            bytes.extend_from_slice(&picks.to_le_bytes());
        }
        for slot in &self.slots {
            bytes.extend_from_slice(&slot.vm.to_le_bytes());
            bytes.extend_from_slice(&slot.heartbeat_ms.to_le_bytes());
            for load in &slot.loads {
                bytes.extend_from_slice(&encode_cell(*load));
            }
        }
    }

    /// Drops the rows of dead VMs.
    pub(super) fn drop_dead(&mut self, vm: u64, now_ms: u64, ttl_ms: u64) {
        self.slots
            .retain(|slot| slot.vm == vm || !is_dead(slot.heartbeat_ms, now_ms, ttl_ms));
    }

    /// Gives each of `ids` a column, whose queue moves now. Past the limit, columns without load make
    /// room; an endpoint for which there is none stays without.
    pub(super) fn add_endpoints(&mut self, ids: &[EndpointId], now_ms: u64) {
        if self.endpoints.len().saturating_add(ids.len()) > MAX_ENDPOINTS {
            self.drop_idle_endpoints(ids, now_ms, 0);
        }
        for id in ids {
            if !self.endpoints.contains(id) && self.endpoints.len() < MAX_ENDPOINTS {
                self.endpoints.push(*id);
            }
        }
        self.moved_ms.resize(self.endpoints.len(), now_ms);
        for slot in &mut self.slots {
            slot.loads.resize(self.endpoints.len(), Load::default());
        }
    }

    /// Drops the columns without load whose queues have not moved for `idle_ms`, but for those of `keep`.
    #[inline(never)]
    pub(super) fn drop_idle_endpoints(&mut self, keep: &[EndpointId], now_ms: u64, idle_ms: u64) {
        let busy = |column: usize| {
            self.slots
                .iter()
                .any(|slot| slot.loads.get(column).is_some_and(|load| !load.is_zero()))
        };
        let kept: Vec<usize> = self
            .endpoints
            .iter()
            .zip(&self.moved_ms)
            .enumerate()
            .filter(|(column, (id, moved_ms))| {
                // One from the future was written before the clock was set back.
                now_ms.abs_diff(**moved_ms) < idle_ms || busy(*column) || keep.contains(id)
            })
            .map(|(column, _)| column)
            .collect();
        if kept.len() == self.endpoints.len() {
            return;
        }
        self.endpoints = kept
            .iter()
            .filter_map(|column| self.endpoints.get(*column).copied())
            .collect();
        self.moved_ms = kept
            .iter()
            .filter_map(|column| self.moved_ms.get(*column).copied())
            .collect();
        for slot in &mut self.slots {
            slot.loads = kept
                .iter()
                .filter_map(|column| slot.loads.get(*column).copied())
                .collect();
        }
    }

    /// Gives the pool a counter; past the limit the oldest goes.
    pub(super) fn add_counter(&mut self, pool: u64) {
        if self.counters.iter().any(|(known, _)| *known == pool) {
            return;
        }
        if self.counters.len() >= MAX_COUNTERS {
            self.counters.remove(0);
        }
        self.counters.push((pool, 0));
    }
}
