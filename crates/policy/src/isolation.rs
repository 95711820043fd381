//! How many packets isolated functions should process in a turn (Quadrant, eq. 1).
//!
//! A batch costs one switch between processes for each function and one more, whatever is in it. Large batches make
//! that cheap and packets late. So the size is the smallest with which switching takes no more than a given part
//! of the time, as long as the objective allows it: the packet at the end of a batch may have come just after the
//! batch before was taken, and waits for both.

use tailwater_net::Nanos;

/// What bounds the size of batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchBounds {
    /// How much longer than without switches a packet may take, as a part: 0.03 is the paper's.
    pub overhead: f64,
    /// The latency objective.
    pub objective: Nanos,
    /// The most packets.
    pub most: usize,
}

/// What batches cost, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchCosts {
    /// Nanoseconds that a batch of no packets takes: all switches, N+1 of them for N functions.
    pub switches: f64,
    /// Nanoseconds that each packet adds: the sum of all functions' times, and of what the worker does with it.
    pub packet: f64,
}

/// The part of a latency objective that a batch may take: a packet may wait for one and be in the next.
const BATCHES_IN_OBJECTIVE: f64 = 2.0;

impl BatchBounds {
    /// The size for these costs, at least 1.
    pub fn size(&self, costs: &BatchCosts) -> usize {
        // Less than a nanosecond is no measurement, and would make any size right.
        let (switches, packet) = (costs.switches.max(0.0), costs.packet.max(1.0));
        let cheap = (switches / (self.overhead.max(1e-6) * packet)).ceil();
        let room = self.objective.0 as f64 / BATCHES_IN_OBJECTIVE - switches;
        let in_time = (room / packet).floor();
        let most = self.most.max(1) as f64;
        cheap.min(in_time).clamp(1.0, most) as usize
    }
}

/// How fast old measurements are forgotten: the last so many have most of the weight.
const MEMORY: f64 = 64.0;
/// A size stays as it is while the right one is within this part of it: changing it for nothing helps nobody.
const SLACK: f64 = 0.1;

/// The size of batches, as costs change.
#[derive(Clone, Debug)]
pub struct BatchSize {
    bounds: BatchBounds,
    switches: Average,
    packet: Average,
    size: usize,
}

/// An average that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    value: f64,
    /// Up to [`MEMORY`].
    weight: f64,
}

impl Average {
    fn add(&mut self, value: f64) {
        self.weight = (self.weight + 1.0).min(MEMORY);
        self.value += (value - self.value) / self.weight;
    }

    /// As [`add`](Average::add), but a value that is far above what is usual counts as twice the usual: the machine was
    /// away.
    fn add_usual(&mut self, value: f64) {
        match self.weight >= 8.0 {
            true => self.add(value.min(2.0 * self.value)),
            false => self.add(value),
        }
    }
}

impl BatchSize {
    /// Nothing is known yet: `first` packets.
    pub fn new(bounds: BatchBounds, first: usize) -> BatchSize {
        BatchSize {
            bounds,
            switches: Average::default(),
            packet: Average::default(),
            size: first.clamp(1, bounds.most.max(1)),
        }
    }

    /// The size of batches for now.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What batches cost, if that has been measured.
    pub fn costs(&self) -> Option<BatchCosts> {
        let measured = self.switches.weight > 0.0 && self.packet.weight > 0.0;
        measured.then_some(BatchCosts {
            switches: self.switches.value,
            packet: self.packet.value,
        })
    }

    /// A batch of so many packets took so long.
    pub fn observe(&mut self, packets: usize, took: Nanos) {
        let took = took.0 as f64;
        if packets == 0 {
            self.switches.add_usual(took);
        } else if self.switches.weight > 0.0 {
            let packets = packets as f64;
            let each = (took - self.switches.value) / packets;
            self.packet.add_usual(each.max(1.0));
        }
        let Some(costs) = self.costs() else {
            return;
        };
        let right = self.bounds.size(&costs);
        if right.abs_diff(self.size) as f64 > SLACK * self.size as f64 {
            self.size = right;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: BatchBounds = BatchBounds {
        overhead: 0.03,
        objective: Nanos::from_micros(1000),
        most: 256,
    };

    fn costs(switches: f64, packet: f64) -> BatchCosts {
        BatchCosts { switches, packet }
    }

    /// How much longer a packet takes than without switches.
    fn overhead(costs: &BatchCosts, size: usize) -> f64 {
        costs.switches / size as f64 / costs.packet
    }

    #[test]
    fn the_smallest_batch_that_bounds_the_overhead() {
        // Switches in nanoseconds, time of a packet, size.
        for (switches, packet, size) in [
            (4_700.0, 12_000.0, 14),
            (4_700.0, 2_000.0, 79),
            (1_400.0, 2_000.0, 24),
            // No size bounds it.
            (4_700.0, 100.0, 256),
            // One packet is enough.
            (100.0, 4_000.0, 1),
        ] {
            let costs = costs(switches, packet);
            assert_eq!(BOUNDS.size(&costs), size, "{costs:?}");
            if size < BOUNDS.most {
                assert!(overhead(&costs, size) <= BOUNDS.overhead);
                assert!(size == 1 || overhead(&costs, size - 1) > BOUNDS.overhead);
            }
        }
    }

    #[test]
    fn the_objective_comes_first() {
        // 100 us allow for 50 us a batch: 45 us of packets.
        let bounds = BatchBounds {
            objective: Nanos::from_micros(100),
            ..BOUNDS
        };
        assert_eq!(bounds.size(&costs(5_000.0, 1_000.0)), 45);
        assert_eq!(bounds.size(&costs(60_000.0, 1_000.0)), 1);
    }

    #[test]
    fn the_size_follows_the_costs() {
        let mut size = BatchSize::new(BOUNDS, 32);
        size.observe(32, Nanos(70_000));
        assert_eq!((size.size(), size.costs()), (32, None));
        let mut run = |each: u64, batches: usize| {
            for i in 0..batches {
                if i % 16 == 0 {
                    size.observe(0, Nanos(4_700));
                }
                let packets = size.size();
                size.observe(packets, Nanos(4_700 + each * packets as u64));
            }
            size.size()
        };
        assert!((70..=86).contains(&run(2_000, 200)), "{}", run(2_000, 0));
        assert!((13..=15).contains(&run(12_000, 1_000)));
        assert!(run(50, 1_000) > 230);
        assert!((70..=86).contains(&run(2_000, 1_000)));
    }

    #[test]
    fn a_machine_that_was_away_changes_little() {
        let mut size = BatchSize::new(BOUNDS, 32);
        for _ in 0..100 {
            size.observe(0, Nanos(4_700));
            size.observe(79, Nanos(4_700 + 79 * 2_000));
        }
        let before = size.size();
        size.observe(0, Nanos::from_millis(50));
        size.observe(79, Nanos::from_millis(50));
        assert_eq!(size.size(), before);
    }
}
