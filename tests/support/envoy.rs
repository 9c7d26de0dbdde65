//! One Envoy process: found, started on free ports, asked for its metrics, and ended with its value.

use super::client::{Call, HttpClient, Protocol};
use super::config::EnvoyConfig;
use super::root;
use super::stats::Stats;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The module is compiled once at the start of each worker, on machines that may be busy.
const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(6);
const LOG_TAIL_LINES: usize = 40;

/// Runs `ENVOY`, a quoted command, and ends it when standard input closes, which it does even if this
/// process is killed.
pub const GUARDED: &str = r#"
exec 3<&0
ENVOY "$@" </dev/null 3<&- & envoy=$!
{ cat <&3 >/dev/null; kill -TERM $envoy; sleep 3; kill -KILL $envoy; } 2>/dev/null & guard=$!
exec 3<&-
wait $envoy; status=$?
kill $guard 2>/dev/null
exit $status
"#;

/// A running Envoy. It ends when this is dropped, or with this process, whatever ends that; if a
/// test is failing then, the end of Envoy's log is printed.
#[derive(Debug)]
pub struct EnvoyProcess {
    child: Child,
    log: PathBuf,
    access_log: PathBuf,
    /// Where the admin interface listens.
    pub admin: SocketAddr,
    /// Where clients connect.
    pub listener: SocketAddr,
}

impl EnvoyProcess {
    /// Starts Envoy and returns when it serves.
    ///
    /// # Errors
    /// One line that says what is missing, or why Envoy ended, with the end of its log.
    pub async fn start(config: &EnvoyConfig, workers: u32) -> Result<Self, String> {
        Self::start_with(config, workers, &[]).await
    }

    /// As [`Self::start`], with further arguments.
    ///
    /// # Errors
    /// As there.
    pub async fn start_with(
        config: &EnvoyConfig,
        workers: u32,
        arguments: &[&str],
    ) -> Result<Self, String> {
        let files = Files::new()?;
        fs::write(&files.config, config.0.to_string()).map_err(|e| e.to_string())?;
        let script = GUARDED.replace("ENVOY", find_envoy()?);
        let output =
            |path: &Path| File::create(path).map_err(|e| format!("{}: {e}", path.display()));
        let child = Command::new("sh")
            .args([
                "-c",
                &script,
                "envoy",
                "--disable-hot-restart",
                "--log-level",
                "warning",
            ])
            .args(["--component-log-level", "wasm:info,main:info"])
            .args(["--concurrency", &workers.to_string()])
            .args(arguments)
            .arg("--admin-address-path")
            .arg(&files.admin)
            .arg("--config-path")
            .arg(&files.config)
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(output(&files.access_log)?)
            .stderr(output(&files.log)?)
            .spawn()
            .map_err(|e| format!("sh: {e}"))?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut envoy = Self {
            child,
            log: files.log,
            access_log: files.access_log,
            admin: nowhere,
            listener: nowhere,
        };
        envoy.wait_until_ready(&files.admin).await?;
        Ok(envoy)
    }

    async fn wait_until_ready(&mut self, admin_file: &Path) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "Envoy ended at its start ({status}):\n{}",
                    self.log_tail()
                ));
            }
            if begun.elapsed() > START_LIMIT {
                return Err(format!(
                    "Envoy is not ready after {START_LIMIT:?}:\n{}",
                    self.log_tail()
                ));
            }
            let admin = fs::read_to_string(admin_file).unwrap_or_default();
            if let Ok(admin) = admin.trim().parse() {
                self.admin = admin;
                if self
                    .admin_get("/ready")
                    .await
                    .is_ok_and(|text| text.trim() == "LIVE")
                {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let listeners = self.admin_get("/listeners?format=json").await?;
        self.listener = bound_address(&listeners)
            .ok_or_else(|| format!("Envoy does not say where it listens: {listeners}"))?;
        Ok(())
    }

    /// The answer of the admin interface to a GET; an error unless its status is 200.
    pub async fn admin_get(&self, path: &str) -> Result<String, String> {
        let client = HttpClient::new(self.admin, Protocol::Http1);
        let answer = client.send(Call::get(path)).await?;
        match answer.status {
            200 => Ok(answer.text()),
            status => Err(format!("{path}: status {status}: {}", answer.text())),
        }
    }

    /// All metrics as they are now. Envoy merges its workers' histograms every five seconds only.
    pub async fn stats(&self) -> Result<Stats, String> {
        Ok(Stats::parse(&self.admin_get("/stats/prometheus").await?))
    }

    /// The shell that guards Envoy, which is its child.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Envoy's log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The access log so far; Envoy writes it with a delay of up to ten seconds.
    pub fn access_log(&self) -> String {
        fs::read_to_string(&self.access_log).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_TAIL_LINES);
        lines.get(from..).unwrap_or_default().join("\n")
    }
}

impl Drop for EnvoyProcess {
    fn drop(&mut self) {
        super::program::end(&mut self.child, STOP_LIMIT);
        if std::thread::panicking() {
            eprintln!("--- end of {}:\n{}", self.log.display(), self.log_tail());
        }
    }
}

/// Asks Envoy whether it would accept `config`; the error is its own.
pub fn validate(config: &Path) -> Result<(), String> {
    let command = format!(
        "exec {} --mode validate --config-path \"$1\"",
        find_envoy()?
    );
    let output = Command::new("sh")
        .args(["-c", &command, "envoy"])
        .arg(config)
        .current_dir(root())
        .output()
        .map_err(|e| format!("sh: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The command that runs Envoy, quoted for a shell; looked for once.
fn find_envoy() -> Result<&'static str, String> {
    static FOUND: OnceLock<Result<String, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let script = root().join("envoy/find-envoy.sh");
        let output = Command::new(&script)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{}: {e}", script.display()))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            let why = String::from_utf8_lossy(&output.stderr);
            Err(format!(
                "{}: run `make tools`, or `envoy/find-envoy.sh --install`",
                why.trim()
            ))
        }
    });
    found.as_deref().map_err(Clone::clone)
}

fn bound_address(listeners: &str) -> Option<SocketAddr> {
    let listeners: serde_json::Value = serde_json::from_str(listeners).ok()?;
    let socket = listeners.pointer("/listener_statuses/0/local_address/socket_address")?;
    let ip = socket.get("address")?.as_str()?.parse().ok()?;
    let port = socket.get("port_value")?.as_u64()?.try_into().ok()?;
    Some(SocketAddr::new(ip, port))
}

/// The files of one process, named after the test.
struct Files {
    config: PathBuf,
    admin: PathBuf,
    log: PathBuf,
    access_log: PathBuf,
}

impl Files {
    fn new() -> Result<Self, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let directory = root().join("target/e2e");
        fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("main").replace("::", "-");
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{test}-{}-{number}", std::process::id());
        let file = |end: &str| directory.join(format!("{stem}.{end}"));
        Ok(Self {
            config: file("json"),
            admin: file("admin"),
            log: file("log"),
            access_log: file("access.log"),
        })
    }
}
