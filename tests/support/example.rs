//! Programs of `examples/`, for tests that run them as a user does.
// Each test crate uses a part of this.
#![allow(dead_code)]
// As in a test, to panic is a way to fail.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// An example, which is built once.
pub struct Example {
    name: &'static str,
    file: OnceLock<PathBuf>,
}

impl Example {
    /// Nothing is built yet.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            file: OnceLock::new(),
        }
    }

    /// Where it is, in the profile of the tests.
    ///
    /// # Panics
    /// If it cannot be built.
    pub fn file(&self) -> &Path {
        self.file.get_or_init(|| built(self.name))
    }

    /// A run of it that is not begun yet.
    ///
    /// # Panics
    /// If it cannot be built.
    pub fn command(&self) -> Command {
        Command::new(self.file())
    }
}

fn built(name: &str) -> PathBuf {
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

/// What a run printed and returned.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

impl From<Output> for Outcome {
    /// # Panics
    /// If it printed no text, or a signal ended it.
    fn from(output: Output) -> Self {
        Self {
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
            code: output.status.code().unwrap(),
        }
    }
}
