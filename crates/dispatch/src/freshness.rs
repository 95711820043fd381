//! Fresh packets first: which packets a core with too much load discards, so that those behind them are in time.
//!
//! In order of arrival, a core that has too much load for longer than its objective delivers every packet late. It does
//! the same work in time if it discards packets that will be late anyway. Only the first packets of a batch are
//! discarded, so the others keep their order.

use tailwater_net::Nanos;

/// Costs are in sixteenths of a nanosecond.
const FRACTION: u32 = 4;
/// Divisors of the difference by which one batch moves the cost of a packet, and its deviation.
const STEADY: i64 = 8;
const STEADY_DEVIATION: i64 = 4;
/// Number of mean deviations by which a batch of an overloaded core may take longer than the mean.
const DEVIATIONS: u64 = 2;

/// Rule of one core for packets that are too late. It has no clock.
///
/// A packet is *too late* if it misses the objective even if its batch begins now and takes as long as the last ones.
/// It is discarded only from a batch behind which other packets wait: without them, it delays nobody. While packets are
/// too late, a batch may take longer than the last ones by twice their mean deviation: all packets that a core with too
/// much load processes are near the objective.
#[derive(Clone, Debug)]
pub struct Freshness {
    objective: Nanos,
    /// Mean cost of a packet, or 0 if it is unknown, and its mean deviation.
    cost: u64,
    deviation: u64,
    /// Packets were too late since packets last waited behind no batch.
    overloaded: bool,
    /// Packets of the last batch, before some were discarded.
    batch: u32,
}

impl Freshness {
    /// Creates the rule for packets with this latency objective.
    pub fn new(objective: Nanos) -> Freshness {
        Freshness {
            objective,
            cost: 0,
            deviation: 0,
            overloaded: false,
            batch: 0,
        }
    }

    /// Returns how many of the first packets of a batch, given the arrivals of all, are to be discarded before it is
    /// processed from `now` on. `is_waiting` is set if other packets wait behind the batch.
    #[inline]
    pub fn too_late(&mut self, now: Nanos, is_waiting: bool, arrivals: impl ExactSizeIterator<Item = Nanos>) -> usize {
        self.batch = arrivals.len() as u32;
        if !is_waiting {
            self.overloaded = false;
            return 0;
        }
        let oldest = self.oldest_in_time(now, self.batch);
        let late = arrivals.take_while(|arrival| *arrival < oldest).count();
        self.discarded(late);
        late
    }

    /// Returns the earliest arrival of packets that are in time if they are sent after the processing of `packets`
    /// packets that begins now. Packets that are too late can be discarded before they are received, but for those that
    /// would be alone in the next batch. Report how many [were](Freshness::discarded).
    #[inline]
    pub fn oldest_in_time(&self, now: Nanos, packets: u32) -> Nanos {
        let packet = match self.overloaded {
            true => self.cost + DEVIATIONS * self.deviation,
            false => self.cost,
        };
        self.oldest(now, packet * u64::from(packets))
    }

    /// Notes that this many packets were too late, and discarded.
    #[inline]
    pub fn discarded(&mut self, packets: usize) {
        self.overloaded |= packets > 0;
    }

    /// Same as [`too_late`](Freshness::too_late) for received packets that are to be processed later, here or by
    /// another core, while other packets wait: they are too late even if each is processed now, alone.
    #[inline]
    pub fn too_late_to_queue(&self, now: Nanos, arrivals: impl Iterator<Item = Nanos>) -> usize {
        let oldest = self.oldest(now, self.cost);
        arrivals.take_while(|arrival| *arrival < oldest).count()
    }

    /// Returns the earliest arrival of packets that are in time if they are done after `time`, in units of a cost. With
    /// batches so long that most packets could not be in time, only half of the objective is reserved for them:
    /// otherwise all packets would be discarded.
    #[inline]
    fn oldest(&self, now: Nanos, time: u64) -> Nanos {
        let reserved = (time >> FRACTION).min(self.objective.0 / 2);
        Nanos(now.0.saturating_sub(self.objective.0 - reserved))
    }

    /// Notes that the rest of the batch, `packets` packets, took this long, while other packets waited.
    #[inline]
    pub fn processed(&mut self, packets: usize, took: Nanos) {
        let packets = packets as u64;
        // The cost of a small batch is not that of a full one.
        if packets == 0 || 2 * packets < u64::from(self.batch) {
            return;
        }
        let sample = (took.0 << FRACTION) / packets;
        if self.cost == 0 {
            self.cost = sample;
            return;
        }
        // A core that was taken away meanwhile says little about the next batch.
        let sample = sample.min(2 * self.cost);
        let difference = sample as i64 - self.cost as i64;
        self.cost = self.cost.saturating_add_signed(difference / STEADY).max(1);
        let from_deviation = difference.abs() - self.deviation as i64;
        self.deviation = self.deviation.saturating_add_signed(from_deviation / STEADY_DEVIATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_micros(1_000);

    /// Rule for 200 us, with batches of 32 packets that take 32 us.
    fn measured() -> Freshness {
        let mut freshness = Freshness::new(Nanos::from_micros(200));
        for _ in 0..100 {
            freshness.too_late(NOW, true, arrivals(&[]));
            freshness.processed(32, Nanos::from_micros(32));
        }
        freshness
    }

    /// 32 packets, of which the first have these ages in microseconds, and the others have just arrived.
    fn arrivals(ages: &[u64]) -> impl ExactSizeIterator<Item = Nanos> {
        let ages: Vec<u64> = ages.iter().copied().chain(std::iter::repeat(0)).take(32).collect();
        ages.into_iter().map(|age| NOW.saturating_sub(Nanos::from_micros(age)))
    }

    #[test]
    fn what_the_batch_would_bring_beyond_the_objective_is_discarded() {
        let mut freshness = measured();
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[300, 169, 168, 10])), 2);
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[168, 167])), 0);
        // Behind a packet in time, all others are.
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[10, 300])), 0);
    }

    #[test]
    fn a_late_packet_that_delays_nobody_is_processed() {
        let mut freshness = measured();
        assert_eq!(freshness.too_late(NOW, false, arrivals(&[5_000, 4_000])), 0);
    }

    #[test]
    fn an_overloaded_core_reserves_time_for_deviations_until_it_has_caught_up() {
        let mut freshness = measured();
        for packet in 0..1000 {
            let micros = [28, 36][packet % 2];
            freshness.too_late(NOW, true, arrivals(&[]));
            freshness.processed(32, Nanos::from_micros(micros));
        }
        let near = [162];
        assert_eq!(freshness.too_late(NOW, true, arrivals(&near)), 0);
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[900])), 1);
        assert_eq!(freshness.too_late(NOW, true, arrivals(&near)), 1);
        assert_eq!(freshness.too_late(NOW, false, arrivals(&near)), 0);
        assert_eq!(freshness.too_late(NOW, true, arrivals(&near)), 0);
    }

    #[test]
    fn pauses_and_small_batches_say_nothing() {
        let mut freshness = measured();
        freshness.too_late(NOW, true, arrivals(&[]));
        freshness.processed(15, Nanos::from_micros(150));
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[168])), 0);
        freshness.processed(32, Nanos::from_millis(50));
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[163])), 0);
    }

    /// Batches that take longer than the objective must not stop a core altogether.
    #[test]
    fn a_core_with_long_batches_still_works() {
        let mut freshness = Freshness::new(Nanos::from_micros(200));
        // Nothing is known about the first batch.
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[201, 200])), 1);
        freshness.processed(31, Nanos::from_millis(1));
        assert_eq!(freshness.too_late(NOW, true, arrivals(&[101, 100])), 1);
        assert_eq!(freshness.too_late_to_queue(NOW, arrivals(&[170, 165])), 1);
    }
}
