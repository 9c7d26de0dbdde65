//! One Envoy in virtual time: workers with the real balancer, over one shared store.

use std::rc::Rc;

use crate::balancer::Balancer;
use crate::config::Config;
use crate::endpoint::{Endpoint, EndpointId};
use crate::poller::{self, Answer, Poller, Question};
use crate::request::{Api, InferenceRequest, RequestScanner, Scan};
use crate::session::{Effects, Input, Moment, Session, StreamView};
use crate::sim::replica::{Profile, Replica};
use crate::state::memory::MemoryStore;
use crate::state::unique_id;

/// The filter's own tick.
pub(super) const TICK_US: u64 = 100_000;
/// Where the virtual clock starts, so that no time is mistaken for "never".
pub(super) const EPOCH_US: u64 = 1_000_000_000_000;

pub(super) struct Gateway {
    store: MemoryStore,
    workers: Vec<Balancer>,
    /// The first worker holds the lease, and never dies.
    poller: Option<Poller>,
}

impl Gateway {
    pub(super) fn new(config: &Rc<Config>, workers: u32, seed: u64) -> Self {
        let store = MemoryStore::new();
        let workers: Vec<Balancer> = (0..workers)
            .map(|_| Balancer::new(config.clone(), unique_id(&store, seed)))
            .collect();
        let poller = config.scrape.as_ref().map(|scrape| {
            let endpoints = workers.first().map(Balancer::endpoints).unwrap_or_default();
            Poller::new(
                poller::questions(config),
                scrape.timeout_ms,
                endpoints.keys().copied(),
            )
        });
        Self {
            store,
            workers,
            poller,
        }
    }

    /// Shows every worker what each replica does with one request at a time, so often that nothing
    /// else counts.
    pub(super) fn tell_paces(&mut self, replicas: &[Profile]) {
        const TURNS: u64 = 300;
        for worker in &mut self.workers {
            let endpoints = worker.pool(0).map(|pool| pool.pool.endpoints());
            let endpoints: Vec<EndpointId> = endpoints
                .unwrap_or_default()
                .iter()
                .map(Endpoint::id)
                .collect();
            let Some(rates) = worker.rates(0) else {
                continue;
            };
            for turn in 0..TURNS {
                for (endpoint, profile) in endpoints.iter().zip(replicas) {
                    // Both spread over what is common.
                    let tokens = 500 + turn * 977 % 15_500;
                    let context_tokens = turn * 9_973 % 200_000;
                    let prefill_us =
                        tokens * 1_000_000 / u64::from(profile.prefill_tokens_per_s.max(1));
                    let read_us =
                        context_tokens * u64::from(profile.context_us_per_1k_tokens) / 1_000;
                    let step_us =
                        u64::from(profile.step_base_us) + u64::from(profile.decode_us_per_seq);
                    rates.first_token(*endpoint, tokens, prefill_us);
                    rates.output(*endpoint, context_tokens, step_us + read_us);
                }
            }
        }
    }

    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The worker that the kernel gives a connection to.
    pub(super) fn worker_of(&self, random: u64) -> usize {
        let workers = self.workers.len() as u64;
        random.checked_rem(workers).unwrap_or(0) as usize
    }

    /// What a worker's scanner makes of the body of a chat completion.
    pub(super) fn scan(&self, worker: usize, body: &str) -> InferenceRequest {
        let Some(balancer) = self.workers.get(worker) else {
            return InferenceRequest::unknown(Api::ChatCompletions, Scan::Unread);
        };
        let mut scanner = RequestScanner::new(Api::ChatCompletions, &balancer.config().scan);
        scanner.push(body.as_bytes());
        scanner.finish()
    }

    /// What a worker does with an input of one of its streams.
    pub(super) fn handle(
        &mut self,
        worker: usize,
        session: &mut Session,
        random: u64,
        view: &dyn StreamView,
        input: Input<'_>,
    ) -> Effects {
        let Some(balancer) = self.workers.get_mut(worker) else {
            return Effects::pass();
        };
        let moment = Moment::new(&self.store, random, view);
        session.handle(balancer, &moment, input)
    }

    /// One worker's tick.
    pub(super) fn tick(&mut self, worker: usize, now_us: u64, replicas: &[Replica]) {
        let now_ms = (EPOCH_US + now_us) / 1_000;
        let Some(balancer) = self.workers.get_mut(worker) else {
            return;
        };
        balancer.tick(&self.store, now_ms);
        if worker > 0 {
            return;
        }
        let Some(poller) = &mut self.poller else {
            return;
        };
        let totals = balancer.totals(&self.store);
        for (id, question) in poller.due(now_ms, &totals) {
            if question != Question::Metrics {
                // Replicas in virtual time have nothing else to say.
                poller.failed(id, question);
                continue;
            }
            // The pool keeps the order of the addresses, which is that of the replicas.
            let endpoints = balancer.pool(0).map(|pool| pool.pool.endpoints());
            let index = endpoints
                .unwrap_or_default()
                .iter()
                .position(|endpoint| endpoint.id() == id);
            let Some(replica) = index.and_then(|index| replicas.get(index)) else {
                continue;
            };
            let page = metrics(replica);
            let answer = poller.answered((id, question), now_ms, 200, page.as_bytes(), &totals);
            if let Answer::Report {
                asked_ms, report, ..
            } = answer
            {
                balancer.reported(&self.store, asked_ms, report);
            }
        }
    }

    /// What is still reserved, which must be nothing once all requests are over.
    pub(super) fn left_over(&self) -> Option<String> {
        let totals = self.workers.first()?.totals(&self.store);
        let left: Vec<_> = totals.iter().filter(|(_, load)| !load.is_zero()).collect();
        (!left.is_empty()).then(|| format!("the ledger still holds {left:?}"))
    }
}

/// The part of vLLM's `/metrics` that a balancer reads.
fn metrics(replica: &Replica) -> String {
    let (gauges, profile) = (replica.gauges(), replica.profile());
    format!(
        "vllm:num_requests_running {}\nvllm:num_requests_waiting {}\nvllm:kv_cache_usage_perc {:.6}\n\
         vllm:cache_config_info{{block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1.0\n\
         vllm:prompt_tokens_total {}\nvllm:generation_tokens_total {}\nprocess_start_time_seconds {}\n",
        gauges.running,
        gauges.waiting,
        gauges.kv_usage,
        profile.block_tokens,
        profile.blocks,
        gauges.prompt_tokens,
        gauges.generation_tokens,
        (EPOCH_US + replica.started_us()) / 1_000_000,
    )
}
