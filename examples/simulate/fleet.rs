//! The fleet as it is given on the command line.

use std::str::FromStr;

use serde_json::Value;
use warmroute::sim::fleet::{FleetOptions, POLICIES, policy};
use warmroute::sim::profiles;
use warmroute::sim::replica::Profile;

/// What serves the workload, and who routes it.
#[derive(clap::Args, Clone, Debug)]
pub struct FleetArgs {
    /// Policies to compare: names, `all`, or a `policy` object of the plugin configuration (once
    /// more for each further one).
    #[arg(long = "policies", value_name = "POLICY,...", default_value = "all")]
    policies: Vec<Policies>,
    /// Replicas: groups of COUNTxPROFILE, with /FACTOR for slower ones and @WEIGHT for a capacity
    /// weight, as in `4xl4,4xl4/2.5@1`. Profiles: l4, l4-fp8, h100x2, fast.
    #[arg(
        long,
        value_name = "GROUP,...",
        value_delimiter = ',',
        default_value = "8xl4-fp8"
    )]
    fleet: Vec<Group>,
    /// Blocks of KV cache of each replica, instead of the profile's.
    #[arg(long)]
    blocks: Option<u32>,
    /// Envoys, which share nothing but the replicas.
    #[arg(long, default_value_t = 1)]
    gateways: u32,
    /// Workers of each Envoy.
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// How often each Envoy asks each replica for its metrics; 0 for never.
    #[arg(long, default_value_t = 1_000, value_name = "MS")]
    scrape_interval_ms: u64,
}

impl FleetArgs {
    /// One fleet for each policy.
    pub fn fleets(&self, seed: u64) -> Vec<FleetOptions> {
        let policies = self.policies.iter().flat_map(|policies| &policies.0);
        policies.map(|policy| self.fleet(policy, seed)).collect()
    }

    fn fleet(&self, policy: &Value, seed: u64) -> FleetOptions {
        let each = |group: &Group| (0..group.count).map(|_| group.clone()).collect::<Vec<_>>();
        let replicas: Vec<Group> = self.fleet.iter().flat_map(each).collect();
        let profile = |group: &Group| Profile {
            blocks: self.blocks.unwrap_or(group.profile.blocks),
            ..group.profile.clone()
        };
        FleetOptions {
            weights: replicas.iter().map(|group| group.weight).collect(),
            gateways: self.gateways,
            workers: self.workers,
            scrape_interval_ms: self.scrape_interval_ms,
            seed,
            ..FleetOptions::new(replicas.iter().map(profile).collect(), policy.clone())
        }
    }

    /// One sentence for the report.
    pub fn describe(&self) -> String {
        let groups: Vec<&str> = self.fleet.iter().map(|group| group.text.as_str()).collect();
        let blocks = self
            .blocks
            .map(|blocks| format!(" with {blocks} blocks of KV cache"));
        format!(
            "{}{}, modelled; Envoys: {}, workers of each: {}.",
            groups.join(" and "),
            blocks.unwrap_or_default(),
            self.gateways,
            self.workers
        )
    }
}

/// Policies from one argument.
#[derive(Clone, Debug)]
struct Policies(Vec<Value>);

impl FromStr for Policies {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(POLICIES.map(policy).to_vec()));
        }
        if text.starts_with('{') {
            let object = serde_json::from_str(text).map_err(|e| e.to_string())?;
            return Ok(Self(vec![object]));
        }
        let known = |name: &str| match POLICIES.contains(&name) {
            true => Ok(policy(name)),
            false => Err(format!(
                "no policy `{name}`; there are {}",
                POLICIES.join(", ")
            )),
        };
        text.split(',')
            .map(known)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// Some equal replicas.
#[derive(Clone, Debug)]
struct Group {
    text: String,
    count: u32,
    profile: Profile,
    weight: u32,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, rest) = text
            .split_once('x')
            .ok_or("expected COUNTxPROFILE, as in 8xl4")?;
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=1_000).contains(count))
            .ok_or_else(|| format!("`{count}` is no number of replicas (1 to 1,000)"))?;
        let (rest, weight) = match rest.split_once('@') {
            Some((rest, weight)) => (rest, weight.parse().map_err(|e| format!("weight: {e}"))?),
            None => (rest, 1),
        };
        let (name, slower) = match rest.split_once('/') {
            Some((name, slower)) => (name, slower.parse().map_err(|e| format!("factor: {e}"))?),
            None => (rest, 1.0),
        };
        let profile = profiles::named(name).ok_or_else(|| {
            format!(
                "no profile `{name}`; there are {}",
                profiles::NAMES.join(", ")
            )
        })?;
        if !(0.01..=100.0).contains(&slower) {
            return Err(format!("a factor of {slower} is not between 0.01 and 100"));
        }
        Ok(Self {
            text: text.to_owned(),
            count,
            profile: profile.slowed((slower * 1_000.0) as u32),
            weight,
        })
    }
}
