//! One long run with every mishap in turn: nothing grows, nothing leaks, and nothing fails that
//! another endpoint could have served.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::eds::{Eds, Health};
use crate::front::{Front, Setup};
use crate::load::{Load, Order, Twist};
use crate::outcome::{End, Outcome, count};
use crate::process::Process;
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::time::Duration;

const SPEED: f64 = 4.0;
const RATE_PER_S: f64 = 5.0;
const INTERVAL_MS: u32 = 1_000;
const SECOND: Duration = Duration::from_secs(1);
/// In each round one replica is killed and started again, and later leaves the members and returns.
const ROUND_S: u64 = 40;
const KILL_S: u64 = 10;
const RUN_S: u64 = 18;
const LEAVE_S: u64 = 28;
const RETURN_S: u64 = 32;
const PATIENCE: Duration = Duration::from_secs(30);

/// Lasts so many minutes, and a little.
pub async fn soak(context: &Context, minutes: u64) -> Result {
    let mut replicas = Replica::start_all(4, &Kind::new("l4", SPEED)).await?;
    let mut eds = Eds::new(&addresses(&replicas));
    let setup = Setup::new(Mode::OverrideHost, context.workers);
    let front = Front::discovered(&setup, &eds, INTERVAL_MS).await?;
    let envoy = match Process::own_envoys()?.as_slice() {
        [envoy] => *envoy,
        others => return Err(format!("{} processes of Envoy, not one", others.len())),
    };
    let span = Duration::from_secs(60 * minutes);
    let order = Order::chats(context.seed, RATE_PER_S, SPEED, span + PATIENCE);
    let load = front.load(&order.twisted(now_and_then));
    let gauges = front.gauges();
    let mut rss = Vec::new();
    for second in 0..span.as_secs() {
        until(&load, second).await;
        rss.push(envoy.rss_bytes()?);
        mishap(second, &mut replicas, &mut eds).await?;
    }
    until(&load, span.as_secs()).await;
    let all = load.finish(PATIENCE).await?;
    let inflight = front.inflight_at_end().await?;
    let seen = gauges.seen().await?;
    tell("soak", &all);
    let is_broken = |one: &Outcome| matches!(one.end, End::Broken(_));
    let is_odd = |one: &Outcome| matches!(one.end, End::Status(_)) && !one.is_as_meant();
    let is_truncated = |one: &Outcome| matches!(one.end, End::Truncated(_));
    Ok(vec![
        Measured::new(
            "soak_rss_growth_percent",
            growth_percent(&rss),
            Bar::AtMost(3.0),
        ),
        Measured::told(
            "soak_rss_end_mb",
            rss.last().map_or(f64::NAN, |end| *end as f64 / 1e6),
        ),
        Measured::new("soak_inflight_end", inflight, Bar::Is(0.0)),
        Measured::none("soak_negative_gauges", seen.negative),
        Measured::none(
            "soak_failed_unstarted",
            count(&all, Outcome::is_failed_unstarted),
        ),
        Measured::none("soak_truncated_streams", count(&all, is_truncated)),
        Measured::told("soak_other_statuses", count(&all, is_odd) as f64),
        Measured::told("soak_broken_streams", count(&all, is_broken) as f64),
        Measured::told("soak_requests", all.len() as f64),
    ])
}

async fn until(load: &Load, second: u64) {
    let at = load.begun + SECOND * u32::try_from(second).unwrap_or(u32::MAX);
    tokio::time::sleep_until(at.into()).await;
}

/// Some requests are wrong, some are refused, some are answered in one document.
fn now_and_then(number: u32) -> Twist {
    match number % 50 {
        7 | 8 => Twist::status(400, "status=400"),
        23 => Twist::status(429, "status=429,retry-after=1"),
        part if part % 5 == 0 => Twist::WHOLE,
        _ => Twist::NONE,
    }
}

/// What happens in this second: to each replica in turn, and never to two at the same time.
async fn mishap(
    second: u64,
    replicas: &mut [Replica],
    eds: &mut Eds,
) -> std::result::Result<(), String> {
    let count = replicas.len() as u64;
    let turn = (second / ROUND_S % count) as usize;
    let victim = replicas.get_mut(turn).ok_or("no replica")?;
    match second % ROUND_S {
        KILL_S => victim.kill()?,
        RUN_S => victim.run().await?,
        LEAVE_S => eds.remove(victim.address),
        RETURN_S => eds.set(victim.address, Health::Healthy),
        _ => {}
    }
    Ok(())
}

/// The mean of the last tenth over that of the second tenth: the first one is for warming up.
fn growth_percent(samples: &[u64]) -> f64 {
    let tenth = samples.len() / 10;
    let mean = |from: usize| {
        let part = samples.get(from..from + tenth).unwrap_or_default();
        part.iter().sum::<u64>() as f64 / part.len() as f64
    };
    (mean(samples.len() - tenth) / mean(tenth) - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_last_tenth_over_the_second() {
        let warming_up: Vec<u64> = (0..100).map(|at| if at < 10 { 1 } else { 200 }).collect();
        assert_eq!(growth_percent(&warming_up), 0.0);
        let growing: Vec<u64> = (0..100).map(|at| if at < 50 { 100 } else { 110 }).collect();
        assert!((growth_percent(&growing) - 10.0).abs() < 1e-9);
        assert!(growth_percent(&[]).is_nan());
    }
}
