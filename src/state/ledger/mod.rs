//! Who carries how much, exact across all workers of an Envoy.
//!
//! Every VM owns one row of the shared table and is the only one to change it: the sum of the
//! reservations that are alive in that VM. The load of an endpoint is its column's sum. Therefore
//!
//! - a pick and its reservation are one compare-and-swap: the pick saw every reservation made before;
//! - nothing is released twice or never: a [`Reservation`] is a value that is consumed once;
//! - no figure can be negative or drift: a row is written from what its VM holds, not by adding and
//!   subtracting in the shared copy, and a row that was lost is written anew;
//! - a VM that dies takes its row with it, [`SLOT_TTL_MS`] after its last heartbeat.

mod place;
mod table;

use std::collections::BTreeMap;

use self::place::Place;
use self::table::{Image, MAX_SLOTS, Slot, Table};
use super::{Store, Update, update};
use crate::endpoint::EndpointId;
use crate::policy::Load;

const KEY: &str = "warmroute/1/ledger";

/// How long a dead VM's load can stay, in milliseconds. A VM writes at least every
/// [`HEARTBEAT_MS`], unless its thread hangs.
pub const SLOT_TTL_MS: u64 = 5_000;
/// How often an idle VM shows that it is alive, in milliseconds.
pub const HEARTBEAT_MS: u64 = 1_000;

/// A column without load whose queue has not moved for so long makes room when the table is rebuilt, in
/// milliseconds: every pick reads all columns, and the endpoints of pods that are gone never come back.
const IDLE_COLUMN_MS: u64 = 600_000;
/// Most pools whose columns are remembered; a pick finds them again without.
const MAX_HINTS: usize = 64;

/// What one request holds on one endpoint, until it is released.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation that is dropped without release stays in the ledger"]
pub struct Reservation {
    endpoint: EndpointId,
    held: Load,
}

impl Reservation {
    /// Where.
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// How much is still held.
    pub fn held(&self) -> Load {
        self.held
    }
}

/// What all VMs together carry on one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// How much.
    pub load: Load,
    /// When its queue last moved, in milliseconds: a first token came, or a request came to an empty
    /// queue.
    pub moved_ms: u64,
}

/// Whether a change shows that the endpoint's queue has moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Moved,
    AsBefore,
}

/// One VM's hand on the ledger.
#[derive(Debug)]
pub struct Ledger {
    vm: u64,
    mine: BTreeMap<EndpointId, Load>,
    /// Columns where the endpoints of a pool were found last, by pool.
    hints: BTreeMap<u64, Vec<usize>>,
    /// Picks made while the store could not be had, so that turns still alternate.
    alone: u64,
    /// The shared row lags behind `mine`.
    stale: bool,
    last_write_ms: u64,
}

impl Ledger {
    /// `vm` must be unique among the VMs that share the store; see [`super::unique_id`].
    pub fn new(vm: u64) -> Self {
        Self {
            vm,
            mine: BTreeMap::new(),
            hints: BTreeMap::new(),
            alone: 0,
            stale: false,
            last_write_ms: 0,
        }
    }

    /// Lets `choose` pick one of `ids`, given what each carries (in the same order) and the number of
    /// picks the pool had before, and reserves there what it says, in one atomic step. `choose` may run
    /// several times. `None` if it picks nothing.
    ///
    /// A store that fails does not stop traffic: the pick then sees this VM's load alone, and the
    /// row is written when the store is back.
    pub fn reserve<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        pool: u64,
        ids: &[EndpointId],
        mut choose: impl FnMut(&[Carried], u64) -> Option<(usize, Load)>,
    ) -> Option<Reservation> {
        let mut hints = self.hints.remove(&pool).unwrap_or_default();
        let mut chosen = None;
        let mut declined = false;
        let outcome = update(store, KEY, |bytes| {
            let place = self.place(bytes, now_ms, pool, ids, &hints);
            let (Some(place), Some(mut table)) = (place, Table::new(bytes)) else {
                return false;
            };
            let carried = place.carried(&table);
            let choice = choose(&carried, place.sequence);
            declined = choice.is_none();
            chosen = choice.and_then(|(index, cost)| {
                let (endpoint, before) = (*ids.get(index)?, carried.get(index)?);
                let held = self.held(endpoint).plus(cost);
                place.write(&mut table, now_ms, index, before, held)?;
                Some((endpoint, cost))
            });
            hints = place.columns;
            chosen.is_some()
        });
        self.remember(pool, hints);
        if declined {
            return None;
        }
        let (endpoint, cost) = match (outcome, chosen) {
            (Update::Written, Some(chosen)) => {
                self.last_write_ms = now_ms;
                chosen
            }
            _ => self.choose_alone(now_ms, ids, choose)?,
        };
        self.mine.entry(endpoint).or_default().add(cost);
        Some(Reservation {
            endpoint,
            held: cost,
        })
    }

    /// Where a pool's endpoints were found, for its next pick.
    fn remember(&mut self, pool: u64, columns: Vec<usize>) {
        if self.hints.len() >= MAX_HINTS {
            self.hints.clear();
        }
        self.hints.insert(pool, columns);
    }

    fn choose_alone(
        &mut self,
        now_ms: u64,
        ids: &[EndpointId],
        mut choose: impl FnMut(&[Carried], u64) -> Option<(usize, Load)>,
    ) -> Option<(EndpointId, Load)> {
        let carried: Vec<Carried> = ids
            .iter()
            .map(|id| Carried {
                load: self.held(*id),
                moved_ms: now_ms,
            })
            .collect();
        let (index, cost) = choose(&carried, self.alone)?;
        let endpoint = *ids.get(index)?;
        self.alone = self.alone.wrapping_add(1);
        self.stale = true;
        Some((endpoint, cost))
    }

    /// The prompt has been computed: only the output is still to come.
    pub fn release_prefill<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: &mut Reservation,
    ) {
        let prefill = Load {
            waiting: reservation.held.waiting,
            prefill_tokens: reservation.held.prefill_tokens,
            ..Load::default()
        };
        if prefill.is_zero() {
            return;
        }
        reservation.held.subtract(prefill);
        self.give_back(reservation.endpoint, prefill);
        self.publish(store, now_ms, &[reservation.endpoint], Queue::Moved);
    }

    /// The request is over, however it ended.
    pub fn release<S: Store + ?Sized>(&mut self, store: &S, now_ms: u64, reservation: Reservation) {
        self.give_back(reservation.endpoint, reservation.held);
        self.publish(store, now_ms, &[reservation.endpoint], Queue::AsBefore);
    }

    /// The request turned out to be served by another endpoint.
    pub fn transfer<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        reservation: Reservation,
        to: EndpointId,
    ) -> Reservation {
        let Reservation {
            endpoint: from,
            held,
        } = reservation;
        self.give_back(from, held);
        self.mine.entry(to).or_default().add(held);
        self.publish(store, now_ms, &[from, to], Queue::AsBefore);
        Reservation { endpoint: to, held }
    }

    /// Call this often: writes what could not be written before, shows that this VM is alive, and
    /// removes the rows of VMs that are not.
    pub fn tick<S: Store + ?Sized>(&mut self, store: &S, now_ms: u64) {
        if now_ms < self.last_write_ms {
            // The clock was set back; measure from here.
            self.last_write_ms = now_ms;
            self.stale = true;
        }
        let due = now_ms.saturating_sub(self.last_write_ms) >= HEARTBEAT_MS;
        if self.stale || (due && !self.mine.is_empty()) {
            let touched: Vec<EndpointId> = self.mine.keys().copied().collect();
            self.publish(store, now_ms, &touched, Queue::AsBefore);
            self.mine.retain(|_, load| self.stale || !load.is_zero());
        }
        self.bury_the_dead(store, now_ms);
    }

    /// What all VMs carry, by endpoint. Endpoints that never had load may be absent.
    pub fn totals<S: Store + ?Sized>(&self, store: &S) -> BTreeMap<EndpointId, Load> {
        let Some((mut bytes, _)) = store.get(KEY) else {
            return BTreeMap::new();
        };
        let Some(table) = Table::new(&mut bytes) else {
            return BTreeMap::new();
        };
        table.endpoints().zip(table.sums()).collect()
    }

    /// What all VMs carry on one endpoint: a small part of the work of [`Self::totals`].
    pub fn total<S: Store + ?Sized>(&self, store: &S, endpoint: EndpointId) -> Load {
        let Some((mut bytes, _)) = store.get(KEY) else {
            return Load::default();
        };
        let table = Table::new(&mut bytes);
        let sum = table.and_then(|table| Some(table.sum(table.column(endpoint, 0)?)));
        sum.unwrap_or_default()
    }

    fn held(&self, endpoint: EndpointId) -> Load {
        self.mine.get(&endpoint).copied().unwrap_or_default()
    }

    fn give_back(&mut self, endpoint: EndpointId, load: Load) {
        self.mine.entry(endpoint).or_default().subtract(load);
    }

    /// Writes this VM's cells of `touched` into the shared table.
    fn publish<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        touched: &[EndpointId],
        queue: Queue,
    ) {
        let outcome = update(store, KEY, |bytes| {
            if self.stale || !self.write_cells(bytes, now_ms, touched, queue) {
                self.rebuild(bytes, now_ms, None, touched);
            }
            true
        });
        self.stale = outcome != Update::Written;
        self.last_write_ms = now_ms;
    }

    fn write_cells(
        &self,
        bytes: &mut [u8],
        now_ms: u64,
        touched: &[EndpointId],
        queue: Queue,
    ) -> bool {
        let Some(mut table) = Table::new(bytes) else {
            return false;
        };
        let Some(slot) = table.slot(self.vm) else {
            return false;
        };
        for id in touched {
            let Some(column) = table.column(*id, 0) else {
                return false;
            };
            table.set_cell(slot, column, self.held(*id));
            if queue == Queue::Moved {
                table.set_moved_ms(column, now_ms);
            }
        }
        table.set_heartbeat(slot, now_ms);
        true
    }

    /// Where everything lies that a pick needs; what is missing is added before.
    fn place(
        &self,
        bytes: &mut Vec<u8>,
        now_ms: u64,
        pool: u64,
        ids: &[EndpointId],
        hints: &[usize],
    ) -> Option<Place> {
        let place = Place::locate(bytes, self.vm, pool, ids, hints);
        if place.is_some() && !self.stale {
            return place;
        }
        self.rebuild(bytes, now_ms, Some(pool), ids);
        Place::locate(bytes, self.vm, pool, ids, hints)
    }

    /// The slow path: whatever is missing is added, and this VM's row is written from what it holds.
    fn rebuild(&self, bytes: &mut Vec<u8>, now_ms: u64, pool: Option<u64>, ids: &[EndpointId]) {
        let mut image = Image::decode(bytes);
        image.slots.retain(|slot| slot.vm != self.vm);
        if image.slots.len() >= MAX_SLOTS {
            image.drop_dead(self.vm, now_ms, SLOT_TTL_MS);
        }
        let wanted: Vec<EndpointId> = ids
            .iter()
            .copied()
            .chain(
                self.mine
                    .iter()
                    .filter(|(_, load)| !load.is_zero())
                    .map(|(id, _)| *id),
            )
            .collect();
        image.drop_idle_endpoints(&wanted, now_ms, IDLE_COLUMN_MS);
        image.add_endpoints(&wanted, now_ms);
        if let Some(pool) = pool {
            image.add_counter(pool);
        }
        if image.slots.len() < MAX_SLOTS {
            let loads = image.endpoints.iter().map(|id| self.held(*id)).collect();
            image.slots.push(Slot {
                vm: self.vm,
                heartbeat_ms: now_ms,
                loads,
            });
        }
        image.encode(bytes);
    }

    fn bury_the_dead<S: Store + ?Sized>(&self, store: &S, now_ms: u64) {
        update(store, KEY, |bytes| {
            let dead =
                Table::new(bytes).is_some_and(|table| table.has_dead(self.vm, now_ms, SLOT_TTL_MS));
            if dead {
                let mut image = Image::decode(bytes);
                image.drop_dead(self.vm, now_ms, SLOT_TTL_MS);
                image.encode(bytes);
            }
            dead
        });
    }
}

#[cfg(test)]
mod tests;
