//! How fast each endpoint is, learned from its own answers.
//!
//! Two straight lines for all endpoints together: time to first token over the tokens to be computed
//! before it, and time per output token over the context of the requests beside. Both are least-squares
//! fits that forget. What tells the endpoints apart is one factor each on either line, since a slower
//! GPU is slower in all it does: a factor is known after a few answers, where a line of its own would
//! need dozens, and a line through a handful of points is mostly noise. Factors are means of the roots
//! of ratios, drawn towards 1 by the weight of six answers: the root, so that one answer that came late
//! for reasons of its own does not weigh more than ten that came in time.

use std::collections::BTreeMap;

use crate::endpoint::{EndpointId, known};

/// What an observation of the line counts after the next one.
const LINE_MEMORY: f64 = 0.995;
/// What an observation of a factor counts after the next one of the same endpoint.
const FACTOR_MEMORY: f64 = 0.98;
/// Answers that the factor 1 counts for: more, and unequal replicas are told apart too late; fewer, and equal
/// ones seem unequal.
const FACTOR_WEIGHT: f64 = 6.0;
/// No single answer shows an endpoint to be faster or slower than by this.
const MOST_RATIO: f64 = 10.0;

/// Longer queues and contexts count as this long, in tokens: a line is forgotten the slower, the farther out
/// it was drawn.
const MOST_TOKENS: u64 = 1 << 20;

/// How fast an endpoint is expected to be, in whole numbers, so that a pick can be replayed from a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time to first token with nothing to compute.
    pub first_us: u32,
    /// Additional time for 1,000 tokens to be computed.
    pub prefill_us_per_1k_tokens: u32,
    /// Time per output token with nobody beside.
    pub token_us: u32,
    /// Additional time per output token for 1,000 tokens of context beside.
    pub token_us_per_1k_context: u32,
    /// How long a request holds its KV cache, on average, over all endpoints.
    pub residence_us: u64,
}

impl Default for Pace {
    /// About an 8B model on one data-centre GPU: 8,000 tokens/s, and 30 ms a token.
    fn default() -> Self {
        Self {
            first_us: 40_000,
            prefill_us_per_1k_tokens: 125_000,
            token_us: 30_000,
            token_us_per_1k_context: 200,
            residence_us: 5_000_000,
        }
    }
}

impl Pace {
    /// Time to compute so many tokens.
    pub fn prefill_us(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(u64::from(self.prefill_us_per_1k_tokens)) / 1_000
    }

    /// Tokens that are computed in so long.
    pub fn prefill_tokens(&self, us: u64) -> u64 {
        us.saturating_mul(1_000) / u64::from(self.prefill_us_per_1k_tokens.max(1))
    }

    /// Time per output token with so many tokens of context.
    pub fn output_us(&self, context_tokens: u64) -> u64 {
        let beside_us =
            context_tokens.saturating_mul(u64::from(self.token_us_per_1k_context)) / 1_000;
        beside_us.saturating_add(u64::from(self.token_us))
    }
}

/// Sums of a least-squares fit.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Fit {
    fn observe(&mut self, x: f64, y: f64) {
        *self = self.scaled(LINE_MEMORY).plus(Self {
            n: 1.0,
            x,
            y,
            xx: x * x,
            xy: x * y,
        });
    }

    fn scaled(self, by: f64) -> Self {
        Self {
            n: self.n * by,
            x: self.x * by,
            y: self.y * by,
            xx: self.xx * by,
            xy: self.xy * by,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            n: self.n + other.n,
            x: self.x + other.x,
            y: self.y + other.y,
            xx: self.xx + other.xx,
            xy: self.xy + other.xy,
        }
    }

    /// Two points of a line, as one observation together.
    fn of_line(line: (f64, f64), far: f64) -> Self {
        let (base, slope) = line;
        let mut fit = Self::default();
        for x in [0.0, far] {
            fit = fit.plus(Self {
                n: 1.0,
                x,
                y: base + slope * x,
                xx: x * x,
                xy: x * (base + slope * x),
            });
        }
        fit.scaled(0.5)
    }

    /// Base and slope, neither below zero.
    fn line(&self) -> (f64, f64) {
        let spread = self.n * self.xx - self.x * self.x;
        let slope = (self.n * self.xy - self.x * self.y) / spread;
        let through_mean = |slope: f64| (self.y - slope * self.x) / self.n;
        if spread > 0.0 && slope > 0.0 {
            let base = through_mean(slope);
            if base >= 0.0 {
                return (base, slope);
            }
            return (0.0, self.xy / self.xx);
        }
        (through_mean(0.0), 0.0)
    }
}

/// A line of all endpoints, from which some depart by a factor.
#[derive(Clone, Copy, Debug)]
struct Line {
    fit: Fit,
    /// The line before anything is known, as one observation.
    prior: Fit,
}

impl Line {
    fn new(base: u32, slope_per_1k: u32, far: f64) -> Self {
        let line = (f64::from(base), f64::from(slope_per_1k) / 1_000.0);
        Self {
            fit: Fit::default(),
            prior: Fit::of_line(line, far),
        }
    }

    #[inline(never)]
    fn base_and_slope(&self) -> (f64, f64) {
        self.fit.plus(self.prior).line()
    }

    /// An endpoint with this factor took `y` for `x`.
    #[inline(never)]
    fn observe(&mut self, factor: &mut Factor, x: f64, y: f64) {
        let (base, slope) = self.base_and_slope();
        let expected = (base + slope * x).max(1.0);
        let ratio = (y / expected).clamp(1.0 / MOST_RATIO, MOST_RATIO);
        let own = factor.value();
        factor.observe(ratio);
        self.fit.observe(x, expected * ratio / own);
    }
}

/// By how much an endpoint departs from a line.
#[derive(Clone, Copy, Debug, Default)]
struct Factor {
    roots: f64,
    n: f64,
}

impl Factor {
    fn observe(&mut self, ratio: f64) {
        self.roots = self.roots * FACTOR_MEMORY + ratio.sqrt();
        self.n = self.n * FACTOR_MEMORY + 1.0;
    }

    fn value(self) -> f64 {
        let root = (self.roots + FACTOR_WEIGHT) / (self.n + FACTOR_WEIGHT);
        root * root
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Factors {
    first: Factor,
    token: Factor,
}

/// The paces of all endpoints.
#[derive(Debug)]
pub struct Rates {
    first: Line,
    token: Line,
    residence: Fit,
    endpoints: BTreeMap<EndpointId, Factors>,
}

impl Default for Rates {
    fn default() -> Self {
        Self::new()
    }
}

impl Rates {
    /// Nothing is known yet: everybody has the default pace.
    pub fn new() -> Self {
        let prior = Pace::default();
        Self {
            first: Line::new(prior.first_us, prior.prefill_us_per_1k_tokens, 8_000.0),
            token: Line::new(prior.token_us, prior.token_us_per_1k_context, 20_000.0),
            residence: Fit::default(),
            endpoints: BTreeMap::new(),
        }
    }

    /// A first token came `first_us` after its request was sent, with so many tokens to be computed
    /// before it, those of others included.
    pub fn first_token(&mut self, endpoint: EndpointId, tokens: u64, first_us: u64) {
        let own = known(&mut self.endpoints, endpoint);
        self.first.observe(
            &mut own.first,
            tokens.min(MOST_TOKENS) as f64,
            first_us as f64,
        );
    }

    /// An answer took `token_us` per output token, with so many tokens of context.
    pub fn output(&mut self, endpoint: EndpointId, context_tokens: u64, token_us: u64) {
        let own = known(&mut self.endpoints, endpoint);
        self.token.observe(
            &mut own.token,
            context_tokens.min(MOST_TOKENS) as f64,
            token_us as f64,
        );
    }

    /// A request held its KV cache for so long.
    pub fn resided(&mut self, resided_us: u64) {
        self.residence.observe(1.0, resided_us as f64);
    }

    /// The paces of some endpoints, as far as they have shown.
    pub fn paces(&self, endpoints: &[EndpointId]) -> Vec<Pace> {
        let (first, first_slope) = self.first.base_and_slope();
        let (token, token_slope) = self.token.base_and_slope();
        let residence_us = if self.residence.n > 0.0 {
            (self.residence.y / self.residence.n) as u64
        } else {
            Pace::default().residence_us
        };
        let pace = |endpoint| {
            let own = self.endpoints.get(endpoint).copied().unwrap_or_default();
            let (by_first, by_token) = (own.first.value(), own.token.value());
            Pace {
                first_us: whole(first * by_first),
                prefill_us_per_1k_tokens: whole(first_slope * by_first * 1_000.0).max(1),
                token_us: whole(token * by_token),
                token_us_per_1k_context: whole(token_slope * by_token * 1_000.0),
                residence_us,
            }
        };
        endpoints.iter().map(pace).collect()
    }
}

/// The nearest whole number in range; a cast of a float saturates.
fn whole(value: f64) -> u32 {
    (value + 0.5) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: EndpointId = EndpointId(1);
    const B: EndpointId = EndpointId(2);
    const NEW: EndpointId = EndpointId(3);

    fn pace(rates: &Rates, endpoint: EndpointId) -> Pace {
        rates.paces(&[endpoint])[0]
    }

    /// First tokens of an endpoint with 20 ms of base and this many microseconds a token.
    fn observe(rates: &mut Rates, endpoint: EndpointId, us_per_token: u64, count: u64) {
        for turn in 0..count {
            let tokens = 500 + turn * 977 % 9_000;
            rates.first_token(endpoint, tokens, 20_000 + tokens * us_per_token);
        }
    }

    #[test]
    fn a_wrong_prior_is_forgotten_within_tens_of_requests() {
        let mut rates = Rates::new();
        // Three times slower than the prior has it.
        observe(&mut rates, A, 375, 40);
        let pace = pace(&rates, A);
        let error = f64::from(pace.prefill_us_per_1k_tokens) / 375_000.0 - 1.0;
        assert!(error.abs() < 0.1, "{pace:?}");
    }

    #[test]
    fn unequal_endpoints_are_told_apart_and_a_new_one_is_average() {
        let mut rates = Rates::new();
        for _ in 0..20 {
            observe(&mut rates, A, 100, 10);
            observe(&mut rates, B, 250, 10);
        }
        let us_per_1k = |endpoint| pace(&rates, endpoint).prefill_us_per_1k_tokens;
        assert!(
            us_per_1k(B) > us_per_1k(A) * 2,
            "{} {}",
            us_per_1k(A),
            us_per_1k(B)
        );
        assert!(us_per_1k(NEW) > us_per_1k(A) && us_per_1k(NEW) < us_per_1k(B));
    }

    #[test]
    fn one_answer_that_came_very_late_changes_little() {
        let mut rates = Rates::new();
        observe(&mut rates, A, 100, 60);
        let before = pace(&rates, A);
        rates.first_token(A, 4_000, 600_000_000);
        let after = pace(&rates, A);
        let us = |pace: &Pace| u64::from(pace.first_us) + pace.prefill_us(4_000);
        assert!(us(&after) < us(&before) * 3 / 2, "{before:?} {after:?}");
    }

    #[test]
    fn no_observation_however_odd_makes_a_pace_odd() {
        let mut rates = Rates::new();
        for (tokens, us) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            rates.first_token(A, tokens, us);
            rates.output(A, tokens, us);
            rates.resided(us);
            for line in [rates.first, rates.token] {
                let (base, slope) = line.base_and_slope();
                assert!(base.is_finite() && slope.is_finite(), "{line:?}");
            }
        }
        // And what is odd is forgotten.
        observe(&mut rates, A, 125, 2_000);
        let us = pace(&rates, A).prefill_us_per_1k_tokens;
        assert!((100_000..160_000).contains(&us), "{us}");
    }
}
