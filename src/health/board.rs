//! The rows of all endpoints, shared by the workers: `warmroute/1/health` in the store.
//!
//! Each VM keeps a copy, and reads it anew with every tick. What changes nothing in the copy costs no access
//! to the store; what does is applied there, by compare-and-swap, to what stands there.

use super::codec::{self, ROW};
use super::{Row, Settings, Signal, Standing, State, Turn, Why};
use crate::endpoint::EndpointId;
use crate::state::{Store, Update, Version, update};

const KEY: &str = "warmroute/1/health";
const MAGIC: &[u8] = b"WRH2";

/// Most endpoints that rows are kept for. Of more, those that were heard of last.
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

    /// Takes over what other VMs have written, and drops what says nothing any more. Call it with every tick, and
    /// once before traffic starts.
    pub fn refresh<S: Store + ?Sized>(&mut self, store: &S, now_ms: u64) {
        self.load(store);
        self.rows.retain(|(_, row)| !row.is_spent(now_ms));
    }

    fn load<S: Store + ?Sized>(&mut self, store: &S) {
        let Some((bytes, version)) = store.get(KEY) else {
            // Born under traffic, it would overwrite what another VM has just heard. If the store fails, it
            // is tried again.
            let _ = store.put(KEY, MAGIC);
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
            if changed {
                put(bytes, endpoint, &row, now_ms);
            }
            changed
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
            (Err(place), false) => {
                self.rows.insert(place, (endpoint, row));
                self.keep_to_limit();
            }
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

    /// The store's rows have the same limit; without it, or between two ticks, this VM may have heard of more.
    fn keep_to_limit(&mut self) {
        if self.rows.len() > MAX_ROWS {
            let rows = self.rows.iter().enumerate();
            if let Some((oldest, _)) = rows.min_by_key(|(_, (_, row))| row.heard_s) {
                self.rows.remove(oldest);
            }
        }
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
        let changed = match self {
            Self::Hear(signal) => row.hear(signal, now_ms, settings),
            Self::Claim => {
                let free = row.standing(now_ms, settings) == Standing::Probing;
                if free {
                    row.claim(now_ms);
                }
                free
            }
        };
        if changed {
            row.changed(now_ms);
        }
        changed
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

/// Writes a row into its place between the others, which are in order, or takes it out if it says nothing. So
/// are others that say nothing any more, and if there is no room, the one that was heard of longest ago.
fn put(bytes: &mut Vec<u8>, endpoint: EndpointId, row: &Row, now_ms: u64) {
    let mut kept = Vec::with_capacity(bytes.len().saturating_add(MAGIC.len() + ROW));
    kept.extend_from_slice(MAGIC);
    let mut place = None;
    let mut oldest: Option<(u32, usize)> = None;
    for bytes in rows(bytes).chunks_exact(ROW) {
        let (id, other) = (codec::endpoint(bytes), codec::decode(bytes));
        if id == Some(endpoint) || other.is_spent(now_ms) {
            continue;
        }
        let at = kept.len();
        if place.is_none() && id > Some(endpoint) {
            place = Some(at);
        }
        if oldest.is_none_or(|(heard_s, _)| other.heard_s < heard_s) {
            oldest = Some((other.heard_s, at));
        }
        kept.extend_from_slice(bytes);
    }
    if *row != Row::default() {
        let mut place = place.unwrap_or(kept.len());
        if let Some((_, at)) = oldest
            && kept.len() >= MAGIC.len() + MAX_ROWS * ROW
        {
            kept.copy_within(at.saturating_add(ROW).., at);
            kept.truncate(kept.len().saturating_sub(ROW));
            if at < place {
                place = place.saturating_sub(ROW);
            }
        }
        let mut written = [0; ROW];
        codec::encode(endpoint, row, &mut written);
        let behind = kept.split_off(place.min(kept.len()));
        kept.extend_from_slice(&written);
        kept.extend_from_slice(&behind);
    }
    *bytes = kept;
}
