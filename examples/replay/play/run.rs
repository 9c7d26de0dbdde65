//! One run: fresh replicas, a fresh router, the whole workload, and the record of it.

use super::client::Client;
use super::cost::{self, Busy, Machine};
use super::engines::{Counters, Engines, Replicas};
use super::names::{Family, Name};
use super::router::{Router, Start};
use super::send::{Order, Sent, send, stopped};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use warmroute::sim::record::Run;
use warmroute::sim::workload::Workload;

/// Which router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Through {
    /// One that is started for this run.
    Started(Name),
    /// One that runs already, by its URL.
    There(String),
}

impl Through {
    /// Router and policy, as in the record.
    pub fn names(&self) -> (String, String) {
        match self {
            Self::Started(name) => (name.family.name().to_owned(), name.policy.to_owned()),
            Self::There(url) => {
                let host = url.trim_start_matches("http://").trim_end_matches('/');
                ("url".to_owned(), host.to_owned())
            }
        }
    }
}

/// What is the same for all runs.
#[derive(Clone, Debug)]
pub struct Setting {
    pub replicas: Replicas,
    pub model: String,
    /// How much faster than the workload says everything goes.
    pub speed: f64,
    pub start: Start,
    /// An answer that is silent for so long is given up.
    pub silence: Duration,
}

/// Above this, in real milliseconds and for one request in a hundred, the sender itself distorts what
/// it measures.
pub const LATE_MOST_MS: f64 = 10.0;

/// Runs `workload` through one router. Whatever goes wrong is in the record.
pub async fn run(
    setting: &Setting,
    through: &Through,
    workload: &Arc<Workload>,
    seed: u64,
    stop: watch::Receiver<bool>,
    over: &dyn Fn(),
) -> Run {
    let (router, policy) = through.names();
    let mut run = Run {
        router,
        policy,
        seed,
        ..Run::default()
    };
    if let Err(why) = fill(&mut run, setting, through, workload, stop, over).await {
        run.failed = Some(why);
    }
    run
}

async fn fill(
    run: &mut Run,
    setting: &Setting,
    through: &Through,
    workload: &Arc<Workload>,
    mut stop: watch::Receiver<bool>,
    over: &dyn Fn(),
) -> Result<(), String> {
    let replicas = match through {
        Through::Started(_) => setting.replicas.clone(),
        // What is behind a router that runs already is its own affair.
        Through::There(_) => Replicas::There(Vec::new()),
    };
    let engines = Engines::start(&replicas, &setting.model, workload).await?;
    run.endpoints = engines.addresses.iter().map(ToString::to_string).collect();
    let router = match through {
        Through::Started(name) => tokio::select! {
            started = Router::start(*name, &engines.addresses, setting.start) => Some(started?),
            () = stopped(&mut stop) => {
                run.unsent = u32::try_from(workload.requests.len()).unwrap_or(u32::MAX);
                return Ok(());
            }
        },
        Through::There(_) => None,
    };
    let base = match (through, &router) {
        (Through::There(url), _) => url.clone(),
        (_, Some(router)) => format!("http://{}", router.listener()),
        (_, None) => return Err("there is no router".to_owned()),
    };
    let order = Order {
        workload: Arc::clone(workload),
        client: Client::new(&base, setting.silence)?,
        model: setting.model.clone(),
        speed: setting.speed,
        endpoints: run.endpoints.clone(),
    };
    run.notes.extend(name_note(through));
    measure(run, &order, &engines, router, stop, over).await;
    engines.stop().await;
    Ok(())
}

/// Sends, and takes down what that cost.
async fn measure(
    run: &mut Run,
    order: &Order,
    engines: &Engines,
    mut router: Option<Router>,
    stop: watch::Receiver<bool>,
    over: &dyn Fn(),
) {
    let before = engines.counters().await;
    let cost = router.as_ref().and_then(Router::cost);
    let machine = Machine::now();
    let sent = send(order, stop, over).await;
    let busy = machine.and_then(|before| Some(Machine::now()?.since(before)));
    run.cost = cost::between(cost, router.as_ref().and_then(Router::cost));
    let after = engines.counters().await;
    run.notes.push(sender_note(&sent, busy));
    if let Some(last) = router.as_mut().and_then(Router::last_words) {
        run.notes
            .push(format!("The router ended during the run: {last}"));
    }
    add_calls(run, &after, &before);
    take(run, sent, after.hit_rate_since(&before));
}

/// Takes over the requests; `hit_rate` is what the engines' own counters say.
fn take(run: &mut Run, sent: Sent, hit_rate: Option<f64>) {
    let is_answered = sent.served.iter().any(|served| served.error.is_none());
    let is_placed = sent.served.iter().any(|served| served.endpoint.is_some());
    let is_known = sent.cached_known.contains(&true);
    run.unsent = sent.unsent;
    run.served = sent.served;
    if !is_answered {
        return;
    }
    if !is_placed {
        let note = "The answers do not say which endpoint served them.";
        run.notes.push(note.to_owned());
    }
    match hit_rate {
        _ if is_known => {}
        Some(rate) => spread_cached(run, rate),
        None => {
            let note = "Nobody says how many tokens of a prompt were cached.";
            run.notes.push(note.to_owned());
        }
    }
}

/// Where no answer says what was cached, the engines' own counters do, for the run as a whole.
fn spread_cached(run: &mut Run, rate: f64) {
    for served in &mut run.served {
        served.cached_tokens = (f64::from(served.prompt_tokens) * rate).round() as u32;
    }
    run.notes.push(format!(
        "Cached tokens are the engines' own counters over the run ({:.1} % of the tokens they looked up), \
         spread evenly over the requests.",
        rate * 100.0
    ));
}

/// Calls that engines got beside the inference.
fn add_calls(run: &mut Run, after: &Counters, before: &Counters) {
    let Some(calls) = after.calls_since(before) else {
        return;
    };
    run.extra_calls = Some(calls.values().sum());
    if !calls.is_empty() {
        let list: Vec<String> = calls
            .iter()
            .map(|(path, count)| format!("{path} {count}"))
            .collect();
        run.notes.push(format!(
            "Calls to the engines other than inference: {}.",
            list.join(", ")
        ));
    }
}

/// What has to be known of this router to judge it fairly.
fn name_note(through: &Through) -> Option<String> {
    let Through::Started(name) = through else {
        return None;
    };
    let note = match (name.family, name.policy) {
        (Family::SglangRouter, "power_of_two") => {
            "It asks engines for /get_load, which vLLM does not have: without it, it picks at random."
        }
        (Family::VllmRouter, "power_of_two") => {
            "It asks engines for /get_load, which vLLM does not have: it uses its own counts."
        }
        (Family::Envoy, "ring_hash")
        | (Family::Warmroute | Family::VllmRouter, "consistent_hash") => {
            "It hashes the header x-session-id, which the client has to send."
        }
        _ => return None,
    };
    Some(note.to_owned())
}

/// How far the measurement itself can be trusted.
fn sender_note(sent: &Sent, busy: Option<Busy>) -> String {
    let ms = |us: u64| us as f64 / 1e3;
    let p99 = ms(quantile(&sent.late_us, 0.99));
    let max = ms(sent.late_us.last().copied().unwrap_or_default());
    let busy = busy.map_or_else(String::new, |busy| {
        let percent = |share: f64| (share * 100.0).round();
        let (machine, own) = (percent(busy.machine), percent(busy.own));
        format!("; the machine was {machine} % busy, {own} % with this program")
    });
    let caution = match p99 > LATE_MOST_MS {
        true => " That is too late to trust the latencies: use a lower --speed or rate.",
        false => "",
    };
    format!(
        "The sender was late by {p99:.1} ms (p99, real time), {max:.1} ms at most{busy}.{caution}"
    )
}

/// The nearest rank; `sorted` ascending. 0 if there are none.
fn quantile(sorted: &[u64], q: f64) -> u64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}
