//! Waves of requests that are all under way at once, and a naive replay of their picks.
// The figures use a part of it.
#![allow(dead_code)]

use crate::decision::{Carried, Decision, open};
use crate::support::client::{Call, HttpClient, Streaming};
use std::collections::{BTreeMap, BTreeSet};

/// Opens all `calls` at once, in turn on `clients`, and returns when the headers of every answer are
/// there. The load stays until the streams are dropped.
pub async fn open_all(
    clients: &[HttpClient],
    calls: Vec<Call>,
) -> Result<Vec<(Decision, Streaming)>, String> {
    let opening = calls
        .into_iter()
        .zip(clients.iter().cycle())
        .map(|(call, client)| open(client, call));
    let opened = futures_util::future::join_all(opening).await;
    let opened = opened.into_iter().collect::<Result<Vec<_>, String>>()?;
    match opened.iter().find(|(_, stream)| stream.status != 200) {
        Some((_, stream)) => Err(format!(
            "a request of the wave got status {}",
            stream.status
        )),
        None => Ok(opened),
    }
}

/// How many different endpoints were picked.
pub fn distinct(opened: &[(Decision, Streaming)]) -> usize {
    let endpoints: BTreeSet<&str> = opened
        .iter()
        .map(|(decision, _)| decision.endpoint.as_str())
        .collect();
    endpoints.len()
}

/// How often each endpoint was picked.
pub fn counts<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for decision in decisions {
        *counts.entry(decision.endpoint.clone()).or_default() += 1;
    }
    counts
}

/// What a replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    pub picks: u64,
    /// Picks of an endpoint that was at its bound or above.
    pub bound_violations: u64,
    /// Picks that name another bound than the replay finds.
    pub bound_mismatches: u64,
    /// Picks that saw other loads than the earlier picks of the wave had reserved.
    pub load_mismatches: u64,
    /// Picks whose number does not follow the one before.
    pub sequence_gaps: u64,
    /// Picks that had to leave the key's home endpoint.
    pub overflows: u64,
}

impl Replay {
    pub fn add(&mut self, other: &Self) {
        self.picks += other.picks;
        self.bound_violations += other.bound_violations;
        self.bound_mismatches += other.bound_mismatches;
        self.load_mismatches += other.load_mismatches;
        self.sequence_gaps += other.sequence_gaps;
        self.overflows += other.overflows;
    }
}

/// Replays a wave that began with nothing under way and ended nothing: the picks in their order,
/// each against what the earlier ones reserved. Bounds are those of `prefix_hash` in tokens, with
/// equal weights and a load factor of 5 / 4.
pub fn replay(mut picks: Vec<Decision>, endpoints: &[String]) -> Replay {
    picks.sort_by_key(|pick| pick.sequence);
    let mut carried: BTreeMap<String, Carried> = endpoints
        .iter()
        .map(|endpoint| (endpoint.clone(), Carried::default()))
        .collect();
    let mut found = Replay::default();
    let mut before: Option<u64> = None;
    for pick in picks {
        let total: u64 = carried.values().map(Carried::tokens).sum();
        let fair = 4 * endpoints.len() as u64;
        let bound = (5 * (total + pick.cost.tokens())).div_ceil(fair).max(1);
        let own = carried.entry(pick.endpoint.clone()).or_default();
        found.picks += 1;
        found.bound_violations += u64::from(own.tokens() >= bound);
        found.bound_mismatches += u64::from(pick.bound != bound);
        found.sequence_gaps += u64::from(before.is_some_and(|last| pick.sequence != last + 1));
        found.overflows += u64::from(pick.reason == "overflow");
        let seen_differs = pick.loads != carried;
        found.load_mismatches += u64::from(seen_differs);
        if let Some(own) = carried.get_mut(&pick.endpoint) {
            own.add(&pick.cost);
        }
        before = Some(pick.sequence);
    }
    found
}
