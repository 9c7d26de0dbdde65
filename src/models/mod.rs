//! Who serves which model or adapter, and the one list of them all.
//!
//! An endpoint's own list in the configuration decides; else what its engine last said of itself; else
//! nothing is known. All workers learn from one shared table, which the holder of the lease fills.

mod merge;
mod prefer;

pub use self::prefer::{Affinity, prefer};

use crate::config::ModelsConfig;
use crate::endpoint::{Endpoint, EndpointId};
use crate::scrape::Snapshot;
use crate::state::Store;
use crate::state::models::{self, Adapters, Listing, MAX_ACTIVE, hash};

/// Whether an endpoint serves a model.
///
/// In the order in which they are preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serves {
    /// It lists it, loads it when asked, or has no list at all.
    #[default]
    Yes,
    /// It has not said yet what it serves.
    Unknown,
    /// It serves others.
    No,
}

/// The model that a request names, looked up once for all endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    name: &'a str,
    hash: u64,
    adapter: bool,
    loadable: bool,
}

/// What is known of one endpoint.
#[derive(Debug)]
struct Known {
    endpoint: EndpointId,
    listing: Listing,
    /// Hashes of the names that it lists, sorted.
    names: Vec<u64>,
    /// Those of them that are adapters.
    adapters: Vec<u64>,
    active: Adapters,
    /// The hash of the shared table that named it last.
    table: u64,
}

/// One VM's view of what is served where.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Absent: only the lists of the configuration count.
    config: Option<ModelsConfig>,
    /// The hash of the shared table as it was last read.
    table: u64,
    /// Sorted by endpoint.
    known: Vec<Known>,
    /// All that is an adapter anywhere, sorted.
    adapters: Vec<u64>,
    /// The hash of what the merged list was made from, and the list.
    merged: (u64, String),
}

impl Catalogue {
    /// Nothing is known yet.
    pub fn new(config: Option<ModelsConfig>) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Learns what the shared table has that is new.
    #[inline(never)]
    pub fn tick<S: Store + ?Sized>(&mut self, store: &S) {
        let Some(config) = &self.config else { return };
        let Some((hash, rows)) = models::load(store, config.group, self.table) else {
            return;
        };
        self.table = hash;
        let mut relisted = false;
        for row in rows {
            let at = place(&self.known, row.endpoint).unwrap_or_else(|at| {
                self.known.insert(at, Known::new(row.endpoint));
                at
            });
            let Some(known) = self.known.get_mut(at) else {
                continue;
            };
            known.table = hash;
            known.active = row.adapters;
            if known.listing != row.listing {
                match known.read(store, config.group, row.listing) {
                    true => relisted = true,
                    // The list is being replaced: what was known stays until the next tick.
                    false => self.table = 0,
                }
            }
        }
        self.known.retain(|known| {
            let stays = known.table == hash;
            relisted |= !stays;
            stays
        });
        // Active adapters change all the time; lists do not.
        if relisted {
            self.unite();
        }
    }

    /// Gathers what is an adapter anywhere.
    fn unite(&mut self) {
        self.adapters.clear();
        for known in &self.known {
            for name in &known.adapters {
                insert(&mut self.adapters, *name);
            }
        }
    }

    fn known(&self, endpoint: EndpointId) -> Option<&Known> {
        self.known.get(place(&self.known, endpoint).ok()?)
    }

    /// Looks a model up; `None` for a request that names none, which may go anywhere.
    pub fn wanted<'a>(&self, model: Option<&'a str>) -> Option<Wanted<'a>> {
        let name = model.filter(|name| !name.is_empty())?;
        let name_hash = hash(name.as_bytes());
        let config = self.config.as_ref();
        let loadable = config.is_some_and(|config| config.is_loadable(name));
        Some(Wanted {
            name,
            hash: name_hash,
            adapter: loadable || self.adapters.binary_search(&name_hash).is_ok(),
            loadable,
        })
    }

    /// Whether `endpoint` serves a model.
    pub fn serves(&self, endpoint: &Endpoint, wanted: &Wanted<'_>) -> Serves {
        let yes_if = |yes| if yes { Serves::Yes } else { Serves::No };
        if !endpoint.models.is_empty() {
            return yes_if(endpoint.serves(Some(wanted.name)));
        }
        if self.config.is_none() {
            return Serves::Yes;
        }
        let Some(known) = self.known(endpoint.id()) else {
            return Serves::Unknown;
        };
        match known.listing {
            _ if wanted.loadable && known.active.max != Some(0) => Serves::Yes,
            Listing::Unheard => Serves::Unknown,
            Listing::Unlisted => Serves::Yes,
            Listing::Listed(_) => yes_if(known.names.binary_search(&wanted.hash).is_ok()),
        }
    }

    /// Whether `endpoint` names the model among those that it serves.
    pub fn lists(&self, endpoint: &Endpoint, wanted: &Wanted<'_>) -> bool {
        if !endpoint.models.is_empty() {
            return endpoint.serves(Some(wanted.name));
        }
        let known = self.known(endpoint.id());
        known.is_some_and(|known| known.names.binary_search(&wanted.hash).is_ok())
    }

    /// Whether all of `members` serve other models.
    pub fn is_unknown(&self, members: &[&Endpoint], model: &str) -> bool {
        let wanted = self.wanted(Some(model));
        wanted.is_some_and(|wanted| {
            let serves = |endpoint: &&Endpoint| self.serves(endpoint, &wanted);
            let mut all = members.iter();
            !members.is_empty() && all.all(|endpoint| serves(endpoint) == Serves::No)
        })
    }

    /// How well an adapter is placed at an endpoint that serves it, as its engine last said.
    pub fn affinity(&self, endpoint: EndpointId, wanted: &Wanted<'_>) -> Affinity {
        let Some(known) = self.known(endpoint) else {
            return Affinity::Room;
        };
        let active = &known.active;
        if active.names.binary_search(&wanted.hash).is_ok() {
            return Affinity::Active;
        }
        if !wanted.adapter {
            return Affinity::Room;
        }
        if active.max.is_some_and(|max| active.active >= max) {
            return Affinity::Full;
        }
        match known.adapters.binary_search(&wanted.hash) {
            Ok(_) => Affinity::Loaded,
            Err(_) => Affinity::Room,
        }
    }

    /// Takes an engine's answer to the question for its models, for all workers: status 0 if it did not
    /// come.
    pub fn answered<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        status: u16,
        answer: &[u8],
    ) {
        let Some(config) = &self.config else { return };
        let listed =
            status == 200 && models::put_list(store, config.group, now_ms, endpoint, answer);
        // An engine that has no such list. What a server says that is in trouble says nothing.
        if !listed && matches!(status, 200 | 400..500) {
            models::put_unlisted(store, config.group, now_ms, endpoint);
        }
    }

    /// Takes the adapters of an engine's metrics, for all workers.
    pub fn scraped<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        endpoint: EndpointId,
        adapters: &Adapters,
    ) {
        if let Some(config) = &self.config {
            models::put_adapters(store, config.group, now_ms, endpoint, adapters);
        }
    }

    /// Gives up lists of endpoints that nobody has named for long; `named` are those that this
    /// configuration names. Once a minute is often enough.
    pub fn sweep<S: Store + ?Sized>(
        &self,
        store: &S,
        now_ms: u64,
        named: &dyn Fn(EndpointId) -> bool,
    ) {
        if let Some(config) = &self.config {
            models::sweep(store, config.group, now_ms, named);
        }
    }
}

/// Where an endpoint is among those known, or would be.
fn place(known: &[Known], endpoint: EndpointId) -> Result<usize, usize> {
    known.binary_search_by_key(&endpoint, |known| known.endpoint)
}

/// Puts a number into a sorted list, once. Lists are short, and code to sort is long.
#[inline(never)]
fn insert(sorted: &mut Vec<u64>, number: u64) {
    if let Err(at) = sorted.binary_search(&number) {
        sorted.insert(at, number);
    }
}

impl Known {
    fn new(endpoint: EndpointId) -> Self {
        Self {
            endpoint,
            listing: Listing::Unheard,
            names: Vec::new(),
            adapters: Vec::new(),
            active: Adapters::default(),
            table: 0,
        }
    }

    /// Reads the list that the table names. False if another one stands there.
    fn read<S: Store + ?Sized>(&mut self, store: &S, group: u64, listing: Listing) -> bool {
        let mut cards = Vec::new();
        if let Listing::Listed(_) = listing {
            let (found, read) = models::cards(store, group, self.endpoint);
            if found != listing {
                return false;
            }
            cards = read;
        }
        self.names.clear();
        self.adapters.clear();
        for card in &cards {
            let name = hash(card.id.as_bytes());
            insert(&mut self.names, name);
            if card.parent.is_some() {
                insert(&mut self.adapters, name);
            }
        }
        self.listing = listing;
        true
    }
}

/// The adapters that have requests at an engine.
#[inline(never)]
pub(crate) fn adapters_of(snapshot: &Snapshot) -> Adapters {
    let mut names = Vec::new();
    for list in [&snapshot.running_adapters, &snapshot.waiting_adapters] {
        for name in list.iter().flatten() {
            insert(&mut names, hash(name.as_bytes()));
        }
    }
    let active = u32::try_from(names.len()).unwrap_or(u32::MAX);
    names.truncate(MAX_ACTIVE);
    Adapters {
        max: snapshot.max_adapters,
        active,
        names,
    }
}

#[cfg(test)]
mod tests;
