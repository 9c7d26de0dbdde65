//! What the filter costs: closed-loop load through Envoy with it and without, on the same upstream.
//!
//! Envoy has one worker on one core; clients and upstream share another one, so that Envoy is the
//! bottleneck. Both Envoys run all the time, and short rounds alternate between them, so that
//! whatever else the machine does strikes both.

use super::process::{Process, pin_this_thread};
use super::support::config::{EnvoyConfig, Mode};
use super::support::envoy::EnvoyProcess;
use super::{Figure, upstream};
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ENVOY_CORE: u32 = 0;
const LOAD_CORE: u32 = 1;
const ENDPOINTS: usize = 4;
const CONNECTIONS: usize = 16;
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(1_000);
/// Long enough for V8 to have compiled what is hot.
const WARM_UP: Duration = Duration::from_millis(3_000);
const PROMPTS: usize = 64;
const BODY_BYTES: usize = 4_096;

/// The ratios of requests per second, and the CPU time of both.
pub fn measure() -> Result<Vec<Figure>, String> {
    let thread = std::thread::Builder::new()
        .name("rps".to_owned())
        .spawn(|| {
            pin_this_thread(LOAD_CORE)?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|e| e.to_string())?;
            runtime.block_on(compare())
        })
        .map_err(|e| e.to_string())?;
    thread
        .join()
        .unwrap_or_else(|_| Err("the load stopped with a panic".to_owned()))
}

async fn compare() -> Result<Vec<Figure>, String> {
    let endpoints = upstream::start(ENDPOINTS).await?;
    let plain = Side::start(Mode::Plain, &endpoints).await?;
    let filter = Side::start(Mode::OriginalDst, &endpoints).await?;
    let requests = requests();
    for side in [&plain, &filter] {
        side.round(&requests, WARM_UP).await?;
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let plain = plain.round(&requests, ROUND).await?;
        let filter = filter.round(&requests, ROUND).await?;
        rounds.push((plain, filter));
    }
    let of = |value: fn(&(Round, Round)) -> f64| median(rounds.iter().map(value).collect());
    let plain_rps = of(|(plain, _)| plain.rps)?;
    let filter_rps = of(|(_, filter)| filter.rps)?;
    let plain_cpu_us = of(|(plain, _)| plain.cpu_us)?;
    let filter_cpu_us = of(|(_, filter)| filter.cpu_us)?;
    Ok(vec![
        (
            "envoy_with_filter_vs_plain_rps",
            of(|(plain, filter)| filter.rps / plain.rps)?,
        ),
        ("envoy_plain_rps", plain_rps.round()),
        ("envoy_with_filter_rps", filter_rps.round()),
        ("envoy_plain_cpu_us_per_request", plain_cpu_us),
        ("envoy_with_filter_cpu_us_per_request", filter_cpu_us),
        (
            "clients_and_upstream_cpu_us_per_request",
            of(|(plain, _)| plain.load_cpu_us)?,
        ),
        (
            "envoy_with_filter_vs_plain_cpu",
            of(|(plain, filter)| filter.cpu_us / plain.cpu_us)?,
        ),
    ])
}

/// One Envoy, on its core.
struct Side {
    envoy: EnvoyProcess,
    process: Process,
}

/// What one round came to.
struct Round {
    rps: f64,
    /// Of Envoy, for each request.
    cpu_us: f64,
    /// Of clients and upstream together, for each request. As long as it is less than Envoy's, Envoy
    /// is the bottleneck.
    load_cpu_us: f64,
}

impl Side {
    async fn start(mode: Mode, endpoints: &[SocketAddr]) -> Result<Self, String> {
        let before = Process::own_envoys()?;
        let config = EnvoyConfig::shipped(mode)?.endpoints(endpoints)?;
        let envoy = EnvoyProcess::start(&config, 1).await?;
        let after = Process::own_envoys()?;
        let new = after.into_iter().find(|process| !before.contains(process));
        let process = new.ok_or("the process of Envoy is not to be found under /proc")?;
        process.pin(ENVOY_CORE)?;
        Ok(Self { envoy, process })
    }

    async fn round(&self, requests: &[Vec<u8>], lasts: Duration) -> Result<Round, String> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Client::connect(self.envoy.listener).await?);
        }
        let load = Process::this();
        let load_before_us = load.cpu_us()?;
        let cpu_before_us = self.process.cpu_us()?;
        let begun = Instant::now();
        let deadline = begun + lasts;
        let loops = clients
            .iter_mut()
            .enumerate()
            .map(|(number, client)| client.load(requests, number, deadline));
        let answered: Vec<Result<u64, String>> = futures_util::future::join_all(loops).await;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let cpu_us = self.process.cpu_us()? - cpu_before_us;
        let load_cpu_us = load.cpu_us()? - load_before_us;
        let answered = answered.into_iter().sum::<Result<u64, String>>()? as f64;
        Ok(Round {
            rps: answered / elapsed_s,
            cpu_us: cpu_us as f64 / answered,
            load_cpu_us: load_cpu_us as f64 / answered,
        })
    }
}

/// A connection that sends ready-made requests, one after the other.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    async fn connect(to: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let buffer = Vec::with_capacity(8 << 10);
        Ok(Self { stream, buffer })
    }

    /// How many answers there were; anything but a 200 is an error.
    async fn load(
        &mut self,
        requests: &[Vec<u8>],
        from: usize,
        deadline: Instant,
    ) -> Result<u64, String> {
        let mut answered = 0;
        for request in requests.iter().cycle().skip(from * 5) {
            if Instant::now() >= deadline {
                break;
            }
            let sent = self.stream.write_all(request).await;
            sent.map_err(|e| format!("request: {e}"))?;
            self.answer().await?;
            answered += 1;
        }
        Ok(answered)
    }

    async fn answer(&mut self) -> Result<(), String> {
        self.buffer.clear();
        loop {
            let read = self.stream.read_buf(&mut self.buffer).await;
            if read.map_err(|e| format!("answer: {e}"))? == 0 {
                return Err("Envoy closed the connection".to_owned());
            }
            if let Some(whole_bytes) = answer_bytes(&self.buffer)?
                && self.buffer.len() >= whole_bytes
            {
                return Ok(());
            }
        }
    }
}

/// Length of the answer with its headers, once those are there.
fn answer_bytes(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(head_bytes) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(bytes.get(..head_bytes).unwrap_or_default());
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("not a 200: {head}"));
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    let length = length.ok_or_else(|| format!("no content-length: {head}"))?;
    Ok(Some(head_bytes + 4 + length))
}

/// Chats of four kilobytes that differ from their first word on.
fn requests() -> Vec<Vec<u8>> {
    (0..PROMPTS)
        .map(|number| {
            let mut text = format!("Report {number}: ");
            while text.len() < BODY_BYTES - 180 {
                text.push_str("the quick brown fox jumps over the lazy dog, and ");
            }
            let mut body = json!({
                "model": "tiny",
                "messages": [
                    {"role": "system", "content": "You answer in one sentence."},
                    {"role": "user", "content": text},
                ],
                "max_tokens": 16,
            })
            .to_string();
            // JSON allows space at its end.
            body.extend(std::iter::repeat_n(' ', BODY_BYTES.saturating_sub(body.len())));
            let head = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: llm\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n",
                body.len()
            );
            (head + &body).into_bytes()
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> Result<f64, String> {
    values.sort_by(f64::total_cmp);
    let middle = values.get(values.len() / 2).copied();
    middle
        .filter(|value| value.is_finite())
        .ok_or_else(|| "no rounds".to_owned())
}
