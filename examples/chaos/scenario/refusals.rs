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
use std::collections::BTreeMap;
use std::time::Duration;

const ENDPOINTS: usize = 4;
const RATE_PER_S: f64 = 260.0;
const SPAN: Duration = Duration::from_secs(3);
/// Of the requests of `client_400s`, the first ones.
const WRONG: u32 = 480;
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

/// Far more wrong requests in a row than any breaker would bear, at every endpoint; then good ones,
/// each of which its endpoint must serve.
pub async fn client_400s(context: &Context) -> Result {
    let twist = |number| match number < WRONG {
        true => Twist::status(400, "status=400"),
        false => Twist::NONE,
    };
    let (all, front) = refused(context, Mode::OriginalDst, twist).await?;
    tell("client400s", &all);
    let mut by_endpoint = BTreeMap::<&str, [usize; 2]>::new();
    for one in &all {
        let [wrong, good] = by_endpoint.entry(&one.picked).or_default();
        match one.meant {
            400 => *wrong += 1,
            _ => *good += 1,
        }
    }
    let fewest = |at: fn(&[usize; 2]) -> usize| by_endpoint.values().map(at).min();
    let [wrong, good] = [fewest(|[wrong, _]| *wrong), fewest(|[_, good]| *good)];
    let is_as_it_should = |one: &Outcome| one.is_as_meant() && one.endpoint == one.picked;
    let failed = count(&all, |one| !is_as_it_should(one));
    let ejections = front.stats("warmroute_ejections_total").await?;
    let ejections = ejections.metric("warmroute_ejections_total", &[]);
    let bar = |name: &str, value: usize, least: f64| {
        Measured::new(name, value as f64, Bar::AtLeast(least))
    };
    Ok(vec![
        Measured::new(
            "client_400s_open_breaker",
            failed as f64 + ejections,
            Bar::Is(0.0),
        ),
        Measured::new(
            "client_400s_endpoints",
            by_endpoint.len() as f64,
            Bar::Is(ENDPOINTS as f64),
        ),
        bar(
            "client_400s_fewest_an_endpoint",
            wrong.unwrap_or_default(),
            100.0,
        ),
        bar(
            "client_400s_good_after_fewest_an_endpoint",
            good.unwrap_or_default(),
            20.0,
        ),
        bar(
            "client_400s_good_after",
            count(&all, |one| one.meant == 200),
            200.0,
        ),
    ])
}

/// What all requests came to, and the Envoy that served them.
async fn refused(
    context: &Context,
    mode: Mode,
    twist: fn(u32) -> Twist,
) -> std::result::Result<(Vec<Outcome>, Front), String> {
    let replicas = Replica::start_all(ENDPOINTS, &Kind::fast()).await?;
    // Each in turn, so that nobody is left out but for a reason.
    let setup = Setup::new(mode, context.workers);
    let setup = setup.plugin(json!({ "policy": {"name": "round_robin"} }));
    let front = Front::listed(&setup, &addresses(&replicas)).await?;
    let order = Order::chats(context.seed, RATE_PER_S, 1.0, SPAN + PATIENCE);
    let load = front.load(&order.twisted(twist));
    tokio::time::sleep(SPAN).await;
    let all = load.finish(PATIENCE).await?;
    Ok((all, front))
}
