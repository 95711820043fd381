//! Random numbers: SplitMix64 with cheap distributions. Equal seeds give equal numbers on any machine.

use crate::chain::random;

/// Stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    seed: u64,
    number: u64,
}

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws { seed, number: 0 }
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.number += 1;
        random(self.seed, self.number)
    }

    /// Returns a number from 0 to below 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number below `bound`.
    #[inline]
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Returns a number of mean 0 and deviation 1: set bits of 64, evened out between the steps. It differs from a
    /// normal one beyond four deviations.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        let bits = self.next();
        let between = (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as f64 / (1_u64 << 32) as f64;
        // A step is a quarter of a deviation, and its variance a twelfth of its square.
        const SCALE: f64 = 0.249_352_47;
        (f64::from(bits.count_ones()) - 32.5 + between) * SCALE
    }

    /// Returns an exponentially distributed number.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }

    /// Returns a Poisson distributed number.
    pub fn poisson(&mut self, mean: f64) -> u32 {
        if mean > 30.0 {
            return (mean + self.normal() * libm::sqrt(mean) + 0.5).max(0.0) as u32;
        }
        let (limit, mut product, mut count) = (libm::exp(-mean), self.unit(), 0);
        while product > limit {
            product *= self.unit();
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..200_000).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (mean, square / values.len() as f64)
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut draws = Draws::new(3);
        let (mean, variance) = moments(|| draws.normal());
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        for expected in [0.3, 5.0, 80.0] {
            let (mean, variance) = moments(|| f64::from(draws.poisson(expected)));
            assert!((mean / expected - 1.0).abs() < 0.02, "{mean}");
            assert!((variance / expected - 1.0).abs() < 0.04, "{variance}");
        }
        let (mean, variance) = moments(|| draws.exponential(2.0));
        assert!(
            (mean - 2.0).abs() < 0.03 && (variance - 4.0).abs() < 0.2,
            "{mean} {variance}"
        );
    }
}
