//! The Prometheus text format, line by line: only the families asked for are looked at.
//!
//! Tolerant: what is no sample of a wanted family is skipped, a broken line costs only itself, and
//! the bytes need not be UTF-8. Nothing is copied.

use std::borrow::Cow;

/// How much of an answer is read, in bytes. One engine writes 60 kB; a server with many engines
/// repeats most of it for each.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// One line with a sample, of which only the name is read yet.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// Name of the series: that of the family, or with a suffix such as `_total` or `_bucket`.
    pub name: &'a [u8],
    rest: &'a [u8],
}

/// The labels and the value of one line.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value; may be NaN or infinite.
    pub value: f64,
}

/// A line that is no valid sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenLine;

impl<'a> Line<'a> {
    /// Reads `{label="value",…} value timestamp # exemplar`; what follows the value is not looked at.
    ///
    /// # Errors
    ///
    /// [`BrokenLine`] if there is no value or the labels are broken.
    pub fn sample(&self) -> Result<Sample<'a>, BrokenLine> {
        let rest = self.rest.trim_ascii_start();
        let (labels, rest) = match rest.strip_prefix(b"{") {
            None => (Labels { rest: &[] }, rest),
            Some(inside) => {
                let labels = Labels { rest: inside };
                (labels, labels.end().ok_or(BrokenLine)?)
            }
        };
        let value = rest
            .trim_ascii_start()
            .split(u8::is_ascii_whitespace)
            .next();
        let value = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        Ok(Sample {
            labels,
            value: value.ok_or(BrokenLine)?,
        })
    }
}

/// The lines of a text whose names begin with one of some prefixes.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    text: &'a [u8],
    prefixes: &'a [&'a [u8]],
}

impl<'a> Lines<'a> {
    /// Reads at most [`MAX_TEXT_BYTES`] of `text`, up to the last whole line among them.
    pub fn new(text: &'a [u8], prefixes: &'a [&'a [u8]]) -> Self {
        let text = match text.split_at_checked(MAX_TEXT_BYTES) {
            None => text,
            Some((head, _)) => {
                let whole = head.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
                head.get(..whole).unwrap_or(&[])
            }
        };
        Self { text, prefixes }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;

    fn next(&mut self) -> Option<Line<'a>> {
        while !self.text.is_empty() {
            let (line, rest) = self
                .text
                .split_at_checked(find_newline(self.text))
                .unwrap_or((self.text, &[]));
            self.text = rest.split_first().map_or(&[], |(_, rest)| rest);
            let line = line.trim_ascii_start();
            if self.prefixes.iter().any(|prefix| line.starts_with(prefix)) {
                let end = line
                    .iter()
                    .position(|&byte| byte == b'{' || byte.is_ascii_whitespace());
                let (name, rest) = line.split_at_checked(end.unwrap_or(line.len()))?;
                return Some(Line { name, rest });
            }
        }
        None
    }
}

/// Where the first line ends. Eight bytes at a time: most of an answer is passed over unread.
fn find_newline(text: &[u8]) -> usize {
    const EVERY_BYTE: u64 = 0x0101_0101_0101_0101;
    let (words, _) = text.as_chunks::<8>();
    let mut before: usize = 0;
    for word in words {
        let zero_if_newline = u64::from_le_bytes(*word) ^ (EVERY_BYTE * b'\n' as u64);
        // The lowest zero byte, and perhaps bytes above it, get their highest bit set.
        let found = zero_if_newline.wrapping_sub(EVERY_BYTE) & !zero_if_newline & (EVERY_BYTE << 7);
        if found != 0 {
            return before.saturating_add((found.trailing_zeros() / 8) as usize);
        }
        before = before.saturating_add(8);
    }
    let tail = text.get(before..).unwrap_or(&[]);
    before.saturating_add(
        tail.iter()
            .position(|&byte| byte == b'\n')
            .unwrap_or(tail.len()),
    )
}

/// The labels of one sample, in the order of the text.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a> {
    /// Starts behind the opening brace or behind a label; goes on beyond the closing brace.
    rest: &'a [u8],
}

impl<'a> Labels<'a> {
    /// The value of the label called `name`.
    pub fn get(mut self, name: &str) -> Option<LabelValue<'a>> {
        self.find_map(|(label, value)| (label == name.as_bytes()).then_some(value))
    }

    /// What follows the closing brace; `None` if the labels are broken.
    fn end(mut self) -> Option<&'a [u8]> {
        while self.next().is_some() {}
        self.rest.trim_ascii_start().strip_prefix(b"}")
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a [u8], LabelValue<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, value, rest) = split_label(self.rest)?;
        self.rest = rest;
        Some((name, value))
    }
}

/// `name="value"` and a comma, if there is one; `None` at the closing brace or at a fault.
fn split_label(text: &[u8]) -> Option<(&[u8], LabelValue<'_>, &[u8])> {
    let text = text.trim_ascii_start();
    let end = text
        .iter()
        .position(|&byte| matches!(byte, b'=' | b'}' | b'"'))?;
    let (name, rest) = text.split_at_checked(end)?;
    let quoted = rest
        .strip_prefix(b"=")?
        .trim_ascii_start()
        .strip_prefix(b"\"")?;
    let mut escaped = false;
    let end = quoted.iter().position(|&byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })?;
    let (raw, rest) = quoted.split_at_checked(end)?;
    let rest = rest.strip_prefix(b"\"")?.trim_ascii_start();
    Some((
        name.trim_ascii_end(),
        LabelValue { raw },
        rest.strip_prefix(b",").unwrap_or(rest),
    ))
}

/// The value of a label, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LabelValue<'a> {
    raw: &'a [u8],
}

impl<'a> LabelValue<'a> {
    /// With `\\`, `\"` and `\n` resolved; what is no UTF-8 becomes U+FFFD.
    pub fn text(self) -> Cow<'a, str> {
        if !self.raw.contains(&b'\\') {
            return String::from_utf8_lossy(self.raw);
        }
        let mut bytes = Vec::with_capacity(self.raw.len());
        let mut raw = self.raw.iter();
        while let Some(&byte) = raw.next() {
            match byte {
                b'\\' => match raw.next() {
                    Some(b'n') => bytes.push(b'\n'),
                    Some(&other) => bytes.push(other),
                    None => bytes.push(byte),
                },
                _ => bytes.push(byte),
            }
        }
        Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The value as a whole number; `None` for `None`, fractions and the like.
    pub fn number<N: std::str::FromStr>(self) -> Option<N> {
        std::str::from_utf8(self.raw).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Owned = (String, Vec<(String, String)>, f64);

    fn lines(text: &[u8]) -> Lines<'_> {
        Lines::new(text, &[b"m"])
    }

    fn read(text: &str) -> Vec<Owned> {
        let owned = |line: Line<'_>| {
            let sample = line.sample().ok()?;
            let labels = sample.labels.map(|(name, value)| {
                (
                    String::from_utf8(name.to_vec()).unwrap(),
                    value.text().into_owned(),
                )
            });
            Some((
                String::from_utf8(line.name.to_vec()).unwrap(),
                labels.collect(),
                sample.value,
            ))
        };
        lines(text.as_bytes()).filter_map(owned).collect()
    }

    fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn m2_every_form_of_a_sample() {
        let one = |text: &str, value: f64| {
            assert_eq!(read(text), [("m".to_owned(), labels(&[("a", "b")]), value)])
        };
        one("m{a=\"b\"} 1", 1.0);
        one("m{a=\"b\"} 1.5e+02\r\n", 150.0);
        one("m{a=\"b\"} 3 1395066363000", 3.0);
        one("m{a=\"b\"} 3 # {trace_id=\"x\"} 0.67 1.2", 3.0);
        one("  m { a = \"b\" , }\t+Inf", f64::INFINITY);
        one("m{a=\"b\",}-Inf", f64::NEG_INFINITY);
        assert!(read("m NaN")[0].2.is_nan());
        assert_eq!(read("m{} 0"), [("m".to_owned(), vec![], 0.0)]);
    }

    #[test]
    fn label_values_may_hold_anything() {
        let text = r#"m{path="C:\\x\"}, y=\"1\" {",next="a\nb",odd="\q"} 7"#;
        let expected = labels(&[
            ("path", "C:\\x\"}, y=\"1\" {"),
            ("next", "a\nb"),
            ("odd", "q"),
        ]);
        assert_eq!(read(text), [("m".to_owned(), expected, 7.0)]);
    }

    #[test]
    fn broken_lines_cost_only_themselves() {
        let broken = [
            "m",
            "m{",
            "m{a",
            "m{a=",
            "m{a=b} 1",
            "m{a=\"b} 1",
            "m{a=\"b\"",
            "m{a=\"b\"}",
            "m x",
            "m{a=\"b\\\"} 1",
            "m{,} 1",
        ];
        for text in broken {
            assert_eq!(
                lines(text.as_bytes()).next().unwrap().sample().unwrap_err(),
                BrokenLine,
                "{text}"
            );
        }
        assert_eq!(read("m{a=\n\nm 2\n").len(), 1);
    }

    #[test]
    fn comments_and_other_families_are_passed_over() {
        assert!(
            lines(b"# HELP m a\n# TYPE m gauge\n\n#\nother{ 1\n{\"m.quoted\"} 1\n")
                .next()
                .is_none()
        );
    }

    #[test]
    fn bytes_that_are_no_utf8_are_tolerated() {
        let mut lines = lines(b"m{a=\"\xff\"} 1\nm \xff\nm\xfe 2\n");
        let labels = lines.next().unwrap().sample().unwrap().labels;
        assert_eq!(labels.get("a").unwrap().text(), "\u{fffd}");
        assert_eq!(lines.next().unwrap().sample().unwrap_err(), BrokenLine);
        assert_eq!(lines.next().unwrap().name, b"m\xfe");
        assert!(lines.next().is_none());
    }

    #[test]
    fn a_newline_is_found_wherever_it_is() {
        for length in 0..40 {
            // Bytes that differ from a newline in one bit, and its neighbours.
            let mut text: Vec<u8> = (0..length)
                .map(|at| [0x0b, 0x8a, 0x09, 0x1a, 0xff, 0x00][at % 6])
                .collect();
            assert_eq!(find_newline(&text), length);
            for at in (0..length).rev() {
                text[at] = b'\n';
                assert_eq!(find_newline(&text), at);
            }
        }
    }

    #[test]
    fn a_text_beyond_the_cap_is_read_to_its_last_whole_line() {
        let mut text = b"m 1\n".repeat(MAX_TEXT_BYTES / 4 - 1);
        text.extend_from_slice(b"m 123456\n");
        assert_eq!(lines(&text).count(), MAX_TEXT_BYTES / 4 - 1);
        assert_eq!(lines(&vec![b'm'; MAX_TEXT_BYTES + 1]).count(), 0);
    }
}
