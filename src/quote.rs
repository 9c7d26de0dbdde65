//! Text as a JSON string.

use std::fmt::Write;

/// Appends `text` as a JSON string of printable ASCII: neither a log line nor a header breaks, whatever is
/// called how.
#[inline(never)]
pub(crate) fn quote(line: &mut String, text: &str) {
    line.push('"');
    for letter in text.chars() {
        if matches!(letter, '"' | '\\') {
            line.push('\\');
        }
        if matches!(letter, ' '..='~') {
            line.push(letter);
            continue;
        }
        let mut units = [0; 2];
        for unit in letter.encode_utf16(&mut units) {
            // Writing into a String cannot fail.
            let _ = write!(line, "\\u{unit:04x}");
        }
    }
    line.push('"');
}
