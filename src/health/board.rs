//! The rows of all endpoints, shared by the workers: `warmroute/1/health` in the store.
//!
//! Each VM keeps a copy, and reads it anew with every tick. What changes nothing in the copy costs no access
//! to the store; what does is applied there, by compare-and-swap, to what stands there.

use std::collections::BTreeMap;

use super::codec::{self, ROW};
use super::{Row, Settings, Signal, Standing, State, Turn, Why};
use crate::endpoint::EndpointId;
use crate::state::{Store, Update, Version, update};

const KEY: &str = "warmroute/1/health";
const MAGIC: &[u8] = b"WRH1";

/// Most endpoints that rows are kept for. Of more, only the VM that heard something knows it, until its next
/// tick.
pub const MAX_ROWS: usize = 4_096;

/// One VM's view of all endpoints' health.
#[derive(Debug)]
pub struct Board {
    settings: Settings,
    rows: BTreeMap<EndpointId, Row>,
    version: Option<Version>,
}

impl Board {
    /// A board that knows of nothing bad.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rows: BTreeMap::new(),
            version: None,
        }
    }

    /// When an endpoint is taken out.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes over what other VMs have written. Call it with every tick.
    pub fn refresh<S: Store + ?Sized>(&mut self, store: &S) {
        let Some((bytes, version)) = store.get(KEY) else {
            return;
        };
        if self.version == Some(version) {
            return;
        }
        self.version = Some(version);
        self.rows.clear();
        for bytes in rows(&bytes).chunks_exact(ROW).take(MAX_ROWS) {
            if let Some(endpoint) = codec::endpoint(bytes) {
                // Of two rows the first counts, as it does for who writes.
                let row = self.rows.entry(endpoint);
                row.or_insert_with(|| codec::decode(bytes));
            }
        }
    }

    /// Whether all endpoints are ready, as far as is known: then nobody needs to be asked for.
    pub fn is_clean(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is known of an endpoint.
    pub fn row(&self, endpoint: EndpointId) -> Row {
        self.rows.get(&endpoint).copied().unwrap_or_default()
    }

    /// Whether the endpoint may get new requests.
    pub fn standing(&self, endpoint: EndpointId, now_ms: u64) -> Standing {
        match self.rows.get(&endpoint) {
            Some(row) => row.standing(now_ms, &self.settings),
            None => Standing::Ready,
        }
    }

    /// Its state, and what that is due to.
    pub fn state(&self, endpoint: EndpointId, now_ms: u64) -> (State, Why) {
        match self.rows.get(&endpoint) {
            Some(row) => row.state(now_ms, &self.settings),
            None => (State::Ready, Why::Nothing),
        }
    }

    /// How long until the endpoint may be tried again, in milliseconds; at least 1.
    pub fn back_in_ms(&self, endpoint: EndpointId, now_ms: u64) -> u64 {
        self.row(endpoint).back_in_ms(now_ms, &self.settings)
    }

    /// Whether [`Signal::Alive`] of the endpoint is of any use now. Costs nothing.
    pub fn wants_life(&self, endpoint: EndpointId) -> bool {
        self.rows.get(&endpoint).is_some_and(Row::wants_life)
    }

    /// Takes what was heard of an endpoint, for all VMs. If that puts it into another state, says so: of each
    /// turn one VM hears.
    pub fn hear<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        signal: Signal,
    ) -> Option<Turn> {
        let settings = self.settings;
        if !self.row(endpoint).hear(signal, now_ms, &settings) {
            return None;
        }
        let turn = self.change(store, endpoint, |row| {
            let (from, _) = row.state(now_ms, &settings);
            if !row.hear(signal, now_ms, &settings) {
                return None;
            }
            let (to, why) = row.state(now_ms, &settings);
            Some(Turn {
                endpoint,
                from,
                to,
                why,
            })
        });
        turn.filter(|turn| turn.from != turn.to)
    }

    /// Claims the one request that may probe the endpoint now. `false` if it was claimed by somebody else, or
    /// is not to be probed.
    pub fn claim_probe<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
    ) -> bool {
        let settings = self.settings;
        let mut claimed = false;
        self.change(store, endpoint, |row| {
            claimed = row.standing(now_ms, &settings) == Standing::Probing;
            if claimed {
                row.claim(now_ms);
            }
            claimed.then_some(())
        })
        .is_some()
    }

    /// Applies `change` to the row as it stands in the store, and writes it unless that is `None`. What it says
    /// is returned if it was written. If the store fails, this VM goes on with its copy.
    #[inline(never)]
    fn change<S: Store + ?Sized, T>(
        &mut self,
        store: &S,
        endpoint: EndpointId,
        mut change: impl FnMut(&mut Row) -> Option<T>,
    ) -> Option<T> {
        let mut row = Row::default();
        let mut said = None;
        let outcome = update(store, KEY, |bytes| {
            let place = find(bytes, endpoint);
            row = place.map_or_else(Row::default, codec::decode);
            said = change(&mut row);
            said.is_some() && put(bytes, endpoint, &row)
        });
        if outcome == Update::Failed {
            row = self.row(endpoint);
            said = change(&mut row);
        }
        match row == Row::default() {
            true => self.rows.remove(&endpoint),
            false => self.rows.insert(endpoint, row),
        };
        said
    }
}

/// What follows the magic; nothing of another version.
fn rows(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(MAGIC).unwrap_or_default()
}

fn find(bytes: &[u8], endpoint: EndpointId) -> Option<&[u8]> {
    let mut rows = rows(bytes).chunks_exact(ROW);
    rows.find(|row| codec::endpoint(row) == Some(endpoint))
}

/// Writes a row into its place, or behind the others. One that says nothing is taken out. Says whether the
/// bytes changed: there may be no room.
fn put(bytes: &mut Vec<u8>, endpoint: EndpointId, row: &Row) -> bool {
    if !bytes.starts_with(MAGIC) {
        bytes.clear();
        bytes.extend_from_slice(MAGIC);
    }
    let whole = rows(bytes).len() / ROW;
    let mut places = rows(bytes).chunks_exact(ROW);
    let found = places.position(|place| codec::endpoint(place) == Some(endpoint));
    let at = |number: usize| MAGIC.len().saturating_add(number.saturating_mul(ROW));
    bytes.truncate(at(whole));
    if *row == Row::default() {
        let (Some(found), Some(last)) = (found, whole.checked_sub(1)) else {
            return false;
        };
        bytes.copy_within(at(last).., at(found));
        bytes.truncate(at(last));
        return true;
    }
    if found.is_none() && whole >= MAX_ROWS {
        return false;
    }
    let number = found.unwrap_or(whole);
    bytes.resize(at(whole.max(number.saturating_add(1))), 0);
    let place = bytes.get_mut(at(number)..at(number.saturating_add(1)));
    codec::encode(endpoint, row, place.unwrap_or_default());
    true
}
