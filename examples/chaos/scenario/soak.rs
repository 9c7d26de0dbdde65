//! One long run with bursts, and with replicas that fall silent, are killed, drain and leave, in turn:
//! nothing grows, nothing leaks, and nothing fails that another endpoint could have served.

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
use tokio::task::JoinSet;

const SPEED: f64 = 4.0;
const RATE_PER_S: f64 = 5.0;
/// On top, in a burst: more than the engines can serve at once.
const BURST_RATE_PER_S: f64 = 25.0;
const INTERVAL_MS: u32 = 1_000;
const SECOND: Duration = Duration::from_secs(1);
/// In each round, one replica has all mishaps, and all replicas have the burst.
const ROUND_S: u64 = 60;
const BURST_S: u64 = 2;
const BURST: Duration = Duration::from_secs(2);
const KILL_S: u64 = 10;
const RUN_S: u64 = 16;
const DRAIN_S: u64 = 22;
const HEALTHY_S: u64 = 28;
const LEAVE_S: u64 = 34;
const RETURN_S: u64 = 38;
/// The last one: an engine that was so slow is used less for a while, and a mishap should be felt.
const SILENT_S: u64 = 44;
const AWAKE_S: u64 = 48;
const PATIENCE: Duration = Duration::from_secs(30);

/// Lasts so many minutes, and a little.
pub async fn soak(context: &Context, minutes: u64) -> Result {
    let replicas = Replica::start_all(4, &Kind::new("l4", SPEED)).await?;
    let eds = Eds::new(&addresses(&replicas));
    let setup = Setup::new(Mode::OverrideHost, context.workers);
    let front = Front::discovered(&setup, &eds, INTERVAL_MS).await?;
    let envoy = match Process::own_envoys()?.as_slice() {
        [envoy] => *envoy,
        others => return Err(format!("{} processes of Envoy, not one", others.len())),
    };
    let span = SECOND * u32::try_from(60 * minutes).unwrap_or(u32::MAX);
    let order = Order::chats(context.seed, RATE_PER_S, SPEED, span + PATIENCE);
    let load = front.load(&order.twisted(now_and_then));
    let gauges = front.gauges();
    let mut rss = Vec::new();
    let mut mishaps = Mishaps::new(replicas, eds);
    for second in 0..span.as_secs() {
        until(&load, second).await;
        rss.push(envoy.rss_bytes()?);
        mishaps.happen(second, load.elapsed()).await?;
        if second % ROUND_S == BURST_S {
            let order = Order::chats(second, BURST_RATE_PER_S, SPEED, BURST + PATIENCE);
            let burst = front.load(&order.twisted(now_and_then));
            mishaps.bursts.spawn(all_of(burst, load.elapsed()));
        }
    }
    until(&load, span.as_secs()).await;
    let mut all = load.finish(PATIENCE).await?;
    while let Some(burst) = mishaps.bursts.join_next().await {
        all.extend(burst.map_err(|e| e.to_string())??);
    }
    let inflight = front.inflight_at_end().await?;
    let seen = gauges.seen().await?;
    tell("soak", &all);
    let mut measured = memory(&rss);
    measured.push(Measured::new("soak_inflight_end", inflight, Bar::Is(0.0)));
    measured.push(Measured::none("soak_negative_gauges", seen.negative));
    measured.extend(ends(&all, &mishaps.kills));
    measured.push(Measured::told(
        "soak_slowest_return_s",
        slowest_return_s(&all, &mishaps.returns),
    ));
    Ok(measured)
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

/// What a burst that began at `begun` came to, in the time of the steady load.
async fn all_of(burst: Load, begun: Duration) -> std::result::Result<Vec<Outcome>, String> {
    tokio::time::sleep(BURST).await;
    let mut all = burst.finish(PATIENCE).await?;
    all.iter_mut().for_each(|one| one.due += begun);
    Ok(all)
}

/// A replica that something happened to, and when, in the time of the load.
type Event = (String, Duration);

struct Mishaps {
    replicas: Vec<Replica>,
    eds: Eds,
    kills: Vec<Event>,
    returns: Vec<Event>,
    bursts: JoinSet<std::result::Result<Vec<Outcome>, String>>,
}

impl Mishaps {
    fn new(replicas: Vec<Replica>, eds: Eds) -> Self {
        Self {
            replicas,
            eds,
            kills: Vec::new(),
            returns: Vec::new(),
            bursts: JoinSet::new(),
        }
    }

    /// What happens in this second: to each replica in turn, and never to two at the same time.
    async fn happen(&mut self, second: u64, now: Duration) -> std::result::Result<(), String> {
        let count = self.replicas.len() as u64;
        let turn = (second / ROUND_S % count) as usize;
        let victim = self.replicas.get_mut(turn).ok_or("no replica")?;
        let address = victim.address;
        match second % ROUND_S {
            SILENT_S => victim.fall_silent()?,
            AWAKE_S => victim.go_on()?,
            KILL_S => {
                self.kills.push((address.to_string(), now));
                victim.kill()?;
            }
            RUN_S => victim.run().await?,
            DRAIN_S => self.eds.set(address, Health::Draining),
            HEALTHY_S | RETURN_S => self.eds.set(address, Health::Healthy),
            LEAVE_S => self.eds.remove(address),
            _ => {}
        }
        if [RUN_S, HEALTHY_S, RETURN_S, AWAKE_S].contains(&(second % ROUND_S)) {
            self.returns.push((address.to_string(), now));
        }
        Ok(())
    }
}

fn memory(rss: &[u64]) -> Vec<Measured> {
    let end = rss.last().map_or(f64::NAN, |end| *end as f64 / 1e6);
    vec![
        Measured::new(
            "soak_rss_growth_percent",
            growth_percent(rss),
            Bar::AtMost(3.0),
        ),
        Measured::told("soak_rss_end_mb", end),
    ]
}

/// What requests came to. Only those under way at a replica that was killed may break.
fn ends(all: &[Outcome], kills: &[Event]) -> Vec<Measured> {
    let is_broken = |one: &Outcome| matches!(one.end, End::Broken(_));
    let is_odd = |one: &Outcome| matches!(one.end, End::Status(_)) && !one.is_as_meant();
    let is_truncated = |one: &Outcome| matches!(one.end, End::Truncated(_));
    let is_of_a_kill = |one: &Outcome| {
        let is_of = |(endpoint, at): &Event| one.endpoint == *endpoint && one.spans(*at);
        kills.iter().any(is_of)
    };
    vec![
        Measured::none(
            "soak_failed_unstarted",
            count(all, Outcome::is_failed_unstarted),
        ),
        Measured::none("soak_truncated_streams", count(all, is_truncated)),
        Measured::none(
            "soak_broken_elsewhere",
            count(all, |one| is_broken(one) && !is_of_a_kill(one)),
        ),
        // Else nothing was under way at any replica that was killed.
        Measured::new(
            "soak_broken_streams",
            count(all, is_broken) as f64,
            Bar::AtLeast(1.0),
        ),
        Measured::told("soak_other_statuses", count(all, is_odd) as f64),
        Measured::told("soak_requests", all.len() as f64),
    ]
}

/// The longest that a replica was back and served nothing new; infinite if one never did.
fn slowest_return_s(all: &[Outcome], returns: &[Event]) -> f64 {
    let until_used = |(endpoint, at): &Event| {
        let by_it = all.iter().filter(|one| one.endpoint == *endpoint);
        let after = by_it.filter_map(|one| one.due.checked_sub(*at));
        after
            .min()
            .map_or(f64::INFINITY, |after| after.as_secs_f64())
    };
    returns.iter().map(until_used).fold(0.0, f64::max)
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

    #[test]
    fn only_what_was_under_way_at_a_replica_that_is_killed_may_break() {
        let kills = [("a".to_owned(), Duration::from_secs(18))];
        let broken = |endpoint: &str, due_s, took_s| {
            let mut one = Outcome::new(Duration::from_secs(due_s), 200);
            one.end = End::Broken("reset".to_owned());
            one.endpoint = endpoint.to_owned();
            one.took = Duration::from_secs(took_s);
            one
        };
        let elsewhere = |one| {
            let ends = ends(&[one], &kills);
            ends.contains(&Measured::none("soak_broken_elsewhere", 1))
        };
        assert!(!elsewhere(broken("a", 17, 2)));
        assert!(elsewhere(broken("b", 17, 2)));
        assert!(elsewhere(broken("a", 12, 2)));
        assert!(elsewhere(broken("a", 19, 2)));
    }

    #[test]
    fn a_replica_has_returned_with_what_it_serves_next() {
        let at = |endpoint: &str, s| (endpoint.to_owned(), Duration::from_secs(s));
        let served = |endpoint: &str, due_s| {
            let mut one = Outcome::new(Duration::from_secs(due_s), 200);
            one.endpoint = endpoint.to_owned();
            one
        };
        let all = [
            served("a", 9),
            served("a", 12),
            served("b", 11),
            served("b", 25),
        ];
        assert_eq!(slowest_return_s(&all, &[at("a", 10), at("b", 20)]), 5.0);
        assert_eq!(slowest_return_s(&all, &[at("a", 13)]), f64::INFINITY);
    }
}
