//! The hash ring: many points for every endpoint, and the walk clockwise from a key.

use xxhash_rust::xxh64::xxh64;

use crate::endpoint::Pool;

/// Most points on one ring (16 MB). Above it every endpoint gets proportionally fewer.
const MAX_POINTS: u64 = 1 << 20;

/// The largest multiple of the points of a weight-1 endpoint that a heavier one gets.
const MAX_MULTIPLE: u64 = 64;

/// Where point `number` of the endpoint called `name` lies.
///
/// The number is hashed in a fixed width behind the name, so that `pod1` point 11 and `pod11`
/// point 1 are different inputs.
pub fn point(name: &str, number: u32) -> u64 {
    let mut input = Vec::with_capacity(name.len().saturating_add(4));
    input.extend_from_slice(name.as_bytes());
    input.extend_from_slice(&number.to_le_bytes());
    xxh64(&input, 0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    hash: u64,
    endpoint: u32,
}

/// The points of all endpoints of one pool, in clockwise order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    points: Vec<Point>,
    endpoints: u32,
}

impl Ring {
    /// A ring on which every endpoint has the same number of points, at least 1.
    pub fn new(pool: &Pool, points: u32) -> Self {
        Self::with_multiples(pool, points, &vec![1; pool.len()])
    }

    /// A ring on which an endpoint has points in proportion to its weight.
    ///
    /// The weights are reduced by their greatest common divisor; if the largest is then above 64 all
    /// are scaled down to that, none below 1. A change of the pool that changes the divisor, or a
    /// largest weight above 64, moves more keys than those of the endpoints that came or went.
    pub fn weighted(pool: &Pool, points: u32) -> Self {
        let weights = pool
            .endpoints()
            .iter()
            .map(|endpoint| u64::from(endpoint.weight.max(1)));
        let divisor = weights.clone().fold(0, gcd).max(1);
        let reduced: Vec<u64> = weights
            .map(|weight| weight.checked_div(divisor).unwrap_or(1))
            .collect();
        let largest = reduced.iter().copied().max().unwrap_or(1);
        let scaled = reduced.iter().map(|&weight| {
            if largest <= MAX_MULTIPLE {
                weight
            } else {
                weight
                    .saturating_mul(MAX_MULTIPLE)
                    .checked_div(largest)
                    .unwrap_or(1)
                    .max(1)
            }
        });
        Self::with_multiples(pool, points, &scaled.collect::<Vec<_>>())
    }

    fn with_multiples(pool: &Pool, points: u32, multiples: &[u64]) -> Self {
        let sum = multiples
            .iter()
            .fold(0u64, |sum, &multiple| sum.saturating_add(multiple));
        let most = MAX_POINTS.checked_div(sum).unwrap_or(MAX_POINTS).max(1);
        let points = u64::from(points).clamp(1, most);
        let mut placed = Vec::new();
        for ((endpoint, index), &multiple) in pool.endpoints().iter().zip(0u32..).zip(multiples) {
            let count = u32::try_from(points.saturating_mul(multiple)).unwrap_or(u32::MAX);
            placed.extend((0..count).map(|number| Point {
                hash: point(endpoint.name(), number),
                endpoint: index,
            }));
        }
        placed.sort_unstable_by_key(|point| {
            (
                point.hash,
                pool.get(point.endpoint).map(|endpoint| endpoint.id()),
            )
        });
        Self {
            points: placed,
            endpoints: u32::try_from(pool.len()).unwrap_or(u32::MAX),
        }
    }

    /// All endpoints, each once, in the order in which they are met clockwise from `key`.
    pub fn walk(&self, key: u64) -> Walk<'_> {
        let start = self.points.partition_point(|point| point.hash < key);
        let (before, from) = self
            .points
            .split_at_checked(start)
            .unwrap_or((&[], &self.points));
        Walk {
            points: from.iter().chain(before),
            seen: vec![0; (self.endpoints as usize).div_ceil(64)],
            left: self.endpoints,
        }
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

/// See [`Ring::walk`].
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    points: std::iter::Chain<std::slice::Iter<'a, Point>, std::slice::Iter<'a, Point>>,
    seen: Vec<u64>,
    left: u32,
}

impl Iterator for Walk<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        // Most of a ring's points are met after its last endpoint.
        self.left = self.left.checked_sub(1)?;
        for point in self.points.by_ref() {
            let word = self.seen.get_mut((point.endpoint / 64) as usize)?;
            let bit = 1u64 << (point.endpoint % 64);
            if *word & bit == 0 {
                *word |= bit;
                return Some(point.endpoint);
            }
        }
        None
    }
}

/// Greatest common divisor; the other number if one is 0.
pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;

    fn pool(weights: &[u32]) -> Pool {
        let endpoints = weights.iter().enumerate().map(|(index, &weight)| {
            let mut endpoint = Endpoint::new(format!("10.0.0.{}:8000", index + 1).parse().unwrap());
            endpoint.weight = weight;
            endpoint
        });
        Pool::new(endpoints.collect())
    }

    #[test]
    fn h3_points_of_similar_names_differ() {
        assert_ne!(point("pod1", 11), point("pod11", 1));
        assert_ne!(point("pod", 111), point("pod1", 11));
    }

    #[test]
    fn weights_multiply_points_after_reduction() {
        assert_eq!(Ring::weighted(&pool(&[100, 200, 300]), 10).len(), 60);
        assert_eq!(Ring::weighted(&pool(&[1, 1000]), 10).len(), 650);
        assert_eq!(Ring::new(&pool(&[1, 1000]), 10).len(), 20);
        assert_eq!(Ring::new(&pool(&[1, 1]), 0).len(), 2);
        assert_eq!(Ring::weighted(&pool(&[0, 0]), 1).len(), 2);
        assert!(Ring::new(&pool(&[]), 128).is_empty());
    }

    #[test]
    fn a_key_on_a_point_belongs_to_that_point() {
        let pool = pool(&[1; 7]);
        let ring = Ring::new(&pool, 16);
        for (endpoint, index) in pool.endpoints().iter().zip(0..) {
            for number in 0..16 {
                assert_eq!(
                    ring.walk(point(endpoint.name(), number)).next(),
                    Some(index)
                );
            }
        }
    }

    #[test]
    fn a_ring_has_a_largest_size() {
        assert_eq!(Ring::new(&pool(&[1, 1]), u32::MAX).len(), 1 << 20);
    }

    #[test]
    fn an_empty_ring_has_an_empty_walk() {
        assert_eq!(Ring::new(&pool(&[]), 128).walk(7).next(), None);
    }

    #[test]
    fn gcd_of_anything() {
        assert_eq!(
            (gcd(0, 0), gcd(0, 7), gcd(12, 18), gcd(1, u64::MAX)),
            (0, 7, 6, 1)
        );
    }
}
