//! Search for a few bytes in a long slice, in a shape that compilers turn into SIMD.

/// Bytes looked at together; a multiple of every vector width in use.
const LANES: usize = 32;

/// Position of the first byte of `haystack` that is one of `needles`.
pub(crate) fn find_any<const N: usize>(haystack: &[u8], needles: [u8; N]) -> Option<usize> {
    let (chunks, _) = haystack.as_chunks::<LANES>();
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
    haystack
        .get(clear..)?
        .iter()
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
