//! Finds accounts in the lines of access logs.

use std::collections::BTreeSet;

use serde_json::Value;

use super::BEGINNING;
use super::read::{Account, AccountError};

/// The account in a line of an access log, whose format may be text or JSON. `None` if there is none.
///
/// Text that clients write may stand in the line too. In a line of text, what looks like an account is
/// taken from the end, which is where the shipped configurations have it. In a line of JSON, a value
/// counts if it is an account as a whole, wherever it stands. Where no value is one, a value may be a
/// line of text that something has put into JSON. A broken account is taken only if there is no whole
/// one, so that it can be complained of.
///
/// # Errors
/// Several values of a line of JSON are accounts, and differ: a client has written all but one.
pub fn find(line: &str) -> Result<Option<String>, AccountError> {
    let json = line.find('{').and_then(|at| line.get(at..));
    let json = json.and_then(|json| serde_json::from_str(json.trim_end()).ok());
    let Some(json) = json else {
        return Ok(last(line).map(str::to_owned));
    };
    let strings = strings(&json);
    // In JSON, quotes within a string are escaped: what is found in the line itself is an object.
    let objects = beginnings(line);
    let values = strings.iter().copied().chain(objects);
    let whole = only(values.filter(|value| value.starts_with(BEGINNING)))?;
    let found = match whole {
        Some(whole) => Some(whole),
        None => only(strings.iter().copied().filter_map(last))?,
    };
    let broken = || last(line).or_else(|| strings.iter().copied().find_map(last));
    Ok(found.or_else(broken).map(str::to_owned))
}

/// The one account among these; that it is there several times does no harm.
fn only<'a>(claims: impl Iterator<Item = &'a str>) -> Result<Option<&'a str>, AccountError> {
    let accounts: BTreeSet<&str> = claims.filter(|claim| is_account(claim)).collect();
    match accounts.len() {
        0 | 1 => Ok(accounts.first().copied()),
        found => Err(AccountError::Several { found }),
    }
}

/// Whether it has the format, from the beginning to the end, even if not all candidates are listed.
fn is_account(text: &str) -> bool {
    matches!(
        Account::parse(text),
        Ok(_) | Err(AccountError::Incomplete { .. })
    )
}

/// The last account in the text; the last broken one, if there is no whole one.
fn last(text: &str) -> Option<&str> {
    let whole = beginnings(text).find(|claim| is_account(claim));
    whole.or_else(|| beginnings(text).next())
}

/// What begins as an account does, from the last one on: each to the end of its JSON, or of the text.
fn beginnings(text: &str) -> impl Iterator<Item = &str> {
    text.rmatch_indices(BEGINNING).filter_map(|(at, _)| {
        let rest = text.get(at..)?;
        let mut values =
            serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => rest.get(..values.byte_offset()),
            _ => Some(rest),
        }
    })
}

/// All strings that are values, however deep.
fn strings(json: &Value) -> Vec<&str> {
    let mut strings = Vec::new();
    let mut left = vec![json];
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => strings.push(text.as_str()),
            Value::Array(elements) => left.extend(elements),
            Value::Object(members) => left.extend(members.values()),
            _ => {}
        }
    }
    strings
}
