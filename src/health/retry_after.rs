//! The response header `Retry-After`: seconds, or a date in one of HTTP's three forms.

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAY_S: u64 = 86_400;

/// How long the header asks to wait, in milliseconds. `None` if it cannot be read, or asks for nothing: 0
/// seconds, or a date that is over.
///
/// ```
/// use warmroute::health::retry_after_ms;
/// assert_eq!(retry_after_ms(b"2", 0), Some(2_000));
/// let now_ms = 784_111_777_000; // 1994-11-06 08:49:37
/// assert_eq!(retry_after_ms(b"Sun, 06 Nov 1994 08:49:40 GMT", now_ms), Some(3_000));
/// ```
pub fn retry_after_ms(value: &[u8], now_ms: u64) -> Option<u64> {
    let value = value.trim_ascii();
    let wait_ms = match number(value) {
        Some(seconds) => seconds.saturating_mul(1_000),
        None => date_s(value)?.saturating_mul(1_000).saturating_sub(now_ms),
    };
    (wait_ms > 0).then_some(wait_ms)
}

/// Digits alone; of more than a number has, a very large one.
fn number(digits: &[u8]) -> Option<u64> {
    let add = |sum: u64, digit: &u8| {
        let digit = u64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        Some(sum.saturating_mul(10).saturating_add(digit))
    };
    let sum = digits.iter().try_fold(0, add);
    sum.filter(|_| !digits.is_empty())
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` or
/// `Sun Nov  6 08:49:37 1994`.
fn date_s(text: &[u8]) -> Option<u64> {
    let mut month = None;
    // The day first; then the year and the time, or the time and the year.
    let mut figures = [0_u64; 5];
    let mut found = 0_usize;
    for part in text.split(|letter| !letter.is_ascii_alphanumeric()) {
        if let Some(figure) = number(part) {
            *figures.get_mut(found)? = figure;
            found = found.saturating_add(1);
        } else {
            let mut months = MONTHS.iter();
            let named = months.position(|name| part.eq_ignore_ascii_case(name.as_bytes()));
            month = month.or(named);
        }
    }
    if found != figures.len() {
        return None;
    }
    let [day, rest @ ..] = figures;
    // The year of asctime comes last; no second has that many digits.
    let [year, hour, minute, second] = match rest {
        [hour, minute, second, year] if year > 60 => [year, hour, minute, second],
        rest => rest,
    };
    let year = match year {
        0..70 => year + 2_000,
        70..100 => year + 1_900,
        1970..10_000 => year,
        _ => return None,
    };
    let month = month? as u64;
    if !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let time_s = hour * 3_600 + minute * 60 + second;
    Some(days(year, month, day) * DAY_S + time_s)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar; `month` from 0.
fn days(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap = |year: u64| year / 4 - year / 100 + year / 400;
    let before = usize::try_from(month).ok().and_then(|at| BEFORE.get(at));
    let is_leap = leap(year) > leap(year - 1);
    let leap_day = u64::from(is_leap && month > 1);
    (year - 1_970) * 365 + leap(year - 1) - leap(1_969)
        + before.copied().unwrap_or(0)
        + leap_day
        + day
        - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 1994-11-06 08:49:37, the example of RFC 9110.
    const EXAMPLE_MS: u64 = 784_111_777_000;

    #[test]
    fn seconds_and_all_three_forms_of_a_date_are_read() {
        for (text, wait_ms) in [
            ("1", Some(1_000)),
            (" 120 ", Some(120_000)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("0", None),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("Sun, 06 Nov 1994 08:49:39 GMT", Some(2_000)),
            ("Sunday, 06-Nov-94 08:49:39 GMT", Some(2_000)),
            ("Sun Nov  6 08:49:39 1994", Some(2_000)),
            ("Mon, 07 Nov 1994 08:49:37 GMT", Some(86_400_000)),
            // Over.
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 25:49:39 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
        ] {
            let found = retry_after_ms(text.as_bytes(), EXAMPLE_MS);
            assert_eq!(found, wait_ms, "{text:?}");
        }
        assert_eq!(retry_after_ms(b"\xff", 0), None);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, time_s) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000),
            ("Fri, 01 Mar 2024 00:00:00 GMT", 1_709_251_200),
            ("Sat, 01 Mar 2025 00:00:00 GMT", 1_740_787_200),
            ("Mon, 28 Feb 2000 23:59:59 GMT", 951_782_399),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ] {
            assert_eq!(date_s(text.as_bytes()), Some(time_s), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_harmless(bytes: Vec<u8>, text in "[0-9a-zA-Z,: -]{0,40}", now_ms: u64) {
            retry_after_ms(&bytes, now_ms);
            retry_after_ms(text.as_bytes(), now_ms);
        }
    }
}
