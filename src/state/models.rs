//! What every endpoint serves and which adapters it has active, shared by all workers.
//!
//! One short table names each endpoint with a stamp of its list of models; the list itself, as the engine
//! wrote it, has a key of its own and is read again only when its stamp has changed. A list stays while its endpoint does not
//! answer, and is given up a while after nobody names the endpoint any more.

use super::codec::{read_u32, read_u64};
use super::{Store, Update, update};
use crate::endpoint::EndpointId;
use crate::scrape::models::{Card, parse};

/// Most endpoints in one table.
pub const MAX_ROWS: usize = 4_096;
/// Most active adapters that are told apart at one endpoint.
pub const MAX_ACTIVE: usize = 32;

const TABLE: &[u8] = b"WRM1";
/// A row without its adapters.
const ROW: usize = 36;
/// Stands for a figure that is not known.
const UNKNOWN: u32 = u32::MAX;

/// Who goes on being named has its row renewed this often, in milliseconds.
const RENEW_MS: u64 = 60_000;
/// Rows that nobody renewed for so long are given up, in milliseconds.
const KEEP_MS: u64 = 600_000;

/// What is known of an endpoint's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// It has not answered yet.
    #[default]
    Unheard,
    /// It answers, but not with a list.
    Unlisted,
    /// The hash of its list, which changes when the list does.
    Listed(u64),
}

impl Listing {
    /// Stamps below mean that there is no list.
    const FIRST: u64 = 2;

    fn stamp(self) -> u64 {
        match self {
            Self::Unheard => 0,
            Self::Unlisted => 1,
            Self::Listed(stamp) => stamp,
        }
    }

    fn of(stamp: u64) -> Self {
        match stamp {
            0 => Self::Unheard,
            1 => Self::Unlisted,
            stamp => Self::Listed(stamp),
        }
    }
}

/// Adapters with requests at an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// How many fit into one batch; `None` if the engine does not tell.
    pub max: Option<u32>,
    /// How many have requests that run or wait.
    pub active: u32,
    /// The xxHash64 of their names, sorted: at most [`MAX_ACTIVE`].
    pub names: Vec<u64>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub endpoint: EndpointId,
    /// When it was last renewed, in milliseconds.
    pub at_ms: u64,
    /// Its list.
    pub listing: Listing,
    /// Its adapters.
    pub adapters: Adapters,
}

/// Lists belong to the way that they were asked for, and survive an update of the configuration.
#[inline(never)]
fn key(group: u64) -> String {
    format!("warmroute/1/models/{group:016x}")
}

#[inline(never)]
fn list_key(group: u64, endpoint: EndpointId) -> String {
    format!("warmroute/1/models/{group:016x}/{:016x}", endpoint.0)
}

/// The hash by which names and lists are known.
#[inline(never)]
pub fn hash(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(bytes, 0)
}

/// One copy of the code for whatever changes.
#[inline(never)]
fn change_value<S: Store + ?Sized>(
    store: &S,
    key: &str,
    change: &mut dyn FnMut(&mut Vec<u8>) -> bool,
) -> Update {
    update(store, key, change)
}

/// The table and its hash; `None` if the hash is the one that is known already.
pub fn load<S: Store + ?Sized>(store: &S, group: u64, known: u64) -> Option<(u64, Vec<Row>)> {
    let bytes = store
        .get(&key(group))
        .map_or(Vec::new(), |(bytes, _)| bytes);
    let hash = hash(&bytes);
    (hash != known).then(|| (hash, decode_rows(&bytes)))
}

/// The cards of an endpoint, and what they are known by.
pub fn cards<S: Store + ?Sized>(
    store: &S,
    group: u64,
    endpoint: EndpointId,
) -> (Listing, Vec<Card>) {
    let answer = store.get(&list_key(group, endpoint));
    read(&answer.map_or(Vec::new(), |(answer, _)| answer))
}

#[inline(never)]
fn read(answer: &[u8]) -> (Listing, Vec<Card>) {
    let Ok(cards) = parse(answer) else {
        return (Listing::Unheard, Vec::new());
    };
    let mut stamps = Vec::with_capacity(cards.len().saturating_mul(8));
    for card in &cards {
        stamps.extend_from_slice(&card.stamp.to_le_bytes());
    }
    (Listing::of(hash(&stamps).max(Listing::FIRST)), cards)
}

/// Takes an endpoint's answer, if it is a list; says whether it is one.
pub fn put_list<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    endpoint: EndpointId,
    answer: &[u8],
) -> bool {
    let (listing, _) = read(answer);
    if listing == Listing::Unheard {
        return false;
    }
    // Compared with the list itself: of two that wrote at once, the table may hold the other's stamp.
    let outcome = change_value(store, &list_key(group, endpoint), &mut |bytes| {
        let other = read(bytes).0 != listing;
        if other {
            *bytes = answer.to_vec();
        }
        other
    });
    if outcome != Update::Failed {
        change(store, group, now_ms, endpoint, &mut |row| {
            let other = row.listing != listing;
            row.listing = listing;
            other
        });
    }
    true
}

/// An endpoint answers without a list. One that it gave before stays.
pub fn put_unlisted<S: Store + ?Sized>(store: &S, group: u64, now_ms: u64, endpoint: EndpointId) {
    change(store, group, now_ms, endpoint, &mut |row| {
        let new = row.listing == Listing::Unheard;
        if new {
            row.listing = Listing::Unlisted;
        }
        new
    });
}

/// Takes an endpoint's adapters.
pub fn put_adapters<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    endpoint: EndpointId,
    adapters: &Adapters,
) {
    change(store, group, now_ms, endpoint, &mut |row| {
        let other = row.adapters != *adapters;
        if other {
            row.adapters.clone_from(adapters);
        }
        other
    });
}

/// Renews the rows of endpoints that are `named`, and gives up those that nobody has named for long.
pub fn sweep<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    named: &dyn Fn(EndpointId) -> bool,
) {
    let mut lost = Vec::new();
    change_value(store, &key(group), &mut |bytes| {
        lost.clear();
        let mut rows = decode_rows(bytes);
        let mut changed = false;
        for row in &mut rows {
            // A clock that was set back makes all rows look young: they are renewed, too.
            let age_ms = now_ms.abs_diff(row.at_ms);
            if age_ms >= RENEW_MS && named(row.endpoint) {
                row.at_ms = now_ms;
                changed = true;
            } else if age_ms >= KEEP_MS {
                lost.push(row.endpoint);
            }
        }
        rows.retain(|row| !lost.contains(&row.endpoint));
        if changed || !lost.is_empty() {
            *bytes = encode_rows(&rows);
            return true;
        }
        false
    });
    for endpoint in lost {
        // A refused write leaves a list that no row names.
        let _ = store.put(&list_key(group, endpoint), &[]);
    }
}

/// Changes the row of an endpoint, or makes it one; `change` says whether there is anything new.
// Once in the module, whatever changes.
#[inline(never)]
fn change<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    endpoint: EndpointId,
    change: &mut dyn FnMut(&mut Row) -> bool,
) {
    change_value(store, &key(group), &mut |bytes| {
        // Most often there is nothing new, and the other rows need not be read to see that.
        let mut row = find_row(bytes, endpoint).unwrap_or_else(|| Row {
            endpoint,
            at_ms: 0,
            listing: Listing::Unheard,
            adapters: Adapters::default(),
        });
        row.at_ms = now_ms;
        if !change(&mut row) {
            return false;
        }
        let mut rows = decode_rows(bytes);
        let place = rows.iter().position(|row| row.endpoint == endpoint);
        let full = rows.len() >= MAX_ROWS;
        match place.and_then(|place| rows.get_mut(place)) {
            Some(old) => *old = row,
            None if full => return false,
            None => rows.push(row),
        }
        *bytes = encode_rows(&rows);
        true
    });
}

fn encode_rows(rows: &[Row]) -> Vec<u8> {
    let mut bytes = TABLE.to_vec();
    for row in rows.iter().take(MAX_ROWS) {
        let Adapters { max, active, names } = &row.adapters;
        for figure in [row.endpoint.0, row.at_ms, row.listing.stamp()] {
            bytes.extend_from_slice(&figure.to_le_bytes());
        }
        let names = names.get(..MAX_ACTIVE).unwrap_or(names);
        for figure in [max.unwrap_or(UNKNOWN), *active, names.len() as u32] {
            bytes.extend_from_slice(&figure.to_le_bytes());
        }
        for name in names {
            bytes.extend_from_slice(&name.to_le_bytes());
        }
    }
    bytes
}

fn decode_rows(bytes: &[u8]) -> Vec<Row> {
    let mut rest = bytes.strip_prefix(TABLE).unwrap_or_default();
    let mut rows = Vec::new();
    while let Some((row, after)) = decode_row(rest) {
        if rows.len() >= MAX_ROWS {
            break;
        }
        rows.push(row);
        rest = after;
    }
    rows
}

/// The row of one endpoint, without a look into those of others.
fn find_row(bytes: &[u8], endpoint: EndpointId) -> Option<Row> {
    let mut rest = bytes.strip_prefix(TABLE)?;
    for _ in 0..MAX_ROWS {
        let (_, after) = split_row(rest)?;
        if read_u64(rest, 0)? == endpoint.0 {
            return decode_row(rest).map(|(row, _)| row);
        }
        rest = after;
    }
    None
}

/// The names of the first row, and what follows it.
fn split_row(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let names = usize::try_from(read_u32(bytes, 32)?).ok()?;
    if names > MAX_ACTIVE {
        return None;
    }
    bytes.get(ROW..)?.split_at_checked(names * 8)
}

fn decode_row(bytes: &[u8]) -> Option<(Row, &[u8])> {
    let (names, after) = split_row(bytes)?;
    let row = Row {
        endpoint: EndpointId(read_u64(bytes, 0)?),
        at_ms: read_u64(bytes, 8)?,
        listing: Listing::of(read_u64(bytes, 16)?),
        adapters: Adapters {
            max: Some(read_u32(bytes, 24)?).filter(|max| *max != UNKNOWN),
            active: read_u32(bytes, 28)?,
            names: names
                .chunks_exact(8)
                .filter_map(|name| read_u64(name, 0))
                .collect(),
        },
    };
    Some((row, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory::MemoryStore;
    use proptest::prelude::*;

    fn list(ids: &[&str]) -> Vec<u8> {
        let cards: Vec<String> = ids.iter().map(|id| format!(r#"{{"id":"{id}"}}"#)).collect();
        format!(r#"{{"data":[{}]}}"#, cards.join(",")).into_bytes()
    }

    fn ids(store: &MemoryStore, endpoint: EndpointId) -> Vec<String> {
        let cards = cards(store, 7, endpoint).1;
        cards.into_iter().map(|card| card.id).collect()
    }

    fn rows(store: &MemoryStore, group: u64) -> Vec<Row> {
        load(store, group, 0).unwrap().1
    }

    const ONE: EndpointId = EndpointId(1);
    const TWO: EndpointId = EndpointId(2);

    #[test]
    fn lists_come_back_as_they_were_put_and_are_written_only_if_they_change() {
        let store = MemoryStore::new();
        assert!(put_list(&store, 7, 1_000, ONE, &list(&["base", "sql"])));
        let (hash, table) = load(&store, 7, 0).unwrap();
        let (listing, kept) = cards(&store, 7, ONE);
        assert_eq!(kept[1].json, r#"{"id":"sql"}"#);
        assert_eq!((table.len(), table[0].listing), (1, listing));
        // The same again, later and with another time in it: nothing to read.
        let same = br#"{"data":[{"id":"base","created":7},{"id":"sql","created":8}]}"#;
        assert!(put_list(&store, 7, 5_000, ONE, same));
        let (hash_then, _) = load(&store, 7, hash).unwrap();
        let later = String::from_utf8_lossy(same).replace('7', "9");
        assert!(put_list(&store, 7, 6_000, ONE, later.as_bytes()));
        assert_eq!(load(&store, 7, hash_then), None);
        assert!(put_list(&store, 7, 7_000, ONE, &list(&["base"])));
        assert_ne!(rows(&store, 7)[0].listing, listing);
        assert_eq!(ids(&store, ONE), ["base"]);
        assert_eq!(ids(&store, TWO), [""; 0]);
        assert_eq!((cards(&store, 8, ONE).1, rows(&store, 8)), (vec![], vec![]));
    }

    #[test]
    fn an_empty_list_is_a_list() {
        let store = MemoryStore::new();
        assert!(put_list(&store, 7, 1_000, ONE, br#"{"data":[]}"#));
        assert!(matches!(rows(&store, 7)[0].listing, Listing::Listed(_)));
        assert_eq!(rows(&store, 7)[0].listing, cards(&store, 7, ONE).0);
        assert!(!put_list(&store, 7, 1_000, TWO, b"{}"));
        assert_eq!(rows(&store, 7).len(), 1);
    }

    #[test]
    fn adapters_and_lists_leave_each_other_alone() {
        let store = MemoryStore::new();
        let adapters = Adapters {
            max: Some(4),
            active: 2,
            names: vec![3, 9],
        };
        put_adapters(&store, 7, 1, ONE, &adapters);
        assert_eq!(rows(&store, 7)[0].listing, Listing::Unheard);
        assert!(put_list(&store, 7, 2, ONE, &list(&["base"])));
        let (hash, _) = load(&store, 7, 0).unwrap();
        put_adapters(&store, 7, 3, ONE, &adapters);
        put_adapters(&store, 7, 3, TWO, &Adapters::default());
        assert_eq!(load(&store, 7, hash), None, "nothing new, nothing written");
        let table = rows(&store, 7);
        assert_eq!(table.len(), 1);
        assert_eq!(table[0].adapters, adapters);
        assert!(matches!(table[0].listing, Listing::Listed(_)));
    }

    #[test]
    fn who_gave_a_list_keeps_it_when_it_gives_none_any_more() {
        let store = MemoryStore::new();
        put_unlisted(&store, 7, 1, ONE);
        assert_eq!(rows(&store, 7)[0].listing, Listing::Unlisted);
        let (hash, _) = load(&store, 7, 0).unwrap();
        put_unlisted(&store, 7, 2, ONE);
        assert_eq!(load(&store, 7, hash), None, "nothing new, nothing written");
        assert!(put_list(&store, 7, 3, ONE, &list(&[])));
        put_unlisted(&store, 7, 4, ONE);
        assert!(matches!(rows(&store, 7)[0].listing, Listing::Listed(_)));
    }

    #[test]
    fn a_list_stays_while_its_endpoint_is_named_and_is_given_up_long_after() {
        let store = MemoryStore::new();
        for endpoint in [ONE, TWO] {
            put_list(&store, 7, 1_000, endpoint, &list(&["base"]));
        }
        for minute in 1..=9 {
            sweep(&store, 7, 1_000 + minute * 60_000, &|endpoint| {
                endpoint == ONE
            });
            assert_eq!(rows(&store, 7).len(), 2, "{minute}");
        }
        sweep(&store, 7, 601_000, &|endpoint| endpoint == ONE);
        assert_eq!(rows(&store, 7).len(), 1);
        assert_eq!(rows(&store, 7)[0].endpoint, ONE);
        assert_eq!(store.get(&list_key(7, TWO)).unwrap().0, b"");
        assert_eq!(ids(&store, ONE), ["base"]);
        // It comes back.
        assert!(put_list(&store, 7, 700_000, TWO, &list(&["base"])));
        assert_eq!(ids(&store, TWO), ["base"]);
    }

    #[test]
    fn who_reads_between_two_writes_reads_again() {
        let store = MemoryStore::new();
        put_list(&store, 7, 1, ONE, &list(&["a"]));
        let table = store.get(&key(7)).unwrap().0;
        put_list(&store, 7, 1, ONE, &list(&["b"]));
        // The list of one and the stamp of another, as two writers may leave them.
        store.put(&key(7), &table).unwrap();
        assert_ne!(rows(&store, 7)[0].listing, cards(&store, 7, ONE).0);
        // The next answer, whichever it is, puts it right.
        for answer in [list(&["a"]), list(&["b"])] {
            put_list(&store, 7, 2, ONE, &answer);
            assert_eq!(rows(&store, 7)[0].listing, cards(&store, 7, ONE).0);
            store.put(&key(7), &table).unwrap();
        }
    }

    #[test]
    fn the_table_has_a_limit() {
        let store = MemoryStore::new();
        let row = |endpoint: usize| Row {
            endpoint: EndpointId(endpoint as u64),
            at_ms: 1,
            listing: Listing::Unlisted,
            adapters: Adapters {
                names: (0..100).collect(),
                ..Adapters::default()
            },
        };
        let full: Vec<Row> = (0..=MAX_ROWS).map(row).collect();
        store.put(&key(7), &encode_rows(&full)).unwrap();
        assert_eq!(rows(&store, 7).len(), MAX_ROWS);
        assert_eq!(rows(&store, 7)[0].adapters.names.len(), MAX_ACTIVE);
        put_list(&store, 7, 1, EndpointId(9_999), &list(&["a"]));
        assert!(rows(&store, 7).iter().all(|row| row.endpoint.0 != 9_999));
        put_list(&store, 7, 1, EndpointId(5), &list(&["a"]));
        assert!(matches!(rows(&store, 7)[5].listing, Listing::Listed(_)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(mut bytes: Vec<u8>, magic in 0_u8..3) {
            match magic {
                0 => bytes.splice(0..0, TABLE.iter().copied()).for_each(drop),
                1 => bytes.splice(0..0, list(&["a"])).for_each(drop),
                _ => {}
            }
            let store = MemoryStore::new();
            store.put(&key(7), &bytes).unwrap();
            store.put(&list_key(7, ONE), &bytes).unwrap();
            let _ = cards(&store, 7, ONE);
            sweep(&store, 7, u64::MAX, &|_| true);
            prop_assert!(put_list(&store, 7, 1, EndpointId(u64::MAX), &list(&["a"])));
            let table = rows(&store, 7);
            prop_assert!(table.iter().any(|row| row.endpoint == EndpointId(u64::MAX)));
        }

        #[test]
        fn rows_come_back(
            given in proptest::collection::vec(
                (any::<u64>(), any::<u64>(), any::<u64>(), proptest::option::of(0..u32::MAX), any::<u32>(), proptest::collection::vec(any::<u64>(), 0..=MAX_ACTIVE)),
                0..8,
            ),
        ) {
            let rows: Vec<Row> = given
                .into_iter()
                .map(|(endpoint, at_ms, stamp, max, active, names)| Row {
                    endpoint: EndpointId(endpoint),
                    at_ms,
                    listing: Listing::of(stamp),
                    adapters: Adapters { max, active, names },
                })
                .collect();
            let bytes = encode_rows(&rows);
            for row in &rows {
                let first = rows.iter().find(|one| one.endpoint == row.endpoint);
                prop_assert_eq!(find_row(&bytes, row.endpoint), first.cloned());
            }
            prop_assert_eq!(decode_rows(&bytes), rows);
        }
    }
}
