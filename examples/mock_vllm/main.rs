//! A mock vLLM replica on the command line.
//!
//! ```text
//! cargo run --release --example mock_vllm -- --port 9101 --adapter lora-a --time-scale 0.1
//! curl -N 127.0.0.1:9101/v1/chat/completions -H 'content-type: application/json' \
//!   -H 'x-mock-fault: reset=after:3' \
//!   -d '{"model":"tiny","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
//! ```
//!
//! Faults come by that header for one request, or by `POST /mock/faults` with the same text as
//! the body for all; `faults.rs` lists them. `POST /mock/metrics` replaces `/metrics`.
//! Ctrl-C ends it at once; SIGTERM when what is under way is finished, as Kubernetes expects.

#[path = "server.rs"]
mod server;

use clap::Parser;
use server::{Mock, MockOptions};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use warmroute::sim::profiles;

/// Answers as vLLM 0.32 does, in the time that a model of the engine says.
#[derive(Parser)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, default_value_t = 8_000)]
    port: u16,
    /// Name of the served model.
    #[arg(long, default_value = "tiny")]
    model: String,
    /// A LoRA adapter, served under its own name; may be repeated.
    #[arg(long)]
    adapter: Vec<String>,
    /// Adapters that fit into one batch; all that are given, if absent.
    #[arg(long)]
    max_loras: Option<u32>,
    /// Longest prompt and output together, in tokens.
    #[arg(long, default_value_t = 131_072)]
    max_model_len: u32,
    /// What the replica can do.
    #[arg(long, value_parser = profiles::NAMES, default_value = "l4")]
    profile: String,
    /// 1.0 is real time, 0.1 ten times faster.
    #[arg(long, default_value_t = 1.0)]
    time_scale: f64,
    /// Blocks of KV cache, instead of the profile's.
    #[arg(long)]
    blocks: Option<u32>,
    /// Waiting and running requests from which on more are refused.
    #[arg(long)]
    max_num_queued_reqs: Option<u32>,
    /// How long a connection without a request stays open.
    #[arg(long, default_value_t = 5_000)]
    keep_alive_ms: u64,
    /// Name this replica in the header x-mock-endpoint of every answer.
    #[arg(long)]
    tells_endpoint: bool,
    /// End when standard input does, so that no replica outlives who started it.
    #[arg(long)]
    ends_with_stdin: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let listen = SocketAddr::new(arguments.host, arguments.port);
    if arguments.ends_with_stdin {
        end_with_stdin();
    }
    match serve(arguments, listen).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock_vllm: {listen}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments, listen: SocketAddr) -> std::io::Result<()> {
    // Only names that the flag takes; they all have a profile.
    let mut profile = profiles::named(&arguments.profile).unwrap_or_default();
    profile.blocks = arguments.blocks.unwrap_or(profile.blocks);
    let mock = Mock::start(MockOptions {
        listen,
        model: arguments.model,
        adapters: arguments.adapter,
        max_loras: arguments.max_loras,
        max_model_len: arguments.max_model_len,
        profile,
        time_scale: arguments.time_scale,
        max_num_queued_reqs: arguments.max_num_queued_reqs,
        keep_alive_ms: arguments.keep_alive_ms,
        tells_endpoint: arguments.tells_endpoint,
    })
    .await?;
    println!("mock replica ready on {}", mock.addr());
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminated.recv() => mock.drain().await,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            mock.stop().await;
        }
    }
    Ok(())
}

fn end_with_stdin() {
    // The runtime would wait for a blocking read of its own; this thread ends with the process.
    std::thread::spawn(|| {
        // An error is an end too.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
}
