//! What a signal changes in the facts about an endpoint.

use super::time::{Rest, is_fresh};
use super::{LIFE_MS, PROBE_MS, Row, Settings, Signal, Verdict, Why};

/// A verdict that is repeated is written down this often, in milliseconds.
const VERDICT_AGAIN_MS: u64 = 1_000;
/// Life that shows again and again is written down this often, in milliseconds.
const LIFE_AGAIN_MS: u64 = 500;
/// What one configuration says of an endpoint, another, which may look at another cluster, does not take back
/// so soon after, in milliseconds. With an interval of 1,000 and [`VERDICT_AGAIN_MS`] it is written down at
/// least every 2,000.
const VERDICT_STANDS_MS: u64 = 2_500;

/// Whether an outcome is one of several of the same cause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    /// The next rest in a row is longer.
    Longer,
    /// It is as long as the one before.
    Same,
}

impl Row {
    /// Takes a signal. Says whether anything changed.
    pub fn hear(&mut self, signal: Signal, now_ms: u64, settings: &Settings) -> bool {
        let before = *self;
        if self.is_spent(now_ms) {
            *self = Self::default();
        }
        // 0 is never.
        self.take(signal, now_ms.max(1), settings);
        *self != before
    }

    /// Whether a probe is under way.
    pub fn is_claimed(&self, now_ms: u64) -> bool {
        is_fresh(self.probe_ms, now_ms, PROBE_MS)
    }

    /// Notes when it changed; one that says nothing is the default again.
    pub(super) fn changed(&mut self, now_ms: u64) {
        self.heard_s = 0;
        if *self != Self::default() {
            self.heard_s = u32::try_from(now_ms / 1_000).unwrap_or(u32::MAX).max(1);
        }
    }

    /// The next request probes.
    pub(super) fn claim(&mut self, now_ms: u64) {
        self.probe_ms = now_ms.max(1);
    }

    fn take(&mut self, signal: Signal, now_ms: u64, settings: &Settings) {
        match signal {
            Signal::Good => self.good(now_ms, settings),
            Signal::Alive => self.alive(now_ms, settings),
            Signal::Failed => self.failed(now_ms, settings),
            Signal::Refused => self.refused(now_ms, settings),
            Signal::Overloaded { retry_after_ms } => {
                self.alive(now_ms, settings);
                // It works, and has too much to do.
                self.failures = 0;
                self.blamed = false;
                self.rest_softly(Why::Overloaded, retry_after_ms, now_ms, settings);
                self.probe_ms = 0;
            }
            Signal::Blamed => self.blamed(now_ms, settings),
            Signal::Unproved => self.probe_ms = 0,
            Signal::Scraped { kv_permille, awake } => {
                self.scraped(settings);
                self.filled(kv_permille, now_ms, settings);
                match awake {
                    Some(true) => self.asleep_ms = 0,
                    Some(false) => self.asleep_ms = now_ms,
                    None => {}
                }
            }
            Signal::ScrapeSilent => self.silent(now_ms),
            Signal::ScrapeRefused => self.refused_ms = now_ms,
            Signal::EngineHealthy => {
                self.alive(now_ms, settings);
                self.unhealthy_ms = 0;
            }
            Signal::EngineUnhealthy => self.unhealthy_ms = now_ms,
            Signal::Asleep => self.asleep_ms = now_ms,
            Signal::Awake => self.asleep_ms = 0,
            Signal::Envoy(verdict) => self.judged(verdict, now_ms, settings),
            Signal::Came => self.came(now_ms),
            Signal::Left => {
                *self = Self {
                    left_ms: now_ms,
                    ..Self::default()
                };
            }
        }
    }

    fn good(&mut self, now_ms: u64, settings: &Settings) {
        self.alive(now_ms, settings);
        self.failures = 0;
        // What was sent before it was ejected says nothing of now.
        if !self.ejected.covers(now_ms, settings.max_rest_ms) {
            self.close();
        }
        // It asked to be spared, and is spared until then; but it does not refuse everything.
        if self.rest.covers(now_ms, settings.max_asked_ms()) {
            self.rests = self.rests.min(1);
            return;
        }
        self.rest = Rest::default();
        self.rests = 0;
        self.rest_why = Why::Nothing;
        if self.blamed {
            self.blamed = false;
            self.probe_ms = 0;
        }
    }

    fn close(&mut self) {
        self.ejected = Rest::default();
        self.ejections = 0;
        self.ejected_why = Why::Nothing;
        self.alive_since = false;
        self.probe_ms = 0;
    }

    /// A refused scrape is no silence: an engine that is being stopped finishes what it has.
    fn alive(&mut self, now_ms: u64, settings: &Settings) {
        self.warming_ms = 0;
        self.alive_since = self.ejected.is_set();
        if is_fresh(self.silent_ms, now_ms, settings.told_ms()) {
            say_again(&mut self.life_ms, now_ms, LIFE_AGAIN_MS);
        } else {
            self.silent_ms = 0;
            self.life_ms = 0;
        }
    }

    fn silent(&mut self, now_ms: u64) {
        self.silent_ms = now_ms;
        if !is_fresh(self.life_ms, now_ms, LIFE_MS) {
            self.life_ms = 0;
        }
    }

    fn failed(&mut self, now_ms: u64, settings: &Settings) {
        if self.ejected.is_set() {
            // Others that failed of the same cause.
            if !self.ejected.covers(now_ms, settings.max_rest_ms) {
                self.eject(Why::Failures, now_ms, settings);
            }
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= settings.failures {
            self.eject(Why::Failures, now_ms, settings);
        } else if self.blamed {
            self.blamed(now_ms, settings);
        }
    }

    /// Most endpoints that Envoy passes over are overloaded: they rest, but are not ejected, since where all are,
    /// their own answers are the best there are. Those that are dead or unreachable must not keep requests waiting:
    /// they are tried one at a time.
    fn blamed(&mut self, now_ms: u64, settings: &Settings) {
        if self.ejected.is_set() {
            return self.failed(now_ms, settings);
        }
        self.rest_softly(Why::Blamed, None, now_ms, settings);
        self.blamed = true;
        self.probe_ms = 0;
    }

    fn refused(&mut self, now_ms: u64, settings: &Settings) {
        let resting = self.ejected.covers(now_ms, settings.max_rest_ms);
        if !resting {
            self.eject(Why::Refused, now_ms, settings);
        }
    }

    /// Opens the breaker. Only what a probe shows is news of one that was open: other requests that fail were
    /// sent before.
    fn eject(&mut self, why: Why, now_ms: u64, settings: &Settings) {
        let growth = match !self.ejected.is_set() || self.is_claimed(now_ms) {
            true => Growth::Longer,
            false => Growth::Same,
        };
        if growth == Growth::Longer {
            self.ejections = self.ejections.saturating_add(1);
        }
        self.ejected = Rest::new(now_ms, settings.rest_ms(self.ejections));
        self.ejected_why = why;
        self.alive_since = false;
        self.probe_ms = 0;
        self.failures = 0;
        self.blamed = false;
    }

    /// Sends it to rest: as long as it asked for, or longer with each time in a row. What comes while it
    /// rests may prolong the rest, but is not counted.
    fn rest_softly(&mut self, why: Why, asked_ms: Option<u64>, now_ms: u64, settings: &Settings) {
        let left_ms = self.rest.left_ms(now_ms, settings.max_asked_ms());
        if left_ms == 0 {
            self.rests = self.rests.saturating_add(1);
        }
        let length_ms = match asked_ms {
            Some(asked_ms @ 1..) => asked_ms.min(settings.max_asked_ms()),
            _ => settings.rest_ms(self.rests),
        };
        if length_ms > left_ms {
            self.rest = Rest::new(now_ms, length_ms);
            self.rest_why = why;
        }
    }

    fn scraped(&mut self, settings: &Settings) {
        self.silent_ms = 0;
        self.life_ms = 0;
        self.refused_ms = 0;
        self.warming_ms = 0;
        if self.ejected.is_set() && settings.scraped_ms.is_some() {
            self.alive_since = true;
            if self.ejected_why == Why::Refused {
                // Somebody listens again.
                self.ejected.length_ms = 0;
            }
        }
    }

    fn filled(&mut self, kv_permille: u32, now_ms: u64, settings: &Settings) {
        if kv_permille < settings.kv_full_permille {
            self.kv_full_since_ms = 0;
            self.kv_full_ms = 0;
            return;
        }
        if !is_fresh(self.kv_full_ms, now_ms, settings.told_ms()) {
            self.kv_full_since_ms = now_ms;
        }
        self.kv_full_ms = now_ms;
    }

    fn judged(&mut self, verdict: Verdict, now_ms: u64, settings: &Settings) {
        if matches!(verdict, Verdict::Healthy | Verdict::Degraded) {
            let is_own = self.verdict_by == settings.configuration;
            if is_own || !is_fresh(self.verdict_ms, now_ms, VERDICT_STANDS_MS) {
                self.verdict = Verdict::default();
                self.verdict_ms = 0;
                self.verdict_by = 0;
            }
            return;
        }
        if self.verdict != verdict {
            self.verdict_ms = 0;
        }
        self.verdict = verdict;
        if !is_fresh(self.verdict_ms, now_ms, VERDICT_AGAIN_MS) {
            self.verdict_ms = now_ms;
            self.verdict_by = settings.configuration;
        }
    }

    /// One that was away is another one now.
    fn came(&mut self, now_ms: u64) {
        if self.left_ms != 0 {
            *self = Self::default();
        }
        self.warming_ms = now_ms;
    }
}

/// Writes down that something was said again, unless that was just done.
fn say_again(at_ms: &mut u64, now_ms: u64, every_ms: u64) {
    if !is_fresh(*at_ms, now_ms, every_ms) {
        *at_ms = now_ms;
    }
}
