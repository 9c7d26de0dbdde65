//! Which endpoints there are besides those of the configuration: Envoy's list of clusters is read by one
//! worker, and what it says is taken over by all.
//!
//! What was known stays until there is something better: an answer that is broken, late or lacks a
//! cluster changes nothing and is a failure. A cluster without members is believed only when it is seen so
//! twice in a row, since a control plane that is just starting says the same.

use crate::config::Config;
use crate::endpoint::{Endpoint, EndpointId};
use crate::scrape::clusters::{Cluster, ClustersReader, MAX_MEMBERS, Member, Verdict};
use crate::state::Store;
use crate::state::members::{self, name_hash};

/// A pool without endpoints serves nobody: so long as there is one, Envoy is asked that often, in milliseconds.
const HURRY_MS: u64 = 200;

/// One cluster that is looked for, and what this worker knows of it.
#[derive(Debug)]
struct Wanted {
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

/// What one worker knows, and, while it holds the lease, when it asks.
#[derive(Debug)]
pub struct Discovery {
    source: u64,
    path: String,
    interval_ms: u64,
    timeout_ms: u64,
    born_ms: u64,
    /// Names of what is wanted, in the same order.
    names: Vec<String>,
    wanted: Vec<Wanted>,
    /// For each pool its clusters, as indices into `wanted`, and whether it has endpoints besides.
    pools: Vec<(Vec<usize>, bool)>,
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
        let mut place = |name: &String| {
            names
                .iter()
                .position(|known| known == name)
                .unwrap_or_else(|| {
                    names.push(name.clone());
                    names.len().saturating_sub(1)
                })
        };
        let pools = config.pools.iter().map(|pool| {
            let clusters = pool.clusters.iter().map(&mut place).collect();
            (clusters, !pool.pool.is_empty())
        });
        let pools: Vec<(Vec<usize>, bool)> = pools.collect();
        discovery.verdicts.iter().for_each(|name| {
            place(name);
        });
        let is_member = |at: usize| pools.iter().any(|(clusters, _)| clusters.contains(&at));
        let wanted = names.iter().enumerate().map(|(at, name)| Wanted {
            hash: name_hash(name),
            is_member: is_member(at),
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
    /// As [`Self::answered`]: the last question was never answered.
    pub fn due(&mut self, now_ms: u64) -> Result<bool, String> {
        // The host drops an answer without a word when its VM dies; give up on it in the end.
        let patience_ms = self.timeout_ms.saturating_mul(2);
        let asked_ms = self.asked_ms;
        if asked_ms.is_some_and(|asked_ms| now_ms.abs_diff(asked_ms) > patience_ms) {
            self.asked_ms = None;
            return Err("no answer".into());
        }
        let is_urgent = self.pools().any(|pool| self.is_empty(pool));
        let interval_ms = match is_urgent {
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

    /// An answer came, or it is certain that none will. What it says is written down for all workers.
    ///
    /// # Errors
    /// What is wrong with it, in one line. What is known stays, but for clusters of which the answer does say
    /// something.
    pub fn answered<S: Store + ?Sized>(
        &mut self,
        store: &S,
        now_ms: u64,
        answer: Result<Vec<Option<Cluster>>, String>,
    ) -> Result<(), String> {
        let asked_ms = self.asked_ms.take().ok_or("an answer that came too late")?;
        let mut problem = None;
        let clusters = answer?.into_iter();
        for ((wanted, name), cluster) in self.wanted.iter_mut().zip(&self.names).zip(clusters) {
            let left_out = cluster.as_ref().map_or(0, |cluster| cluster.left_out);
            if left_out > 0 {
                problem = Some(format!(
                    "{left_out} members of cluster `{name}` are left out, since there are more than {MAX_MEMBERS}"
                ));
            }
            match wanted.believed(name, cluster) {
                Ok(Some(members)) => {
                    let times = (asked_ms, now_ms);
                    members::save(store, self.source, wanted.hash, times, &members);
                }
                Ok(None) => {}
                Err(why) => problem = Some(why),
            }
        }
        problem.map_or(Ok(()), Err)
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
        let since_ms = if oldest_ms == 0 {
            self.born_ms
        } else {
            oldest_ms
        };
        now_ms.saturating_sub(since_ms)
    }

    /// The pools that have clusters.
    pub fn pools(&self) -> impl Iterator<Item = usize> {
        let pools = self.pools.iter().enumerate();
        pools
            .filter(|(_, (clusters, _))| !clusters.is_empty())
            .map(|(pool, _)| pool)
    }

    fn is_empty(&self, pool: usize) -> bool {
        self.pools.get(pool).is_some_and(|(clusters, has_others)| {
            let clusters = clusters.iter().filter_map(|at| self.wanted.get(*at));
            let mut members = clusters.flat_map(|wanted| &wanted.members);
            !has_others && members.all(|member| member.verdict == Verdict::Draining)
        })
    }

    /// The members of a pool's clusters that requests may go to.
    ///
    /// Who drains is not among them. Of the others only the healthy ones are, else the degraded ones, else, if
    /// there is nobody else in the pool, the unhealthy ones: Envoy may be wrong about all of them, and somebody must
    /// be asked. Of a cluster with levels of failover, the first level that has such a member is used.
    pub fn endpoints(&self, pool: usize) -> Vec<Endpoint> {
        let Some((clusters, has_others)) = self.pools.get(pool) else {
            return Vec::new();
        };
        let clusters = || clusters.iter().filter_map(|at| self.wanted.get(*at));
        let all = clusters().flat_map(|wanted| &wanted.members);
        let best = all.map(|member| member.verdict).min();
        let Some(best @ (Verdict::Healthy | Verdict::Degraded | Verdict::Unhealthy)) = best else {
            return Vec::new();
        };
        if best == Verdict::Unhealthy && *has_others {
            return Vec::new();
        }
        let mut endpoints = Vec::new();
        for wanted in clusters() {
            let alike = || wanted.members.iter().filter(|one| one.verdict == best);
            let level = alike().map(|member| member.priority).min();
            let chosen = alike().filter(|one| Some(one.priority) == level);
            endpoints.extend(chosen.map(endpoint));
        }
        endpoints
    }

    /// What Envoy thinks of each address, in any of the clusters; the worst counts.
    pub fn verdicts(&self) -> Vec<(EndpointId, Verdict)> {
        let members = self.wanted.iter().flat_map(|wanted| &wanted.members);
        let mut verdicts: Vec<(EndpointId, Verdict)> = members
            .map(|member| (Endpoint::new(member.address).id(), member.verdict))
            .collect();
        verdicts.sort_by(|one, other| other.cmp(one));
        verdicts.dedup_by_key(|(id, _)| *id);
        verdicts
    }
}

impl Wanted {
    /// The members as far as an answer is to be believed; `None` if that is not sure yet.
    fn believed(
        &mut self,
        name: &str,
        cluster: Option<Cluster>,
    ) -> Result<Option<Vec<Member>>, String> {
        let Some(cluster) = cluster else {
            return Err(format!("Envoy has no cluster `{name}`"));
        };
        let is_empty = cluster.members.is_empty() && self.is_member;
        if is_empty && cluster.unusable > 0 {
            return Err(format!(
                "no member of cluster `{name}` has an address IP:port"
            ));
        }
        let seemed_empty = std::mem::replace(&mut self.seemed_empty, is_empty);
        let is_sure = !is_empty || seemed_empty || self.members.is_empty();
        Ok(is_sure.then_some(cluster.members))
    }
}

fn endpoint(member: &Member) -> Endpoint {
    let mut endpoint = Endpoint::new(member.address);
    endpoint.weight = member.weight;
    endpoint
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
    text.push(if path.as_bytes().contains(&b'?') {
        '&'
    } else {
        '?'
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
