//! Arrivals over time: fine bins during the run, a series of bounded length at its end.

use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Bins per worker and window at full resolution.
const BINS: usize = 1024;

/// Bin width for a run with windows of this length: 1 ms times the smallest power of ten with which a window's bins
/// fit.
pub fn bin_width(window: Nanos) -> Nanos {
    let mut width = Nanos::from_millis(1);
    while window.0 / width.0 >= BINS as u64 {
        width = Nanos(width.0 * 10);
    }
    width
}

/// Packets that arrived at one worker, by bin. Bins are numbered from the run's start.
///
/// If a window lasts longer than its bins cover, pairs of bins are merged. No count is lost.
#[derive(Clone, Debug)]
pub struct ArrivalBins {
    /// Number of the first bin.
    first: u64,
    /// `log2` of the number of bins that share a counter.
    folds: u32,
    used: usize,
    counts: [u64; BINS],
}

impl Default for ArrivalBins {
    fn default() -> Self {
        ArrivalBins {
            first: 0,
            folds: 0,
            used: 0,
            counts: [0; BINS],
        }
    }
}

impl ArrivalBins {
    /// Counts packets in a bin. Bins before the first one counted are added to that one.
    #[inline]
    pub fn add(&mut self, bin: u64, packets: u64) {
        if self.used == 0 {
            self.first = bin;
        }
        let mut place = bin.saturating_sub(self.first) >> self.folds;
        while place >= BINS as u64 {
            self.fold();
            place >>= 1;
        }
        let place = place as usize;
        self.used = self.used.max(place + 1);
        self.counts[place] += packets;
    }

    #[cold]
    fn fold(&mut self) {
        for i in 0..BINS / 2 {
            self.counts[i] = self.counts[2 * i] + self.counts[2 * i + 1];
        }
        self.counts[BINS / 2..].fill(0);
        self.used = self.used.div_ceil(2);
        self.folds += 1;
    }

    /// Packets by bin, as (first bin, bins, packets).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let bins = 1 << self.folds;
        let counts = self.counts[..self.used].iter().enumerate();
        counts.map(move |(i, &packets)| (self.first + i as u64 * bins, bins, packets))
    }
}

/// Converts arrival times to bins. Arrivals are nearly in order, so the last one's bin is usually the next one's, too,
/// and a batch costs two comparisons.
#[derive(Clone, Debug)]
pub(crate) struct BinClock {
    start: Nanos,
    width: u64,
    bin: u64,
    /// Start of the current bin.
    from: Nanos,
    to: Nanos,
}

impl BinClock {
    pub(crate) fn new(start: Nanos, window: Nanos) -> BinClock {
        let width = bin_width(window).0;
        BinClock {
            start,
            width,
            bin: 0,
            from: start,
            to: Nanos(start.0 + width),
        }
    }

    /// Returns `true` if the arrival is in the current bin.
    #[inline]
    fn holds(&self, arrival: Nanos) -> bool {
        self.from <= arrival && arrival < self.to
    }

    /// Bin of an arrival, which becomes the current one.
    #[inline]
    fn bin(&mut self, arrival: Nanos) -> u64 {
        if !self.holds(arrival) {
            self.bin = arrival.saturating_sub(self.start).0 / self.width;
            self.from = Nanos(self.start.0 + self.bin * self.width);
            self.to = Nanos(self.from.0 + self.width);
        }
        self.bin
    }

    /// Counts a batch of packets, given the first and last arrival time and an iterator over each packet's arrival.
    #[inline]
    pub(crate) fn batch(
        &mut self,
        bins: &mut ArrivalBins,
        [first, last]: [Nanos; 2],
        arrivals: impl Iterator<Item = Nanos>,
        packets: usize,
    ) {
        let bin = self.bin(first);
        if self.holds(last) {
            bins.add(bin, packets as u64);
        } else {
            arrivals.for_each(|arrival| bins.add(self.bin(arrival), 1));
        }
    }

    /// Counts one packet.
    pub(crate) fn one(&mut self, bins: &mut ArrivalBins, arrival: Nanos) {
        bins.add(self.bin(arrival), 1);
    }

    /// Spreads packets whose arrival is only known to lie after `from` and until `to` evenly over that time.
    #[cold]
    pub(crate) fn spread(&mut self, bins: &mut ArrivalBins, packets: u64, from: Nanos, to: Nanos) {
        let length = to.saturating_sub(from).0.max(1);
        let mut before = 0;
        for bin in self.bin(from)..=self.bin(to) {
            // Number of packets that had arrived by the bin's end.
            let end = Nanos(self.start.0 + (bin + 1) * self.width);
            let passed = end.saturating_sub(from).0.min(length);
            let by_end = (u128::from(packets) * u128::from(passed) / u128::from(length)) as u64;
            bins.add(bin, by_end - before);
            before = by_end;
        }
    }
}

/// Distributes packets over `bins` bins. Empty bins are omitted.
fn evenly(first: u64, bins: u64, packets: u64) -> impl Iterator<Item = (u64, u64)> {
    let dealt = bins.min(packets);
    // Fewer packets than bins: each in the middle of its share.
    (0..dealt).map(move |i| {
        let bin = match packets < bins {
            true => ((2 * i + 1) as u128 * bins as u128 / (2 * packets) as u128) as u64,
            false => i,
        };
        (first + bin, packets / dealt + u64::from(i < packets % dealt))
    })
}

/// Bins kept until every worker has reported them. Packets of a worker further behind still count, but no longer for
/// the busiest bin.
const PENDING: u64 = 4096;

/// Maximum number of steps in the series.
const MAX_STEPS: u64 = 1024;

/// Arrivals at all workers in a series of at most [`MAX_STEPS`] steps. When it is full, pairs of steps are merged. Each
/// step keeps its busiest bin.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalSeries {
    pending: VecDeque<u64>,
    /// Number of the first pending bin.
    first: u64,
    bins_per_step: u64,
    steps: Vec<ArrivalStep>,
}

/// Step of an [`ArrivalSeries`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrivalStep {
    pub(crate) packets: u64,
    pub(crate) busiest_bin: u64,
}

impl Default for ArrivalSeries {
    fn default() -> Self {
        ArrivalSeries {
            pending: VecDeque::new(),
            first: 0,
            bins_per_step: 1,
            steps: Vec::new(),
        }
    }
}

impl ArrivalSeries {
    /// Adds a worker's bins.
    pub(crate) fn add(&mut self, bins: &ArrivalBins) {
        for (first, bins, packets) in bins.iter() {
            evenly(first, bins, packets).for_each(|(bin, packets)| self.count(bin, packets));
        }
    }

    fn count(&mut self, bin: u64, packets: u64) {
        if bin < self.first {
            self.settle(bin, packets, false);
            return;
        }
        while bin - self.first >= PENDING {
            match self.pending.pop_front() {
                Some(packets) => {
                    self.settle(self.first, packets, true);
                    self.first += 1;
                }
                // A long pause without arrivals.
                None => self.first = bin,
            }
        }
        let place = (bin - self.first) as usize;
        if place >= self.pending.len() {
            self.pending.resize(place + 1, 0);
        }
        self.pending[place] += packets;
    }

    fn settle(&mut self, bin: u64, packets: u64, whole: bool) {
        while bin / self.bins_per_step >= MAX_STEPS {
            let pairs = self.steps.chunks(2).map(|pair| ArrivalStep {
                packets: pair.iter().map(|step| step.packets).sum(),
                busiest_bin: pair.iter().map(|step| step.busiest_bin).max().unwrap_or(0),
            });
            self.steps = pairs.collect();
            self.bins_per_step *= 2;
        }
        let place = (bin / self.bins_per_step) as usize;
        if place >= self.steps.len() {
            self.steps.resize(place + 1, ArrivalStep::default());
        }
        let step = &mut self.steps[place];
        step.packets += packets;
        if whole {
            step.busiest_bin = step.busiest_bin.max(packets);
        }
    }

    /// The series so far, and the number of bins per step.
    pub(crate) fn finish(&mut self) -> (u64, &[ArrivalStep]) {
        while let Some(packets) = self.pending.pop_front() {
            self.settle(self.first, packets, true);
            self.first += 1;
        }
        (self.bins_per_step, &self.steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_window_fits_its_bins() {
        for (window_ms, width_ms) in [(1, 1), (300, 1), (1000, 1), (2000, 10), (60_000, 100)] {
            let window = Nanos::from_millis(window_ms);
            assert_eq!(bin_width(window), Nanos::from_millis(width_ms));
        }
    }

    #[test]
    fn a_batch_across_a_border_is_counted_by_each_arrival() {
        let start = Nanos(500);
        let mut clock = BinClock::new(start, Nanos::from_millis(300));
        let mut bins = ArrivalBins::default();
        let arrivals = [900_000, 999_999, 1_000_000, 2_500_000].map(|ns| start + Nanos(ns));
        let ends = [arrivals[0], arrivals[3]];
        clock.batch(&mut bins, ends, arrivals.into_iter(), 4);
        clock.batch(&mut bins, [arrivals[3]; 2], [].into_iter(), 7);
        let found: Vec<_> = bins.iter().map(|(bin, _, packets)| (bin, packets)).collect();
        assert_eq!(found, [(0, 2), (1, 1), (2, 8)]);
        // A tenth of the time in the first bin.
        let from_to = [900_000, 1_900_000].map(|ns| start + Nanos(ns));
        clock.spread(&mut bins, 10, from_to[0], from_to[1]);
        assert_eq!(bins.iter().map(|(.., packets)| packets).collect::<Vec<_>>(), [3, 10, 8]);
    }

    proptest! {
        #[test]
        fn dealing_out_is_exact_and_within(bins in 1u64..5000, packets in 0u64..5000) {
            let dealt: Vec<_> = evenly(7, bins, packets).collect();
            prop_assert_eq!(dealt.iter().map(|d| d.1).sum::<u64>(), packets);
            prop_assert!(dealt.iter().all(|d| (7..7 + bins).contains(&d.0)));
            prop_assert!(dealt.windows(2).all(|d| d[0].0 < d[1].0));
        }

        /// Checked against a map from bin to count: no packet is lost, and each step holds the sum and the maximum of
        /// its bins, however long the run.
        #[test]
        fn a_series_sums_up_its_bins(
            arrivals in prop::collection::vec((0u64..40, 1u64..100), 1..400),
            stretch in 1u64..400,
        ) {
            let (mut series, mut oracle) = (ArrivalSeries::default(), BTreeMap::new());
            let mut bin = 0;
            for window in arrivals.chunks(20) {
                let mut bins = ArrivalBins::default();
                for &(ahead, packets) in window {
                    // Folding of a window that exceeds its bins has its own test.
                    bin += (ahead * stretch).min(50);
                    bins.add(bin, packets);
                    *oracle.entry(bin).or_insert(0) += packets;
                }
                series.add(&bins);
                bin += stretch * 10;
            }
            let (per_step, steps) = series.finish();
            prop_assert!(steps.len() as u64 <= MAX_STEPS);
            for (place, step) in steps.iter().enumerate() {
                let from = place as u64 * per_step;
                let inside = || oracle.range(from..from + per_step).map(|(_, packets)| *packets);
                prop_assert_eq!(step.packets, inside().sum::<u64>());
                prop_assert_eq!(step.busiest_bin, inside().max().unwrap_or(0));
            }
            prop_assert_eq!(
                steps.iter().map(|step| step.packets).sum::<u64>(),
                oracle.values().sum::<u64>()
            );
        }

        #[test]
        fn folded_bins_lose_nothing(arrivals in prop::collection::vec((0u64..1 << 40, 1u64..9), 1..50)) {
            let mut bins = ArrivalBins::default();
            arrivals.iter().for_each(|&(bin, packets)| bins.add(bin, packets));
            let packets = arrivals.iter().map(|a| a.1).sum::<u64>();
            prop_assert_eq!(bins.iter().map(|(.., packets)| packets).sum::<u64>(), packets);
            let mut series = ArrivalSeries::default();
            series.add(&bins);
            let (_, steps) = series.finish();
            prop_assert!(steps.len() as u64 <= MAX_STEPS);
            prop_assert_eq!(steps.iter().map(|step| step.packets).sum::<u64>(), packets);
        }
    }

    /// Workers report the same bins one after the other. Their sum counts for the busiest bin.
    #[test]
    fn the_busiest_bin_is_of_all_workers_together() {
        let mut series = ArrivalSeries::default();
        let bins = |number: u64| {
            let mut bins = ArrivalBins::default();
            (0..300).for_each(|bin| bins.add(number * 300 + bin, 10));
            bins
        };
        for number in 0..100 {
            series.add(&bins(number));
            if number > 0 {
                series.add(&bins(number - 1));
            }
        }
        let (per_step, steps) = series.finish();
        assert_eq!(per_step, 32);
        assert!(steps[..900].iter().all(|step| step.busiest_bin == 20));
    }
}
