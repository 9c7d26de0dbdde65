//! One worker of Envoy: what it does for its streams, with every tick, and when answers come.
//!
//! It asks everything of its [`Host`], so that tests can drive it as Envoy does.

mod apply;
mod engines;
mod finder;
mod host;
mod stream;
mod view;
mod waiting;
mod watchdog;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;

use self::apply::{Destination, apply};
use self::engines::Engines;
use self::finder::Finder;
use self::view::{View, status};
use self::waiting::{PATIENCE_TICKS, Waiting};
use self::watchdog::Watchdog;
use crate::balancer::Balancer;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::random::Random;
use crate::session::{Flow, Input, Moment, Patience, Session};
use crate::state::lease::{self, Lease};
use crate::state::unique_id;

pub use self::host::{Buffer, Headers, Host};
pub use self::stream::Stream;

/// How often the clock work is done, in milliseconds: the resolution of the watchdog and of gauges.
pub const TICK_MS: u32 = 100;
/// The lease on polling and gauges runs this long, in milliseconds.
const LEASE_TERM_MS: u64 = 2_000;
/// Most requests that are let go in one tick, from outside of their callbacks. What Envoy does then may lead to
/// the filter again, one inside the other, and a VM's stack is not endless.
const MOST_RESUMED: u32 = 128;
/// A request that is answered counts as so many: that always leads to the filter again. Of such answers Envoy
/// 1.40 survives 200 at once and not 400.
const REPLY_COST: u32 = 4;
/// What is known of endpoints that are gone is looked through once in so many ticks: a minute.
const SWEEP_TICKS: u64 = 600;

/// A session that its stream and whoever may let it go have in common.
type SharedSession = Rc<RefCell<Session>>;

/// What streams, ticks and answers alike need.
struct Vm<H> {
    host: H,
    balancer: Balancer,
    metrics: Metrics<H>,
    random: Random,
    /// Requests since the last tick whose destination the host refused.
    unsteered: u64,
}

impl<H: Host> Vm<H> {
    /// Handles one input and does what comes of it, for the stream that the host's calls now concern.
    fn run(&mut self, session: &mut Session, input: Input<'_>) -> Flow {
        let view = View(&self.host);
        let moment = Moment::new(&self.host, self.random.bits(), &view);
        let effects = session.handle(&mut self.balancer, &moment, input);
        for event in &effects.events {
            self.metrics.event(*event);
        }
        if apply(&self.host, &effects) == Destination::Refused {
            self.unsteered = self.unsteered.saturating_add(1);
        }
        effects.flow
    }

    /// Says who changed its state by what this worker has heard.
    fn tell_turns(&mut self) {
        for turn in self.balancer.take_turns() {
            let name = self.metrics.name(turn.endpoint);
            let (from, to, why) = (turn.from.name(), turn.to.name(), turn.why.name());
            let line = format!("endpoint {name}: {from} -> {to} ({why})");
            self.host.info(&line);
            self.metrics.turned(&turn);
        }
    }

    /// Says once a tick what would else be said with every request.
    fn complain(&mut self) {
        let unsteered = std::mem::take(&mut self.unsteered);
        if unsteered > 0 {
            let line = format!("the host refused the destination of {unsteered} requests");
            self.host.error(&line);
        }
    }
}

/// One worker, from its configuration on.
pub struct Worker<H> {
    /// The host's number of the plugin: whom calls concern that are about no stream.
    context: u32,
    /// This worker's unique number.
    id: u64,
    vm: Vm<H>,
    /// Key of the lease that all workers of this configuration compete for.
    lease: String,
    engines: Option<Engines>,
    finder: Option<Finder>,
    watchdog: Watchdog,
    waiting: Waiting,
    /// Ticks so far: a clock that costs nothing, and that nobody sets back.
    ticks: u64,
}

impl<H: Host> Worker<H> {
    /// A worker with the configuration that the host has, `size` bytes long. `None` if it cannot be used; the log
    /// says why.
    pub fn configured(host: H, context: u32, size: usize) -> Option<Self> {
        let json = host.read(Buffer::PluginConfiguration, 0, size);
        match Config::parse(&json) {
            Ok(config) => Some(Self::new(host, context, config)),
            Err(error) => {
                host.error(&format!("configuration refused: {error}"));
                None
            }
        }
    }

    fn new(host: H, context: u32, config: Config) -> Self {
        let seed = host.now_ns();
        let now_ms = seed / 1_000_000;
        let id = unique_id(&host, seed);
        let lease = format!("warmroute/1/lease/{:016x}", config.fingerprint);
        let mut finder = Finder::new(&config, now_ms);
        let mut balancer = Balancer::new(Rc::new(config), id);
        if let Some(finder) = &mut finder {
            // What another configuration has learned.
            finder.follow(&host, &mut balancer);
        }
        // Creates the ledger before there is traffic that could race for it.
        balancer.tick(&host, now_ms);
        Self {
            context,
            id,
            lease,
            engines: Engines::new(&balancer),
            finder,
            watchdog: Watchdog::default(),
            waiting: Waiting::default(),
            ticks: 0,
            vm: Vm {
                metrics: Metrics::new(host.clone(), &balancer),
                host,
                balancer,
                random: Random::new(id ^ seed),
                unsteered: 0,
            },
        }
    }

    /// What is due every [`TICK_MS`].
    pub fn tick(&mut self) {
        let vm = &mut self.vm;
        let now_ms = vm.host.now_ns() / 1_000_000;
        vm.balancer.tick(&vm.host, now_ms);
        self.follow();
        let (host, lease) = (&self.vm.host, &self.lease);
        if lease::acquire(host, lease, self.id, now_ms, LEASE_TERM_MS) == Lease::Held {
            self.serve_as_leader(now_ms);
        }
        if self.ticks + 1 == PATIENCE_TICKS {
            self.vm.balancer.await_no_longer();
            self.waiting.news_came();
        }
        let budget = self.let_in(MOST_RESUMED);
        self.watch(budget);
        self.vm.tell_turns();
        self.vm.complain();
        self.ticks = self.ticks.wrapping_add(1);
        self.vm.metrics.flush();
    }

    /// Endpoints that come and go.
    fn follow(&mut self) {
        let vm = &mut self.vm;
        let finder = self.finder.as_mut();
        if !finder.is_some_and(|finder| finder.follow(&vm.host, &mut vm.balancer)) {
            return;
        }
        self.waiting.news_came();
        vm.metrics.follow(&vm.balancer);
        if let Some(engines) = &mut self.engines {
            engines.follow(&vm.balancer);
        }
    }

    /// What one worker does for the whole Envoy: gauges, and asking Envoy and the engines.
    fn serve_as_leader(&mut self, now_ms: u64) {
        let vm = &mut self.vm;
        if let Some(finder) = &mut self.finder {
            finder.ask(vm, now_ms);
        }
        let totals = vm.balancer.totals(&vm.host);
        if let Some(engines) = &mut self.engines {
            engines.ask(vm, now_ms, &totals);
        }
        vm.metrics.gauges(&vm.balancer, &totals, now_ms);
        if self.ticks.is_multiple_of(SWEEP_TICKS) {
            vm.balancer.sweep(&vm.host, now_ms);
        }
    }

    /// Lets requests go that wait for endpoints, once these are known or it has been long enough. Takes a
    /// budget and says what is left of it.
    fn let_in(&mut self, mut budget: u32) -> u32 {
        let told = self.waiting.take_news();
        if told.is_empty() {
            return budget;
        }
        for (context, session) in &told {
            if budget == 0 {
                self.waiting.news_came();
                break;
            }
            let news = Input::Endpoints(Patience::Waits);
            budget = budget.saturating_sub(self.tell(*context, session, news));
        }
        self.vm.host.set_effective_context(self.context);
        budget
    }

    /// Lets requests go that were held although no body callback ever comes.
    fn watch(&mut self, mut budget: u32) {
        let limit_ms = self.vm.balancer.config().watchdog_ms;
        let overdue = self.watchdog.take_overdue(self.ticks, limit_ms);
        if overdue.is_empty() {
            return;
        }
        let mut gone = 0;
        for (context, session) in overdue {
            if budget == 0 {
                // Overdue again with the next tick.
                self.watchdog.held(context, &session, 0);
                continue;
            }
            budget = budget.saturating_sub(self.tell(context, &session, Input::Watchdog));
            gone += 1;
        }
        self.vm.host.set_effective_context(self.context);
        if gone == 0 {
            return;
        }
        self.vm.host.error(&format!(
            "no body callback within {limit_ms} ms: {gone} requests go by load alone. Set \
             allow_on_headers_stop_iteration: true in the Wasm PluginConfig (Envoy 1.35 or later)"
        ));
    }

    /// Gives a stream, outside of its callbacks, an input that may let its request go. Says what that counts.
    fn tell(&mut self, context: u32, session: &SharedSession, input: Input<'_>) -> u32 {
        if session.try_borrow().is_err() || !self.vm.host.set_effective_context(context) {
            return 0;
        }
        match self.run(context, session, input) {
            Flow::Continue => {
                self.vm.host.resume_request();
                1
            }
            Flow::Hold if session.try_borrow().is_ok_and(|one| one.is_waiting()) => 0,
            // A request that was answered is over.
            Flow::Hold => REPLY_COST,
        }
    }

    /// Handles one input of the stream with this context, and keeps in mind who waits for what.
    fn run(&mut self, context: u32, shared: &SharedSession, input: Input<'_>) -> Flow {
        let Ok(mut session) = shared.try_borrow_mut() else {
            return Flow::Continue;
        };
        let (held, waited) = (session.is_holding(), session.is_waiting());
        let mut flow = self.vm.run(&mut session, input);
        match (held, session.is_holding()) {
            (false, true) => self.watchdog.held(context, shared, self.ticks),
            (true, false) => self.watchdog.released(context),
            _ => {}
        }
        if !waited && session.is_waiting() && !self.waiting.came(context, shared) {
            let no_room = Input::Endpoints(Patience::Over);
            flow = self.vm.run(&mut session, no_room);
        }
        if waited && !session.is_waiting() {
            self.waiting.left(context);
        }
        flow
    }

    /// An answer came to a callout, with so many headers and bytes of body.
    pub fn answered(&mut self, token: u32, headers: usize, size: usize) {
        let vm = &mut self.vm;
        // No headers: the connection broke, and there is nothing to be read.
        let status = (headers > 0)
            .then(|| vm.host.header(Headers::Callout, ":status"))
            .flatten()
            .and_then(|text| status(&text))
            .unwrap_or(0);
        if let Some(finder) = &mut self.finder
            && finder.waits_for(token)
        {
            return finder.answered(vm, status, size);
        }
        if let Some(engines) = &mut self.engines {
            engines.answered(vm, token, status, size);
        }
    }

    /// The configuration is gone, and the last stream with it: nothing may stay behind.
    pub fn close(&mut self) {
        let vm = &mut self.vm;
        let now_ms = vm.host.now_ns() / 1_000_000;
        let totals = vm.balancer.totals(&vm.host);
        vm.metrics.gauges(&vm.balancer, &totals, now_ms);
        vm.metrics.flush();
        vm.balancer.close(&vm.host);
    }
}
