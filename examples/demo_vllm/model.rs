//! The Python that has vLLM, and the tiny model that it serves.

use crate::support::root;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use warmroute::sim::workload::text::vocabulary;

/// Most tokens of prompt and output together.
pub const LONGEST_TOKENS: u32 = 8_192;

/// Where logs and the model lie.
pub fn workshop() -> PathBuf {
    root().join("target/demo-vllm")
}

/// The Python that has vLLM.
///
/// # Errors
/// It is not installed.
pub fn python() -> Result<PathBuf, String> {
    let script = root().join("examples/vllm/install.sh");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", script.display()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: run `make vllm`", why.trim()));
    }
    Ok(PathBuf::from(
        String::from_utf8_lossy(&output.stdout).trim(),
    ))
}

/// The directory of the model, which is made if it is not there.
///
/// # Errors
/// It cannot be made.
pub fn directory(python: &Path) -> Result<PathBuf, String> {
    let script = root().join("examples/vllm/make_model.py");
    let source = fs::read(&script).map_err(|e| format!("{}: {e}", script.display()))?;
    let mut words = String::new();
    for word in vocabulary() {
        words.push_str(&word);
        words.push('\n');
    }
    // Another script or other words are another model.
    let version =
        xxhash_rust::xxh64::xxh64(&source, xxhash_rust::xxh64::xxh64(words.as_bytes(), 0));
    let directory = workshop().join(format!("model-{version:016x}"));
    let complete = directory.join("complete");
    if complete.exists() {
        return Ok(directory);
    }
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let log = workshop().join("make_model.log");
    let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut child = Command::new(python)
        .arg(&script)
        .arg(&directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(|e| format!("{}: {e}", python.display()))?;
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(words.as_bytes())
            .map_err(|e| e.to_string())?;
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!(
            "make_model.py ended with {status}: see {}",
            log.display()
        ));
    }
    fs::write(&complete, "").map_err(|e| format!("{}: {e}", complete.display()))?;
    Ok(directory)
}
