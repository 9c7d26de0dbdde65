//! What every endpoint serves and which adapters it has active, shared by all workers.
//!
//! One short table names each endpoint with a stamp of its list of models; the list itself has a key of
//! its own and is read again only when its stamp has changed. A list stays while its endpoint does not
//! answer, and is given up a while after nobody names the endpoint any more.

use super::codec::{read_u32, read_u64};
use super::{Store, Update, update};
use crate::endpoint::EndpointId;
use crate::scrape::models::{Card, MAX_CARDS};

/// Most endpoints in one table.
pub const MAX_ROWS: usize = 4_096;
/// Most active adapters that are told apart at one endpoint.
pub const MAX_ACTIVE: usize = 32;

const TABLE: &[u8] = b"WRM1";
const LIST: &[u8] = b"WRL1";
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
    fn stamp(self) -> u64 {
        match self {
            Self::Unheard => 0,
            Self::Unlisted => 1,
            Self::Listed(stamp) => stamp.max(2),
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
    let bytes = store.get(&list_key(group, endpoint));
    decode_cards(&bytes.map_or(Vec::new(), |(bytes, _)| bytes))
}

fn listing_of(cards: &[Card]) -> Listing {
    let stamps = cards.iter().flat_map(|card| card.stamp.to_le_bytes());
    Listing::of(Listing::Listed(hash(&stamps.collect::<Vec<u8>>())).stamp())
}

/// Takes an endpoint's list; says whether it is another one than before.
pub fn put_cards<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    endpoint: EndpointId,
    cards: &[Card],
) -> bool {
    let listing = listing_of(cards);
    // Compared with the list itself: of two that wrote at once, the table may hold the other's stamp.
    let outcome = change_value(store, &list_key(group, endpoint), &mut |bytes| {
        let other = decode_cards(bytes).0 != listing;
        if other {
            *bytes = encode_cards(cards);
        }
        other
    });
    if outcome == Update::Failed {
        return false;
    }
    change(store, group, now_ms, endpoint, &mut |row| {
        let other = row.listing != listing;
        row.listing = listing;
        other
    })
}

/// An endpoint answers without a list. One that it gave before stays.
pub fn put_unlisted<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    endpoint: EndpointId,
) -> bool {
    change(store, group, now_ms, endpoint, &mut |row| {
        let new = row.listing == Listing::Unheard;
        if new {
            row.listing = Listing::Unlisted;
        }
        new
    })
}

/// Takes an endpoint's adapters; says whether they are others than before.
pub fn put_adapters<S: Store + ?Sized>(
    store: &S,
    group: u64,
    now_ms: u64,
    endpoint: EndpointId,
    adapters: &Adapters,
) -> bool {
    change(store, group, now_ms, endpoint, &mut |row| {
        let other = row.adapters != *adapters;
        if other {
            row.adapters.clone_from(adapters);
        }
        other
    })
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
) -> bool {
    let outcome = change_value(store, &key(group), &mut |bytes| {
        let mut rows = decode_rows(bytes);
        let place = rows.iter().position(|row| row.endpoint == endpoint);
        let mut row = Row {
            endpoint,
            at_ms: now_ms,
            listing: Listing::Unheard,
            adapters: Adapters::default(),
        };
        if let Some(old) = place.and_then(|place| rows.get(place)) {
            row.listing = old.listing;
            row.adapters.clone_from(&old.adapters);
        }
        if !change(&mut row) {
            return false;
        }
        let full = rows.len() >= MAX_ROWS;
        match place.and_then(|place| rows.get_mut(place)) {
            Some(old) => *old = row,
            None if full => return false,
            None => rows.push(row),
        }
        *bytes = encode_rows(&rows);
        true
    });
    outcome == Update::Written
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

fn decode_row(bytes: &[u8]) -> Option<(Row, &[u8])> {
    let names = usize::try_from(read_u32(bytes, 32)?).ok()?;
    if names > MAX_ACTIVE {
        return None;
    }
    let (names, after) = bytes.get(ROW..)?.split_at_checked(names * 8)?;
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

fn encode_cards(cards: &[Card]) -> Vec<u8> {
    let mut bytes = LIST.to_vec();
    for card in cards.iter().take(MAX_CARDS) {
        let parent = card.parent.as_deref().unwrap_or_default();
        bytes.extend_from_slice(&card.stamp.to_le_bytes());
        for part in [&card.id, parent, &card.json] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    bytes
}

#[inline(never)]
fn decode_cards(bytes: &[u8]) -> (Listing, Vec<Card>) {
    let mut cards = Vec::new();
    let Some(mut rest) = bytes.strip_prefix(LIST) else {
        return (Listing::Unheard, cards);
    };
    while let Some((card, after)) = decode_card(rest) {
        if cards.len() >= MAX_CARDS {
            break;
        }
        cards.push(card);
        rest = after;
    }
    (listing_of(&cards), cards)
}

fn decode_card(bytes: &[u8]) -> Option<(Card, &[u8])> {
    let stamp = read_u64(bytes, 0)?;
    let (id, rest) = decode_text(bytes.get(8..)?)?;
    let (parent, rest) = decode_text(rest)?;
    let (json, rest) = decode_text(rest)?;
    let parent = Some(parent).filter(|parent| !parent.is_empty());
    let card = Card {
        id,
        parent,
        json,
        stamp,
    };
    Some((card, rest))
}

/// A text behind its length.
#[inline(never)]
fn decode_text(bytes: &[u8]) -> Option<(String, &[u8])> {
    let length = usize::try_from(read_u32(bytes, 0)?).ok()?;
    let (text, rest) = bytes.get(4..)?.split_at_checked(length)?;
    Some((std::str::from_utf8(text).ok()?.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory::MemoryStore;
    use proptest::prelude::*;

    fn card(id: &str, parent: Option<&str>) -> Card {
        Card {
            id: id.into(),
            parent: parent.map(str::to_owned),
            json: format!(r#"{{"id":"{id}"}}"#),
            stamp: hash(id.as_bytes()),
        }
    }

    fn rows(store: &MemoryStore, group: u64) -> Vec<Row> {
        load(store, group, 0).unwrap().1
    }

    const ONE: EndpointId = EndpointId(1);
    const TWO: EndpointId = EndpointId(2);

    #[test]
    fn lists_come_back_as_they_were_put_and_are_written_only_if_they_change() {
        let store = MemoryStore::new();
        let list = [card("base", None), card("sql", Some("base"))];
        assert!(put_cards(&store, 7, 1_000, ONE, &list));
        let (hash, table) = load(&store, 7, 0).unwrap();
        let (listing, kept) = cards(&store, 7, ONE);
        assert_eq!(kept, list);
        assert_eq!((table.len(), table[0].listing), (1, listing));
        // The same again, later: nothing to read.
        assert!(!put_cards(&store, 7, 6_000, ONE, &list));
        assert_eq!(load(&store, 7, hash), None);
        assert!(put_cards(&store, 7, 7_000, ONE, &list[..1]));
        assert_ne!(rows(&store, 7)[0].listing, listing);
        assert_eq!(cards(&store, 7, ONE).1, list[..1]);
        assert_eq!(
            (cards(&store, 7, TWO).1, cards(&store, 8, ONE).1),
            (vec![], vec![])
        );
        assert_eq!(rows(&store, 8), []);
    }

    #[test]
    fn an_empty_list_is_a_list() {
        let store = MemoryStore::new();
        assert!(put_cards(&store, 7, 1_000, ONE, &[]));
        assert!(matches!(rows(&store, 7)[0].listing, Listing::Listed(_)));
        assert_eq!(rows(&store, 7)[0].listing, cards(&store, 7, ONE).0);
    }

    #[test]
    fn adapters_and_lists_leave_each_other_alone() {
        let store = MemoryStore::new();
        let adapters = Adapters {
            max: Some(4),
            active: 2,
            names: vec![3, 9],
        };
        assert!(put_adapters(&store, 7, 1, ONE, &adapters));
        assert_eq!(rows(&store, 7)[0].listing, Listing::Unheard);
        assert!(put_cards(&store, 7, 2, ONE, &[card("base", None)]));
        assert!(!put_adapters(&store, 7, 3, ONE, &adapters));
        assert!(put_adapters(&store, 7, 3, TWO, &Adapters::default()) == false);
        let table = rows(&store, 7);
        assert_eq!(table.len(), 1);
        assert_eq!(table[0].adapters, adapters);
        assert!(matches!(table[0].listing, Listing::Listed(_)));
    }

    #[test]
    fn who_gave_a_list_keeps_it_when_it_gives_none_any_more() {
        let store = MemoryStore::new();
        assert!(put_unlisted(&store, 7, 1, ONE));
        assert!(!put_unlisted(&store, 7, 2, ONE));
        assert_eq!(rows(&store, 7)[0].listing, Listing::Unlisted);
        assert!(put_cards(&store, 7, 3, ONE, &[]));
        assert!(!put_unlisted(&store, 7, 4, ONE));
        assert!(matches!(rows(&store, 7)[0].listing, Listing::Listed(_)));
    }

    #[test]
    fn a_list_stays_while_its_endpoint_is_named_and_is_given_up_long_after() {
        let store = MemoryStore::new();
        for endpoint in [ONE, TWO] {
            put_cards(&store, 7, 1_000, endpoint, &[card("base", None)]);
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
        assert_eq!(cards(&store, 7, ONE).1.len(), 1);
        // It comes back.
        assert!(put_cards(&store, 7, 700_000, TWO, &[card("base", None)]));
        assert_eq!(cards(&store, 7, TWO).1.len(), 1);
    }

    #[test]
    fn who_reads_between_two_writes_reads_again() {
        let store = MemoryStore::new();
        put_cards(&store, 7, 1, ONE, &[card("a", None)]);
        let table = store.get(&key(7)).unwrap().0;
        put_cards(&store, 7, 1, ONE, &[card("b", None)]);
        // The list of one and the stamp of another, as two writers may leave them.
        store.put(&key(7), &table).unwrap();
        assert_ne!(rows(&store, 7)[0].listing, cards(&store, 7, ONE).0);
        // The next answer, whichever it is, puts it right.
        for list in [[card("a", None)], [card("b", None)]] {
            put_cards(&store, 7, 2, ONE, &list);
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
        assert!(!put_cards(
            &store,
            7,
            1,
            EndpointId(9_999),
            &[card("a", None)]
        ));
        assert!(put_cards(&store, 7, 1, EndpointId(5), &[card("a", None)]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(mut bytes: Vec<u8>, magic in 0_u8..3) {
            match magic {
                0 => bytes.splice(0..0, TABLE.iter().copied()).for_each(drop),
                1 => bytes.splice(0..0, LIST.iter().copied()).for_each(drop),
                _ => {}
            }
            let store = MemoryStore::new();
            store.put(&key(7), &bytes).unwrap();
            store.put(&list_key(7, ONE), &bytes).unwrap();
            let _ = cards(&store, 7, ONE);
            sweep(&store, 7, u64::MAX, &|_| true);
            prop_assert!(put_cards(&store, 7, 1, EndpointId(u64::MAX), &[card("a", None)]));
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
            prop_assert_eq!(decode_rows(&encode_rows(&rows)), rows);
        }
    }
}
