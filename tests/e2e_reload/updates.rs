//! The plugin's configuration changes again and again under load: no request fails, streams end well,
//! and nothing stays reserved.

use super::load::{chat, failed, open_loop};
use crate::support::check::{SETTLE, decided};
use crate::support::client::Protocol;
use crate::support::config::{EnvoyConfig, Mode, set};
use crate::support::eds::EdsFile;
use crate::support::envoy::EnvoyProcess;
use crate::support::fleet::Fleet;
use crate::support::mock::{Mock, MockOptions};
use crate::support::root;
use serde_json::json;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use warmroute::sim::replica::Profile;

const WORKERS: u32 = 4;
/// The first configuration, and the five that follow.
const POLICIES: [&str; 6] = [
    "prefix_hash",
    "least_request",
    "expected_latency",
    "round_robin",
    "cache_aware",
    "prefix_hash",
];
/// Between two changes: longer than most requests, shorter than it takes to drain a listener.
const PAUSE: Duration = Duration::from_millis(1_200);
/// Envoy's is ten minutes: for so long an updated listener keeps old connections.
const DRAIN: Duration = Duration::from_secs(5);

/// How Envoy learns of a new plugin configuration.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The whole listener anew (LDS).
    Listener,
    /// The filter alone (ECDS).
    Extension,
}

/// An Envoy whose filter is configured by a file.
struct Changing {
    way: Way,
    config: EnvoyConfig,
    file: PathBuf,
    written: u32,
}

impl Changing {
    /// `name` is the file's.
    fn new(config: EnvoyConfig, way: Way, name: &str) -> Self {
        let plugin = json!({ "scrape": null, "explain": {"response_header": true} });
        let directory = root().join("target/e2e");
        fs::create_dir_all(&directory).unwrap();
        let name = format!("update-{name}-{way:?}-{}.json", std::process::id());
        Self {
            way,
            config: config.plugin(&plugin).unwrap(),
            file: directory.join(name),
            written: 0,
        }
    }

    /// Writes the file with another policy; Envoy looks for files that are moved into place.
    fn write(&mut self, policy: &str) {
        let plugin = json!({ "policy": {"name": policy} });
        self.config = self.config.clone().plugin(&plugin).unwrap();
        self.written += 1;
        let mut resource = match self.way {
            Way::Listener => self.config.0["static_resources"]["listeners"][0].clone(),
            Way::Extension => {
                let config = self.config.wasm().unwrap().clone();
                let kind = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
                json!({"name": "warmroute", "typed_config": {"@type": kind, "config": config}})
            }
        };
        resource["@type"] = json!(match self.way {
            Way::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Way::Extension => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        });
        let text = json!({"version_info": self.written.to_string(), "resources": [resource]});
        let unfinished = self.file.with_extension("unfinished");
        fs::write(&unfinished, text.to_string()).unwrap();
        fs::rename(&unfinished, &self.file).unwrap();
    }

    /// What Envoy is started with.
    fn bootstrap(&self) -> EnvoyConfig {
        let mut config = self.config.clone();
        let file = json!({"path": self.file.display().to_string()});
        let source = json!({"path_config_source": file, "resource_api_version": "V3"});
        config.0["node"] = json!({"id": "test", "cluster": "test"});
        match self.way {
            Way::Listener => {
                config.0["dynamic_resources"] = json!({ "lds_config": source });
                set(&mut config.0, "/static_resources/listeners", json!([])).unwrap();
            }
            Way::Extension => {
                let filters = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config\
                               /http_filters/0";
                let kind = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
                let discovery = json!({"config_source": source, "type_urls": [kind]});
                let filter = json!({"name": "warmroute", "config_discovery": discovery});
                set(&mut config.0, filters, filter).unwrap();
            }
        }
        config
    }
}

async fn mocks() -> Vec<Mock> {
    let mut mocks = Vec::new();
    for _ in 0..4 {
        let options = MockOptions {
            profile: Profile::fast(),
            ..MockOptions::default()
        };
        mocks.push(Mock::start(options).await.unwrap());
    }
    mocks
}

/// Until all workers know of somebody who serves.
async fn until_served(fleet: &Fleet) {
    let (begun, mut in_a_row) = (Instant::now(), 0);
    while in_a_row < 8 * WORKERS {
        let answer = fleet.client(Protocol::Http1).send(chat(0, false)).await;
        let served = answer.is_ok_and(|answer| answer.status == 200);
        in_a_row = if served { in_a_row + 1 } else { 0 };
        assert!(begun.elapsed() < SETTLE, "nobody serves");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Until a connection that has just been opened is served by this policy.
async fn in_force(fleet: &Fleet, policy: &str) -> Duration {
    let begun = Instant::now();
    loop {
        let answer = fleet.client(Protocol::Http1).send(chat(0, false)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        if decided(&answer.headers, "policy") == policy {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < SETTLE, "{policy} is not in force");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The VMs that Envoy has: one for each worker, one for the main thread, and the one that they are
/// copied from.
async fn vms_become(fleet: &Fleet, wanted: f64) {
    let begun = Instant::now();
    loop {
        let stats = fleet.stats_now().await;
        let active = stats.metric("envoy_wasm_envoy_wasm_runtime_v8_active", &[]);
        if active == wanted {
            return;
        }
        assert!(
            begun.elapsed() < 2 * DRAIN + SETTLE,
            "{active} VMs, not {wanted}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn addresses(mocks: &[Mock]) -> Vec<SocketAddr> {
    mocks.iter().map(Mock::addr).collect()
}

/// Endpoints of the configuration.
async fn changes(mode: Mode, way: Way) {
    let mocks = mocks().await;
    let shipped = EnvoyConfig::shipped(mode).unwrap();
    let config = shipped.endpoints(&addresses(&mocks)).unwrap();
    lose_nothing(mocks, Changing::new(config, way, mode.name())).await;
}

/// Endpoints that Envoy discovers: a new configuration begins with those that were known last.
async fn changes_with_discovery(way: Way) {
    let mocks = mocks().await;
    let eds = EdsFile::new(&addresses(&mocks));
    let config = EnvoyConfig::discovery(&eds).unwrap();
    lose_nothing(mocks, Changing::new(config, way, "discovery")).await;
}

async fn lose_nothing(mocks: Vec<Mock>, mut changing: Changing) {
    changing.write(POLICIES[0]);
    let drain = DRAIN.as_secs().to_string();
    let bootstrap = changing.bootstrap();
    let envoy = EnvoyProcess::start_with(&bootstrap, WORKERS, &["--drain-time-s", &drain]).await;
    let fleet = Fleet::new(envoy.unwrap(), mocks);
    until_served(&fleet).await;
    in_force(&fleet, POLICIES[0]).await;

    let protocols = Protocol::ALL.into_iter().cycle().take(12);
    let clients = protocols.map(|protocol| fleet.client(protocol)).collect();
    let long = PAUSE * 6 + DRAIN + Duration::from_secs(2);
    let load = tokio::spawn(open_loop(clients, Duration::from_millis(8), long));
    let mut changed = Vec::new();
    for policy in &POLICIES[1..] {
        tokio::time::sleep(PAUSE).await;
        changing.write(policy);
        changed.push(Instant::now());
        println!(
            "{policy} in force after {:?}",
            in_force(&fleet, policy).await
        );
    }
    let outcomes = load.await.unwrap();
    let lost = failed(&outcomes);
    println!(
        "{}: {} of {} lost",
        changing.file.display(),
        lost.len(),
        outcomes.len()
    );
    assert!(lost.is_empty(), "{lost:?}");
    for moment in changed {
        let crossing = outcomes.iter().filter(|o| o.spans(moment)).count();
        assert!(crossing > 5, "only {crossing} were under way at a change");
    }
    fleet.inflight_is_zero_within(SETTLE).await.unwrap();
    vms_become(&fleet, f64::from(WORKERS + 2)).await;
    let log = fleet.envoy.log();
    assert!(
        !log.contains("panicked") && !log.contains("critical"),
        "{log}"
    );
}

#[tokio::test]
async fn a_new_configuration_loses_nothing_listener_discovery() {
    changes_with_discovery(Way::Listener).await;
}

#[tokio::test]
async fn a_new_configuration_loses_nothing_filter_discovery() {
    changes_with_discovery(Way::Extension).await;
}

#[tokio::test]
async fn a_new_configuration_loses_nothing_listener_original_dst() {
    changes(Mode::OriginalDst, Way::Listener).await;
}

#[tokio::test]
async fn a_new_configuration_loses_nothing_listener_override_host() {
    changes(Mode::OverrideHost, Way::Listener).await;
}

#[tokio::test]
async fn a_new_configuration_loses_nothing_filter_original_dst() {
    changes(Mode::OriginalDst, Way::Extension).await;
}

#[tokio::test]
async fn a_new_configuration_loses_nothing_filter_override_host() {
    changes(Mode::OverrideHost, Way::Extension).await;
}
