//! The facts about one endpoint, and what they come to at a moment.

use super::time::{Rest, is_fresh};
use super::{FORGET_MS, LEFT_MS, PROBE_MS, Settings, Standing, State, VERDICT_MS, Verdict, Why};

/// What has been heard of one endpoint, as far as it still matters. Of one that nothing bad was heard of, it
/// is the default.
///
/// Times are wall clock in milliseconds; 0 is never. What says of itself that it is from the future counts
/// as over, so that a clock that is set back holds nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Failures in a row while the breaker is closed.
    pub(super) failures: u32,
    /// The last rest of an open breaker; never if it is closed.
    pub(super) ejected: Rest,
    /// How often in a row it opened.
    pub(super) ejections: u32,
    /// What opened it.
    pub(super) ejected_why: Why,
    /// A sign of life came since it opened.
    pub(super) alive_since: bool,
    /// When a probe was claimed last.
    pub(super) probe_ms: u64,
    /// The last soft rest.
    pub(super) rest: Rest,
    /// How often in a row it was sent to rest.
    pub(super) rests: u32,
    /// What sent it to rest.
    pub(super) rest_why: Why,
    /// Envoy passed it over, and nothing else has been heard since: after its rest a single request tries it.
    pub(super) blamed: bool,
    /// When a scrape last got no answer.
    pub(super) silent_ms: u64,
    /// When it last showed life while it was silent to scrapes; never if that is too long before the last
    /// silence.
    pub(super) life_ms: u64,
    /// When a scrape was last refused.
    pub(super) refused_ms: u64,
    /// When the engine last said that it is not well.
    pub(super) unhealthy_ms: u64,
    /// When the engine last said that it sleeps.
    pub(super) asleep_ms: u64,
    /// Since when its KV cache is full.
    pub(super) kv_full_since_ms: u64,
    /// When that was last said.
    pub(super) kv_full_ms: u64,
    /// What Envoy says.
    pub(super) verdict: Verdict,
    /// When Envoy last said so.
    pub(super) verdict_ms: u64,
    /// Which configuration heard Envoy say so.
    pub(super) verdict_by: u32,
    /// When it came, if nothing good was heard of it yet. Never if it left.
    pub(super) warming_ms: u64,
    /// When it left. Never if it is warming.
    pub(super) left_ms: u64,
    /// When anything changed here, in seconds, as far as the [`Board`](super::Board) knows.
    pub(super) heard_s: u32,
}

impl Row {
    /// The state at `now_ms`, and what it is due to.
    pub fn state(&self, now_ms: u64, settings: &Settings) -> (State, Why) {
        let soft = self.soft(now_ms, settings);
        if is_fresh(self.left_ms, now_ms, LEFT_MS) || self.envoy_says(Verdict::Draining, now_ms) {
            (State::Draining, Why::Nothing)
        } else if is_fresh(self.asleep_ms, now_ms, settings.told_ms()) {
            (State::Ejected, Why::Asleep)
        } else if self.envoy_says(Verdict::Unhealthy, now_ms) {
            (State::Ejected, Why::Envoy)
        } else if self.ejected.is_set() {
            match self.rests_out(now_ms, settings) && !self.holds_probe(soft, now_ms, settings) {
                true => (State::Probing, self.ejected_why),
                false => (State::Ejected, self.ejected_why),
            }
        } else if let Some(why) = soft {
            (State::Resting, why)
        } else if self.blamed {
            (State::Probing, Why::Blamed)
        } else if self.is_warming(now_ms, settings) {
            (State::Warming, Why::Nothing)
        } else {
            (State::Ready, Why::Nothing)
        }
    }

    /// What the state means for a pick.
    pub fn standing(&self, now_ms: u64, settings: &Settings) -> Standing {
        let (state, why) = self.state(now_ms, settings);
        let is_claimed = is_fresh(self.probe_ms, now_ms, PROBE_MS);
        let ejected = match why {
            Why::Failures => Standing::Failing,
            _ => Standing::Out,
        };
        match state.standing() {
            Standing::Probing if is_claimed && self.ejected.is_set() => ejected,
            Standing::Probing if is_claimed => Standing::Resting,
            Standing::Out if state == State::Ejected => ejected,
            standing => standing,
        }
    }

    /// How long until it may be tried again, in milliseconds, as far as that is known; at least 1.
    pub fn back_in_ms(&self, now_ms: u64, settings: &Settings) -> u64 {
        let ejected = self.ejected.left_ms(now_ms, settings.max_rest_ms);
        let rest = self.rest.left_ms(now_ms, settings.max_asked_ms());
        match ejected.max(rest) {
            0 => settings.rest_ms.max(1),
            left_ms => left_ms,
        }
    }

    /// Whether a sign of life would change anything.
    pub fn wants_life(&self) -> bool {
        self.silent_ms != 0 || self.warming_ms != 0 || (self.ejected.is_set() && !self.alive_since)
    }

    /// What it rests for, if it does.
    fn soft(&self, now_ms: u64, settings: &Settings) -> Option<Why> {
        let told_ms = settings.told_ms();
        let told = |at_ms| is_fresh(at_ms, now_ms, told_ms);
        if self.rest.covers(now_ms, settings.max_asked_ms()) {
            return Some(self.rest_why);
        }
        if told(self.unhealthy_ms) {
            return Some(Why::Unhealthy);
        }
        if told(self.refused_ms) {
            return Some(Why::Refused);
        }
        // An answer under way is stronger evidence than a scrape without one.
        if told(self.silent_ms) && self.life_ms == 0 {
            return Some(Why::Silent);
        }
        self.is_full(now_ms, settings).then_some(Why::KvFull)
    }

    fn is_full(&self, now_ms: u64, settings: &Settings) -> bool {
        let full_for_ms = self.kv_full_ms.saturating_sub(self.kv_full_since_ms);
        is_fresh(self.kv_full_ms, now_ms, settings.told_ms()) && full_for_ms >= settings.kv_full_ms
    }

    /// Whether what it would rest for keeps a client's request from trying it: too good for that is what an
    /// engine has just said of itself. That scrapes do not reach it may be due to the scrapes, and counts for
    /// a time only.
    fn holds_probe(&self, soft: Option<Why>, now_ms: u64, settings: &Settings) -> bool {
        match soft {
            None => false,
            Some(Why::Silent | Why::Refused) => {
                is_fresh(self.ejected.since_ms, now_ms, settings.max_rest_ms)
                    || self.is_full(now_ms, settings)
            }
            Some(_) => true,
        }
    }

    /// Where scrapes say nothing at all, that it has come is no news after a while.
    fn is_warming(&self, now_ms: u64, settings: &Settings) -> bool {
        let most_ms = settings.told_ms().saturating_mul(2);
        settings.scraped_ms.is_some() && is_fresh(self.warming_ms, now_ms, most_ms)
    }

    /// Whether it says nothing any more, whatever the settings: it left a while ago, and nothing else was
    /// heard; or nothing was heard for very long.
    pub(super) fn is_spent(&self, now_ms: u64) -> bool {
        let heard_ms = u64::from(self.heard_s).saturating_mul(1_000);
        let is_forgotten = heard_ms != 0 && heard_ms.abs_diff(now_ms) >= FORGET_MS;
        let mut rest = *self;
        rest.heard_s = 0;
        if !is_fresh(rest.left_ms, now_ms, LEFT_MS) {
            rest.left_ms = 0;
        }
        is_forgotten || rest == Self::default()
    }

    fn envoy_says(&self, verdict: Verdict, now_ms: u64) -> bool {
        self.verdict == verdict && is_fresh(self.verdict_ms, now_ms, VERDICT_MS)
    }

    /// Whether an open breaker's rest is over. Where engines are scraped, a sign of life must have come
    /// since; without any, it is tried in the end all the same.
    fn rests_out(&self, now_ms: u64, settings: &Settings) -> bool {
        let most_ms = settings.max_rest_ms;
        if self.ejected.covers(now_ms, most_ms) {
            return false;
        }
        self.alive_since
            || settings.scraped_ms.is_none()
            || self.ejected.is_over_for(now_ms, most_ms, most_ms)
    }
}
