//! How fast each endpoint is, learned from its own answers.
//!
//! Two straight lines an endpoint: time to first token over the tokens to be computed before it, and
//! time per output token over the requests that run beside. Both are least-squares fits that forget
//! (each observation counts 0.98 of the next), drawn towards the line of all endpoints by the weight
//! of eight observations, so that a new endpoint starts as an average one and an odd one shows soon.

use std::collections::BTreeMap;

use crate::endpoint::EndpointId;

/// What an observation counts after the next one.
const MEMORY: f64 = 0.98;
/// Observations that the line of all endpoints counts for.
const COMMON_WEIGHT: f64 = 8.0;

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
    /// Tokens of context that fill the KV cache; 0 if unknown.
    pub kv_tokens: u64,
    /// How long a request stays, on average, over all endpoints.
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
            kv_tokens: 0,
            residence_us: 5_000_000,
        }
    }
}

impl Pace {
    /// Time to compute so many tokens.
    pub fn prefill_us(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(u64::from(self.prefill_us_per_1k_tokens)) / 1_000
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
        *self = self.scaled(MEMORY).plus(Self {
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

    /// The same line with the weight of so many observations.
    fn weighing(self, observations: f64) -> Self {
        if self.n > 0.0 {
            self.scaled(observations / self.n)
        } else {
            self
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
        fit.weighing(1.0)
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

#[derive(Clone, Copy, Debug, Default)]
struct Fits {
    first: Fit,
    token: Fit,
    kv: Fit,
}

/// The paces of all endpoints.
#[derive(Debug, Default)]
pub struct Rates {
    all: Fits,
    residence: Fit,
    endpoints: BTreeMap<EndpointId, Fits>,
}

impl Rates {
    /// Nothing is known yet: everybody has the default pace.
    pub fn new() -> Self {
        Self::default()
    }

    /// A first token came `first_us` after its request was sent, with so many tokens to be computed
    /// before it, those of others included.
    pub fn first_token(&mut self, endpoint: EndpointId, tokens: u64, first_us: u64) {
        let (x, y) = (tokens as f64, first_us as f64);
        self.all.first.observe(x, y);
        self.endpoints
            .entry(endpoint)
            .or_default()
            .first
            .observe(x, y);
    }

    /// An answer took `token_us` per output token, with so many tokens of context.
    pub fn output(&mut self, endpoint: EndpointId, context_tokens: u64, token_us: u64) {
        let (x, y) = (context_tokens as f64, token_us as f64);
        self.all.token.observe(x, y);
        self.endpoints
            .entry(endpoint)
            .or_default()
            .token
            .observe(x, y);
    }

    /// A request was over after so long.
    pub fn resided(&mut self, total_us: u64) {
        self.residence.observe(1.0, total_us as f64);
    }

    /// The engine reported this share of its KV cache in use while so many tokens of context were there.
    pub fn kv_used(&mut self, endpoint: EndpointId, context_tokens: u64, permille: u32) {
        self.endpoints
            .entry(endpoint)
            .or_default()
            .kv
            .observe(f64::from(permille), context_tokens as f64);
    }

    /// The pace of an endpoint, as far as it has shown.
    pub fn pace(&self, endpoint: EndpointId) -> Pace {
        let prior = Pace::default();
        let own = self.endpoints.get(&endpoint).copied().unwrap_or_default();
        let first_prior = (
            f64::from(prior.first_us),
            f64::from(prior.prefill_us_per_1k_tokens) / 1_000.0,
        );
        let token_prior = (
            f64::from(prior.token_us),
            f64::from(prior.token_us_per_1k_context) / 1_000.0,
        );
        let blended = |own: Fit, all: Fit, prior: Fit| {
            let common = all.plus(prior).weighing(COMMON_WEIGHT);
            own.plus(common).line()
        };
        let first_prior = Fit::of_line(first_prior, 8_000.0);
        let (first_us, per_token_us) = blended(own.first, self.all.first, first_prior);
        let token_prior = Fit::of_line(token_prior, 20_000.0);
        let (token_us, per_context_us) = blended(own.token, self.all.token, token_prior);
        Pace {
            first_us: whole(first_us),
            prefill_us_per_1k_tokens: whole(per_token_us * 1_000.0).max(1),
            token_us: whole(token_us),
            token_us_per_1k_context: whole(per_context_us * 1_000.0),
            kv_tokens: if own.kv.x > 0.0 {
                (own.kv.y / own.kv.x * 1_000.0) as u64
            } else {
                0
            },
            residence_us: if self.residence.n > 0.0 {
                (self.residence.y / self.residence.n) as u64
            } else {
                prior.residence_us
            },
        }
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
        let pace = rates.pace(A);
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
        let us_per_1k = |endpoint| rates.pace(endpoint).prefill_us_per_1k_tokens;
        assert!(
            us_per_1k(B) > us_per_1k(A) * 2,
            "{} {}",
            us_per_1k(A),
            us_per_1k(B)
        );
        assert!(us_per_1k(NEW) > us_per_1k(A) && us_per_1k(NEW) < us_per_1k(B));
    }

    #[test]
    fn the_size_of_the_kv_cache_shows_in_what_fills_it() {
        let mut rates = Rates::new();
        assert_eq!(rates.pace(A).kv_tokens, 0);
        for permille in [200, 500, 900] {
            rates.kv_used(A, u64::from(permille) * 100, permille);
        }
        assert_eq!(rates.pace(A).kv_tokens, 100_000);
    }

    #[test]
    fn no_observation_however_odd_makes_a_pace_odd() {
        let mut rates = Rates::new();
        for (tokens, us) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            rates.first_token(A, tokens, us);
            rates.output(A, tokens, us);
            rates.resided(us);
            rates.kv_used(A, tokens, 0);
            let pace = rates.pace(A);
            assert!(pace.prefill_us_per_1k_tokens > 0, "{pace:?}");
            assert!(pace.prefill_us(1_000) > 0);
        }
    }
}
