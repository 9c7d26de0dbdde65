//! Engines that refuse: by 429 all of them, which their clients must see; and by 400 what a client
//! sent wrong, which is no reason to avoid anybody.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::load::{Order, Twist};
use crate::outcome::{Outcome, count};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use serde_json::json;
use std::time::Duration;

const RATE_PER_S: f64 = 60.0;
const SPAN: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(10);

/// Each client gets the engine's own 429, and its Retry-After.
pub async fn all_429(context: &Context) -> Result {
    let (mut passed, mut sent) = (0, 0);
    for mode in [Mode::OriginalDst, Mode::OverrideHost, Mode::Composite] {
        let twist = |_| Twist::status(429, "status=429,retry-after=7");
        let (all, _) = refused(context, mode, twist).await?;
        tell(&format!("all429, {}", mode.name()), &all);
        sent += all.len();
        passed += count(&all, |one| {
            one.is_as_meant() && one.retry_after == "7" && !one.endpoint.is_empty()
        });
    }
    if sent < 100 {
        return Err(format!("only {sent} requests were sent"));
    }
    Ok(vec![
        Measured::new(
            "all_429_pass_through",
            passed as f64 / sent as f64,
            Bar::Is(1.0),
        ),
        Measured::told("all_429_requests", sent as f64),
    ])
}

/// Two of three requests are wrong; all the others are served, by all endpoints.
pub async fn client_400s(context: &Context) -> Result {
    let twist = |number| match number % 3 {
        0 => Twist::NONE,
        _ => Twist::status(400, "status=400"),
    };
    let (all, endpoints) = refused(context, Mode::OriginalDst, twist).await?;
    tell("client400s", &all);
    let is_idle = |name: &&String| {
        let of_it = |one: &Outcome| one.meant == 200 && one.endpoint == **name;
        // Any breaker would be open by now.
        !all.iter().any(|one| of_it(one) && one.due > SPAN / 2)
    };
    let failed = count(&all, |one| !one.is_as_meant());
    let avoided = endpoints.iter().filter(is_idle).count();
    Ok(vec![
        Measured::none("client_400s_open_breaker", failed + avoided),
        Measured::told(
            "client_400s_sent",
            count(&all, |one| one.meant == 400) as f64,
        ),
    ])
}

/// What all requests came to, and the endpoints' names.
async fn refused(
    context: &Context,
    mode: Mode,
    twist: fn(u32) -> Twist,
) -> std::result::Result<(Vec<Outcome>, Vec<String>), String> {
    let replicas = Replica::start_all(4, &Kind::fast()).await?;
    let addresses = addresses(&replicas);
    // Each in turn, so that nobody is left out but for a reason.
    let setup = Setup::new(mode, context.workers);
    let setup = setup.plugin(json!({ "policy": {"name": "round_robin"} }));
    let front = Front::listed(&setup, &addresses).await?;
    let order = Order::chats(context.seed, RATE_PER_S, 1.0, SPAN + PATIENCE);
    let load = front.load(&order.twisted(twist));
    tokio::time::sleep(SPAN).await;
    let all = load.finish(PATIENCE).await?;
    let names = addresses.iter().map(ToString::to_string).collect();
    Ok((all, names))
}
