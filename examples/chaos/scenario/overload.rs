//! Twice the load that the engines take, each of which refuses what is beyond its limit: as many
//! requests get through as with plain round robin, and the others get a refusal, not a dead end, and
//! refusals are not tried again into more overload.

use super::{Context, Result, tell};
use crate::bars::{Bar, Measured};
use crate::front::{Front, Setup};
use crate::load::{Order, Twist};
use crate::outcome::{End, Outcome, count};
use crate::replica::{Kind, Replica, addresses};
use crate::support::config::Mode;
use std::time::Duration;

const SPEED: f64 = 4.0;
/// At most 8 answers of about 39 tokens at a time, 54 ms a token: 4 replicas end 15 a second.
const MOST_REQUESTS: u32 = 8;
const RATE_PER_S: f64 = 30.0;
const SPAN: Duration = Duration::from_secs(10);
/// Requests that Envoy sent to the endpoints of a cluster, each try of its own.
const TRIES: &str = "envoy_cluster_upstream_rq_total";
const PATIENCE: Duration = Duration::from_secs(20);

/// With failover, where every refusal is tried elsewhere, and without any filter.
pub async fn run(context: &Context) -> Result {
    let (ours, tries) = served(context, Mode::OverrideHost).await?;
    let (plain, _) = served(context, Mode::Plain).await?;
    let good = |all: &[Outcome]| count(all, |one| one.end == End::Good) as f64;
    let is_refused = |one: &Outcome| matches!(one.end, End::Status(429 | 503));
    let is_odd = |one: &Outcome| one.end != End::Good && !is_refused(one);
    Ok(vec![
        Measured::new(
            "overload_goodput_ratio",
            good(&ours) / good(&plain),
            Bar::AtLeast(0.9),
        ),
        Measured::told("overload_goodput_per_s", good(&ours) / SPAN.as_secs_f64()),
        Measured::new(
            "overload_refused_share",
            count(&ours, is_refused) as f64 / ours.len() as f64,
            Bar::AtLeast(0.1),
        ),
        Measured::new(
            "overload_tries_per_request",
            tries / ours.len() as f64,
            Bar::AtMost(1.5),
        ),
        Measured::none("overload_other_ends", count(&ours, is_odd)),
    ])
}

/// What all requests came to, and how many Envoy sent to engines for them.
async fn served(context: &Context, mode: Mode) -> std::result::Result<(Vec<Outcome>, f64), String> {
    let mut kind = Kind::new("l4", SPEED);
    kind.most_requests = Some(MOST_REQUESTS);
    let replicas = Replica::start_all(4, &kind).await?;
    let setup = Setup::new(mode, context.workers);
    let front = Front::listed(&setup, &addresses(&replicas)).await?;
    let order = Order::chats(context.seed, RATE_PER_S, SPEED, SPAN + PATIENCE);
    let load = front.load(&order.twisted(|_| Twist::WHOLE));
    tokio::time::sleep(SPAN).await;
    let all = load.finish(PATIENCE).await?;
    tell(&format!("overload, {}", mode.name()), &all);
    let stats = front.stats("cluster.vllm.upstream_rq_total").await?;
    let tries = stats.metric(TRIES, &[("envoy_cluster_name", "vllm")]);
    if tries < count(&all, |one| one.end == End::Good) as f64 {
        return Err(format!("Envoy counted only {tries} requests to engines"));
    }
    Ok((all, tries))
}
