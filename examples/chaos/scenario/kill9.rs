//! One of four replicas is killed under load. What had not begun is served elsewhere; what had begun
//! breaks for its client to see; new requests avoid the dead one; and it is back once it runs again.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::load::{Order, Twist};
use crate::outcome::{End, Outcome, count};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::time::Duration;

const SPEED: f64 = 2.0;
const RATE_PER_S: f64 = 12.0;
const BEFORE: Duration = Duration::from_secs(4);
const DEAD: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(5);
/// For new requests to avoid it.
const NOTICE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// In the modes where Envoy can go on to another endpoint.
pub async fn run(context: &Context) -> Result {
    let mut all = killed(context, Mode::OverrideHost, "kill9").await?;
    all.extend(killed(context, Mode::Composite, "kill9_composite").await?);
    Ok(all)
}

/// One run, whose values are called `name` and something.
async fn killed(context: &Context, mode: Mode, name: &str) -> Result {
    let mut replicas = Replica::start_all(4, &Kind::new("l4", SPEED)).await?;
    let setup = Setup::new(mode, context.workers);
    let front = Front::listed(&setup, &addresses(&replicas)).await?;
    let whole = BEFORE + DEAD + AGAIN;
    let order = Order::chats(context.seed, RATE_PER_S, SPEED, whole + PATIENCE);
    let load = front.load(&order.twisted(every_third_whole));
    tokio::time::sleep(BEFORE).await;
    let busiest = front.busiest().await?;
    let mut each = replicas.iter_mut();
    let victim = each.find(|replica| replica.address.to_string() == busiest);
    let victim = victim.ok_or("nobody is busy")?;
    let killed = load.elapsed();
    victim.kill()?;
    tokio::time::sleep(DEAD).await;
    victim.run().await?;
    let again = load.elapsed();
    tokio::time::sleep(AGAIN).await;
    let victim = victim.address.to_string();
    let all = load.finish(PATIENCE).await?;
    tell(name, &all);
    let of_victim = |outcome: &Outcome| outcome.endpoint == victim;
    if !all.iter().any(|one| of_victim(one) && one.due < killed) {
        return Err("the replica had no requests before it was killed".to_owned());
    }
    let avoided = killed + NOTICE..again;
    let still_picked = count(&all, |one| {
        one.picked == victim && avoided.contains(&one.due)
    });
    let back = all.iter().filter(|one| of_victim(one) && one.due >= again);
    let back = back
        .map(|one| (one.due - again).as_secs_f64())
        .reduce(f64::min);
    let is_truncated = |one: &Outcome| matches!(one.end, End::Truncated(_));
    let is_broken = |one: &Outcome| matches!(one.end, End::Broken(_));
    let name = |rest: &str| format!("{name}_{rest}");
    Ok(vec![
        Measured::none(
            name("one_of_4_failed_unstarted_requests"),
            count(&all, Outcome::is_failed_unstarted),
        ),
        Measured::none(name("picks_after_1s"), still_picked),
        Measured::none(name("truncated_streams"), count(&all, is_truncated)),
        // Else nothing was under way at the replica when it was killed.
        Measured::new(
            name("broken_streams"),
            count(&all, is_broken) as f64,
            Bar::AtLeast(1.0),
        ),
        Measured::none(
            name("broken_elsewhere"),
            count(&all, |one| {
                is_broken(one) && !(of_victim(one) && one.spans(killed))
            }),
        ),
        Measured::new(
            name("back_in_service_s"),
            back.unwrap_or(f64::NAN),
            Bar::AtMost(5.0),
        ),
        Measured::new(
            name("inflight_end"),
            front.inflight_at_end().await?,
            Bar::Is(0.0),
        ),
    ])
}

/// An answer in one document has not begun until it is there.
fn every_third_whole(number: u32) -> Twist {
    match number % 3 {
        0 => Twist::WHOLE,
        _ => Twist::NONE,
    }
}
