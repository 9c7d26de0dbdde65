//! Which endpoints there are besides those of the configuration: Envoy's list of clusters is read by one
//! worker, and what it says is taken over by all.
//!
//! What was known stays until there is something better: an answer that is broken, late or lacks a
//! cluster changes nothing and is a failure. A cluster without members is believed only when it is seen so
//! twice in a row, since a control plane that is just starting says the same.

mod news;

use crate::config::Config;
use crate::endpoint::{Endpoint, EndpointId};
use crate::health::Verdict;
use crate::scrape::clusters::{ClustersReader, Member};
use crate::state::Store;
use crate::state::members::{self, name_hash};

pub use self::news::News;

/// A pool without endpoints serves nobody: so long as there is one, Envoy is asked that often, in milliseconds.
const HURRY_MS: u64 = 200;

/// One cluster that is looked for, and what this worker knows of it.
#[derive(Debug)]
struct Wanted {
    name: String,
    hash: u64,
    /// Whether its members are endpoints of a pool, or only its verdicts count.
    is_member: bool,
    /// Version of the members, and when they were confirmed; 0 if never.
    version: u64,
    at_ms: u64,
    members: Vec<Member>,
    /// The last answer said that it is empty, which is not believed yet.
    seemed_empty: bool,
}

/// Where a pool's endpoints come from.
#[derive(Debug)]
struct Source {
    /// Its clusters, as indices into what is wanted.
    clusters: Vec<usize>,
    /// Those of the configuration.
    fixed: Vec<EndpointId>,
}

/// What one worker knows, and, while it holds the lease, when it asks.
#[derive(Debug)]
pub struct Discovery {
    /// Where it asks, as shared state knows it.
    source: u64,
    path: String,
    interval_ms: u64,
    timeout_ms: u64,
    born_ms: u64,
    names: Vec<String>,
    /// In the order of `names`.
    wanted: Vec<Wanted>,
    pools: Vec<Source>,
    /// When the last question was asked.
    last_ms: Option<u64>,
    /// The same while it is not answered.
    asked_ms: Option<u64>,
}

impl Discovery {
    /// `None` if the configuration asks for none.
    pub fn new(config: &Config, now_ms: u64) -> Option<Self> {
        let discovery = config.discovery.as_ref()?;
        let mut names: Vec<String> = Vec::new();
        let mut pools = Vec::new();
        for pool in &config.pools {
            pools.push(Source {
                clusters: pool
                    .clusters
                    .iter()
                    .map(|name| place(&mut names, name))
                    .collect(),
                fixed: pool.pool.endpoints().iter().map(Endpoint::id).collect(),
            });
        }
        let members = names.len();
        for name in &discovery.verdicts {
            place(&mut names, name);
        }
        let wanted = names.iter().enumerate().map(|(at, name)| Wanted {
            name: name.clone(),
            hash: name_hash(name),
            is_member: at < members,
            version: 0,
            at_ms: 0,
            members: Vec::new(),
            seemed_empty: false,
        });
        Some(Self {
            source: name_hash(&format!("{}\n{}", discovery.cluster, discovery.path)),
            path: filtered(&discovery.path, &names),
            interval_ms: discovery.interval_ms,
            timeout_ms: discovery.timeout_ms,
            born_ms: now_ms,
            wanted: wanted.collect(),
            names,
            pools,
            last_ms: None,
            asked_ms: None,
        })
    }

    /// What to ask for.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether to ask now; from then on an answer is waited for.
    ///
    /// # Errors
    /// The last question was never answered.
    pub fn due(&mut self, now_ms: u64) -> Result<bool, String> {
        // The host drops an answer without a word when its VM dies; give up on it in the end.
        let patience_ms = self.timeout_ms.saturating_mul(2);
        let asked_ms = self.asked_ms;
        if asked_ms.is_some_and(|asked_ms| now_ms.abs_diff(asked_ms) > patience_ms) {
            self.asked_ms = None;
            return Err("no answer".into());
        }
        let interval_ms = match self.pools().any(|pool| self.is_empty(pool)) {
            true => self.interval_ms.min(HURRY_MS),
            false => self.interval_ms,
        };
        // A clock that is set back holds nothing up.
        let waits = |last_ms| last_ms <= now_ms && now_ms.saturating_sub(last_ms) < interval_ms;
        if asked_ms.is_some() || self.last_ms.is_some_and(waits) {
            return Ok(false);
        }
        self.last_ms = Some(now_ms);
        self.asked_ms = Some(now_ms);
        Ok(true)
    }

    /// Reads one answer.
    pub fn reader(&self) -> ClustersReader<'_> {
        ClustersReader::new(&self.names)
    }

    /// Takes over what is written down. Says whether that is something new.
    pub fn refresh<S: Store + ?Sized>(&mut self, store: &S) -> bool {
        let mut is_new = false;
        let head = members::head(store, self.source);
        for wanted in &mut self.wanted {
            let Some(row) = head.iter().find(|row| row.cluster == wanted.hash) else {
                continue;
            };
            wanted.at_ms = row.at_ms;
            if row.version == wanted.version {
                continue;
            }
            if let Some(members) = members::load(store, self.source, wanted.hash) {
                wanted.version = row.version;
                wanted.members = members;
                is_new = true;
            }
        }
        is_new
    }

    /// How long ago the members of all pools were known for certain, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        let members = self.wanted.iter().filter(|wanted| wanted.is_member);
        let oldest_ms = members.map(|wanted| wanted.at_ms).min().unwrap_or(now_ms);
        let since_ms = match oldest_ms {
            0 => self.born_ms,
            oldest_ms => oldest_ms,
        };
        now_ms.saturating_sub(since_ms)
    }

    /// The pools that have clusters.
    pub fn pools(&self) -> impl Iterator<Item = usize> {
        let pools = self.pools.iter().enumerate();
        pools
            .filter(|(_, source)| !source.clusters.is_empty())
            .map(|(pool, _)| pool)
    }

    fn clusters_of(&self, pool: usize) -> impl Iterator<Item = &Wanted> {
        let clusters = self.pools.get(pool).into_iter();
        let clusters = clusters.flat_map(|source| &source.clusters);
        clusters.filter_map(|at| self.wanted.get(*at))
    }

    /// Whether nobody is there who could serve.
    fn is_empty(&self, pool: usize) -> bool {
        let fixed = self
            .pools
            .get(pool)
            .is_some_and(|source| !source.fixed.is_empty());
        let stays = |wanted: &Wanted| {
            let mut members = wanted.members.iter();
            members.any(|member| member.verdict != Verdict::Draining)
        };
        !fixed && !self.clusters_of(pool).any(stays)
    }

    /// The members of a pool's clusters, with Envoy's weights, whatever Envoy thinks of them. Of a cluster with
    /// levels of failover, those up to the first level that somebody of is healthy, else degraded.
    pub fn endpoints(&self, pool: usize) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for wanted in self.clusters_of(pool) {
            let level = level(&wanted.members);
            let used = wanted.members.iter().filter(|one| one.priority <= level);
            endpoints.extend(used.map(|member| {
                let mut endpoint = Endpoint::new(member.address);
                endpoint.weight = member.weight;
                endpoint
            }));
        }
        endpoints
    }
}

/// The last level of failover that is used: the first with somebody of the best verdict there is.
fn level(members: &[Member]) -> u32 {
    let best = members.iter().min_by_key(|one| (one.verdict, one.priority));
    match best {
        Some(one) if one.verdict <= Verdict::Degraded => one.priority,
        // Nobody can serve, of whatever level.
        _ => u32::MAX,
    }
}

/// Where a name stands in the list, at whose end it is put if it is new.
fn place(names: &mut Vec<String>, name: &String) -> usize {
    match names.iter().position(|known| known == name) {
        Some(at) => at,
        None => {
            names.push(name.clone());
            names.len().saturating_sub(1)
        }
    }
}

/// The path with a filter that lets pass the clusters of these names and few others, so that Envoy need not write down
/// thousands. An Envoy that knows no filter gives them all.
fn filtered(path: &str, names: &[String]) -> String {
    const FILTER: &[u8] = b"filter=";
    let mut parts = path.as_bytes().windows(FILTER.len());
    if parts.any(|part| part == FILTER) {
        return path.to_owned();
    }
    let mut text = path.to_owned();
    text.push(match path.as_bytes().contains(&b'?') {
        true => '&',
        false => '?',
    });
    // ^(one|other)$, encoded.
    text.push_str("filter=%5E(");
    for (at, name) in names.iter().enumerate() {
        if at > 0 {
            text.push_str("%7C");
        }
        for letter in name.chars() {
            match letter {
                'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => text.push(letter),
                // Stands for any: names are compared again anyway.
                _ => text.push('.'),
            }
        }
    }
    text.push_str(")%24");
    text
}

#[cfg(test)]
mod tests;
