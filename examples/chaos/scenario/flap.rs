//! One endpoint of four leaves and returns a hundred times under load. It gets nothing once the filter
//! has heard that it left. Whatever it had under way is finished and accounted for: no gauge is ever
//! below 0, and at the end all of them are 0.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::eds::{Eds, Health};
use crate::front::{Front, Setup};
use crate::load::Order;
use crate::outcome::{Outcome, count};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use serde_json::json;
use std::time::Duration;

const SPEED: f64 = 4.0;
const RATE_PER_S: f64 = 8.0;
const FLAPS: usize = 100;
const INTERVAL_MS: u32 = 100;
const AWAY: Duration = Duration::from_millis(160);
/// One absence of so many lasts long enough for all workers to hear of it.
const LONG_EVERY: usize = 4;
const LONG_AWAY: Duration = Duration::from_millis(640);
/// Two intervals, and two ticks of the filter.
const NOTICE: Duration = Duration::from_millis(400);
const HERE: Duration = Duration::from_millis(240);
const LIMIT: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(20);

/// Behind a cluster whose members Envoy itself uses.
pub async fn run(context: &Context) -> Result {
    let replicas = Replica::start_all(4, &Kind::new("l4", SPEED)).await?;
    let mut eds = Eds::new(&addresses(&replicas));
    // A newcomer is used when it has answered its first scrape.
    let setup = Setup::new(Mode::OverrideHost, context.workers).plugin(json!({
        "scrape": {"cluster": "warmroute_scrape", "interval_ms": INTERVAL_MS},
    }));
    let front = Front::discovered(&setup, &eds, INTERVAL_MS).await?;
    let load = front.load(&Order::chats(context.seed, RATE_PER_S, SPEED, LIMIT));
    let gauges = front.gauges();
    let restless = replicas.first().ok_or("no replica")?.address;
    let begun = load.elapsed();
    let mut away = Vec::new();
    for flap in 0..FLAPS {
        eds.remove(restless);
        let left = load.elapsed();
        let is_long = flap.is_multiple_of(LONG_EVERY);
        tokio::time::sleep(if is_long { LONG_AWAY } else { AWAY }).await;
        away.push(left + NOTICE..load.elapsed());
        eds.set(restless, Health::Healthy);
        tokio::time::sleep(HERE).await;
    }
    let all = load.finish(PATIENCE).await?;
    let inflight = front.inflight_at_end().await?;
    let seen = gauges.seen().await?;
    tell("flap", &all);
    let restless = restless.to_string();
    let is_by_it = |one: &Outcome| one.endpoint == restless && one.due > begun + HERE;
    let is_away = |one: &Outcome| away.iter().any(|span| span.contains(&one.due));
    Ok(vec![
        Measured::new("flap_100_times_inflight_end", inflight, Bar::Is(0.0)),
        Measured::none("flap_100_times_negative_gauges", seen.negative),
        Measured::none(
            "flap_100_times_failed_requests",
            count(&all, |one| !one.is_as_meant()),
        ),
        // Else nothing was under way when it left.
        Measured::new(
            "flap_100_times_served_by_it",
            count(&all, is_by_it) as f64,
            Bar::AtLeast(10.0),
        ),
        Measured::none(
            "flap_100_times_picks_while_away",
            count(&all, |one| is_away(one) && one.picked == restless),
        ),
        // Else nobody could have picked it.
        Measured::new(
            "flap_100_times_requests_while_away",
            count(&all, is_away) as f64,
            Bar::AtLeast(100.0),
        ),
        Measured::told("flap_100_times_gauge_looks", seen.looks as f64),
    ])
}
