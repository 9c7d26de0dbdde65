//! Whole numbers as JSON bodies write them.

/// The whole number that `text` spells, also as `5.0` or `1e3`. `None` for anything negative,
/// fractional, huge or not a number.
pub(crate) fn whole(text: &[u8]) -> Option<u64> {
    let digits = text.iter().try_fold(0u64, |sum, &byte| match byte {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    });
    if digits.is_some() && !text.is_empty() {
        return digits;
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    // Above 2^53 a float no longer tells whole numbers apart.
    (value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value))
        .then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_whole_numbers_and_nothing_else() {
        for (text, value) in [
            ("0", Some(0)),
            ("17", Some(17)),
            ("5.0", Some(5)),
            ("1e3", Some(1000)),
            ("-0.0", Some(0)),
            ("-1", None),
            ("5.5", None),
            ("1e300", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("null", None),
            ("true", None),
            ("NaN", None),
            ("Infinity", None),
            ("", None),
        ] {
            assert_eq!(whole(text.as_bytes()), value, "{text}");
        }
    }
}
