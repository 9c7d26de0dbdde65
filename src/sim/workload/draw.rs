//! What generators draw from, all from one seed: lengths, gaps, popularity, ids.

use super::mix;
use crate::random::Random;

/// A seeded source of draws.
#[derive(Debug)]
pub(super) struct Draw(Random);

impl Draw {
    /// The draws of one purpose: another `purpose` gives others from the same seed.
    pub(super) fn new(seed: u64, purpose: &str) -> Self {
        let purpose = purpose.bytes().fold(0, |id, byte| mix(id, u64::from(byte)));
        Self(Random::new(mix(seed, purpose)))
    }

    /// A name for a text or a session.
    pub(super) fn id(&mut self) -> u64 {
        self.0.bits()
    }

    /// From 0 up to, but not including, 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        let above = u32::try_from(self.0.below(span)).unwrap_or(0);
        low.saturating_add(above)
    }

    /// A length: uniform within a half of `mean`, at least 1.
    pub(super) fn around(&mut self, mean: u32) -> u32 {
        let half = mean / 2;
        self.between(mean - half, mean.saturating_add(half)).max(1)
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponential: the gap between two arrivals of a Poisson process.
    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Failures before the first success, with this mean.
    pub(super) fn geometric(&mut self, mean: f64) -> u32 {
        if mean <= 0.0 {
            return 0;
        }
        // A cast of a float to an integer saturates.
        ((1.0 - self.unit()).ln() / (mean / (1.0 + mean)).ln()) as u32
    }

    /// Log-normal, by the method of Box and Muller.
    pub(super) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.unit()).cos();
        median * (sigma * normal).exp()
    }
}

/// Arrivals of a Poisson process, in microseconds.
#[derive(Debug)]
pub(super) struct Poisson {
    rate_per_s: f64,
    at_us: f64,
}

impl Poisson {
    pub(super) fn new(rate_per_s: f64) -> Self {
        Self {
            rate_per_s: rate_per_s.max(1e-6),
            at_us: 0.0,
        }
    }

    pub(super) fn next_us(&mut self, draw: &mut Draw) -> u64 {
        self.at_us += draw.exponential(1e6 / self.rate_per_s);
        self.at_us as u64
    }
}

/// Zipf's law: the item of rank k is drawn in proportion to 1 / (k + 1)^s.
#[derive(Debug)]
pub(super) struct Zipf {
    /// Weights up to and including each rank.
    sums: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(items: u32, s: f64) -> Self {
        let mut sum = 0.0;
        let weights = (0..items).map(|rank| {
            sum += (f64::from(rank) + 1.0).powf(-s);
            sum
        });
        Self {
            sums: weights.collect(),
        }
    }

    /// A rank, from 0.
    pub(super) fn rank(&self, draw: &mut Draw) -> usize {
        let total = self.sums.last().copied().unwrap_or(0.0);
        let wanted = draw.unit() * total;
        self.sums.partition_point(|sum| *sum <= wanted)
    }
}
