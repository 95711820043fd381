//! Random numbers that are the same for a seed on every platform.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tailwater_net::Nanos;

use crate::TrafficError;

/// Seeded stream of random numbers. Logarithms and powers come from `libm`, not from the platform's C library, whose
/// last bit differs between systems.
#[derive(Clone, Debug)]
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Uniform below `bound` (0 if that is 0). The bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// Uniform in (0, 1], in steps of 2^-53.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with mean `mean`.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(self.unit())
    }

    /// Exponential with mean `mean`, in whole nanoseconds.
    pub(crate) fn exponential_nanos(&mut self, mean: Nanos) -> Nanos {
        Nanos(self.exponential(mean.0 as f64).round() as u64)
    }

    /// Normal with mean 0 and standard deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(2.0 * std::f64::consts::PI * self.unit())
    }

    /// Length drawn from a bounded Pareto distribution.
    pub(crate) fn length(&mut self, lengths: &HeavyTail) -> u32 {
        // Inverse of the distribution function at 1 - unit.
        let (low, high) = lengths.bounds();
        let ratio = libm::pow(low / high, lengths.shape);
        let tail = ratio + self.unit() * (1.0 - ratio);
        let length = low / libm::pow(tail, 1.0 / lengths.shape);
        (length as u32).clamp(lengths.min, lengths.max)
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

/// Finaliser of SplitMix64 on 64 bits (Steele, Lea, Flood, OOPSLA 2014).
pub(super) fn scramble(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Heavy-tailed distribution of lengths in packets: bounded Pareto, rounded down.
///
/// A smaller shape gives a heavier tail. Between 1 and 2, a few long flows have most of the packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeavyTail {
    /// Pareto shape α, 0.1 to 10.
    pub shape: f64,
    /// Minimum, at least 1 packet.
    pub min: u32,
    /// Maximum, at least `min` and at most 1,000,000 packets.
    pub max: u32,
}

impl HeavyTail {
    /// Returns the bounds of the continuous distribution: rounding down gives `min` to `max`.
    fn bounds(&self) -> (f64, f64) {
        (f64::from(self.min), f64::from(self.max) + 1.0)
    }

    /// Returns the mean of the rounded lengths in packets: the sum of the probabilities of at least 1, 2, and so on.
    pub fn mean(&self) -> f64 {
        let (low, high) = self.bounds();
        let ratio = libm::pow(low / high, self.shape);
        let longer: f64 = (self.min + 1..=self.max)
            .map(|k| (libm::pow(low / f64::from(k), self.shape) - ratio) / (1.0 - ratio))
            .sum();
        low + longer
    }

    /// Returns the length that a share `quantile` of all lengths does not reach, 0 to below 1, as a real number.
    pub fn quantile(&self, quantile: f64) -> f64 {
        let (low, high) = self.bounds();
        let ratio = libm::pow(low / high, self.shape);
        let tail = ratio + (1.0 - quantile.clamp(0.0, 1.0)) * (1.0 - ratio);
        low / libm::pow(tail, 1.0 / self.shape)
    }

    /// Returns the share of lengths of at least `packets`.
    pub(crate) fn at_least(&self, packets: u32) -> f64 {
        let (low, high) = self.bounds();
        let ratio = libm::pow(low / high, self.shape);
        let share = (libm::pow(low / f64::from(packets), self.shape) - ratio) / (1.0 - ratio);
        share.clamp(0.0, 1.0)
    }

    pub(crate) fn validate(&self, field: &'static str) -> Result<(), TrafficError> {
        let sound =
            (0.1..=10.0).contains(&self.shape) && self.min >= 1 && self.min <= self.max && self.max <= 1_000_000;
        if sound {
            return Ok(());
        }
        Err(TrafficError::setting(
            field,
            format!("{self:?}"),
            "shape 0.1 to 10, 1 <= min <= max <= 1,000,000",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_computed_mean_and_tail() {
        let lengths = HeavyTail {
            shape: 1.5,
            min: 2,
            max: 100,
        };
        let mut random = Random::new(7);
        let samples: Vec<u32> = (0..200_000).map(|_| random.length(&lengths)).collect();
        let mean = samples.iter().map(|&n| f64::from(n)).sum::<f64>() / samples.len() as f64;
        assert!((mean / lengths.mean() - 1.0).abs() < 0.01, "{mean} {}", lengths.mean());
        assert_eq!(samples.iter().min(), Some(&2));
        assert_eq!(samples.iter().max(), Some(&100));
        // P(X >= 20) of the bounded Pareto distribution over [2, 101).
        let ratio = (2.0f64 / 101.0).powf(1.5);
        let expected = ((2.0f64 / 20.0).powf(1.5) - ratio) / (1.0 - ratio);
        let seen = samples.iter().filter(|&&n| n >= 20).count() as f64 / samples.len() as f64;
        assert!((seen / expected - 1.0).abs() < 0.05, "{seen} {expected}");
    }

    #[test]
    fn a_single_length_is_constant() {
        let lengths = HeavyTail {
            shape: 1.0,
            min: 5,
            max: 5,
        };
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.length(&lengths) == 5));
        assert_eq!(lengths.mean(), 5.0);
    }

    #[test]
    fn exponentials_have_their_mean_and_spread() {
        let mut random = Random::new(3);
        let samples: Vec<f64> = (0..200_000).map(|_| random.exponential(40.0)).collect();
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let square = samples.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        let deviation = (square / samples.len() as f64).sqrt();
        assert!((mean - 40.0).abs() < 0.5, "{mean}");
        assert!((deviation - 40.0).abs() < 0.5, "{deviation}");
        assert!(samples.iter().all(|x| *x >= 0.0 && x.is_finite()));
    }
}
