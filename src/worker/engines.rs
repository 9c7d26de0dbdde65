//! Asks the engines what they are to be asked, and hands their answers on.

use std::collections::BTreeMap;

use super::Vm;
use super::host::{Buffer, Host};
use crate::balancer::Balancer;
use crate::endpoint::EndpointId;
use crate::health;
use crate::policy::Load;
use crate::poller::{Answer, Poller, Question, questions};
use crate::scrape::prometheus::MAX_TEXT_BYTES;
use crate::steer::ORIGINAL_DST_HEADER;

/// What is read of an answer that is no page of metrics, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// What one worker asks of engines, while it holds the lease.
pub(super) struct Engines {
    poller: Poller,
    /// Through which cluster it asks.
    cluster: String,
    timeout_ms: u64,
    /// Questions under way, by the host's token.
    asked: BTreeMap<u32, (EndpointId, Question)>,
    /// The host would not even ask; said once.
    was_refused: bool,
}

impl Engines {
    /// `None` if engines are not to be asked.
    pub(super) fn new(balancer: &Balancer) -> Option<Self> {
        let config = balancer.config();
        let scrape = config.scrape.as_ref()?;
        let ids = balancer.endpoints().into_keys();
        Some(Self {
            poller: Poller::new(questions(config), scrape.timeout_ms, ids),
            cluster: scrape.cluster.clone(),
            timeout_ms: scrape.timeout_ms,
            asked: BTreeMap::new(),
            was_refused: false,
        })
    }

    /// Asks the balancer's endpoints of now, and no others.
    pub(super) fn follow(&mut self, balancer: &Balancer) {
        self.poller.follow(balancer.endpoints().into_keys());
    }

    /// Asks whoever is due. `totals` is what this Envoy has in flight.
    pub(super) fn ask<H: Host>(
        &mut self,
        vm: &mut Vm<H>,
        now_ms: u64,
        totals: &BTreeMap<EndpointId, Load>,
    ) {
        let endpoints = vm.balancer.endpoints();
        for (id, question) in self.poller.due(now_ms, totals) {
            let (Some(endpoint), Some(path)) = (endpoints.get(&id), self.poller.path(question))
            else {
                continue;
            };
            let headers = vec![
                (":method", "GET"),
                (":path", path),
                (":authority", endpoint.name()),
                (ORIGINAL_DST_HEADER, endpoint.name()),
            ];
            let cluster = &self.cluster;
            match vm.host.ask(cluster, headers, self.timeout_ms) {
                Ok(token) => {
                    self.asked.insert(token, (id, question));
                }
                Err(problem) => {
                    if !std::mem::replace(&mut self.was_refused, true) {
                        let line = format!("no scrape through cluster `{cluster}`: {problem}");
                        vm.host.error(&line);
                    }
                    self.poller.failed(id, question);
                    if question == Question::Metrics {
                        vm.metrics.scrape_failed(id);
                    }
                }
            }
        }
    }

    /// An answer came; a status of 0 stands for a broken connection.
    pub(super) fn answered<H: Host>(
        &mut self,
        vm: &mut Vm<H>,
        token: u32,
        status: u16,
        size: usize,
    ) {
        let Some(asked) = self.asked.remove(&token) else {
            return;
        };
        // The rest would not be read, and an engine may send more than memory holds.
        let taken = match status {
            200 => size.min(MAX_TEXT_BYTES),
            // Envoy's own words are short.
            503 | 504 => size.min(MAX_REASON_BYTES),
            _ => 0,
        };
        let body = vm.host.read(Buffer::CalloutBody, 0, taken);
        self.take(vm, asked, status, &body);
    }

    fn take<H: Host>(
        &mut self,
        vm: &mut Vm<H>,
        (id, question): (EndpointId, Question),
        status: u16,
        body: &[u8],
    ) {
        let (host, balancer) = (&vm.host, &mut vm.balancer);
        let now_ms = host.now_ns() / 1_000_000;
        // Of the one endpoint and of now: what came since the tick may be in the engine's gauges.
        let totals = match question {
            Question::Metrics => BTreeMap::from([(id, balancer.total(host, id))]),
            _ => BTreeMap::new(),
        };
        let asked = (id, question);
        let answer = self.poller.answered(asked, now_ms, status, body, &totals);
        if let Some(signal) = health::signal_of(question, &answer, status, body) {
            balancer.heard(host, now_ms, id, signal);
        }
        match answer {
            Answer::Report {
                asked_ms,
                report,
                adapters,
                ..
            } => {
                balancer.adapters_reported(host, now_ms, id, &adapters);
                if balancer.reported(host, asked_ms, report) {
                    vm.metrics.restarted(id);
                }
            }
            Answer::Page if question == Question::Models => {
                balancer.models_answered(host, now_ms, id, status, body);
            }
            Answer::Page => {}
            _ if question == Question::Metrics => vm.metrics.scrape_failed(id),
            _ => {}
        }
    }
}
