//! The same tests natively and in wasm under Node: what decides must not depend on the target.
//!
//! `cargo test --test wasm` runs them here, `tests/run-wasm.sh` in wasm. One module a subject.
// The helpers of tests may fail as loudly as the tests themselves.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod hashing;
mod policies;
mod routing;
mod scraping;
