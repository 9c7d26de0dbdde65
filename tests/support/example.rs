//! Programs of `examples/`, for tests that run them as a user does.
// As in a test, to panic is a way to fail.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;

/// Builds the example `name` in the profile of the tests, and says where it is.
///
/// # Panics
/// If it cannot be built.
pub fn built(name: &str) -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--example", name])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(built.success(), "cargo build --example {name}: {built}");
    // target/PROFILE/deps/TEST-HASH
    let this = std::env::current_exe().unwrap();
    let profile = this.parent().unwrap().parent().unwrap();
    profile.join("examples").join(name)
}
