//! Asks Envoy's admin interface for its list of clusters, reads the answer piece by piece, and lets the
//! balancer follow what some worker has learned.

use super::Vm;
use super::host::{Buffer, Host};
use crate::balancer::Balancer;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::scrape::clusters::Cluster;
use crate::state::Store;

/// What is read of an answer at once, in bytes. It may be megabytes long.
const PIECE_BYTES: usize = 1 << 16;
/// What is read of an answer at most, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 26;

/// What one worker has to do with discovery.
pub(super) struct Finder {
    discovery: Discovery,
    cluster: String,
    timeout_ms: u64,
    /// The question under way, by the host's token.
    token: Option<u32>,
    /// What was last wrong; said once.
    problem: Option<String>,
}

impl Finder {
    /// `None` if the configuration asks for no discovery.
    pub(super) fn new(config: &Config, now_ms: u64) -> Option<Self> {
        let discovery = Discovery::new(config, now_ms)?;
        let asked = config.discovery.as_ref()?;
        Some(Self {
            discovery,
            cluster: asked.cluster.clone(),
            timeout_ms: asked.timeout_ms,
            token: None,
            problem: None,
        })
    }

    /// Takes over what some worker has learned. Says whether that changed a pool.
    #[inline(never)]
    pub(super) fn follow<S: Store>(&mut self, store: &S, balancer: &mut Balancer) -> bool {
        if !self.discovery.refresh(store) {
            return false;
        }
        let mut changed = false;
        for pool in self.discovery.pools() {
            changed |= balancer.adopt(pool, &self.discovery.endpoints(pool));
        }
        changed
    }

    /// What the worker that holds the lease does with every tick.
    pub(super) fn ask<H: Host>(&mut self, vm: &mut Vm<H>, now_ms: u64) {
        vm.metrics.discovery_age(self.discovery.age_ms(now_ms));
        match self.discovery.due(now_ms) {
            Ok(true) => {}
            Ok(false) => return,
            Err(problem) => return self.came_to(vm, Some(problem)),
        }
        let headers = vec![
            (":method", "GET"),
            (":path", self.discovery.path()),
            (":authority", "localhost"),
        ];
        match vm.host.ask(&self.cluster, headers, self.timeout_ms) {
            Ok(token) => self.token = Some(token),
            Err(problem) => self.take(vm, now_ms, Err(format!("Envoy would not ask: {problem}"))),
        }
    }

    /// Whether the answer with this token is one to us.
    pub(super) fn waits_for(&mut self, token: u32) -> bool {
        self.token.take_if(|mine| *mine == token).is_some()
    }

    /// An answer came; a status of 0 stands for a broken connection.
    pub(super) fn answered<H: Host>(&mut self, vm: &mut Vm<H>, status: u16, size: usize) {
        let now_ms = vm.host.now_ns() / 1_000_000;
        let answer = match status {
            200 => {
                let mut reader = self.discovery.reader();
                for start in (0..size.min(MAX_ANSWER_BYTES)).step_by(PIECE_BYTES) {
                    let length = PIECE_BYTES.min(size.saturating_sub(start));
                    reader.push(&vm.host.read(Buffer::CalloutBody, start, length));
                }
                reader.finish().map_err(|error| error.to_string())
            }
            0 => Err("the connection broke".into()),
            status => Err(format!("status {status}")),
        };
        self.take(vm, now_ms, answer);
    }

    fn take<H: Host>(
        &mut self,
        vm: &mut Vm<H>,
        now_ms: u64,
        answer: Result<Vec<Option<Cluster>>, String>,
    ) {
        let news = self.discovery.answered(answer);
        for (id, signal) in &news.signals {
            vm.balancer.heard(&vm.host, now_ms, *id, *signal);
        }
        self.discovery.publish(&vm.host, now_ms, &news);
        self.came_to(vm, news.problem);
    }

    fn came_to<H: Host>(&mut self, vm: &mut Vm<H>, problem: Option<String>) {
        if problem.is_some() {
            vm.metrics.discovery_failed();
        }
        if problem == self.problem {
            return;
        }
        let cluster = &self.cluster;
        match &problem {
            Some(problem) => vm.host.error(&format!(
                "discovery through cluster `{cluster}`: {problem}; what was known stays"
            )),
            None => vm.host.info(&format!(
                "discovery through cluster `{cluster}` works again"
            )),
        }
        self.problem = problem;
    }
}
