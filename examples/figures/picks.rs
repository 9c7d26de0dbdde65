//! Picks that race on four workers: bounds, and the spread of simultaneous requests.

use crate::Figure;
use crate::decision::{change, chat, clients, explained, held, pools, until_idle, with};
use crate::support::config::{EnvoyConfig, Mode};
use crate::support::fleet::Fleet;
use crate::waves::{Replay, distinct, open_all, replay};
use serde_json::json;
use std::time::Duration;

const WORKERS: u32 = 4;
const ENDPOINTS: usize = 8;
const CLIENTS: usize = 64;
const WAVES: usize = 20;
const WAVE: usize = 1_000;
const KEYS: usize = 40;
const TRIALS: usize = 30;
/// Envoy has to notice a thousand clients leaving.
const SETTLE: Duration = Duration::from_secs(30);

/// Waves of requests that stay, replayed one pick after the other.
pub async fn bounds() -> Result<Vec<Figure>, String> {
    let mut options = explained(Mode::OriginalDst, WORKERS, ENDPOINTS);
    options.adjust = |config| change(config, &json!({ "policy": {"name": "prefix_hash"} }));
    let fleet = Fleet::try_start(options).await?;
    // HTTP/2 for every second one, so that connections last and every worker has some.
    let clients = clients(&fleet, CLIENTS);
    let prober = clients.last().ok_or("no client")?;
    let endpoints = fleet.endpoints();
    let mut found = Replay::default();
    for wave in 0..WAVES {
        until_idle(prober, &chat("probe"), SETTLE).await?;
        // The hot key and the others in turn; all prompts are equally long.
        let calls = (0..WAVE).map(|number| {
            let key = match number % 3 {
                0 => 0,
                _ => (wave + number) % KEYS,
            };
            held(chat(&format!("The prompt of key {key:04}")))
        });
        let opened = open_all(&clients, calls.collect()).await?;
        let picks = opened.iter().map(|(pick, _)| pick.clone()).collect();
        found.add(&replay(picks, &endpoints));
    }
    let workers = busy_workers(&fleet).await?;
    if workers != WORKERS as usize {
        return Err(format!("only {workers} of {WORKERS} workers had requests"));
    }
    if found.picks != (WAVES * WAVE) as u64 || found.overflows == 0 {
        return Err(format!("the bound was not put to the test: {found:?}"));
    }
    Ok(vec![
        ("bound_violations", found.bound_violations as f64),
        ("bound_picks", found.picks as f64),
        ("bound_overflows", found.overflows as f64),
        (
            "bound_other_than_the_replay_finds",
            found.bound_mismatches as f64,
        ),
        (
            "loads_other_than_the_replay_finds",
            found.load_mismatches as f64,
        ),
        ("sequence_gaps", found.sequence_gaps as f64),
    ])
}

/// How many of Envoy's workers have had a connection of the listener.
async fn busy_workers(fleet: &Fleet) -> Result<usize, String> {
    let stats = fleet
        .envoy
        .admin_get("/stats?filter=listener.*worker_.*downstream_cx_total")
        .await?;
    let port = fleet.envoy.listener.port().to_string();
    let counts = stats
        .lines()
        .filter(|line| line.starts_with("listener.1") || line.contains(&port))
        .filter_map(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok());
    Ok(counts.filter(|count| *count > 0).count())
}

const POLICIES: [&str; 3] = ["least_request", "least_outstanding_tokens", "prefix_hash"];

fn load_policies(config: &mut EnvoyConfig) {
    let all = POLICIES.map(|name| match name {
        "prefix_hash" => (name, json!({"name": name, "load_factor": 1.0})),
        _ => (name, json!({ "name": name })),
    });
    pools(config, &all);
}

/// On how many endpoints eight requests land that come at once, at the least.
pub async fn simultaneous() -> Result<Vec<Figure>, String> {
    let mut options = explained(Mode::OriginalDst, WORKERS, ENDPOINTS)
        .each_mock(|mock| mock.adapters = POLICIES.map(str::to_owned).to_vec());
    options.adjust = load_policies;
    let fleet = Fleet::try_start(options).await?;
    let clients = clients(&fleet, CLIENTS);
    let prober = clients.last().ok_or("no client")?;
    let mut least = usize::MAX;
    for policy in POLICIES {
        for trial in 0..TRIALS {
            let probe = with(chat("probe"), json!({ "model": policy }));
            until_idle(prober, &probe, SETTLE).await?;
            // One prompt for all in every second trial.
            let calls = (0..ENDPOINTS).map(|number| {
                let prompt = format!("Trial {trial}, prompt {}", number * (trial % 2));
                held(with(chat(&prompt), json!({ "model": policy })))
            });
            let turn = trial * ENDPOINTS % CLIENTS;
            let eight = clients.iter().cycle().skip(turn).take(ENDPOINTS);
            let eight: Vec<_> = eight.cloned().collect();
            let opened = open_all(&eight, calls.collect()).await?;
            if let Some((pick, _)) = opened.iter().find(|(pick, _)| pick.policy != policy) {
                return Err(format!("picked by {}, not {policy}", pick.policy));
            }
            least = least.min(distinct(&opened));
        }
    }
    let workers = busy_workers(&fleet).await?;
    if workers != WORKERS as usize {
        return Err(format!("only {workers} of {WORKERS} workers had requests"));
    }
    Ok(vec![("simultaneous_8_on_8_endpoints", least as f64)])
}
