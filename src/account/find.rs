//! Finds accounts in the lines of access logs.

use serde_json::Value;

use super::BEGINNING;

/// The account in a line of an access log, whose format may be text or JSON. `None` if there is none.
///
/// Text that clients write may stand in the line too. What looks like an account is taken from the
/// end, which is where the shipped configurations have it.
pub fn find(line: &str) -> Option<String> {
    if let Some(account) = find_plain(line) {
        return Some(account.to_owned());
    }
    let whole: Value = serde_json::from_str(line.get(line.find('{')?..)?.trim_end()).ok()?;
    let mut left = vec![&whole];
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => {
                if let Some(account) = find_plain(text) {
                    return Some(account.to_owned());
                }
            }
            Value::Array(elements) => left.extend(elements),
            Value::Object(members) => left.extend(members.values()),
            _ => {}
        }
    }
    None
}

/// The last whole account in the text; a broken one, to its end, if there is no whole one.
fn find_plain(text: &str) -> Option<&str> {
    let mut broken = None;
    for (at, _) in text.rmatch_indices(BEGINNING) {
        let rest = text.get(at..)?;
        let mut values =
            serde_json::Deserializer::from_str(rest).into_iter::<serde::de::IgnoredAny>();
        if let Some(Ok(_)) = values.next() {
            return rest.get(..values.byte_offset());
        }
        broken = broken.or(Some(rest));
    }
    broken
}
