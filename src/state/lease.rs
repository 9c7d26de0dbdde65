//! A lease that one VM at a time holds: who polls the engines.
//!
//! The holder renews it; if it dies, the lease runs out and another VM takes over. Two holders are
//! possible for one term when the store is born in a race; what a lease guards must bear that.

use super::codec::{read_u64, write};
use super::{Store, Update, update};

/// Whether the lease is ours until another `term_ms` from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Taken or renewed.
    Held,
    /// Somebody else's, or the store refused.
    Elsewhere,
}

/// Takes or renews the lease `key` for `holder` until `now_ms + term_ms`.
pub fn acquire<S: Store + ?Sized>(
    store: &S,
    key: &str,
    holder: u64,
    now_ms: u64,
    term_ms: u64,
) -> Lease {
    let outcome = update(store, key, |bytes| {
        let current = read_u64(bytes, 0).zip(read_u64(bytes, 8));
        // A clock that was set back must not lock everybody out: no honest expiry lies further
        // ahead than one term.
        let taken = current.is_some_and(|(other, expires_ms)| {
            other != holder && expires_ms > now_ms && expires_ms <= now_ms.saturating_add(term_ms)
        });
        if taken {
            return false;
        }
        bytes.clear();
        bytes.resize(16, 0);
        write(bytes, 0, &holder.to_le_bytes());
        write(bytes, 8, &now_ms.saturating_add(term_ms).to_le_bytes());
        true
    });
    if outcome == Update::Written {
        Lease::Held
    } else {
        Lease::Elsewhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::memory::MemoryStore;

    #[test]
    fn one_holder_until_it_lets_the_lease_run_out() {
        let store = MemoryStore::new();
        assert_eq!(acquire(&store, "l", 1, 1_000, 500), Lease::Held);
        assert_eq!(acquire(&store, "l", 2, 1_400, 500), Lease::Elsewhere);
        assert_eq!(acquire(&store, "l", 1, 1_400, 500), Lease::Held);
        assert_eq!(acquire(&store, "l", 2, 1_899, 500), Lease::Elsewhere);
        assert_eq!(acquire(&store, "l", 2, 1_900, 500), Lease::Held);
        assert_eq!(acquire(&store, "l", 1, 1_950, 500), Lease::Elsewhere);
    }

    #[test]
    fn a_clock_set_back_does_not_lock_the_lease() {
        let store = MemoryStore::new();
        assert_eq!(acquire(&store, "l", 1, 1_000_000, 500), Lease::Held);
        assert_eq!(acquire(&store, "l", 2, 1_000, 500), Lease::Held);
    }
}
