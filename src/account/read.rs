//! Reads accounts: from the line to everything that a policy was shown.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::{FIGURES, LOAD_FIGURES, Place, VERSION, load_places, places};
use crate::index::MAX_BLOCKS;
use crate::policy::{Candidate, Load};

/// Why a Decision cannot be read or taken again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountError {
    /// It is no account: cut off, or not as the format has it.
    Malformed(String),
    /// Of another version.
    Version(u64),
    /// Several values of a log line are accounts.
    Several {
        /// How many.
        found: usize,
    },
    /// Not all candidates are listed.
    Incomplete {
        /// How many are.
        listed: usize,
    },
    /// The configuration has no such pool.
    UnknownPool(String),
    /// The pool has no such endpoint.
    UnknownEndpoint(String),
    /// The pool has another policy.
    OtherPolicy {
        /// The line's.
        logged: String,
        /// The configuration's.
        configured: String,
    },
}

impl fmt::Display for AccountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "not the account of a decision: {why}"),
            Self::Version(version) => write!(
                f,
                "an account of version {version}; this program reads version {VERSION}"
            ),
            Self::Several { found } => write!(
                f,
                "{found} values of the line are accounts, of which a client has written all but one"
            ),
            Self::Incomplete { listed } => write!(
                f,
                "only {listed} candidates are listed, so that it cannot be decided again"
            ),
            Self::UnknownPool(pool) => write!(f, "the configuration has no pool `{pool}`"),
            Self::UnknownEndpoint(endpoint) => {
                write!(f, "the configuration's pool has no endpoint {endpoint}")
            }
            Self::OtherPolicy { logged, configured } => write!(
                f,
                "decided by {logged}, but the configuration has {configured} for this pool"
            ),
        }
    }
}

impl std::error::Error for AccountError {}

/// A Decision as it was logged. The `endpoint` of each candidate is its place in the list until the
/// pool is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Fingerprint of the configuration.
    pub config: u64,
    /// Name of the pool.
    pub pool: String,
    /// Name of the policy.
    pub policy: String,
    /// Why the first one.
    pub reason: String,
    /// Addresses, best first.
    pub ranked: Vec<String>,
    /// Bound that the first one was held against, in the policy's unit; 0 if it has none.
    pub bound: u64,
    /// How many picks the pool had before.
    pub sequence: u64,
    /// The random bits.
    pub random: u64,
    /// Routing key.
    pub key: Option<u64>,
    /// What the request was expected to cost.
    pub cost: Load,
    /// Prefix blocks; 0 where the line has none.
    pub blocks: Vec<u64>,
    /// Addresses of the candidates and what was known of them.
    pub candidates: Vec<(String, Candidate)>,
    /// What each candidate would cost, in microseconds; empty if the policy counts no costs.
    pub costs_us: Vec<u64>,
}

/// The JSON as it is. Keys that are not known are passed over, so that a version may gain some.
#[derive(Deserialize)]
struct Raw {
    config: Hex,
    pool: String,
    policy: String,
    reason: String,
    ranked: Vec<String>,
    bound: u64,
    sequence: u64,
    random: Hex,
    key: Option<Hex>,
    cost: [u64; LOAD_FIGURES],
    #[serde(default)]
    blocks: Vec<Value>,
    complete: bool,
    idle: [u64; FIGURES],
    candidates: Vec<Vec<Value>>,
    #[serde(default)]
    costs_us: Vec<u64>,
}

/// A number in hexadecimal digits: JSON readers often keep no more than 53 bits of a number.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Hex(u64);

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = u64::from_str_radix(&text, 16);
        number
            .map(Self)
            .map_err(|_| format!("`{text}` is no hexadecimal number of 64 bits"))
    }
}

impl Account {
    /// Reads an account, without anything around it.
    ///
    /// # Errors
    /// Not the format, another version, or not all candidates.
    pub fn parse(text: &str) -> Result<Self, AccountError> {
        let malformed = |why: String| AccountError::Malformed(why);
        #[derive(Deserialize)]
        struct Versioned {
            warmroute: u64,
        }
        let Versioned { warmroute: version } =
            serde_json::from_str(text).map_err(|why| malformed(why.to_string()))?;
        if version != VERSION {
            return Err(AccountError::Version(version));
        }
        let raw: Raw = serde_json::from_str(text).map_err(|why| malformed(why.to_string()))?;
        if !raw.complete {
            let listed = raw.candidates.len();
            return Err(AccountError::Incomplete { listed });
        }
        let candidates: Result<Vec<_>, String> = raw
            .candidates
            .iter()
            .zip(0..)
            .map(|(one, index)| candidate(one, index, raw.idle))
            .collect();
        let candidates = candidates.map_err(malformed)?;
        if !raw.costs_us.is_empty() && raw.costs_us.len() != candidates.len() {
            return Err(malformed("costs_us: not one for each candidate".into()));
        }
        Ok(Self {
            config: raw.config.0,
            pool: raw.pool,
            policy: raw.policy,
            reason: raw.reason,
            ranked: raw.ranked,
            bound: raw.bound,
            sequence: raw.sequence,
            random: raw.random.0,
            key: raw.key.map(|key| key.0),
            cost: load(raw.cost).map_err(malformed)?,
            blocks: blocks(&raw.blocks).map_err(malformed)?,
            candidates,
            costs_us: raw.costs_us,
        })
    }
}

/// Puts each figure where it is kept.
fn put<const N: usize>(places: [Place<'_>; N], figures: [u64; N]) -> Result<(), String> {
    for (place, figure) in places.into_iter().zip(figures) {
        match place {
            Place::Small(kept) => {
                let small = u32::try_from(figure);
                *kept = small.map_err(|_| format!("{figure} does not fit into 32 bits"))?;
            }
            Place::Large(kept) => *kept = figure,
        }
    }
    Ok(())
}

fn load(figures: [u64; LOAD_FIGURES]) -> Result<Load, String> {
    let mut load = Load::default();
    put(load_places(&mut load), figures)?;
    Ok(load)
}

/// An address, and the figures that are not as in `idle`, in the order in which they are written.
fn candidate(
    raw: &[Value],
    index: u32,
    idle: [u64; FIGURES],
) -> Result<(String, Candidate), String> {
    let bad = || format!("candidate {index}: not an address and up to {FIGURES} figures");
    let (name, given) = raw.split_first().ok_or_else(bad)?;
    let name = name.as_str().ok_or_else(bad)?;
    let mut all = idle;
    if given.len() > all.len() {
        return Err(bad());
    }
    for (figure, given) in all.iter_mut().zip(given) {
        *figure = given.as_u64().ok_or_else(bad)?;
    }
    let mut candidate = Candidate {
        endpoint: index,
        ..Candidate::default()
    };
    put(places(&mut candidate), all)?;
    Ok((name.to_owned(), candidate))
}

/// How many there are, then `[number, "hash"]` for each that is known.
fn blocks(raw: &[Value]) -> Result<Vec<u64>, String> {
    let Some((count, known)) = raw.split_first() else {
        return Ok(Vec::new());
    };
    let count = count
        .as_u64()
        .filter(|count| *count <= u64::from(MAX_BLOCKS));
    let count = count.ok_or_else(|| format!("blocks: not a number up to {MAX_BLOCKS}"))?;
    let known: Result<HashMap<u64, Hex>, String> = known
        .iter()
        .map(|pair| serde_json::from_value::<(u64, Hex)>(pair.clone()))
        .collect::<Result<_, _>>()
        .map_err(|why| format!("blocks: {why}"));
    let known = known?;
    if let Some(beyond) = known.keys().find(|index| **index >= count) {
        return Err(format!("blocks: there is no block {beyond} of {count}"));
    }
    let block = |index| known.get(&index).map_or(0, |hash| hash.0);
    Ok((0..count).map(block).collect())
}
