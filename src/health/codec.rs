//! A row as bytes: 136, little-endian, at fixed places.

use super::time::Rest;
use super::{Row, Verdict, Why};
use crate::endpoint::EndpointId;
use crate::state::codec::{read_u32, read_u64};

/// Bytes of one row.
pub(super) const ROW: usize = 136;
const LONG: usize = 13;
const SHORT: usize = 8;

/// Bits of the sixth of the short figures.
const WHY_BITS: u32 = 8;
const ALIVE_BIT: u32 = 1 << 24;
/// The last of the long figures is when it came, not when it left.
const WARMING_BIT: u32 = 1 << 25;
const BLAMED_BIT: u32 = 1 << 26;

const WHY: [Why; 10] = [
    Why::Nothing,
    Why::Failures,
    Why::Refused,
    Why::Envoy,
    Why::Asleep,
    Why::Overloaded,
    Why::Blamed,
    Why::Silent,
    Why::Unhealthy,
    Why::KvFull,
];

const VERDICTS: [Verdict; 4] = [
    Verdict::Healthy,
    Verdict::Degraded,
    Verdict::Unhealthy,
    Verdict::Draining,
];

/// Writes a row over `bytes`, which are [`ROW`] long.
pub(super) fn encode(endpoint: EndpointId, row: &Row, bytes: &mut [u8]) {
    let long: [u64; LONG] = [
        endpoint.0,
        row.ejected.since_ms,
        row.probe_ms,
        row.rest.since_ms,
        row.silent_ms,
        row.life_ms,
        row.refused_ms,
        row.unhealthy_ms,
        row.asleep_ms,
        row.kv_full_since_ms,
        row.kv_full_ms,
        row.verdict_ms,
        row.left_ms.max(row.warming_ms),
    ];
    let place = |place: Option<usize>| u32::try_from(place.unwrap_or(0)).unwrap_or(0);
    let why = |why: Why| place(WHY.iter().position(|known| *known == why));
    let verdict = place(VERDICTS.iter().position(|known| *known == row.verdict));
    let mut marks = why(row.ejected_why) | (why(row.rest_why) << WHY_BITS);
    marks |= verdict << (2 * WHY_BITS);
    marks |= if row.alive_since { ALIVE_BIT } else { 0 };
    marks |= if row.warming_ms != 0 { WARMING_BIT } else { 0 };
    marks |= if row.blamed { BLAMED_BIT } else { 0 };
    let short: [u32; SHORT] = [
        row.failures,
        row.ejected.length_ms,
        row.ejections,
        row.rest.length_ms,
        row.rests,
        marks,
        row.heard_s,
        row.verdict_by,
    ];
    let Some((head, tail)) = bytes.split_at_mut_checked(LONG * 8) else {
        return;
    };
    for (place, figure) in head.chunks_exact_mut(8).zip(long) {
        place.copy_from_slice(&figure.to_le_bytes());
    }
    for (place, figure) in tail.chunks_exact_mut(4).zip(short) {
        place.copy_from_slice(&figure.to_le_bytes());
    }
}

/// Whose row it is.
pub(super) fn endpoint(bytes: &[u8]) -> Option<EndpointId> {
    read_u64(bytes, 0).map(EndpointId)
}

/// Reads a row. Whatever the bytes are, it is one.
pub(super) fn decode(bytes: &[u8]) -> Row {
    let long = |place: usize| read_u64(bytes, place * 8).unwrap_or(0);
    let short = |place: usize| read_u32(bytes, LONG * 8 + place * 4).unwrap_or(0);
    let marks = short(5);
    let byte = |number: u32| (marks >> (number * WHY_BITS)) as usize & 0xFF;
    let why = |number: u32| WHY.get(byte(number)).copied().unwrap_or_default();
    let (left_ms, warming_ms) = match marks & WARMING_BIT {
        0 => (long(12), 0),
        _ => (0, long(12)),
    };
    let rest = |since: usize, length: usize| Rest {
        since_ms: long(since),
        length_ms: short(length),
    };
    Row {
        failures: short(0),
        ejected: rest(1, 1),
        ejections: short(2),
        ejected_why: why(0),
        alive_since: marks & ALIVE_BIT != 0,
        probe_ms: long(2),
        rest: rest(3, 3),
        rests: short(4),
        rest_why: why(1),
        blamed: marks & BLAMED_BIT != 0,
        silent_ms: long(4),
        life_ms: long(5),
        refused_ms: long(6),
        unhealthy_ms: long(7),
        asleep_ms: long(8),
        kv_full_since_ms: long(9),
        kv_full_ms: long(10),
        verdict: VERDICTS.get(byte(2) & 0x0F).copied().unwrap_or_default(),
        verdict_ms: long(11),
        verdict_by: short(7),
        warming_ms,
        left_ms,
        heard_s: short(6),
    }
}
