//! The prefix index in a real Envoy: what a look-up and an insertion take, and whether memory grows.
//!
//! `examples/index_bench` is the module that measures; this builds it, runs it on four workers, and
//! reads what every VM says in Envoy's log. Of the VMs the worst counts.

use crate::Figure;
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::envoy::EnvoyProcess;
use crate::support::root;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WORKERS: u32 = 4;
/// The main thread has a VM that ticks too.
const VMS: usize = WORKERS as usize + 1;
const TARGET: &str = "wasm32-unknown-unknown";
/// What a VM says when it is done begins with this.
const SAID: &str = "index_bench {";
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs the bench.
pub async fn measure() -> Result<Vec<Figure>, String> {
    let module = module()?;
    let mut config = EnvoyConfig::shipped(Mode::OriginalDst)?.plugin_text(&VMS.to_string())?;
    let wasm = config.wasm()?;
    let file = wasm.pointer_mut("/vm_config/code/local/filename");
    *file.ok_or("the filter has no file")? = json!(module.display().to_string());
    let envoy = EnvoyProcess::start(&config, WORKERS).await?;
    let said = said(&envoy).await?;
    let all = |name: &str| -> Result<Vec<f64>, String> {
        let value = |one: &Value| one.get(name).and_then(Value::as_f64);
        let values: Option<Vec<f64>> = said.iter().map(value).collect();
        values.ok_or_else(|| format!("a VM says nothing of {name}"))
    };
    let worst = |name: &str| Ok::<f64, String>(all(name)?.into_iter().fold(0.0, f64::max));
    let worst_us = |name: &str| Ok::<f64, String>(worst(name)? / 1_000.0);
    let least = |name: &str| Ok::<f64, String>(all(name)?.into_iter().fold(f64::MAX, f64::min));
    let (filled, grown) = (least("filled_blocks")?, least("grown_blocks")?);
    // A look-up in an empty table would be no look-up.
    let found = least("found_permille")?;
    if filled < 1e6 || grown < 1e7 || found < 800.0 {
        return Err(format!(
            "{filled} blocks were filled in and {grown} inserted, {found} of 1,000 found"
        ));
    }
    Ok(vec![
        ("index_lookup_128k_us", worst_us("lookup_ns")?),
        ("index_lookup_128k_p99_us", worst_us("lookup_p99_ns")?),
        (
            "index_lookup_128k_while_all_insert_us",
            worst_us("pick_lookup_ns")?,
        ),
        ("index_insert_128k_us", worst_us("insert_ns")?),
        ("block_keys_128k_us", worst_us("keys_ns")?),
        ("index_bytes_per_worker", worst("table_bytes")?),
        ("index_found_permille", found),
        (
            "index_memory_growth_after_10m_inserts",
            worst("memory_growth_bytes")?,
        ),
    ])
}

/// Builds the module with the flags of the filter's.
fn module() -> Result<PathBuf, String> {
    let arguments = "build --quiet --release --example index_bench --features index-bench --target";
    let built = Command::new(env!("CARGO"))
        .args(arguments.split(' '))
        .arg(TARGET)
        .env(
            "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS",
            "-C target-feature=+simd128",
        )
        .current_dir(root())
        .stdin(Stdio::null())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !built.success() {
        return Err(format!("cargo {arguments} {TARGET}: {built}"));
    }
    let file = format!("target/{TARGET}/release/examples/index_bench.wasm");
    Ok(root().join(file))
}

/// What every VM says when it is done.
async fn said(envoy: &EnvoyProcess) -> Result<Vec<Value>, String> {
    let begun = Instant::now();
    loop {
        let log = envoy.log();
        let lines = log.lines().filter_map(|line| {
            let at = line.find(SAID)? + SAID.len() - 1;
            let end = line.rfind('}')?;
            line.get(at..=end)
        });
        let said: Vec<Value> = lines
            .map(|text| serde_json::from_str(text).map_err(|e| format!("{text:?}: {e}")))
            .collect::<Result<_, _>>()?;
        if said.len() >= VMS {
            return Ok(said);
        }
        if begun.elapsed() > PATIENCE {
            let count = said.len();
            return Err(format!(
                "{count} of {VMS} VMs are done after {PATIENCE:?}: {log}"
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
