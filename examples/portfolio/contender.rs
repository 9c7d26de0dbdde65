//! Who is compared: a policy of this crate, or another project's algorithm.

use std::str::FromStr;

use serde_json::{Value, json};
use warmroute::sim::fleet::{FleetOptions, POLICIES, policy};
use warmroute::sim::peers::PeerKind;
use warmroute::sim::replica::Profile;

use crate::bounds;

/// A policy with a name for tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    pub name: String,
    routing: Routing,
}

#[derive(Clone, Debug, PartialEq)]
enum Routing {
    Own(Value),
    Peer(PeerKind),
    /// Nobody: all replicas are one.
    Pooled,
}

impl Contender {
    /// The fleet that it routes.
    pub fn fleet(&self, replicas: &[Profile], seed: u64) -> FleetOptions {
        let (policy, peer) = match &self.routing {
            Routing::Own(policy) => (policy.clone(), None),
            Routing::Peer(kind) => (Value::Null, Some(*kind)),
            Routing::Pooled => return bounds::pooled(replicas, seed),
        };
        FleetOptions {
            peer,
            seed,
            ..FleetOptions::new(replicas.to_vec(), policy)
        }
    }

    fn own(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            routing: Routing::Own(policy(name)),
        }
    }

    fn peer(kind: PeerKind) -> Self {
        Self {
            name: kind.name().to_owned(),
            routing: Routing::Peer(kind),
        }
    }

    /// The router that looks into the engines.
    pub fn oracle() -> Self {
        Self::peer(PeerKind::Oracle)
    }

    /// No router: all replicas as one.
    pub fn pooled() -> Self {
        Self {
            name: "pooled".to_owned(),
            routing: Routing::Pooled,
        }
    }

    /// Policies of this crate with other settings than their own defaults.
    fn variants() -> impl Iterator<Item = Self> + Clone {
        let variants = [
            // KubeAI's bound with this crate's key.
            (
                "prefix_hash_requests",
                json!({"name": "prefix_hash", "bound": "requests", "load_factor": 1.25}),
            ),
            (
                "prefix_hash_time",
                json!({"name": "prefix_hash", "bound": "expected_time"}),
            ),
            (
                "power_of_two_time",
                json!({"name": "power_of_two", "load": "expected_time"}),
            ),
            (
                "cache_aware_sglang",
                json!({"name": "cache_aware", "preset": "sglang_router"}),
            ),
            (
                "cache_aware_ray",
                json!({"name": "cache_aware", "preset": "ray"}),
            ),
        ];
        variants.into_iter().map(|(name, policy)| Self {
            name: name.to_owned(),
            routing: Routing::Own(policy),
        })
    }

    /// `{…}` or `NAME={…}`.
    fn object(text: &str) -> Result<Self, String> {
        let (name, object) = match text.split_once("={") {
            Some((name, _)) => (name, text.get(name.len() + 1..).unwrap_or_default()),
            None => (text, text),
        };
        let policy: Value = serde_json::from_str(object).map_err(|e| format!("{object}: {e}"))?;
        Ok(Self {
            name: name.to_owned(),
            routing: Routing::Own(policy),
        })
    }
}

/// Contenders from one argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Contenders(pub Vec<Contender>);

impl FromStr for Contenders {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('{') {
            return Ok(Self(vec![Contender::object(text)?]));
        }
        let words = text.split(',').map(named);
        let named: Vec<Vec<Contender>> = words.collect::<Result<_, _>>()?;
        Ok(Self(named.concat()))
    }
}

fn named(word: &str) -> Result<Vec<Contender>, String> {
    // Without weights it is `round_robin`.
    let own = POLICIES
        .into_iter()
        .filter(|name| *name != "weighted_round_robin");
    let own = own.map(Contender::own).chain(Contender::variants());
    let peers = PeerKind::ALL.into_iter().map(Contender::peer);
    let names: Vec<String> = own
        .clone()
        .chain(peers.clone())
        .map(|one| one.name)
        .collect();
    let all: Vec<Contender> = match word {
        "all" => own.chain(peers).collect(),
        "own" => own.collect(),
        "peers" => peers.collect(),
        _ => own.chain(peers).filter(|one| one.name == word).collect(),
    };
    if all.is_empty() {
        return Err(format!(
            "no policy `{word}`; there are {}",
            names.join(", ")
        ));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let contenders: Contenders = text.parse().unwrap();
        contenders.0.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn policies_come_by_name_by_group_and_as_objects() {
        assert_eq!(names("dynamo,prefix_hash"), ["dynamo", "prefix_hash"]);
        assert_eq!(
            names("all").len(),
            names("own").len() + names("peers").len()
        );
        let object = r#"{"name": "prefix_hash", "load_factor": 2}"#;
        assert_eq!(names(object), [object]);
        assert_eq!(names(&format!("loose={object}")), ["loose"]);
        let error = "nobody".parse::<Contenders>().unwrap_err();
        assert!(error.starts_with("no policy `nobody`; there are round_robin"));
        assert!("x={".parse::<Contenders>().is_err());
    }
}
