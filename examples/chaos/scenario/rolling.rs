//! The whole fleet is restarted, one replica after the other, as an orchestrator does it: marked as
//! draining, given time to finish, terminated, started, marked as healthy. No client may notice,
//! though streams of 20 s are under way all the while.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::eds::{Eds, Health};
use crate::front::{Front, Setup};
use crate::load::{Order, Twist};
use crate::outcome::{Outcome, count};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::time::{Duration, Instant};

const SPEED: f64 = 4.0;
const RATE_PER_S: f64 = 8.0;
const INTERVAL_MS: u32 = 250;
/// For Envoy to read the file, and the filter to hear of it.
const NOTICE: Duration = Duration::from_millis(1_000);
/// The hardware takes at least 53 ms a token: 20 s of the modelled time.
const LONG_TOKENS: u32 = 378;
const LONG: Duration = Duration::from_secs(20);
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
const RUN_LIMIT: Duration = Duration::from_secs(240);

/// In the mode that has no failover: a request at a replica that is away would fail.
pub async fn run(context: &Context) -> Result {
    let mut replicas = Replica::start_all(4, &Kind::new("l4", SPEED)).await?;
    let mut eds = Eds::new(&addresses(&replicas));
    let setup = Setup::new(Mode::OriginalDst, context.workers);
    let front = Front::discovered(&setup, &eds, INTERVAL_MS).await?;
    let order = Order::chats(context.seed, RATE_PER_S, SPEED, RUN_LIMIT);
    let load = front.load(&order.twisted(every_eighth_long));
    // The first long streams are under way.
    tokio::time::sleep(LONG.div_f64(SPEED)).await;
    let mut restarts = Vec::new();
    for replica in &mut replicas {
        let begun = load.elapsed();
        eds.set(replica.address, Health::Draining);
        tokio::time::sleep(NOTICE).await;
        until_idle(replica).await?;
        replica.terminate(DRAIN_LIMIT).await?;
        replica.run().await?;
        eds.set(replica.address, Health::Healthy);
        tokio::time::sleep(NOTICE).await;
        restarts.push((replica.address.to_string(), begun));
    }
    let end = load.elapsed();
    tokio::time::sleep(NOTICE).await;
    let all = load.finish(DRAIN_LIMIT).await?;
    tell("rolling", &all);
    let back = |(name, begun): &(String, Duration)| {
        all.iter()
            .any(|one| one.endpoint == *name && one.due > *begun + NOTICE)
    };
    Ok(vec![
        Measured::none(
            "rolling_restart_failed_requests",
            count(&all, |one| !one.is_as_meant()),
        ),
        Measured::new(
            "rolling_restart_replicas_back",
            restarts.iter().filter(|one| back(one)).count() as f64,
            Bar::Is(4.0),
        ),
        Measured::told(
            "rolling_restart_long_streams",
            count(&all, |one| is_long(one) && one.due < end) as f64,
        ),
        Measured::told("rolling_restart_s", end.as_secs_f64()),
        Measured::new(
            "rolling_restart_inflight_end",
            front.inflight_at_end().await?,
            Bar::Is(0.0),
        ),
    ])
}

fn every_eighth_long(number: u32) -> Twist {
    Twist {
        output_tokens: number.is_multiple_of(8).then_some(LONG_TOKENS),
        ..Twist::NONE
    }
}

fn is_long(outcome: &Outcome) -> bool {
    outcome
        .usage
        .is_some_and(|usage| usage.output_tokens == LONG_TOKENS)
}

/// Returns when the replica has nothing left.
pub async fn until_idle(replica: &Replica) -> std::result::Result<(), String> {
    let begun = Instant::now();
    loop {
        match replica.requests().await? {
            0 => return Ok(()),
            left if begun.elapsed() > DRAIN_LIMIT => {
                return Err(format!("{} still has {left} requests", replica.address));
            }
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
