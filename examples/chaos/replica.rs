//! A mock replica in a process of its own, so that it can be killed.

use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::program;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Below the range from which the system gives ports to clients: the port of a replica that is away
/// must not be taken meanwhile.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Longer than Envoy keeps an idle connection, whatever the machine does besides.
const KEEP_ALIVE_MS: u64 = 60_000;
const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// What the replicas of a scenario are.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Hardware, as the mock replica names it.
    pub profile: &'static str,
    /// How much faster than the modelled hardware.
    pub speed: f64,
    /// Adapters that it serves.
    pub adapters: Vec<String>,
    /// Requests from which on it refuses more.
    pub most_requests: Option<u32>,
}

impl Kind {
    /// Replicas that answer as fast as they can.
    pub fn fast() -> Self {
        Self::new("fast", 1.0)
    }

    /// Replicas with this hardware.
    pub fn new(profile: &'static str, speed: f64) -> Self {
        Self {
            profile,
            speed,
            adapters: Vec::new(),
            most_requests: None,
        }
    }
}

/// A replica at an address that it keeps. Dropping it ends its process.
#[derive(Debug)]
pub struct Replica {
    /// Where it listens when it runs.
    pub address: SocketAddr,
    kind: Kind,
    process: Option<Child>,
}

impl Replica {
    /// Starts one, and returns when it serves.
    pub async fn start(kind: &Kind) -> Result<Self, String> {
        let mut replica = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
            kind: kind.clone(),
            process: None,
        };
        replica.run().await?;
        Ok(replica)
    }

    /// Starts several equal ones.
    pub async fn start_all(count: usize, kind: &Kind) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Self::start(kind).await?);
        }
        Ok(all)
    }

    /// Starts its process anew, with a cold cache, and returns when it serves.
    pub async fn run(&mut self) -> Result<(), String> {
        let mut command = Command::new(program()?);
        command
            .args(["--ends-with-stdin", "--tells-endpoint"])
            .args(["--profile", self.kind.profile])
            .args(["--port", &self.address.port().to_string()])
            .args(["--time-scale", &(1.0 / self.kind.speed).to_string()])
            .args(["--keep-alive-ms", &KEEP_ALIVE_MS.to_string()]);
        for adapter in &self.kind.adapters {
            command.args(["--adapter", adapter]);
        }
        if let Some(most) = self.kind.most_requests {
            command.args(["--max-num-queued-reqs", &most.to_string()]);
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("mock_vllm: {e}"))?;
        let child = self.process.insert(child);
        let output = child.stdout.take().ok_or("mock_vllm has no output")?;
        // It says one line, when it listens; none if it cannot.
        let first = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        let first = tokio::time::timeout(START_LIMIT, first).await;
        match first {
            Ok(Ok(Ok(line))) if !line.is_empty() => Ok(()),
            _ => Err(format!("mock_vllm does not start on {}", self.address)),
        }
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) -> Result<(), String> {
        let mut child = self.process.take().ok_or("the replica does not run")?;
        child.kill().map_err(|e| format!("kill: {e}"))?;
        child.wait().map_err(|e| format!("wait: {e}"))?;
        Ok(())
    }

    /// Ends it as Kubernetes does: by SIGTERM, upon which it finishes what it has.
    pub async fn terminate(&mut self, limit: Duration) -> Result<(), String> {
        let mut child = self.process.take().ok_or("the replica does not run")?;
        let is_sent = signal(&child, "TERM")?;
        let begun = Instant::now();
        while is_sent && begun.elapsed() < limit {
            if child.try_wait().map_err(|e| e.to_string())?.is_some() {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        program::end(&mut child, STOP_LIMIT);
        Err(format!(
            "{} does not end {limit:?} after SIGTERM",
            self.address
        ))
    }

    /// Stops it where it stands: it takes whatever comes, and says nothing.
    pub fn fall_silent(&self) -> Result<(), String> {
        self.signal("STOP")
    }

    /// Lets it go on with all that came meanwhile.
    pub fn go_on(&self) -> Result<(), String> {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> Result<(), String> {
        let child = self.process.as_ref().ok_or("the replica does not run")?;
        match signal(child, name)? {
            true => Ok(()),
            false => Err(format!("{} takes no SIG{name}", self.address)),
        }
    }

    /// How many requests it has.
    pub async fn requests(&self) -> Result<u64, String> {
        let answer = self.client().send(Call::get("/load")).await?;
        let load = answer.json();
        let load = load.get("server_load").and_then(serde_json::Value::as_u64);
        load.ok_or_else(|| format!("{} does not tell its load", self.address))
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(self.address, Protocol::Http1)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            program::end(&mut child, STOP_LIMIT);
        }
    }
}

/// Whether it could be sent.
fn signal(child: &Child, name: &str) -> Result<bool, String> {
    let sent = Command::new("sh")
        .args(["-c", "kill -\"$1\" \"$2\"", "sh", name])
        .arg(child.id().to_string())
        .status()
        .map_err(|e| format!("sh: {e}"))?;
    Ok(sent.success())
}

/// Addresses in the order of the replicas.
pub fn addresses(replicas: &[Replica]) -> Vec<SocketAddr> {
    replicas.iter().map(|replica| replica.address).collect()
}

/// A port that nobody listens on, and that this process has not given before.
pub fn free_port() -> Result<u16, String> {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    // Programs that run at the same time begin at different places.
    let first = (std::process::id() % u32::from(span)) as u16;
    for _ in 0..span {
        let step = GIVEN.fetch_add(1, Ordering::Relaxed) % span;
        let port = PORTS.start + (first + step) % span;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err("no port is free".to_owned())
}

/// The mock replica's program, which is built beside this one.
fn program() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let file = this.with_file_name("mock_vllm");
    match file.is_file() {
        true => Ok(file),
        false => Err(format!(
            "{} is missing: run `make chaos`, or build the example mock_vllm in the same profile",
            file.display()
        )),
    }
}
