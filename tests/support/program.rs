//! What programs around a fleet need: an end by signal that ends their processes too.

use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Runs `work` to its end, or until Ctrl-C or SIGTERM. Dropping it ends whatever it has started.
pub fn run(name: &str, work: impl Future<Output = Result<(), String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = runtime.map_err(|e| e.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            let mut terminated = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
            tokio::select! {
                outcome = work => outcome.map(|()| ExitCode::SUCCESS),
                _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
                _ = terminated.recv() => Ok(ExitCode::from(143)),
            }
        })
    });
    outcome.unwrap_or_else(|why| {
        eprintln!("{name}: {why}");
        ExitCode::FAILURE
    })
}

/// Ends a process that ends when its standard input does; one that does not within `limit`, by force.
pub fn end(child: &mut Child, limit: Duration) {
    drop(child.stdin.take());
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begun.elapsed() > limit {
            // The guard goes; what it guards has had its KILL by then.
            let _ = child.kill();
            let _ = child.wait();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
