//! The plugin: configuration, and everything that happens by the clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use proxy_wasm::hostcalls::dispatch_http_call;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use super::discovery::Finder;
use super::host::{self, Buffer, Headers, HostMeter, SharedData};
use super::http::{self, Stream};
use super::{SharedVm, Vm};
use crate::balancer::Balancer;
use crate::config::{Config, ScrapeConfig};
use crate::endpoint::EndpointId;
use crate::health;
use crate::metrics::Metrics;
use crate::policy::Load;
use crate::poller::{Answer, Poller, Question, questions};
use crate::random::Random;
use crate::scrape::prometheus::MAX_TEXT_BYTES;
use crate::session::{Flow, Input};
use crate::state::lease::{self, Lease};
use crate::state::unique_id;
use crate::steer::ORIGINAL_DST_HEADER;

/// How often the clock work is done, in milliseconds: the resolution of the watchdog and of gauges.
const TICK_MS: u32 = 100;
/// The lease on polling and gauges runs this long, in milliseconds.
const LEASE_TERM_MS: u64 = 2_000;

/// What is known of endpoints that are gone is looked through once in so many ticks: a minute.
const SWEEP_TICKS: u64 = 600;

/// What is read of an answer that is no page of metrics, in bytes.
const MAX_REASON_BYTES: usize = 512;

/// The plugin in one VM.
pub(super) struct Root {
    context: u32,
    vm: SharedVm,
    /// This VM's unique number; 0 until it is configured.
    id: u64,
    /// Key of the lease that all VMs of this configuration compete for.
    lease: String,
    poller: Option<(Poller, ScrapeConfig)>,
    finder: Option<Finder>,
    /// Scrapes under way, by the host's token.
    asked: BTreeMap<u32, (EndpointId, Question)>,
    /// The host would not even ask; said once.
    scrape_refused: bool,
}

impl Root {
    pub(super) fn new(context: u32) -> Self {
        Self {
            context,
            vm: Rc::new(RefCell::new(None)),
            id: 0,
            lease: String::new(),
            poller: None,
            finder: None,
            asked: BTreeMap::new(),
            scrape_refused: false,
        }
    }

    fn configure(&mut self, config: Config) {
        let seed = host::now_ns();
        self.id = unique_id(&SharedData, seed);
        self.lease = format!("warmroute/1/lease/{:016x}", config.fingerprint);
        self.finder = Finder::new(&config, seed / 1_000_000);
        let mut balancer = Balancer::new(Rc::new(config), self.id);
        if let Some(finder) = &mut self.finder {
            // What another configuration has learned.
            finder.follow(&mut balancer);
        }
        // Creates the ledger before there is traffic that could race for it.
        balancer.tick(&SharedData, seed / 1_000_000);
        self.poller = balancer.config().scrape.clone().map(|scrape| {
            let ids = balancer.endpoints().into_keys();
            let askings = questions(balancer.config());
            (Poller::new(askings, scrape.timeout_ms, ids), scrape)
        });
        let metrics = Metrics::new(HostMeter, &balancer);
        let random = Random::new(self.id ^ seed);
        let vm = Vm {
            balancer,
            metrics,
            random,
            held: BTreeMap::new(),
            ticks: 0,
            unsteered: 0,
            body_callbacks_seen: false,
        };
        if let Ok(mut shared) = self.vm.try_borrow_mut() {
            *shared = Some(vm);
        }
        host::set_tick_period_ms(TICK_MS);
    }

    /// Endpoints that come and go.
    fn follow(&mut self, vm: &mut Vm) {
        let finder = self.finder.as_mut();
        if !finder.is_some_and(|finder| finder.follow(&mut vm.balancer)) {
            return;
        }
        vm.metrics.follow(&vm.balancer);
        if let Some((poller, _)) = &mut self.poller {
            poller.follow(vm.balancer.endpoints().into_keys());
        }
    }

    /// What one VM does for the whole Envoy: gauges, and asking Envoy and the engines.
    fn serve_as_leader(&mut self, vm: &mut Vm, now_ms: u64) {
        if let Some(finder) = &mut self.finder {
            finder.ask(vm, now_ms);
        }
        let totals = vm.balancer.totals(&SharedData);
        self.poll(vm, now_ms, &totals);
        vm.metrics.gauges(&vm.balancer, &totals, now_ms);
        if vm.ticks.is_multiple_of(SWEEP_TICKS) {
            vm.balancer.sweep(&SharedData, now_ms);
        }
    }

    fn poll(&mut self, vm: &mut Vm, now_ms: u64, totals: &BTreeMap<EndpointId, Load>) {
        let Some((poller, scrape)) = &mut self.poller else {
            return;
        };
        let endpoints = vm.balancer.endpoints();
        for (id, question) in poller.due(now_ms, totals) {
            let (Some(endpoint), Some(path)) = (endpoints.get(&id), poller.path(question)) else {
                continue;
            };
            let headers = vec![
                (":method", "GET"),
                (":path", path),
                (":authority", endpoint.name()),
                (ORIGINAL_DST_HEADER, endpoint.name()),
            ];
            let timeout = Duration::from_millis(scrape.timeout_ms);
            match dispatch_http_call(&scrape.cluster, headers, None, vec![], timeout) {
                Ok(token) => {
                    self.asked.insert(token, (id, question));
                }
                Err(status) => {
                    if !std::mem::replace(&mut self.scrape_refused, true) {
                        let cluster = &scrape.cluster;
                        log::error!("no scrape through cluster `{cluster}`: {status:?}");
                    }
                    poller.failed(id, question);
                    if question == Question::Metrics {
                        vm.metrics.scrape_failed(id);
                    }
                }
            }
        }
    }

    fn answered(
        &mut self,
        vm: &mut Vm,
        (id, question): (EndpointId, Question),
        status: u16,
        body: &[u8],
    ) {
        let Some((poller, _)) = &mut self.poller else {
            return;
        };
        let now_ms = host::now_ns() / 1_000_000;
        // Of the one endpoint and of now: what came since the tick may be in the engine's gauges.
        let totals = match question {
            Question::Metrics => BTreeMap::from([(id, vm.balancer.total(&SharedData, id))]),
            _ => BTreeMap::new(),
        };
        let answer = poller.answered((id, question), now_ms, status, body, &totals);
        if let Some(signal) = health::signal_of(question, &answer, status, body) {
            vm.balancer.heard(&SharedData, now_ms, id, signal);
        }
        let balancer = &mut vm.balancer;
        match answer {
            Answer::Report {
                asked_ms,
                report,
                adapters,
                ..
            } => {
                balancer.adapters_reported(&SharedData, now_ms, id, &adapters);
                let restarted = balancer.reported(&SharedData, asked_ms, report);
                if restarted {
                    vm.metrics.restarted(id);
                }
            }
            Answer::Page if question == Question::Models => {
                balancer.models_answered(&SharedData, now_ms, id, status, body);
            }
            Answer::Page => {}
            _ if question == Question::Metrics => vm.metrics.scrape_failed(id),
            _ => {}
        }
    }

    /// Lets requests go that were held although no body callback ever comes.
    fn watch(&self, vm: &mut Vm) {
        if vm.body_callbacks_seen {
            vm.held.clear();
            return;
        }
        let limit_ms = vm.balancer.config().watchdog_ms;
        // A request was held up to one tick after the one that it is dated by.
        let patience = limit_ms.div_ceil(u64::from(TICK_MS)).saturating_add(1);
        let ticks = vm.ticks;
        let overdue: Vec<u32> = vm
            .held
            .iter()
            .filter(|(_, (since, _))| ticks.saturating_sub(*since) >= patience)
            .map(|(context, _)| *context)
            .collect();
        if overdue.is_empty() {
            return;
        }
        log::error!(
            "no body callback within {limit_ms} ms: {} requests go by load alone. Set \
             allow_on_headers_stop_iteration: true in the Wasm PluginConfig (Envoy 1.35 or later)",
            overdue.len()
        );
        for context in overdue {
            let Some((_, session)) = vm.held.remove(&context) else {
                continue;
            };
            let Ok(mut session) = session.try_borrow_mut() else {
                continue;
            };
            if host::set_effective_context(context) {
                // A request that was answered is over.
                if http::run(vm, &mut session, Input::Watchdog) == Flow::Continue {
                    host::resume_request();
                }
            }
        }
        host::set_effective_context(self.context);
    }

    /// Says who changed its state by what this worker has heard.
    fn tell_turns(vm: &mut Vm) {
        for turn in vm.balancer.take_turns() {
            let name = vm.metrics.name(turn.endpoint).to_owned();
            let (from, to, why) = (turn.from.name(), turn.to.name(), turn.why.name());
            log::info!("endpoint {name}: {from} -> {to} ({why})");
            vm.metrics.turned(&turn);
        }
    }

    /// Says once a tick what would else be said with every request.
    fn complain(vm: &mut Vm) {
        let unsteered = std::mem::take(&mut vm.unsteered);
        if unsteered > 0 {
            log::error!("the host refused the destination of {unsteered} requests");
        }
    }
}

impl Context for Root {
    fn on_http_call_response(&mut self, token: u32, headers: usize, body_size: usize, _: usize) {
        // No headers: the connection broke, and there is nothing to be read.
        let status = (headers > 0)
            .then(|| host::header(Headers::Callout, ":status"))
            .flatten()
            .and_then(|status| std::str::from_utf8(&status).ok()?.parse().ok())
            .unwrap_or(0);
        let shared = self.vm.clone();
        let Ok(mut vm) = shared.try_borrow_mut() else {
            return;
        };
        let Some(vm) = vm.as_mut() else { return };
        if let Some(finder) = &mut self.finder
            && finder.waits_for(token)
        {
            let now_ms = host::now_ns() / 1_000_000;
            return finder.answered(vm, now_ms, status, body_size);
        }
        let Some(asked) = self.asked.remove(&token) else {
            return;
        };
        // The rest would not be read, and an engine may send more than memory holds.
        let taken = match status {
            200 => body_size.min(MAX_TEXT_BYTES),
            // Envoy's own words are short.
            503 | 504 => body_size.min(MAX_REASON_BYTES),
            _ => 0,
        };
        let body = match taken {
            0 => Vec::new(),
            taken => host::buffer(Buffer::CalloutBody, 0, taken).unwrap_or_default(),
        };
        self.answered(vm, asked, status, &body);
    }

    /// The configuration is gone, and the last stream with it: nothing may stay behind.
    fn on_done(&mut self) -> bool {
        let shared = self.vm.clone();
        if let Ok(mut vm) = shared.try_borrow_mut()
            && let Some(vm) = vm.as_mut()
        {
            let now_ms = host::now_ns() / 1_000_000;
            let totals = vm.balancer.totals(&SharedData);
            vm.metrics.gauges(&vm.balancer, &totals, now_ms);
            vm.metrics.flush();
            vm.balancer.close(&SharedData);
        }
        true
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let json = match size {
            0 => Vec::new(),
            size => host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default(),
        };
        match Config::parse(&json) {
            Ok(config) => {
                self.configure(config);
                true
            }
            Err(error) => {
                log::error!("configuration refused: {error}");
                false
            }
        }
    }

    fn on_tick(&mut self) {
        let shared = self.vm.clone();
        let Ok(mut vm) = shared.try_borrow_mut() else {
            return;
        };
        let Some(vm) = vm.as_mut() else { return };
        let now_ms = host::now_ns() / 1_000_000;
        vm.balancer.tick(&SharedData, now_ms);
        self.follow(vm);
        if lease::acquire(&SharedData, &self.lease, self.id, now_ms, LEASE_TERM_MS) == Lease::Held {
            self.serve_as_leader(vm, now_ms);
        }
        self.watch(vm);
        Self::tell_turns(vm);
        Self::complain(vm);
        vm.ticks = vm.ticks.wrapping_add(1);
        vm.metrics.flush();
    }

    fn create_http_context(&self, context: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream::new(context, self.vm.clone())))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
