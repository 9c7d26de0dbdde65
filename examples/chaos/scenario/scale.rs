//! From two replicas to six and back to two, under a load of chats that share prefixes: nothing
//! fails, and caches are soon as useful as before.

use super::rolling::until_idle;
use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::eds::{Eds, Health};
use crate::front::{Front, Setup};
use crate::load::Order;
use crate::outcome::{Outcome, count, hit_rate};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::collections::BTreeSet;
use std::time::Duration;

const SPEED: f64 = 5.0;
const RATE_PER_S: f64 = 10.0;
const INTERVAL_MS: u32 = 250;
const NOTICE: Duration = Duration::from_secs(1);
/// Each in the time of the modelled hardware, as all below.
const WARM_UP_S: f64 = 75.0;
/// Long enough that a recovery too slow shows as what it is.
const PHASE_S: f64 = 105.0;
const WINDOW_S: f64 = 15.0;
const STEP_S: f64 = 1.0;
/// Of the hit rate before.
const RECOVERED: f64 = 0.9;
const RECOVERY_S: f64 = 60.0;
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
const RUN_LIMIT: Duration = Duration::from_secs(150);

/// In the mode that has no failover.
pub async fn run(context: &Context) -> Result {
    let kind = Kind::new("l4-fp8", SPEED);
    let mut replicas = Replica::start_all(2, &kind).await?;
    let mut eds = Eds::new(&addresses(&replicas));
    let setup = Setup::new(Mode::OriginalDst, context.workers);
    let front = Front::discovered(&setup, &eds, INTERVAL_MS).await?;
    let load = front.load(&Order::chats(context.seed, RATE_PER_S, SPEED, RUN_LIMIT));
    tokio::time::sleep(real(WARM_UP_S)).await;
    let grown = load.elapsed();
    for _ in 0..4 {
        let new = Replica::start(&kind).await?;
        eds.set(new.address, Health::Healthy);
        replicas.push(new);
    }
    tokio::time::sleep(real(PHASE_S)).await;
    let shrunk = load.elapsed();
    let leaving = replicas.split_off(2);
    for replica in &leaving {
        eds.set(replica.address, Health::Draining);
    }
    tokio::time::sleep(NOTICE).await;
    for mut replica in leaving {
        until_idle(&replica).await?;
        eds.remove(replica.address);
        replica.terminate(DRAIN_LIMIT).await?;
    }
    let left = (shrunk + real(PHASE_S)).saturating_sub(load.elapsed());
    tokio::time::sleep(left).await;
    let end = load.elapsed();
    let all = load.finish(DRAIN_LIMIT).await?;
    tell("scale", &all);
    let used: BTreeSet<_> = all.iter().map(|one| &one.endpoint).collect();
    let up_s = recovery_s(&all, grown, shrunk);
    let down_s = recovery_s(&all, shrunk, end);
    Ok(vec![
        Measured::none(
            "scale_2_to_6_to_2_failed_requests",
            count(&all, |one| !one.is_as_meant()),
        ),
        Measured::new(
            "scale_hit_rate_recovery_s",
            up_s.max(down_s),
            Bar::AtMost(RECOVERY_S),
        ),
        Measured::told("scale_up_hit_rate_recovery_s", up_s),
        Measured::told("scale_down_hit_rate_recovery_s", down_s),
        Measured::told("scale_hit_rate_before", before(&all, grown)),
        Measured::new("scale_endpoints_used", used.len() as f64, Bar::Is(6.0)),
        Measured::new(
            "scale_inflight_end",
            front.inflight_at_end().await?,
            Bar::Is(0.0),
        ),
    ])
}

fn real(modelled_s: f64) -> Duration {
    Duration::from_secs_f64(modelled_s / SPEED)
}

/// The hit rate of the window that ends with `change`.
fn before(all: &[Outcome], change: Duration) -> f64 {
    hit_rate(all, &(change.saturating_sub(real(WINDOW_S))..change))
}

/// How long after `change` the last window ends that is not as good as before, in the time of the
/// modelled hardware: 0 if there is none, infinite if it is the last of all by `end`.
fn recovery_s(all: &[Outcome], change: Duration, end: Duration) -> f64 {
    let wanted = before(all, change) * RECOVERED;
    let (mut after_s, mut recovered_s) = (WINDOW_S, 0.0);
    let mut is_good = false;
    while change + real(after_s) <= end {
        let window = change + real(after_s - WINDOW_S)..change + real(after_s);
        is_good = hit_rate(all, &window) >= wanted;
        if !is_good {
            recovered_s = after_s;
        }
        after_s += STEP_S;
    }
    match is_good {
        true => recovered_s,
        false => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Usage;

    /// One request each modelled second, with hits as `cached` says by second.
    fn served(seconds: u32, cached: impl Fn(u32) -> u32) -> Vec<Outcome> {
        let one = |second| {
            let mut outcome = Outcome::new(real(f64::from(second) + 0.5), 200);
            outcome.usage = Some(Usage {
                prompt_tokens: 100,
                cached_tokens: Some(cached(second)),
                output_tokens: 1,
            });
            outcome
        };
        (0..seconds).map(one).collect()
    }

    #[test]
    fn recovery_is_the_end_of_the_last_window_that_is_not_as_good_as_before() {
        let change = real(60.0);
        let end = real(120.0);
        let never_worse = served(120, |_| 80);
        assert_eq!(recovery_s(&never_worse, change, end), 0.0);
        let worse_for_20_s = served(
            120,
            |second| if (60..80).contains(&second) { 0 } else { 80 },
        );
        // A window of 15 s may hold one bad second: the last that is too bad begins at 78 s.
        assert_eq!(recovery_s(&worse_for_20_s, change, end), 33.0);
        let worse_again = served(120, |second| match second {
            60..62 | 95..100 => 0,
            _ => 80,
        });
        assert_eq!(recovery_s(&worse_again, change, end), 53.0);
        let worse_for_ever = served(120, |second| if second < 60 { 80 } else { 70 });
        assert_eq!(recovery_s(&worse_for_ever, change, end), f64::INFINITY);
    }
}
