//! The whole fleet is restarted, one replica after the other, as an orchestrator does it: marked as
//! draining, given time to finish, terminated, started, marked as healthy. No client may notice,
//! though streams of 20 s are under way all the while, nor is a replica picked that drains.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::eds::{Eds, Health};
use crate::front::{Front, Setup};
use crate::load::{Load, Order, Twist};
use crate::outcome::{Outcome, count};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::time::{Duration, Instant};

/// Real time: the long streams last as long as they say.
const SPEED: f64 = 1.0;
const RATE_PER_S: f64 = 8.0;
const INTERVAL_MS: u32 = 250;
/// For Envoy to read the file, and the filter to hear of it.
const NOTICE: Duration = Duration::from_secs(1);
/// By then, nobody picks a replica that is marked.
const HEARD: Duration = Duration::from_millis(2 * INTERVAL_MS as u64);
/// The hardware takes at least 53 ms a token.
const LONG_TOKENS: u32 = 378;
const LONG: Duration = Duration::from_secs(20);
/// The first long streams are under way.
const BEFORE: Duration = Duration::from_secs(10);
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// One replica's, in the time of the load.
struct Restart {
    endpoint: String,
    marked: Duration,
    healthy: Duration,
}

/// In the mode that has no failover: a request at a replica that is away would fail.
pub async fn run(context: &Context) -> Result {
    let mut replicas = Replica::start_all(4, &Kind::new("l4", SPEED)).await?;
    let mut eds = Eds::new(&addresses(&replicas));
    let setup = Setup::new(Mode::OriginalDst, context.workers);
    let front = Front::discovered(&setup, &eds, INTERVAL_MS).await?;
    let order = Order::chats(context.seed, RATE_PER_S, SPEED, RUN_LIMIT);
    let load = front.load(&order.twisted(every_eighth_long));
    tokio::time::sleep(BEFORE).await;
    let mut restarts = Vec::new();
    for replica in &mut replicas {
        restarts.push(restart(replica, &mut eds, &load).await?);
    }
    let end = load.elapsed();
    let all = load.finish(DRAIN_LIMIT).await?;
    tell("rolling", &all);
    let mut measured = measured(&all, &restarts);
    measured.push(Measured::told("rolling_restart_s", end.as_secs_f64()));
    measured.push(Measured::new(
        "rolling_restart_inflight_end",
        front.inflight_at_end().await?,
        Bar::Is(0.0),
    ));
    Ok(measured)
}

async fn restart(
    replica: &mut Replica,
    eds: &mut Eds,
    load: &Load,
) -> std::result::Result<Restart, String> {
    eds.set(replica.address, Health::Draining);
    let marked = load.elapsed();
    tokio::time::sleep(NOTICE).await;
    until_idle(replica).await?;
    replica.terminate(DRAIN_LIMIT).await?;
    replica.run().await?;
    let healthy = load.elapsed();
    eds.set(replica.address, Health::Healthy);
    // It takes requests again before the next one leaves.
    tokio::time::sleep(NOTICE * 2).await;
    Ok(Restart {
        endpoint: replica.address.to_string(),
        marked,
        healthy,
    })
}

fn measured(all: &[Outcome], restarts: &[Restart]) -> Vec<Measured> {
    let is_back = |restart: &&Restart| {
        let is_new = |one: &Outcome| one.due > restart.healthy && one.is_as_meant();
        all.iter()
            .any(|one| is_new(one) && one.endpoint == restart.endpoint)
    };
    let picks = |restart: &Restart| {
        let drains = restart.marked + HEARD..restart.healthy;
        let is_late = |one: &Outcome| drains.contains(&one.due);
        count(all, |one| is_late(one) && one.picked == restart.endpoint)
    };
    let spanning = |restart: &Restart| {
        let is_there = |one: &Outcome| one.endpoint == restart.endpoint && is_long(one);
        count(all, |one| is_there(one) && one.spans(restart.marked))
    };
    vec![
        Measured::none(
            "rolling_restart_failed_requests",
            count(all, |one| !one.is_as_meant()),
        ),
        Measured::none(
            "rolling_restart_picks_while_draining",
            restarts.iter().map(picks).sum(),
        ),
        Measured::new(
            "rolling_restart_replicas_back",
            restarts.iter().filter(is_back).count() as f64,
            Bar::Is(4.0),
        ),
        // Streams of 20 s and more that were under way at the replica when it was marked.
        Measured::new(
            "rolling_restart_fewest_long_streams",
            restarts.iter().map(spanning).min().unwrap_or_default() as f64,
            Bar::AtLeast(1.0),
        ),
    ]
}

fn every_eighth_long(number: u32) -> Twist {
    Twist {
        output_tokens: number.is_multiple_of(8).then_some(LONG_TOKENS),
        ..Twist::NONE
    }
}

fn is_long(outcome: &Outcome) -> bool {
    outcome.is_as_meant() && outcome.took >= LONG
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::End;

    fn served(endpoint: &str, due_s: u64, took_s: u64) -> Outcome {
        let mut one = Outcome::new(Duration::from_secs(due_s), 200);
        one.end = End::Good;
        one.took = Duration::from_secs(took_s);
        one.endpoint = endpoint.to_owned();
        one.picked = endpoint.to_owned();
        one
    }

    #[test]
    fn a_restart_is_held_to_what_it_did_to_its_replica() {
        let restart = || Restart {
            endpoint: "a".to_owned(),
            marked: Duration::from_secs(10),
            healthy: Duration::from_secs(40),
        };
        let kept = [served("a", 5, 25), served("b", 20, 1), served("a", 41, 1)];
        let values = |all: &[Outcome]| -> Vec<Measured> { measured(all, &[restart()]) };
        let of = |picks, back, long| {
            vec![
                Measured::none("rolling_restart_failed_requests", 0),
                Measured::none("rolling_restart_picks_while_draining", picks),
                Measured::new("rolling_restart_replicas_back", back, Bar::Is(4.0)),
                Measured::new(
                    "rolling_restart_fewest_long_streams",
                    long,
                    Bar::AtLeast(1.0),
                ),
            ]
        };
        assert_eq!(values(&kept), of(0, 1.0, 1.0));
        // Picked while it drains, and not after; a stream that is short.
        let broken = [served("a", 5, 19), served("a", 20, 1)];
        assert_eq!(values(&broken), of(1, 0.0, 0.0));
    }
}
