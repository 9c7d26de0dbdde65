//! Other people's routers as processes: found, started on free ports, and ended with their value.

use super::names::{Family, Name};
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::envoy::GUARDED;
use crate::support::mock::Port;
use crate::support::root;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Python has to load, on machines that may be busy.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(6);
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// A running router of somebody else.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    log: PathBuf,
    /// Where clients connect.
    pub listener: SocketAddr,
}

impl Peer {
    /// Starts the router in front of `engines` and returns when it serves. Retries and circuit breakers
    /// are off, as they are for all.
    ///
    /// # Errors
    /// One line that says what is missing, or the last that the router said.
    pub async fn start(name: Name, engines: &[SocketAddr], port: u16) -> Result<Self, String> {
        let program = find(name.family)?;
        let log = log_file(name)?;
        let output = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let errors = output.try_clone().map_err(|e| e.to_string())?;
        // Nobody else gets them before the router listens.
        let (serving, metrics) = (kept(port)?, kept(0)?);
        let listener = serving.address();
        let mut command = Command::new("sh");
        command
            .args(["-c", &GUARDED.replace("ENVOY", "\"$0\"")])
            .arg(&program)
            .args(arguments(name, listener, metrics.address(), engines))
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors);
        let child = command.spawn().map_err(|e| format!("sh: {e}"))?;
        let mut peer = Self {
            child,
            log,
            listener,
        };
        let ready = match name.family {
            Family::SglangRouter => "/readiness",
            _ => "/health",
        };
        peer.wait_until_ready(ready).await?;
        Ok(peer)
    }

    async fn wait_until_ready(&mut self, path: &str) -> Result<(), String> {
        let begun = Instant::now();
        let client = HttpClient::new(self.listener, Protocol::Http1);
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "it ended at its start ({status}): {}",
                    self.last_line()
                ));
            }
            if begun.elapsed() > START_LIMIT {
                let limit = START_LIMIT.as_secs();
                return Err(format!("not ready after {limit} s: {}", self.last_line()));
            }
            let probe = tokio::time::timeout(PROBE_LIMIT, client.send(Call::get(path))).await;
            if matches!(probe, Ok(Ok(answer)) if answer.status == 200) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The process at the root of all of the router's.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The last line of its log, without colours.
    pub fn last_line(&self) -> String {
        last_line(&fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        crate::support::program::end(&mut self.child, STOP_LIMIT);
    }
}

fn arguments(
    name: Name,
    listener: SocketAddr,
    metrics: SocketAddr,
    engines: &[SocketAddr],
) -> Vec<String> {
    let mut arguments = Vec::new();
    if name.family == Family::SglangRouter {
        arguments.push("launch".to_owned());
    }
    let level = match name.family {
        Family::SglangRouter => "warn",
        _ => "warning",
    };
    let mut option = |option: &str, value: String| arguments.extend([option.to_owned(), value]);
    option("--host", listener.ip().to_string());
    option("--port", listener.port().to_string());
    option("--prometheus-host", metrics.ip().to_string());
    option("--prometheus-port", metrics.port().to_string());
    option("--policy", name.policy.to_owned());
    option("--log-level", level.to_owned());
    arguments.extend(
        [
            "--disable-retries",
            "--disable-circuit-breaker",
            "--worker-urls",
        ]
        .map(str::to_owned),
    );
    arguments.extend(engines.iter().map(|engine| format!("http://{engine}")));
    arguments
}

/// The program, as the script finds it.
pub fn find(family: Family) -> Result<PathBuf, String> {
    let script = root().join("examples/replay/find-peers.sh");
    let output = Command::new(&script)
        .arg(family.name())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", script.display()))?;
    if output.status.success() {
        let path = String::from_utf8_lossy(&output.stdout);
        return Ok(PathBuf::from(path.trim()));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: run `make peers`", why.trim()))
}

/// A port that nobody listens at; 0 is any.
fn kept(port: u16) -> Result<Port, String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    Port::keep(address).map_err(|e| format!("port {port} cannot be listened at: {e}"))
}

/// Whether nobody listens at `port`.
///
/// # Errors
/// Somebody does; which port.
pub fn is_free(port: u16) -> Result<(), String> {
    kept(port).map(drop)
}

fn log_file(name: Name) -> Result<PathBuf, String> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let directory: &Path = &root().join("target/replay");
    fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let (family, policy) = (name.family.name(), name.policy);
    Ok(directory.join(format!("{family}-{policy}-{process}-{number}.log")))
}

/// The last line that says something, without terminal colours.
pub fn last_line(log: &str) -> String {
    let line = log.lines().rev().find(|line| !line.trim().is_empty());
    let mut text = String::new();
    let mut chars = line.unwrap_or("it said nothing").chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // A colour ends with its first letter.
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            text.push(c);
        }
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::last_line;

    #[test]
    fn the_last_line_has_no_colours() {
        let log = "first\n\u{1b}[2m2026\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m address in use\n\n";
        assert_eq!(last_line(log), "2026 ERROR address in use");
        assert_eq!(last_line(" \n"), "it said nothing");
    }
}
