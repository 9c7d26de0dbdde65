//! The rows of all endpoints, shared by the workers: `warmroute/1/health` in the store.
//!
//! Each VM keeps a copy, and reads it anew with every tick. What changes nothing in the copy costs no access
//! to the store; what does is applied there, by compare-and-swap, to what stands there.

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
    /// By endpoint, in order; without those that say nothing.
    rows: Vec<(EndpointId, Row)>,
    version: Option<Version>,
}

impl Board {
    /// A board that knows of nothing bad.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rows: Vec::new(),
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
            // Of two rows the first counts, as it does for who writes.
            if let Some(endpoint) = codec::endpoint(bytes)
                && let Err(place) = self.place(endpoint)
            {
                self.rows.insert(place, (endpoint, codec::decode(bytes)));
            }
        }
    }

    fn place(&self, endpoint: EndpointId) -> Result<usize, usize> {
        self.rows.binary_search_by_key(&endpoint, |(id, _)| *id)
    }

    fn get(&self, endpoint: EndpointId) -> Option<&Row> {
        let place = self.place(endpoint).ok()?;
        self.rows.get(place).map(|(_, row)| row)
    }

    /// Whether all endpoints are ready, as far as is known: then nobody needs to be asked for.
    pub fn is_clean(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is known of an endpoint.
    pub fn row(&self, endpoint: EndpointId) -> Row {
        self.get(endpoint).copied().unwrap_or_default()
    }

    /// Whether the endpoint may get new requests.
    pub fn standing(&self, endpoint: EndpointId, now_ms: u64) -> Standing {
        match self.get(endpoint) {
            Some(row) => row.standing(now_ms, &self.settings),
            None => Standing::Ready,
        }
    }

    /// Its state, and what that is due to.
    pub fn state(&self, endpoint: EndpointId, now_ms: u64) -> (State, Why) {
        match self.get(endpoint) {
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
        self.get(endpoint).is_some_and(Row::wants_life)
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
        // As nearly always.
        if self.rows.is_empty() && signal == Signal::Good {
            return None;
        }
        let act = Act::Hear(signal);
        if !act.apply(&mut self.row(endpoint), now_ms, &self.settings) {
            return None;
        }
        let turn = self.act(store, now_ms, endpoint, act);
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
        self.act(store, now_ms, endpoint, Act::Claim).is_some()
    }

    /// Changes the row as it stands in the store; `None` if that changes nothing. If the store fails, this VM
    /// goes on with its copy.
    #[inline(never)]
    fn act<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        act: Act,
    ) -> Option<Turn> {
        let settings = self.settings;
        let (mut before, mut row, mut changed) = (Row::default(), Row::default(), false);
        let outcome = update(store, KEY, |bytes| {
            before = find(bytes, endpoint).map_or_else(Row::default, codec::decode);
            row = before;
            changed = act.apply(&mut row, now_ms, &settings);
            changed && put(bytes, endpoint, &row)
        });
        if outcome == Update::Failed {
            before = self.row(endpoint);
            row = before;
            changed = act.apply(&mut row, now_ms, &settings);
        }
        match (self.place(endpoint), row == Row::default()) {
            (Ok(place), true) => drop(self.rows.remove(place)),
            (Ok(place), false) => {
                if let Some(known) = self.rows.get_mut(place) {
                    known.1 = row;
                }
            }
            (Err(_), true) => {}
            (Err(place), false) => self.rows.insert(place, (endpoint, row)),
        }
        let (from, _) = before.state(now_ms, &settings);
        let (to, why) = row.state(now_ms, &settings);
        changed.then_some(Turn {
            endpoint,
            from,
            to,
            why,
        })
    }
}

/// What is done to a row.
#[derive(Clone, Copy)]
enum Act {
    Hear(Signal),
    Claim,
}

impl Act {
    /// Says whether anything changed.
    fn apply(self, row: &mut Row, now_ms: u64, settings: &Settings) -> bool {
        match self {
            Self::Hear(signal) => row.hear(signal, now_ms, settings),
            Self::Claim => {
                let free = row.standing(now_ms, settings) == Standing::Probing;
                if free {
                    row.claim(now_ms);
                }
                free
            }
        }
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

/// Writes a row into its place, or between the others, which are in order. One that says nothing is taken out.
/// Says whether the bytes changed: there may be no room.
fn put(bytes: &mut Vec<u8>, endpoint: EndpointId, row: &Row) -> bool {
    if !bytes.starts_with(MAGIC) {
        bytes.clear();
        bytes.extend_from_slice(MAGIC);
    }
    let at = |number: usize| MAGIC.len().saturating_add(number.saturating_mul(ROW));
    let whole = rows(bytes).len() / ROW;
    bytes.truncate(at(whole));
    let ids = rows(bytes).chunks_exact(ROW).map(codec::endpoint);
    let found = ids.clone().position(|id| id == Some(endpoint));
    match (found, *row == Row::default()) {
        (Some(found), true) => {
            bytes.copy_within(at(found.saturating_add(1)).., at(found));
            bytes.truncate(at(whole.saturating_sub(1)));
            return true;
        }
        (None, true) => return false,
        (None, false) if whole >= MAX_ROWS => return false,
        _ => {}
    }
    let number = found.unwrap_or_else(|| {
        let behind = ids.clone().position(|id| id > Some(endpoint));
        behind.unwrap_or(whole)
    });
    if found.is_none() {
        bytes.resize(at(whole.saturating_add(1)), 0);
        bytes.copy_within(at(number)..at(whole), at(number.saturating_add(1)));
    }
    let place = bytes.get_mut(at(number)..at(number.saturating_add(1)));
    codec::encode(endpoint, row, place.unwrap_or_default());
    true
}
