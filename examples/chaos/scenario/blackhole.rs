//! One endpoint of four is a black hole: it drops SYNs, or it takes requests and says nothing. Who
//! comes two seconds later must fare as with the three others alone.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::load::{Load, Order};
use crate::outcome::{Outcome, count, ttft_quantile_ms};
use crate::proxy::{Silent, Unreachable};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::net::SocketAddr;
use std::time::Duration;

/// Real time: the machine's own delays are small beside it.
const SPEED: f64 = 1.0;
const RATE_PER_S: f64 = 20.0;
/// With the endpoint still whole, or unreachable already.
const BEFORE: Duration = Duration::from_secs(3);
const NOTICE: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(12);
/// Those that the black hole swallowed are not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Three runs of the same load: three endpoints alone, and each kind of black hole beside them.
pub async fn run(context: &Context) -> Result {
    let alone = three_alone(context).await?;
    let unreachable = unreachable(context).await?;
    let silent = silent(context).await?;
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
    measured(load, "blackhole, three alone").await
}

async fn unreachable(context: &Context) -> Measuring {
    let replicas = three().await?;
    let hole = Unreachable::new().await?;
    let endpoints = [addresses(&replicas), vec![hole.address]].concat();
    let (_front, load) = start(context, &endpoints).await?;
    tokio::time::sleep(BEFORE + NOTICE).await;
    measured(load, "blackhole, SYNs dropped").await
}

async fn silent(context: &Context) -> Measuring {
    let replicas = three().await?;
    let swallowed = Replica::start(&kind()).await?;
    let hole = Silent::before(swallowed.address).await?;
    let endpoints = [addresses(&replicas), vec![hole.address]].concat();
    let (_front, load) = start(context, &endpoints).await?;
    tokio::time::sleep(BEFORE).await;
    hole.fall_silent();
    tokio::time::sleep(NOTICE).await;
    measured(load, "blackhole, silent").await
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

/// What is sent from now on.
async fn measured(load: Load, name: &str) -> Measuring {
    let from = load.elapsed();
    tokio::time::sleep(MEASURED).await;
    let mut all = load.finish(PATIENCE).await?;
    tell(name, &all);
    all.retain(|one| one.due >= from);
    Ok(all)
}
