//! One endpoint of four becomes a black hole under load: it drops SYNs, or it takes requests and says
//! nothing. Who comes two seconds later must fare as with the three others alone. With `override_host`,
//! where Envoy can go on to another endpoint.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::load::{Load, Order};
use crate::outcome::{Outcome, count, ttft_quantile_ms};
use crate::proxy::Hole;
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::net::SocketAddr;
use std::time::Duration;

/// Real time: the machine's own delays are small beside it.
const SPEED: f64 = 1.0;
const RATE_PER_S: f64 = 20.0;
/// With the endpoint still whole.
const BEFORE: Duration = Duration::from_secs(3);
const NOTICE: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(12);
/// Those that the black hole swallowed are not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Three runs of the same load: three endpoints alone, and each kind of black hole beside them.
pub async fn run(context: &Context) -> Result {
    let alone = three_alone(context).await?;
    let unreachable = with_hole(context, Fault::DropsSyns).await?;
    let silent = with_hole(context, Fault::Silent).await?;
    let base = ttft_quantile_ms(&alone, 0.99);
    let [by_syn, by_silence] = [&unreachable, &silent].map(|all| ttft_quantile_ms(all, 0.99));
    let failed = |all: &[Outcome]| count(all, |one| !one.is_as_meant());
    Ok(vec![
        Measured::new(
            "blackhole_one_endpoint_p99_ratio",
            by_syn.max(by_silence) / base,
            Bar::AtMost(1.5),
        ),
        Measured::told("blackhole_syn_p99_ratio", by_syn / base),
        Measured::told("blackhole_silent_p99_ratio", by_silence / base),
        Measured::told("blackhole_reference_p99_ms", base),
        Measured::none("blackhole_syn_failed_after_2s", failed(&unreachable)),
        Measured::none("blackhole_silent_failed_after_2s", failed(&silent)),
    ])
}

type Measuring = std::result::Result<Vec<Outcome>, String>;

async fn three_alone(context: &Context) -> Measuring {
    let replicas = three().await?;
    let (_front, load) = start(context, &addresses(&replicas)).await?;
    tokio::time::sleep(BEFORE + NOTICE).await;
    let (_, after) = measured(load, "blackhole, three alone").await?;
    Ok(after)
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    DropsSyns,
    Silent,
}

async fn with_hole(context: &Context, fault: Fault) -> Measuring {
    let replicas = three().await?;
    let swallowed = Replica::start(&kind()).await?;
    let mut hole = Hole::before(swallowed.address)?;
    let endpoints = [addresses(&replicas), vec![hole.address]].concat();
    let (_front, load) = start(context, &endpoints).await?;
    tokio::time::sleep(BEFORE).await;
    let opened = load.elapsed();
    match fault {
        Fault::DropsSyns => hole.drop_syns().await?,
        Fault::Silent => hole.fall_silent(),
    }
    tokio::time::sleep((opened + NOTICE).saturating_sub(load.elapsed())).await;
    let (before, after) = measured(load, &format!("blackhole, {fault:?}")).await?;
    let behind = swallowed.address.to_string();
    // Their answers had at least begun.
    let is_through = |one: &Outcome| one.endpoint == behind && one.due < opened;
    if !before.iter().any(is_through) {
        return Err("the endpoint served nothing before it became a black hole".to_owned());
    }
    Ok(after)
}

fn kind() -> Kind {
    Kind::new("l4", SPEED)
}

async fn three() -> std::result::Result<Vec<Replica>, String> {
    Replica::start_all(3, &kind()).await
}

async fn start(
    context: &Context,
    endpoints: &[SocketAddr],
) -> std::result::Result<(Front, Load), String> {
    let setup = Setup::new(Mode::OverrideHost, context.workers);
    let front = Front::listed(&setup, endpoints).await?;
    let whole = BEFORE + NOTICE + MEASURED + PATIENCE;
    let load = front.load(&Order::chats(context.seed, RATE_PER_S, SPEED, whole));
    Ok((front, load))
}

/// What was sent until now, and what is sent from now on.
async fn measured(
    load: Load,
    name: &str,
) -> std::result::Result<(Vec<Outcome>, Vec<Outcome>), String> {
    let from = load.elapsed();
    tokio::time::sleep(MEASURED).await;
    let all = load.finish(PATIENCE).await?;
    tell(name, &all);
    Ok(all.into_iter().partition(|one| one.due < from))
}
