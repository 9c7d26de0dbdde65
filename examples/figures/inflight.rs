//! What the gauges show after requests that ended in every way.

use crate::Figure;
use crate::decision::{Carried, chat, clients, open};
use crate::mixed;
use crate::support::client::Call;
use crate::support::config::Mode;
use crate::support::fleet::{Fleet, INFLIGHT};
use std::time::Duration;

const REQUESTS: u64 = 10_000;
const WORKERS: u32 = 4;
/// Ten times as long as the gauges may lag.
const SETTLE: Duration = Duration::from_secs(1);
/// For the gauges to move while requests come.
const PATIENCE: Duration = Duration::from_secs(10);

/// The gauges' sums, with retries elsewhere among the endings.
pub async fn measure() -> Result<Vec<Figure>, String> {
    let fleet = mixed::start(Mode::OverrideHost, WORKERS).await?;
    let clients = clients(&fleet, 17);
    // Zeros mean something only if the gauges can show anything else.
    let moved = async {
        loop {
            let stats = fleet.envoy.stats().await?;
            if stats.metric(INFLIGHT[0], &[]) > 0.0 {
                return Ok::<(), String>(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let moved = tokio::time::timeout(PATIENCE, moved);
    let (tally, moved) = tokio::join!(mixed::run(&fleet, &clients, REQUESTS), moved);
    let tally = tally?;
    moved.map_err(|_| "the gauges never moved")??;
    if tally.requests != REQUESTS {
        return Err(format!("not all requests were sent: {tally:?}"));
    }
    tokio::time::sleep(SETTLE).await;
    let sums = sums(&fleet).await?;
    let client = clients.first().ok_or("no client")?;
    let (pick, _) = open(client, Call::chat(&chat("probe"))).await?;
    if sums == [0.0; 3] && pick.total() != Carried::default() {
        return Err(format!(
            "the gauges are 0, but a pick sees {:?}",
            pick.loads
        ));
    }
    let [requests, prefill_tokens, decode_tokens] = sums;
    Ok(vec![
        (
            "inflight_after_10000_mixed_endings",
            requests + prefill_tokens + decode_tokens,
        ),
        ("inflight_after_10000_mixed_endings_requests", requests),
        (
            "inflight_after_10000_mixed_endings_prefill_tokens",
            prefill_tokens,
        ),
        (
            "inflight_after_10000_mixed_endings_decode_tokens",
            decode_tokens,
        ),
    ])
}

/// The three gauges, over all endpoints.
async fn sums(fleet: &Fleet) -> Result<[f64; 3], String> {
    let stats = fleet.envoy.stats().await?;
    match INFLIGHT.iter().find(|name| !stats.has(name)) {
        Some(name) => Err(format!("there is no metric {name}")),
        None => Ok(INFLIGHT.map(|name| stats.metric(name, &[]))),
    }
}
