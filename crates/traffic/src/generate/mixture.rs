//! Mixtures of distributions for flow lengths.

use super::random::Random;
use crate::TrafficError;

/// Part of a [`Mixture`]: a distribution of real numbers above zero, rounded up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    /// Uniform from zero to `to`.
    Uniform {
        /// Maximum, above zero.
        to: f64,
    },
    /// Log-normal.
    LogNormal {
        /// Standard deviation of the logarithm, 0 to 10.
        sigma: f64,
        /// Median, above zero.
        median: f64,
    },
}

/// Mixture of distributions of lengths in packets. Weights need not add up to one.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture(pub Vec<(f64, Part)>);

/// Packets per flow in campus traffic: 4.03 billion flows of a university's Internet link, 2015. Weights and parameters
/// are those fitted by Jurkiewicz, Rzym and Boryło, "Flow length and size distributions in campus Internet traffic",
/// Computer Communications 167 (2021). They are published in their `flow-models` data (agh_2015, all protocols, flow
/// length).
pub const CAMPUS_FLOW_PACKETS: [(f64, Part); 10] = {
    use Part::{LogNormal, Uniform};
    [
        (0.305_026_6, Uniform { to: 1.0 }),
        (0.248_419_9, Uniform { to: 2.0 }),
        (0.063_660_6, Uniform { to: 3.0 }),
        (0.049_216_5, Uniform { to: 4.0 }),
        (0.009_315_6, Uniform { to: 5.0 }),
        (0.082_174_7, Uniform { to: 6.0 }),
        (
            0.131_263_7,
            LogNormal {
                sigma: 0.520_702_3,
                median: 7.805_599,
            },
        ),
        (
            0.073_286_2,
            LogNormal {
                sigma: 0.770_105_7,
                median: 22.109_725,
            },
        ),
        (
            0.029_289_1,
            LogNormal {
                sigma: 1.125_264_5,
                median: 128.645_152,
            },
        ),
        (
            0.008_347_0,
            LogNormal {
                sigma: 1.983_836_9,
                median: 1_084.470_758,
            },
        ),
    ]
};

impl Mixture {
    /// Mixture of campus traffic, [`CAMPUS_FLOW_PACKETS`].
    pub fn campus() -> Self {
        Mixture(CAMPUS_FLOW_PACKETS.to_vec())
    }

    /// Draws a number of packets, 1 to 2^32 - 1.
    pub(super) fn sample(&self, random: &mut Random) -> u32 {
        let sum: f64 = self.0.iter().map(|(weight, _)| weight).sum();
        let mut at = random.unit() * sum;
        let chosen = self.0.iter().find(|(weight, _)| {
            at -= weight;
            at <= 0.0
        });
        let value = match chosen.or(self.0.last()).map(|(_, part)| *part) {
            Some(Part::Uniform { to }) => to * random.unit(),
            Some(Part::LogNormal { sigma, median }) => median * libm::exp(sigma * random.normal()),
            None => 1.0,
        };
        // A float out of the integer's range saturates.
        (libm::ceil(value) as u32).max(1)
    }

    pub(super) fn validate(&self, field: &'static str) -> Result<(), TrafficError> {
        let sound = |(weight, part): &(f64, Part)| {
            (0.0..=1e9).contains(weight)
                && match *part {
                    Part::Uniform { to } => to > 0.0 && to <= 1e9,
                    Part::LogNormal { sigma, median } => (0.0..=10.0).contains(&sigma) && median > 0.0 && median <= 1e9,
                }
        };
        let sum: f64 = self.0.iter().map(|(weight, _)| weight).sum();
        if (1..=64).contains(&self.0.len()) && self.0.iter().all(sound) && sum > 0.0 {
            return Ok(());
        }
        Err(TrafficError::setting(
            field,
            format!("{:?}", self.0),
            "1 to 64 parts with parameters above zero (sigma at most 10) and weights not all zero",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distribution function of the campus mixture, from the error function and independent of `sample`.
    fn at_most(packets: f64) -> f64 {
        let sum: f64 = CAMPUS_FLOW_PACKETS.iter().map(|(weight, _)| weight).sum();
        let part = |part: &Part| match *part {
            Part::Uniform { to } => (packets / to).min(1.0),
            Part::LogNormal { sigma, median } => {
                let z = (packets / median).ln() / sigma;
                0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
            }
        };
        let weighted = CAMPUS_FLOW_PACKETS.iter().map(|(w, p)| w * part(p));
        weighted.sum::<f64>() / sum
    }

    #[test]
    fn samples_follow_the_distribution_function() {
        let mixture = Mixture::campus();
        mixture.validate("flow_packets").unwrap();
        let mut random = Random::new(5);
        let samples: Vec<u32> = (0..200_000).map(|_| mixture.sample(&mut random)).collect();
        for packets in [1, 2, 3, 6, 10, 30, 100, 1_000, 10_000] {
            let seen = samples.iter().filter(|n| **n <= packets).count() as f64 / 200_000.0;
            let expected = at_most(f64::from(packets));
            // Four standard deviations of a fraction of 200,000.
            let tolerance = 4.0 * (expected * (1.0 - expected) / 200_000.0).sqrt();
            assert!((seen - expected).abs() < tolerance, "{packets}: {seen} {expected}");
        }
    }

    #[test]
    fn wrong_mixtures_are_refused() {
        for parts in [
            vec![],
            vec![(0.0, Part::Uniform { to: 1.0 })],
            vec![(1.0, Part::Uniform { to: f64::NAN })],
            vec![(
                1.0,
                Part::LogNormal {
                    sigma: 11.0,
                    median: 1.0,
                },
            )],
            vec![(-1.0, Part::Uniform { to: 1.0 })],
        ] {
            assert!(Mixture(parts).validate("flow_packets").is_err());
        }
    }
}
