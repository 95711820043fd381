//! Latency histogram.

use tailwater_net::Nanos;

/// Buckets for each power of two: a value is accurate to one part in 128.
const PARTS: u64 = 64;
const BITS: u32 = PARTS.trailing_zeros();

/// Histogram of latencies, with bucket sizes that grow with the value. Values below 128 ns are exact.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Latencies {
    pub(super) fn new() -> Self {
        Latencies {
            counts: vec![0; bucket(u64::MAX) + 1],
            total: 0,
            max: 0,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    /// Returns the percentile for `share` (0 to 1): the middle of its bucket, by nearest rank.
    pub(super) fn percentile(&self, share: f64) -> Nanos {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(middle(index).min(self.max));
            }
        }
        Nanos(self.max)
    }

    pub(super) fn max(&self) -> Nanos {
        Nanos(self.max)
    }
}

#[inline]
fn bucket(value: u64) -> usize {
    let exponent = (63 - (value | PARTS).leading_zeros()) - BITS;
    (u64::from(exponent) * PARTS + (value >> exponent)) as usize
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PARTS {
        return bucket;
    }
    let exponent = bucket / PARTS - 1;
    let low = (bucket - exponent * PARTS) << exponent;
    low + (1 << (exponent - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_near_the_exact_ones() {
        let mut latencies = Latencies::new();
        let mut all: Vec<u64> = (0..10_000u64).map(|i| i * i * i / 7 + 5).collect();
        all.iter().for_each(|v| latencies.add(*v));
        all.sort_unstable();
        for share in [0.0, 0.01, 0.5, 0.99, 0.999, 1.0] {
            let rank = ((all.len() as f64 * share).ceil() as usize).max(1);
            let (exact, seen) = (all[rank - 1] as f64, latencies.percentile(share).0 as f64);
            assert!((seen / exact - 1.0).abs() < 0.008, "{share} {exact} {seen}");
        }
    }

    #[test]
    fn every_value_has_a_bucket_and_buckets_are_in_order() {
        let mut last = 0;
        for exponent in 0..64 {
            for value in [1u64 << exponent, (1u64 << exponent) + (1u64 << exponent) / 3] {
                let bucket = bucket(value);
                assert!(bucket >= last);
                let off = middle(bucket).abs_diff(value) as f64 / value as f64;
                assert!(off < 0.008, "{value} {}", middle(bucket));
                last = bucket;
            }
        }
        let mut latencies = Latencies::new();
        latencies.add(u64::MAX);
        latencies.add(0);
        assert_eq!(latencies.percentile(0.0), Nanos(0));
        assert!(latencies.percentile(1.0).0 > u64::MAX / 100 * 99);
    }
}
