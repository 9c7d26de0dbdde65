//! The same tests natively and in wasm under Node: what decides must not depend on the target.
//!
//! `cargo test --test wasm` runs them here, `tests/run-wasm.sh` in wasm. One module a subject.

mod hashing;
mod policies;
mod scraping;
