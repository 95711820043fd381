//! Points of a campaign: the loads of competitors that are measured.

use super::competitor::SyntheticLoad;
use std::collections::BTreeMap;
use tailwater_predict::Campaign;

/// Point of a campaign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoRunPoint {
    /// Its number, which is the group of its observations.
    pub number: u32,
    /// Number of competitors; 0: the target alone, and `load` has no meaning.
    pub competitors: u32,
    /// Load of each competitor.
    pub load: SyntheticLoad,
}

/// Order of a campaign's points, and its end.
pub trait PointSource {
    /// Returns the point to measure next, given the observations so far, which may have been read from a file. `None`:
    /// the campaign is complete.
    ///
    /// # Errors
    /// The observations are of another plan.
    fn next(&mut self, campaign: &Campaign) -> Result<Option<CoRunPoint>, String>;

    /// Returns the number of points of the longest possible campaign.
    fn most(&self) -> u32;
}

/// Ranges of the synthetic competitor's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRange {
    /// Largest number of competitors.
    pub competitors: u32,
    /// Size of the structure, bytes: evenly on a logarithmic scale, as the other ranges.
    pub structure_bytes: [f64; 2],
    /// Lines that a packet reads or writes; any share of them are writes.
    pub accesses: [f64; 2],
    /// Packets per second. One beyond its core's capacity saturates a competitor.
    pub rate: [f64; 2],
    /// Length of frames, bytes.
    pub frame_bytes: [f64; 2],
    /// Receive descriptors.
    pub descriptors: [f64; 2],
}

impl LoadRange {
    /// Ranges from nearly idle to saturated, on caches of these sizes.
    pub fn of_caches(private_bytes: u64, last_bytes: u64, competitors: u32) -> LoadRange {
        LoadRange {
            competitors: competitors.max(1),
            structure_bytes: [private_bytes as f64 / 4.0, (2 * last_bytes) as f64],
            accesses: [1.0, 64.0],
            rate: [2e5, 2e7],
            frame_bytes: [60.0, 1514.0],
            descriptors: [64.0, 1024.0],
        }
    }
}

/// Number of parameters of a load.
const PARAMETERS: usize = 7;
/// Positive root of x^8 = x + 1: the generalized golden ratio of seven dimensions.
const RATIO: f64 = 1.096_981_557_798_560_2;

/// Points that fill the ranges evenly (additive recurrence with the generalized golden ratio, Roberts 2018), up to a
/// number: first the target alone, then co-runs. A point depends on its number and the seed only, so that a campaign
/// can be continued.
#[derive(Clone, Debug)]
pub struct EvenPoints {
    range: LoadRange,
    alone: u32,
    co_runs: u32,
    seed: u64,
}

/// Campaigns in which a disturbed point is measured again, when they are continued.
const ATTEMPTS: u32 = 2;

impl EvenPoints {
    /// Creates `alone` points of the target alone, and `co_runs` co-runs.
    pub fn new(range: LoadRange, alone: u32, co_runs: u32, seed: u64) -> EvenPoints {
        EvenPoints {
            range,
            alone,
            co_runs,
            seed,
        }
    }

    /// Returns the point of a number.
    pub fn point(&self, number: u32) -> CoRunPoint {
        let mut step = 1.0;
        let mut start = self.seed;
        let shares: [f64; PARAMETERS] = std::array::from_fn(|_| {
            step /= RATIO;
            start = start
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let start = (start >> 11) as f64 / (1u64 << 53) as f64;
            (start + f64::from(number) * step).fract()
        });
        let range = &self.range;
        let within = |[low, high]: [f64; 2], share: f64| low * (high / low).powf(share);
        let accesses = within(range.accesses, shares[1]);
        let writes = (accesses * shares[2]).round();
        let competitors = 1 + (shares[6] * f64::from(range.competitors)) as u32;
        CoRunPoint {
            number,
            competitors: if number < self.alone { 0 } else { competitors },
            load: SyntheticLoad {
                structure_bytes: within(range.structure_bytes, shares[0]) as u64,
                reads: (accesses - writes).round() as u32,
                writes: writes as u32,
                rate: Some(within(range.rate, shares[3])),
                frame_bytes: within(range.frame_bytes, shares[4]) as u16,
                descriptors: within(range.descriptors, shares[5]) as u32,
            },
        }
    }
}

impl PointSource for EvenPoints {
    fn next(&mut self, campaign: &Campaign) -> Result<Option<CoRunPoint>, String> {
        let mut settled: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, observation) in campaign.observations().iter().enumerate() {
            let point = self.point(observation.group);
            if point.competitors != observation.competitors {
                return Err(format!(
                    "observation {}: expected {} competitors, as in point {} of this seed and number of cores, found \
                     {}: the campaign has another plan",
                    at + 1,
                    point.competitors,
                    point.number,
                    observation.competitors
                ));
            }
            let attempts = settled.entry(observation.group).or_default();
            *attempts += if observation.flagged { 1 } else { ATTEMPTS };
        }
        let is_open = |number: &u32| settled.get(number).is_none_or(|attempts| *attempts < ATTEMPTS);
        // Disturbed points come last: whatever disturbed them may be gone then.
        let unmeasured = (0..self.most()).find(|number| !settled.contains_key(number));
        let next = unmeasured.or_else(|| (0..self.most()).find(is_open));
        Ok(next.map(|number| self.point(number)))
    }

    fn most(&self) -> u32 {
        self.alone + self.co_runs
    }
}
