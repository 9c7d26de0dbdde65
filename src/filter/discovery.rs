//! Discovery in one VM: asks Envoy's admin interface, hands the answer to the core piece by piece, and
//! lets balancer, metrics and poller follow.

use std::time::Duration;

use proxy_wasm::hostcalls::dispatch_http_call;

use super::Vm;
use super::host::{self, Buffer, SharedData};
use crate::balancer::Balancer;
use crate::config::Config;
use crate::discovery::Discovery;
use crate::scrape::clusters::Cluster;

/// What is read of an answer at once, in bytes. It may be megabytes long.
const PIECE_BYTES: usize = 1 << 16;
/// What is read of an answer at most, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 26;

/// What one VM has to do with discovery.
pub(super) struct Finder {
    discovery: Discovery,
    cluster: String,
    timeout: Duration,
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
            timeout: Duration::from_millis(asked.timeout_ms),
            token: None,
            problem: None,
        })
    }

    /// Takes over what some VM has learned. Says whether that changed a pool.
    #[inline(never)]
    pub(super) fn follow(&mut self, balancer: &mut Balancer) -> bool {
        if !self.discovery.refresh(&SharedData) {
            return false;
        }
        let mut changed = false;
        for pool in self.discovery.pools() {
            changed |= balancer.adopt(pool, &self.discovery.endpoints(pool));
        }
        changed
    }

    /// What the VM that holds the lease does with every tick.
    pub(super) fn ask(&mut self, vm: &mut Vm, now_ms: u64) {
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
        match dispatch_http_call(&self.cluster, headers, None, vec![], self.timeout) {
            Ok(token) => self.token = Some(token),
            Err(status) => self.take(vm, now_ms, Err(format!("Envoy would not ask: {status:?}"))),
        }
    }

    /// Whether the answer with this token is one to us.
    pub(super) fn waits_for(&mut self, token: u32) -> bool {
        self.token.take_if(|mine| *mine == token).is_some()
    }

    /// An answer came; 0 stands for a broken connection.
    pub(super) fn answered(&mut self, vm: &mut Vm, now_ms: u64, status: u16, size: usize) {
        let answer = match status {
            200 => {
                let mut reader = self.discovery.reader();
                for start in (0..size.min(MAX_ANSWER_BYTES)).step_by(PIECE_BYTES) {
                    let length = PIECE_BYTES.min(size.saturating_sub(start));
                    let piece = host::buffer(Buffer::CalloutBody, start, length);
                    reader.push(&piece.unwrap_or_default());
                }
                reader.finish().map_err(|error| error.to_string())
            }
            0 => Err("the connection broke".into()),
            status => Err(format!("status {status}")),
        };
        self.take(vm, now_ms, answer);
    }

    fn take(&mut self, vm: &mut Vm, now_ms: u64, answer: Result<Vec<Option<Cluster>>, String>) {
        let news = self.discovery.answered(answer);
        for (id, signal) in &news.signals {
            vm.balancer.heard(&SharedData, now_ms, *id, *signal);
        }
        self.discovery.publish(&SharedData, now_ms, &news);
        self.came_to(vm, news.problem);
    }

    fn came_to(&mut self, vm: &mut Vm, problem: Option<String>) {
        if problem.is_some() {
            vm.metrics.discovery_failed();
        }
        if problem == self.problem {
            return;
        }
        let cluster = &self.cluster;
        match &problem {
            Some(problem) => log::error!(
                "discovery through cluster `{cluster}`: {problem}; what was known stays"
            ),
            None => log::info!("discovery through cluster `{cluster}` works again"),
        }
        self.problem = problem;
    }
}
