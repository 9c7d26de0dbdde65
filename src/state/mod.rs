//! State that all workers of one Envoy share, behind a small trait.
//!
//! Inside Envoy the [`Store`] is proxy-wasm shared data: bytes under a key, read with a version and
//! written back only if the version still stands. Nothing can be deleted or listed, values outlive
//! the VM that wrote them and may outlive an upgrade, so every key carries a format version.

pub(crate) mod codec;
pub mod lease;
pub mod ledger;
pub mod members;
pub mod memory;
pub mod models;
pub mod snapshots;

/// Version of a stored value, as [`Store::get`] returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub u32);

/// Why a write did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Somebody else wrote since the value was read.
    Conflict,
    /// The host refused; trying again at once is of no use.
    Unavailable,
}

/// Bytes shared by all workers.
pub trait Store {
    /// The value under `key` and its version; `None` if it was never written.
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)>;

    /// Replaces the value if its version is still `expected`.
    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError>;

    /// Writes the value whatever stands there. The host has no "create if absent", so this is how a
    /// key is born; do it before traffic starts, since it overwrites what a racing worker wrote.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;
}

/// How often a compare-and-swap is tried before the caller goes on without it.
const ATTEMPTS: u32 = 100;

/// What [`update`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// The new value stands.
    Written,
    /// `change` asked to leave the value as it is.
    Unchanged,
    /// The host refused, or others kept winning.
    Failed,
}

/// Reads, changes and writes back until nobody interfered. `change` gets the current bytes (empty
/// if there are none) and may run several times; it returns whether to write.
pub(crate) fn update<S: Store + ?Sized>(
    store: &S,
    key: &str,
    mut change: impl FnMut(&mut Vec<u8>) -> bool,
) -> Update {
    for _ in 0..ATTEMPTS {
        let Some((mut bytes, version)) = store.get(key) else {
            if store.put(key, &[]).is_err() {
                return Update::Failed;
            }
            continue;
        };
        if !change(&mut bytes) {
            return Update::Unchanged;
        }
        match store.replace(key, &bytes, version) {
            Ok(()) => return Update::Written,
            Err(StoreError::Conflict) => {}
            Err(StoreError::Unavailable) => return Update::Failed,
        }
    }
    Update::Failed
}

/// Draws a number that no other VM of this Envoy has. `seed` (time, say) tells apart the VMs of
/// different Envoys and of a store that was lost.
pub fn unique_id<S: Store + ?Sized>(store: &S, seed: u64) -> u64 {
    let mut drawn = 0_u64;
    update(store, "warmroute/1/vms", |bytes| {
        drawn = codec::read_u64(bytes, 0).unwrap_or(0).wrapping_add(1);
        *bytes = drawn.to_le_bytes().to_vec();
        true
    });
    let id = xxhash_rust::xxh64::xxh64(&drawn.to_le_bytes(), seed);
    id.max(1)
}
