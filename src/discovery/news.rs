//! What an answer says that is new: who came, who left, what Envoy thinks, and what is to be written down.

use super::{Discovery, Wanted};
use crate::endpoint::{Endpoint, EndpointId};
use crate::health::{Signal, Verdict};
use crate::scrape::clusters::{Cluster, MAX_MEMBERS, Member};
use crate::state::Store;
use crate::state::members;

/// What became of an answer.
#[derive(Debug, Default)]
pub struct News {
    /// What was heard of endpoints, in this order.
    pub signals: Vec<(EndpointId, Signal)>,
    /// What is wrong with the answer, in one line.
    pub problem: Option<String>,
    /// Places of the clusters whose members are confirmed.
    confirmed: Vec<usize>,
    /// When they were asked for, in milliseconds.
    asked_ms: u64,
}

impl Discovery {
    /// An answer came, or it is certain that none will. What was known stays, but for clusters of which the
    /// answer does say something.
    pub fn answered(&mut self, answer: Result<Vec<Option<Cluster>>, String>) -> News {
        let mut news = News::default();
        let Some(asked_ms) = self.asked_ms.take() else {
            news.problem = Some("an answer that came too late".into());
            return news;
        };
        news.asked_ms = asked_ms;
        let clusters = match answer {
            Ok(clusters) => clusters,
            Err(problem) => {
                news.problem = Some(problem);
                return news;
            }
        };
        let mut before = self.members();
        for (at, (wanted, cluster)) in self.wanted.iter_mut().zip(clusters).enumerate() {
            let Some(members) = wanted.believed(cluster, &mut news.problem) else {
                continue;
            };
            if wanted.version == 0 && wanted.is_member {
                // Whom the first answer shows has not come: it may have been there for long.
                before.extend(members.iter().map(id_of));
            }
            wanted.members = members;
            news.confirmed.push(at);
        }
        self.who_moved(&before, &mut news);
        self.what_envoy_thinks(&mut news);
        news
    }

    /// Writes down for all workers what an answer has confirmed. Tell its signals first: then nobody learns of
    /// an endpoint before its verdict.
    pub fn publish<S: Store + ?Sized>(&self, store: &S, now_ms: u64, news: &News) {
        for at in &news.confirmed {
            if let Some(wanted) = self.wanted.get(*at) {
                let times = (news.asked_ms, now_ms);
                members::save(store, self.source, wanted.hash, times, &wanted.members);
            }
        }
    }

    /// The members of all pools, without those of the configuration.
    fn members(&self) -> Vec<EndpointId> {
        let wanted = self.wanted.iter().filter(|wanted| wanted.is_member);
        wanted
            .flat_map(|wanted| &wanted.members)
            .map(id_of)
            .collect()
    }

    fn fixed(&self) -> impl Iterator<Item = EndpointId> {
        self.pools
            .iter()
            .flat_map(|source| source.fixed.iter().copied())
    }

    /// Who is a member that was none before, or the other way round.
    ///
    /// There are at most [`MAX_MEMBERS`], and this happens once an interval: looking through all of them each
    /// time is quick enough, and small.
    fn who_moved(&self, before: &[EndpointId], news: &mut News) {
        let after = self.members();
        let moves = [
            (&*after, before, Signal::Came),
            (before, &after, Signal::Left),
        ];
        for (these, others, signal) in moves {
            for id in these {
                let is_fixed = self.fixed().any(|fixed| fixed == *id);
                let told = news.signals.iter().any(|(told, _)| told == id);
                if !others.contains(id) && !is_fixed && !told {
                    news.signals.push((*id, signal));
                }
            }
        }
    }

    /// The worst that any of the clusters says of each endpoint of the pools. Clusters of which the answer says
    /// nothing say nothing, so that what they said before runs out in time.
    fn what_envoy_thinks(&self, news: &mut News) {
        // Of whom Envoy does not speak, it thinks nothing bad, if it has spoken of all clusters.
        let is_whole = news.confirmed.len() == self.wanted.len();
        let mut verdicts: Vec<(EndpointId, Option<Verdict>)> = Vec::new();
        for id in self.members().into_iter().chain(self.fixed()) {
            if verdicts.iter().all(|(known, _)| *known != id) {
                verdicts.push((id, is_whole.then_some(Verdict::Healthy)));
            }
        }
        let confirmed = news.confirmed.iter().filter_map(|at| self.wanted.get(*at));
        for member in confirmed.flat_map(|wanted| &wanted.members) {
            let id = id_of(member);
            if let Some((_, worst)) = verdicts.iter_mut().find(|(known, _)| *known == id) {
                *worst = (*worst).max(Some(member.verdict));
            }
        }
        for (id, verdict) in verdicts {
            if let Some(verdict) = verdict {
                news.signals.push((id, Signal::Envoy(verdict)));
            }
        }
    }
}

fn id_of(member: &Member) -> EndpointId {
    Endpoint::new(member.address).id()
}

impl Wanted {
    /// The members as far as an answer is to be believed; else `None`, and if that is a problem, which.
    fn believed(
        &mut self,
        cluster: Option<Cluster>,
        problem: &mut Option<String>,
    ) -> Option<Vec<Member>> {
        let name = &self.name;
        let Some(cluster) = cluster else {
            *problem = Some(format!("Envoy has no cluster `{name}`"));
            return None;
        };
        let is_empty = cluster.members.is_empty() && self.is_member;
        if is_empty && cluster.unusable > 0 {
            *problem = Some(format!(
                "no member of cluster `{name}` has an address IP:port"
            ));
            return None;
        }
        if cluster.left_out > 0 {
            let more = cluster.left_out;
            *problem = Some(format!(
                "{more} members of cluster `{name}` are left out: there are more than {MAX_MEMBERS}"
            ));
        }
        let is_first = is_empty && !self.seemed_empty && !self.members.is_empty();
        if is_first {
            *problem = Some(format!(
                "cluster `{name}` has no member any more, if that is said again"
            ));
        }
        let seemed_empty = std::mem::replace(&mut self.seemed_empty, is_empty);
        let is_sure = !is_empty || seemed_empty || self.members.is_empty();
        is_sure.then_some(cluster.members)
    }
}
