//! The members of discovered clusters as they were last seen, shared by all workers.
//!
//! Keys do not depend on the configuration, only on where it asks: a new configuration begins with
//! what the old one knew. A small head says of each cluster which version its members are and when
//! they were confirmed; a worker reads it with every tick, and the members only if they changed.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::codec::{read_u32, read_u64, write};
use super::{Store, Update, update};
use crate::health::Verdict;
use crate::scrape::clusters::{MAX_MEMBERS, Member};

const HEAD_MAGIC: &[u8] = b"WRC1";
const HEAD_ROW: usize = 24;
/// Clusters that one head knows; of more, those that were confirmed longest ago are forgotten.
const MAX_CLUSTERS: usize = 256;

const BODY_MAGIC: &[u8] = b"WRM1";
/// Where the members begin, behind the magic and the time.
const BODY_HEAD: usize = 12;
/// Of a member's row, what comes before its locality.
const FIXED: usize = 29;

/// What the head says of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// xxHash64 of the cluster's name.
    pub cluster: u64,
    /// Another with every change of the members.
    pub version: u64,
    /// When the members were last seen to be these, in milliseconds.
    pub at_ms: u64,
}

/// Identity of a cluster, or of a place to ask at.
pub fn name_hash(name: &str) -> u64 {
    xxhash_rust::xxh64::xxh64(name.as_bytes(), 0)
}

fn head_key(source: u64) -> String {
    format!("warmroute/1/members/{source:016x}")
}

fn body_key(source: u64, cluster: u64) -> String {
    format!("warmroute/1/members/{source:016x}/{cluster:016x}")
}

/// What is known of the clusters of one source; empty if nothing is.
pub fn head<S: Store + ?Sized>(store: &S, source: u64) -> Vec<Row> {
    store
        .get(&head_key(source))
        .map(|(bytes, _)| decode_head(&bytes))
        .unwrap_or_default()
}

/// The members of one cluster as they were last seen; `None` if they never were.
pub fn load<S: Store + ?Sized>(store: &S, source: u64, cluster: u64) -> Option<Vec<Member>> {
    let (bytes, _) = store.get(&body_key(source, cluster))?;
    decode_body(&bytes).map(|(_, members)| members)
}

/// The members of one cluster are these, as was asked for at `asked_ms` and heard at `now_ms`. What was
/// asked for later, by another worker, stands.
pub fn save<S: Store + ?Sized>(
    store: &S,
    source: u64,
    cluster: u64,
    (asked_ms, now_ms): (u64, u64),
    members: &[Member],
) {
    let fresh = encode_body(asked_ms, members);
    let mut changed = false;
    let outcome = update(store, &body_key(source, cluster), |bytes| {
        let before = bytes.strip_prefix(BODY_MAGIC);
        let before_ms = before.and_then(|before| read_u64(before, 0));
        // One from the future was asked for before the clock was set back.
        if before_ms.is_some_and(|at_ms| asked_ms < at_ms && at_ms <= now_ms) {
            return false;
        }
        changed = before_ms.is_none() || bytes.get(BODY_HEAD..) != fresh.get(BODY_HEAD..);
        fresh.clone_into(bytes);
        true
    });
    if outcome == Update::Written {
        // Members first, so that whoever sees the new version sees its members.
        confirm(store, source, cluster, now_ms, changed);
    }
}

fn confirm<S: Store + ?Sized>(store: &S, source: u64, cluster: u64, now_ms: u64, changed: bool) {
    update(store, &head_key(source), |bytes| {
        let mut rows = decode_head(bytes);
        let before = rows.iter().find(|row| row.cluster == cluster);
        let version = match before {
            Some(row) if !changed => row.version,
            // A time, so that a cluster that was forgotten does not get an old version again.
            before => before
                .map_or(1, |row| row.version.wrapping_add(1))
                .max(now_ms),
        };
        rows.retain(|row| row.cluster != cluster);
        if rows.len() >= MAX_CLUSTERS {
            let oldest_ms = rows.iter().map(|row| row.at_ms).min();
            rows.retain(|row| Some(row.at_ms) != oldest_ms);
        }
        rows.push(Row {
            cluster,
            version,
            at_ms: now_ms,
        });
        *bytes = encode_head(&rows);
        true
    });
}

#[inline(never)]
fn encode_head(rows: &[Row]) -> Vec<u8> {
    let mut bytes = HEAD_MAGIC.to_vec();
    for row in rows {
        for figure in [row.cluster, row.version, row.at_ms] {
            bytes.extend_from_slice(&figure.to_le_bytes());
        }
    }
    bytes
}

#[inline(never)]
fn decode_head(bytes: &[u8]) -> Vec<Row> {
    let rows = bytes.strip_prefix(HEAD_MAGIC).unwrap_or_default();
    let row = |row: &[u8]| {
        Some(Row {
            cluster: read_u64(row, 0)?,
            version: read_u64(row, 8)?,
            at_ms: read_u64(row, 16)?,
        })
    };
    let rows = rows.chunks_exact(HEAD_ROW).filter_map(row);
    rows.take(MAX_CLUSTERS).collect()
}

#[inline(never)]
fn encode_body(asked_ms: u64, members: &[Member]) -> Vec<u8> {
    let mut bytes = BODY_MAGIC.to_vec();
    bytes.extend_from_slice(&asked_ms.to_le_bytes());
    for member in members.iter().take(MAX_MEMBERS) {
        let (family, ip) = match member.address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        let locality = member.locality.as_bytes();
        let length = u8::try_from(locality.len()).unwrap_or(0);
        let mut row = [0_u8; FIXED];
        write(&mut row, 0, &ip);
        write(&mut row, 16, &member.address.port().to_le_bytes());
        write(&mut row, 18, &[family, member.verdict as u8]);
        write(&mut row, 20, &member.weight.to_le_bytes());
        write(&mut row, 24, &member.priority.to_le_bytes());
        write(&mut row, 28, &[length]);
        bytes.extend_from_slice(&row);
        bytes.extend_from_slice(locality.get(..usize::from(length)).unwrap_or_default());
    }
    bytes
}

/// When the members were asked for, and the members. Bytes that end within a row are none at all.
#[inline(never)]
fn decode_body(bytes: &[u8]) -> Option<(u64, Vec<Member>)> {
    let bytes = bytes.strip_prefix(BODY_MAGIC)?;
    let asked_ms = read_u64(bytes, 0)?;
    let mut rest = bytes.get(8..)?;
    let mut members = Vec::new();
    while !rest.is_empty() && members.len() < MAX_MEMBERS {
        let (row, behind) = rest.split_first_chunk::<FIXED>()?;
        let length = usize::from(*row.last()?);
        members.push(Member {
            locality: std::str::from_utf8(behind.get(..length)?).ok()?.to_owned(),
            ..decode_row(row)?
        });
        rest = behind.get(length..)?;
    }
    Some((asked_ms, members))
}

fn decode_row(row: &[u8; FIXED]) -> Option<Member> {
    let ip: [u8; 16] = row.get(..16)?.try_into().ok()?;
    let ip = Ipv6Addr::from(ip);
    let ip = match row.get(18)? {
        4 => IpAddr::V4(ip.to_ipv4_mapped()?),
        6 => IpAddr::V6(ip),
        _ => return None,
    };
    let port = u16::from_le_bytes(row.get(16..18)?.try_into().ok()?);
    let verdict = match row.get(19)? {
        0 => Verdict::Healthy,
        1 => Verdict::Degraded,
        2 => Verdict::Unhealthy,
        3 => Verdict::Draining,
        _ => return None,
    };
    Some(Member {
        address: SocketAddr::new(ip, port),
        weight: read_u32(row, 20)?,
        priority: read_u32(row, 24)?,
        locality: String::new(),
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::memory::MemoryStore;

    fn member(address: &str) -> Member {
        Member {
            address: address.parse().unwrap(),
            weight: 3,
            priority: 1,
            locality: "r1/z1".into(),
            verdict: Verdict::Draining,
        }
    }

    fn row(store: &MemoryStore, cluster: u64) -> Option<Row> {
        head(store, 9)
            .into_iter()
            .find(|row| row.cluster == cluster)
    }

    #[test]
    fn members_come_back_and_the_version_moves_only_with_them() {
        let store = MemoryStore::new();
        assert_eq!((head(&store, 9), load(&store, 9, 1)), (Vec::new(), None));
        let one = [
            member("10.0.0.1:80"),
            member("[::1]:80"),
            member("[::ffff:10.0.0.1]:80"),
        ];
        save(&store, 9, 1, (1_000, 1_010), &one);
        assert_eq!(load(&store, 9, 1).as_deref(), Some(one.as_slice()));
        let first = row(&store, 1).unwrap();
        assert_eq!((first.version, first.at_ms), (1_010, 1_010));
        save(&store, 9, 1, (2_000, 2_010), &one);
        let again = row(&store, 1).unwrap();
        assert_eq!((again.version, again.at_ms), (1_010, 2_010));
        save(&store, 9, 1, (2_020, 2_030), &[]);
        assert_eq!(load(&store, 9, 1), Some(Vec::new()));
        assert_eq!(row(&store, 1).unwrap().version, 2_030);
        save(&store, 9, 1, (2_030, 2_030), &one);
        assert_eq!(row(&store, 1).unwrap().version, 2_031, "always another");
        save(&store, 9, 2, (2_030, 2_040), &one);
        assert_eq!(
            row(&store, 1).unwrap().version,
            2_031,
            "a cluster by itself"
        );
        assert_eq!((load(&store, 8, 1), load(&store, 9, 3)), (None, None));
    }

    #[test]
    fn an_answer_that_comes_late_replaces_no_newer_one() {
        let store = MemoryStore::new();
        let (old, new) = ([member("10.0.0.1:80")], [member("10.0.0.2:80")]);
        save(&store, 9, 1, (2_000, 2_010), &new);
        save(&store, 9, 1, (1_000, 2_500), &old);
        assert_eq!(load(&store, 9, 1).as_deref(), Some(new.as_slice()));
        assert_eq!(row(&store, 1).unwrap().at_ms, 2_010);
        // Confirmed without a change, it is as new as the last question.
        save(&store, 9, 1, (3_000, 3_010), &new);
        save(&store, 9, 1, (2_500, 3_020), &old);
        assert_eq!(load(&store, 9, 1).as_deref(), Some(new.as_slice()));
        // A clock that is set back locks nobody out.
        save(&store, 9, 1, (100, 110), &old);
        assert_eq!(load(&store, 9, 1).as_deref(), Some(old.as_slice()));
    }

    #[test]
    fn a_head_does_not_grow_without_end() {
        let store = MemoryStore::new();
        for n in 0..1_000 {
            save(&store, 9, n, (n, n), &[]);
        }
        let rows = head(&store, 9);
        assert_eq!(rows.len(), MAX_CLUSTERS);
        assert!(rows.iter().all(|row| row.cluster >= 744), "the newest");
    }

    fn any_member() -> impl Strategy<Value = Member> {
        let ip = prop_oneof![
            any::<std::net::Ipv4Addr>().prop_map(IpAddr::V4),
            any::<Ipv6Addr>().prop_map(IpAddr::V6),
        ];
        let verdict = prop_oneof![
            Just(Verdict::Healthy),
            Just(Verdict::Degraded),
            Just(Verdict::Unhealthy),
            Just(Verdict::Draining),
        ];
        let figures = (any::<u16>(), any::<u32>(), any::<u32>(), "[a-zü/]{0,60}");
        (ip, figures, verdict).prop_map(|(ip, (port, weight, priority, locality), verdict)| {
            Member {
                address: SocketAddr::new(ip, port),
                weight,
                priority,
                locality,
                verdict,
            }
        })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(members in proptest::collection::vec(any_member(), 0..20), at: u64) {
            let bytes = encode_body(at, &members);
            prop_assert_eq!(decode_body(&bytes), Some((at, members)));
            prop_assert!(bytes.len() < 12 || decode_body(&bytes[..11]).is_none());
        }

        #[test]
        fn any_bytes_are_harmless(bytes: Vec<u8>, known: bool) {
            let store = MemoryStore::new();
            let after = |magic: &[u8]| match known {
                true => [magic, bytes.as_slice()].concat(),
                false => bytes.clone(),
            };
            store.put(&head_key(9), &after(HEAD_MAGIC)).unwrap();
            store.put(&body_key(9, 1), &after(BODY_MAGIC)).unwrap();
            head(&store, 9);
            load(&store, 9, 1);
            let members = [member("10.0.0.1:80")];
            save(&store, 9, 1, (u64::MAX, u64::MAX), &members);
            prop_assert_eq!(load(&store, 9, 1), Some(members.to_vec()));
            prop_assert_eq!(row(&store, 1).unwrap().at_ms, u64::MAX);
        }
    }
}
