//! The two engines: started, asked for their counters, emptied, and always ended.

use crate::Args;
use crate::model;
use crate::support::client::{Call, HttpClient, Protocol};
use crate::support::root;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use warmroute::sim::fleet::Reading;

/// Tokens in a block; vLLM's CPU attention takes multiples of 32.
pub const BLOCK_TOKENS: u32 = 32;
/// Most tokens in one step.
pub const TOKEN_BUDGET: u32 = 2_048;
/// Most sequences in one step.
pub const MAX_RUNNING: u32 = 16;
const START_LIMIT: Duration = Duration::from_secs(300);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Runs an engine and ends it, with all its processes, when standard input closes, which it does
/// even if this process is killed. The session of its own keeps a Ctrl-C of the terminal from it.
const GUARDED: &str = r#"
exec 3<&0
setsid "$@" </dev/null 3<&- & engine=$!
{ cat <&3 >/dev/null; kill -TERM $engine; sleep 10; kill -KILL -$engine; } 2>/dev/null & guard=$!
exec 3<&-
wait $engine; status=$?
kill -KILL -$engine 2>/dev/null
kill $guard 2>/dev/null
exit $status
"#;

/// One vLLM process. It ends when this is dropped, or with this process, whatever ends that.
#[derive(Debug)]
pub struct Engine {
    child: Child,
    log: PathBuf,
    /// Where it listens.
    pub address: SocketAddr,
    /// Connections to it, past Envoy.
    pub client: HttpClient,
}

/// Prompt tokens as the engine counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// `prefix_cache_queries_total`: looked up.
    pub queried_tokens: u64,
    /// `prefix_cache_hits_total`: found.
    pub found_tokens: u64,
}

/// Starts both and returns when they answer.
///
/// # Errors
/// One line that says what is missing, or why an engine ended.
pub async fn start(args: &Args) -> Result<Vec<Engine>, String> {
    let python = model::python()?;
    let model = model::directory(&python)?;
    let mut engines = Vec::new();
    for port in [args.port, args.port + 1] {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        TcpListener::bind(address).map_err(|e| format!("{address}: {e}"))?;
        let log = model::workshop().join(format!("engine-{port}.log"));
        let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let output = file.try_clone().map_err(|e| e.to_string())?;
        let child = Command::new("sh")
            .args(["-c", GUARDED, "engine"])
            .arg(&python)
            .args(["-m", "vllm.entrypoints.cli.main", "serve"])
            .arg(&model)
            .args(options(args, port))
            .envs(ENVIRONMENT)
            .current_dir(root())
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(file)
            .spawn()
            .map_err(|e| format!("sh: {e}"))?;
        engines.push(Engine {
            child,
            log,
            address,
            client: HttpClient::new(address, Protocol::Http1),
        });
    }
    for engine in &mut engines {
        engine.wait_until_ready().await?;
    }
    Ok(engines)
}

/// One thread each, and nothing from any network.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("HF_HUB_OFFLINE", "1"),
    ("VLLM_NO_USAGE_STATS", "1"),
    // Gives `POST /reset_prefix_cache`.
    ("VLLM_SERVER_DEV_MODE", "1"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_HOST_IP", "127.0.0.1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("OMP_NUM_THREADS", "1"),
    ("PYTHONUNBUFFERED", "1"),
];

fn options(args: &Args, port: u16) -> Vec<String> {
    let text = format!(
        "--served-model-name {} --host 127.0.0.1 --port {port} --max-model-len {} --dtype bfloat16 \
         --enable-prefix-caching --enable-prompt-tokens-details --enforce-eager --block-size {BLOCK_TOKENS} \
         --num-gpu-blocks-override {} --max-num-seqs {MAX_RUNNING} --max-num-batched-tokens {TOKEN_BUDGET}",
        Reading::MODEL,
        model::LONGEST_TOKENS,
        args.blocks,
    );
    text.split_whitespace().map(str::to_owned).collect()
}

impl Engine {
    async fn wait_until_ready(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!(
                    "{} ended at its start ({status}): {}",
                    self.address,
                    self.last_line()
                ));
            }
            if begun.elapsed() > START_LIMIT {
                return Err(format!(
                    "{} is not ready after {START_LIMIT:?}: {}",
                    self.address,
                    self.last_line()
                ));
            }
            match self.client.send(Call::get("/health")).await {
                Ok(answer) if answer.status == 200 => return Ok(()),
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// The last line of the log that says anything, and where the rest is.
    fn last_line(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let line = log.lines().rev().find(|line| !line.trim().is_empty());
        format!("{} (see {})", line.unwrap_or_default(), self.log.display())
    }

    /// Empties the prefix cache; blocks of a request that is just over may still be held, so that it
    /// is tried for a moment.
    ///
    /// # Errors
    /// The engine cannot, or is not there any more.
    pub async fn reset(&self) -> Result<(), String> {
        for _ in 0..50 {
            let answer = self
                .client
                .send(Call::post("/reset_prefix_cache", ""))
                .await?;
            if answer.status == 200 && answer.json().get("success") == Some(&true.into()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(format!("{} does not empty its prefix cache", self.address))
    }

    /// What the engine has counted since its start.
    ///
    /// # Errors
    /// It does not answer, or counts something else.
    pub async fn counters(&self) -> Result<Counters, String> {
        let page = self.client.send(Call::get("/metrics")).await?.text();
        let read = |name: &str| {
            let line = page.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            let value = value.ok_or_else(|| format!("{}/metrics has no {name}", self.address));
            value.map(|value| value as u64)
        };
        Ok(Counters {
            queried_tokens: read("vllm:prefix_cache_queries_total{")?,
            found_tokens: read("vllm:prefix_cache_hits_total{")?,
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        crate::support::program::end(&mut self.child, STOP_LIMIT);
    }
}
