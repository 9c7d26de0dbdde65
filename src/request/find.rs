//! Search for a few bytes in a long slice, in a shape that compilers turn into SIMD.

/// Bytes looked at together in a long slice; a multiple of every vector width in use.
const LANES: usize = 32;
/// Bytes of a machine word, which short slices go by.
const WORD: usize = 8;
const LOWS: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Position of the first byte of `haystack` that is one of `needles`.
#[inline]
pub(crate) fn find_any<const N: usize>(haystack: &[u8], needles: [u8; N]) -> Option<usize> {
    // Most strings, and most stretches between two escapes, are short.
    let (near, far) = haystack.split_at_checked(LANES).unwrap_or((haystack, &[]));
    if let Some(position) = by_words(near, needles) {
        return Some(position);
    }
    if far.is_empty() {
        return None;
    }
    let (chunks, _) = far.as_chunks::<LANES>();
    let mut clear = 0usize;
    for chunk in chunks {
        let mut hit = 0u8;
        for &byte in chunk {
            for &needle in &needles {
                hit |= u8::from(byte == needle);
            }
        }
        if hit != 0 {
            break;
        }
        clear += LANES;
    }
    by_words(far.get(clear..)?, needles).map(|position| LANES + clear + position)
}

#[inline]
fn by_words<const N: usize>(haystack: &[u8], needles: [u8; N]) -> Option<usize> {
    let (words, tail) = haystack.as_chunks::<WORD>();
    let mut clear = 0usize;
    for word in words {
        let word = u64::from_le_bytes(*word);
        let mut hits = 0u64;
        for &needle in &needles {
            // The lowest bit set is the first byte that became zero.
            let zeros = word ^ (LOWS * u64::from(needle));
            hits |= zeros.wrapping_sub(LOWS) & !zeros & HIGHS;
        }
        if hits != 0 {
            return Some(clear + hits.trailing_zeros() as usize / WORD);
        }
        clear += WORD;
    }
    tail.iter()
        .position(|byte| needles.contains(byte))
        .map(|position| clear + position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_of_several_at_every_position() {
        for length in 0..100 {
            for position in 0..length {
                let mut bytes = vec![b'x'; length];
                bytes[position] = b'"';
                if position + 3 < length {
                    bytes[position + 3] = b'\\';
                }
                assert_eq!(find_any(&bytes, [b'"', b'\\']), Some(position));
                assert_eq!(find_any(&bytes, [b'\\', b'"']), Some(position));
            }
            assert_eq!(find_any(&vec![b'x'; length], [b'"', b'\\']), None);
        }
    }
}
