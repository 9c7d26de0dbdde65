//! The in-memory twin of Envoy's shared data, for tests and the simulator.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::{Store, StoreError, Version};

/// A store that behaves as Envoy's does: a version per key, bumped by every write.
#[derive(Debug, Default)]
pub struct MemoryStore {
    values: Mutex<BTreeMap<String, (Vec<u8>, u32)>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn write(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), StoreError> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = values.entry(key.to_owned()).or_default();
        if expected.is_some_and(|expected| expected.0 != entry.1) {
            return Err(StoreError::Conflict);
        }
        *entry = (value.to_vec(), entry.1.wrapping_add(1).max(1));
        Ok(())
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &str) -> Option<(Vec<u8>, Version)> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values
            .get(key)
            .map(|(bytes, version)| (bytes.clone(), Version(*version)))
    }

    fn replace(&self, key: &str, value: &[u8], expected: Version) -> Result<(), StoreError> {
        self.write(key, value, Some(expected))
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.write(key, value, None)
    }
}
