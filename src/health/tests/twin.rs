//! The same rules a second time, naively: one enumeration for the breaker, options for the rest, and a clock
//! that only goes forward.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Breaker {
    Closed {
        failures: u32,
    },
    Open {
        since_ms: u64,
        until_ms: u64,
        number: u32,
        why: Why,
        life: bool,
        probed_ms: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Twin {
    breaker: Breaker,
    rest_until_ms: u64,
    rests: u32,
    rest_why: Why,
    /// Since it was passed over: until when somebody tries it.
    passed_over: Option<u64>,
    /// When, and whether it shows life all the same.
    silent: Option<(u64, Option<u64>)>,
    refused_ms: Option<u64>,
    unhealthy_ms: Option<u64>,
    asleep_ms: Option<u64>,
    full: Option<(u64, u64)>,
    verdict: Option<(Verdict, u64)>,
    came_ms: Option<u64>,
    left_ms: Option<u64>,
}

impl Default for Twin {
    fn default() -> Self {
        Self {
            breaker: Breaker::Closed { failures: 0 },
            rest_until_ms: 0,
            rests: 0,
            rest_why: Why::Nothing,
            passed_over: None,
            silent: None,
            refused_ms: None,
            unhealthy_ms: None,
            asleep_ms: None,
            full: None,
            verdict: None,
            came_ms: None,
            left_ms: None,
        }
    }
}

fn doubled(number: u32, settings: &Settings) -> u64 {
    let mut rest_ms = settings.rest_ms;
    for _ in 1..number {
        rest_ms = (rest_ms * 2).min(settings.max_rest_ms);
    }
    rest_ms
}

impl Twin {
    pub(super) fn hear(&mut self, signal: Signal, now_ms: u64, settings: &Settings) {
        let window_ms = settings.scraped_ms.unwrap_or(5_000);
        // Who left long ago, and did nothing else, is as one that was never there.
        let left_ms = self.left_ms.filter(|left_ms| now_ms < left_ms + 5_000);
        if (Self { left_ms, ..*self }) == Self::default() {
            *self = Self::default();
        }
        match signal {
            Signal::Good => {
                self.lives(now_ms, window_ms);
                match self.breaker {
                    Breaker::Open { until_ms, .. } if now_ms < until_ms => {}
                    _ => self.breaker = Breaker::Closed { failures: 0 },
                }
                if now_ms >= self.rest_until_ms {
                    self.rests = 0;
                    self.rest_until_ms = 0;
                    self.rest_why = Why::Nothing;
                    self.passed_over = None;
                } else {
                    self.rests = self.rests.min(1);
                }
            }
            Signal::Alive => self.lives(now_ms, window_ms),
            Signal::Failed => self.fails(now_ms, settings),
            Signal::Refused => {
                let resting =
                    matches!(self.breaker, Breaker::Open { until_ms, .. } if now_ms < until_ms);
                if !resting {
                    self.opens(Why::Refused, now_ms, settings);
                }
            }
            Signal::Overloaded { retry_after_ms } => {
                self.lives(now_ms, window_ms);
                if let Breaker::Closed { failures } = &mut self.breaker {
                    *failures = 0;
                }
                self.passed_over = None;
                self.rests(Why::Overloaded, retry_after_ms, now_ms, settings);
                self.probed(None);
            }
            Signal::Blamed => match self.breaker {
                Breaker::Closed { .. } => {
                    self.passed_over = Some(0);
                    self.rests(Why::Blamed, None, now_ms, settings);
                }
                Breaker::Open { .. } => self.fails(now_ms, settings),
            },
            Signal::Unproved => self.probed(None),
            Signal::Scraped { kv_permille, awake } => {
                self.silent = None;
                self.refused_ms = None;
                self.came_ms = None;
                if let Breaker::Open {
                    until_ms,
                    why,
                    life,
                    ..
                } = &mut self.breaker
                    && settings.scraped_ms.is_some()
                {
                    *life = true;
                    if *why == Why::Refused {
                        *until_ms = 0;
                    }
                }
                self.full = match (kv_permille >= settings.kv_full_permille, self.full) {
                    (true, Some((since_ms, told_ms))) if now_ms < told_ms + window_ms => {
                        Some((since_ms, now_ms))
                    }
                    (true, _) => Some((now_ms, now_ms)),
                    (false, _) => None,
                };
                if let Some(awake) = awake {
                    self.asleep_ms = (!awake).then_some(now_ms);
                }
            }
            Signal::ScrapeSilent => {
                let life = self.silent.and_then(|(_, life)| life);
                self.silent = Some((now_ms, life.filter(|life| now_ms < life + 2_000)));
            }
            Signal::ScrapeRefused => self.refused_ms = Some(now_ms),
            Signal::EngineHealthy => {
                self.lives(now_ms, window_ms);
                self.unhealthy_ms = None;
            }
            Signal::EngineUnhealthy => self.unhealthy_ms = Some(now_ms),
            Signal::Asleep => self.asleep_ms = Some(now_ms),
            Signal::Awake => self.asleep_ms = None,
            Signal::Envoy(verdict) => {
                let bad = matches!(verdict, Verdict::Unhealthy | Verdict::Draining);
                self.verdict = match self.verdict {
                    _ if !bad => None,
                    Some((same, at_ms)) if same == verdict && now_ms < at_ms + 1_000 => {
                        Some((same, at_ms))
                    }
                    _ => Some((verdict, now_ms)),
                };
            }
            Signal::Came => {
                if self.left_ms.is_some() {
                    *self = Self::default();
                }
                self.came_ms = Some(now_ms);
            }
            Signal::Left => {
                *self = Self {
                    left_ms: Some(now_ms),
                    ..Self::default()
                };
            }
        }
    }

    fn lives(&mut self, now_ms: u64, window_ms: u64) {
        self.came_ms = None;
        if let Breaker::Open { life, .. } = &mut self.breaker {
            *life = true;
        }
        self.silent = match self.silent {
            Some((at_ms, life)) if now_ms < at_ms + window_ms => {
                let known = life.filter(|life| now_ms < life + 500);
                Some((at_ms, known.or(Some(now_ms))))
            }
            _ => None,
        };
    }

    fn fails(&mut self, now_ms: u64, settings: &Settings) {
        match &mut self.breaker {
            Breaker::Closed { failures } => {
                *failures += 1;
                if *failures >= settings.failures {
                    self.opens(Why::Failures, now_ms, settings);
                } else if self.passed_over.is_some() {
                    self.passed_over = Some(0);
                    self.rests(Why::Blamed, None, now_ms, settings);
                }
            }
            Breaker::Open { until_ms, .. } if now_ms < *until_ms => {}
            Breaker::Open { .. } => self.opens(Why::Failures, now_ms, settings),
        }
    }

    fn opens(&mut self, why: Why, now_ms: u64, settings: &Settings) {
        let number = match self.breaker {
            Breaker::Closed { .. } => 1,
            Breaker::Open {
                number, probed_ms, ..
            } => number + u32::from(probed_ms.is_some_and(|at_ms| now_ms < at_ms + 10_000)),
        };
        self.passed_over = None;
        self.breaker = Breaker::Open {
            since_ms: now_ms,
            until_ms: now_ms + doubled(number, settings),
            number,
            why,
            life: false,
            probed_ms: None,
        };
    }

    fn rests(&mut self, why: Why, asked_ms: Option<u64>, now_ms: u64, settings: &Settings) {
        if now_ms >= self.rest_until_ms {
            self.rests += 1;
        }
        let length_ms = match asked_ms.filter(|asked_ms| *asked_ms > 0) {
            Some(asked_ms) => asked_ms.min(10 * settings.max_rest_ms),
            None => doubled(self.rests, settings),
        };
        if now_ms + length_ms > self.rest_until_ms {
            self.rest_until_ms = now_ms + length_ms;
            self.rest_why = why;
        }
    }

    fn probed(&mut self, at_ms: Option<u64>) {
        if let Breaker::Open { probed_ms, .. } = &mut self.breaker {
            *probed_ms = at_ms;
        } else if self.passed_over.is_some() {
            self.passed_over = Some(at_ms.map_or(0, |at_ms| at_ms + 10_000));
        }
    }

    /// Whether the probe was there to be claimed.
    pub(super) fn claim(&mut self, now_ms: u64, settings: &Settings) -> bool {
        let free = match self.breaker {
            Breaker::Open { probed_ms, .. } => probed_ms.is_none_or(|at| now_ms >= at + 10_000),
            Breaker::Closed { .. } => self.passed_over.is_some_and(|until_ms| now_ms >= until_ms),
        };
        let claimed = free && self.state(now_ms, settings).0 == State::Probing;
        if claimed {
            self.probed(Some(now_ms));
        }
        claimed
    }

    pub(super) fn state(&self, now_ms: u64, settings: &Settings) -> (State, Why) {
        let window_ms = settings.scraped_ms.unwrap_or(5_000);
        let told = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| now_ms < at_ms + window_ms);
        let judged = |judgement| {
            self.verdict
                .is_some_and(|(verdict, at_ms)| verdict == judgement && now_ms < at_ms + 60_000)
        };
        let silent = self.silent.filter(|(_, life)| life.is_none());
        let full = self.full.filter(|(since_ms, told_ms)| {
            told_ms - since_ms >= settings.kv_full_ms && told(Some(*told_ms))
        });
        let soft = if now_ms < self.rest_until_ms {
            Some(self.rest_why)
        } else if told(self.unhealthy_ms) {
            Some(Why::Unhealthy)
        } else if told(self.refused_ms) {
            Some(Why::Refused)
        } else if told(silent.map(|(at_ms, _)| at_ms)) {
            Some(Why::Silent)
        } else {
            full.map(|_| Why::KvFull)
        };
        if judged(Verdict::Draining) || self.left_ms.is_some_and(|at_ms| now_ms < at_ms + 5_000) {
            return (State::Draining, Why::Nothing);
        }
        if told(self.asleep_ms) {
            return (State::Ejected, Why::Asleep);
        }
        if judged(Verdict::Unhealthy) {
            return (State::Ejected, Why::Envoy);
        }
        if let Breaker::Open {
            since_ms,
            until_ms,
            why,
            life,
            ..
        } = self.breaker
        {
            // Scrapes that do not reach it may be wrong in the end.
            let held = match soft {
                Some(Why::Silent | Why::Refused) if now_ms >= since_ms + settings.max_rest_ms => {
                    full.is_some()
                }
                soft => soft.is_some(),
            };
            let overdue = now_ms >= until_ms + settings.max_rest_ms;
            let shows = life || overdue || settings.scraped_ms.is_none();
            return match now_ms >= until_ms && shows && !held {
                true => (State::Probing, why),
                false => (State::Ejected, why),
            };
        }
        match soft {
            Some(why) => (State::Resting, why),
            None if self.passed_over.is_some() => (State::Probing, Why::Blamed),
            None if settings.scraped_ms.is_some()
                && self.came_ms.is_some_and(|at| now_ms < at + 2 * window_ms) =>
            {
                (State::Warming, Why::Nothing)
            }
            None => (State::Ready, Why::Nothing),
        }
    }
}
