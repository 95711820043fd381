//! Latency histogram of every packet, in constant memory.

use tailwater_net::Nanos;

/// `log2` of the steps per power of two: values are accurate to 1 part in 128.
const STEP_BITS: u32 = 7;
const STEPS: usize = 1 << STEP_BITS;

/// Values of 2^36 ns (69 s) and more share the last step.
const MAX_BITS: u32 = 36;
/// Cells per coarse step.
const COARSE: usize = 4;
const CELLS: usize = (MAX_BITS - STEP_BITS + 1) as usize * STEPS;

/// Latency histogram in logarithmic steps of less than 0.8 %.
///
/// The layout is that of an HDR histogram with two significant digits and a fixed range. So recording is a shift and an
/// increment, without the checks of a histogram that can grow.
#[derive(Clone)]
pub struct LatencyHistogram {
    counts: Box<[u64; CELLS]>,
    total: u64,
    sum: u64,
    max: Nanos,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram {
            counts: Box::new([0; CELLS]),
            total: 0,
            sum: 0,
            max: Nanos::ZERO,
        }
    }
}

/// Cell of a value. Values below `STEPS` each have their own.
#[inline]
fn cell(value: u64) -> usize {
    // Number of halvings until the value is below `2 * STEPS`.
    let halvings = (value | STEPS as u64).ilog2() - STEP_BITS;
    let cell = (halvings as usize) * STEPS + (value >> halvings) as usize;
    cell.min(CELLS - 1)
}

/// Largest value of a cell.
fn upper(cell: usize) -> u64 {
    let halvings = (cell / STEPS).saturating_sub(1);
    let step = cell - halvings * STEPS;
    ((step as u64 + 1) << halvings) - 1
}

impl LatencyHistogram {
    /// Counts one packet.
    #[inline]
    pub fn record(&mut self, latency: Nanos) {
        self.record_all(std::iter::once(latency));
    }

    /// Counts a batch of packets. Returns the longest of their latencies.
    #[inline]
    pub fn record_all(&mut self, latencies: impl Iterator<Item = Nanos>) -> Nanos {
        let (mut count, mut sum, mut max) = (0, 0, Nanos::ZERO);
        for latency in latencies {
            self.counts[cell(latency.0)] += 1;
            count += 1;
            sum += latency.0;
            max = max.max(latency);
        }
        self.total += count;
        self.sum += sum;
        self.max = self.max.max(max);
        max
    }

    /// Counts `packets` packets of the same latency.
    #[inline]
    pub fn record_many(&mut self, latency: Nanos, packets: u64) {
        if packets > 0 {
            self.counts[cell(latency.0)] += packets;
            self.total += packets;
            self.sum = self.sum.saturating_add(latency.0.saturating_mul(packets));
            self.max = self.max.max(latency);
        }
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.counts
            .iter_mut()
            .zip(other.counts.iter())
            .for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Resets all counts.
    pub fn clear(&mut self) {
        if self.total > 0 {
            self.counts.fill(0);
            (self.total, self.sum, self.max) = (0, 0, Nanos::ZERO);
        }
    }

    /// Number of packets counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Longest latency, exact. Zero if there is none.
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// Sum of all latencies, exact.
    pub fn sum(&self) -> Nanos {
        Nanos(self.sum)
    }

    /// Latency that `percentile` percent of the packets do not exceed. It is accurate to a step, and never too low.
    /// Zero if there is no packet.
    pub fn percentile(&self, percentile: f64) -> Nanos {
        let wanted = ((percentile / 100.0 * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        self.cumulative()
            .find(|&(_, seen)| seen >= wanted)
            .map_or(Nanos::ZERO, |(value, _)| value.min(self.max))
    }

    /// Like [`cumulative`](LatencyHistogram::cumulative), with steps four times as wide.
    pub fn coarse_cumulative(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let mut seen = 0;
        self.counts
            .chunks_exact(COARSE)
            .enumerate()
            .filter_map(move |(chunk, counts)| {
                let count = counts.iter().sum::<u64>();
                seen += count;
                (count > 0).then_some((Nanos(upper(chunk * COARSE + COARSE - 1)), seen))
            })
    }

    /// Non-empty steps, as (largest value, number of packets up to it).
    pub fn cumulative(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let mut seen = 0;
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(move |(cell, count)| {
                seen += count;
                (Nanos(upper(cell)), seen)
            })
    }
}

impl std::fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LatencyHistogram")
            .field("total", &self.total)
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cells_are_contiguous_and_ordered() {
        let mut last = 0;
        for value in 0..100_000u64 {
            let cell = cell(value);
            assert!(cell == last || cell == last + 1, "value {value}");
            assert!(upper(cell) >= value);
            last = cell;
        }
    }

    proptest! {
        /// Checked against a sorted list: never below the exact percentile, at most one step above.
        #[test]
        fn percentiles_match_a_sorted_list(
            values in prop::collection::vec((0u32..34, any::<u64>()), 1..300),
            percentile in 0.0f64..100.0,
        ) {
            let mut values: Vec<u64> =
                values.into_iter().map(|(bits, value)| value % (1 << bits)).collect();
            let mut histogram = LatencyHistogram::default();
            let mut halves = [LatencyHistogram::default(), LatencyHistogram::default()];
            for (i, &value) in values.iter().enumerate() {
                histogram.record(Nanos(value));
                halves[i % 2].record(Nanos(value));
            }
            values.sort_unstable();
            let rank = (percentile / 100.0 * values.len() as f64).ceil().max(1.0) as usize;
            let (exact, ours) = (values[rank - 1], histogram.percentile(percentile).0);
            prop_assert!(ours >= exact && ours as f64 <= exact as f64 * 1.008 + 1.0);
            prop_assert_eq!(histogram.max().0, *values.last().unwrap());
            let (mut merged, [a, b]) = (LatencyHistogram::default(), halves);
            merged.merge(&a);
            merged.merge(&b);
            prop_assert_eq!(merged.percentile(percentile), histogram.percentile(percentile));
            prop_assert_eq!(merged.total(), values.len() as u64);
            let below = |latency: Nanos| values.partition_point(|&value| value <= latency.0) as u64;
            let mut last = 0;
            for (latency, packets) in histogram.coarse_cumulative() {
                prop_assert_eq!(packets, below(latency));
                prop_assert!(packets > last);
                last = packets;
            }
            prop_assert_eq!(last, values.len() as u64);
        }
    }

    #[test]
    fn absurd_values_stay_in_range() {
        let mut histogram = LatencyHistogram::default();
        for value in [u64::MAX, 1 << 36, (1 << 36) - 1, 0] {
            histogram.counts[cell(value)] += 1;
        }
        assert_eq!(histogram.counts.iter().sum::<u64>(), 4);
    }
}
