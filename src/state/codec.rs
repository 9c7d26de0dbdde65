//! Little-endian fields at fixed offsets: the encoding of everything in the store.
//!
//! Every access is checked; a value that is too short or of another version reads as `None`, and
//! the caller starts afresh instead of failing.

/// The eight bytes at `at`.
pub(crate) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// The four bytes at `at`.
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

/// Overwrites the bytes at `at`; out of range it does nothing.
pub(super) fn write(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(place) = at
        .checked_add(field.len())
        .and_then(|end| bytes.get_mut(at..end))
    {
        place.copy_from_slice(field);
    }
}
