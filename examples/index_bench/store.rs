//! Envoy's shared data as the core wants it, and one that keeps nothing.

use proxy_wasm::hostcalls;
use proxy_wasm::types::Status;
use std::time::UNIX_EPOCH;
use warmroute::state::{Store, StoreError, Version};

/// Envoy's shared data.
pub struct SharedData;

impl SharedData {
    fn set(key: &str, value: &[u8], version: Option<u32>) -> Result<(), StoreError> {
        match hostcalls::set_shared_data(key, Some(value), version) {
            Ok(()) => Ok(()),
            Err(Status::CasMismatch) => Err(StoreError::Conflict),
            Err(_) => Err(StoreError::Unavailable),
        }
    }
}

impl Store for SharedData {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        let (value, version) = hostcalls::get_shared_data(key).ok()?;
        Some((value?, Version(version?)))
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        Self::set(key, value, Some(expected.0))
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Self::set(key, value, None)
    }
}

/// Makes a counter of all VMs. There is no "create if absent": this must happen before any other VM may
/// count.
pub fn make_counter(key: &str) {
    if SharedData.get(key).is_none() && SharedData.put(key, &0_u64.to_le_bytes()).is_err() {
        log::error!("index_bench: shared data refuses {key}");
    }
}

/// Adds one to a counter of all VMs.
pub fn count(key: &str) {
    while let Some((bytes, version)) = SharedData.get(key) {
        let now = bytes.try_into().map_or(0, u64::from_le_bytes);
        let next = now.wrapping_add(1).to_le_bytes();
        if SharedData.replace(key, &next, version) != Err(StoreError::Conflict) {
            return;
        }
    }
}

/// What a counter of all VMs has come to.
pub fn counted(key: &str) -> u64 {
    let bytes = SharedData.get(key).map(|(bytes, _)| bytes);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_le_bytes)
}

/// Keeps nothing: what is written to it stays in the VM that writes.
pub struct Nowhere;

impl Store for Nowhere {
    fn get(&self, _: &str) -> Option<(Vec<u8>, Version)> {
        None
    }

    fn replace(&self, _: &str, _: &[u8], _: Version) -> Result<(), StoreError> {
        Err(StoreError::Unavailable)
    }

    fn put(&self, _: &str, _: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::Unavailable)
    }
}

/// The host's clock.
pub fn now_ns() -> u64 {
    let time = hostcalls::get_current_time().unwrap_or(UNIX_EPOCH);
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
