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
    /// Nanoseconds that a batch takes besides its packets: N+1 switches for N functions, and what each function
    /// has to fetch anew into the caches that the others have used meanwhile.
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
const MEMORY: f64 = 256.0;
/// A size stays as it is while the right one is within this part of it: changing it for nothing helps nobody.
const SLACK: f64 = 0.1;
/// One of so many batches is half as large: so it can be told what a batch costs from what its packets do.
const HALF_EVERY: u32 = 8;
/// Batches before the first change of size.
const FIRST: f64 = 32.0;

/// The size of batches, as costs change.
///
/// What a batch costs by itself cannot be seen in batches of no packets: a function that was away finds its tables in no
/// cache, which shows only when it uses them. So it is where the line through the times of smaller and
/// larger batches meets zero packets (least squares, recent batches counting most); but no less than a batch of no packets takes:
/// while packets become cheaper or dearer, such as those of new flows, the line is too steep or too flat.
#[derive(Clone, Debug)]
pub struct BatchSize {
    bounds: BatchBounds,
    line: Line,
    size: usize,
    batches: u32,
    /// What a batch of no packets takes, in nanoseconds.
    empty: f64,
}

/// Sums for a line through points, which forget.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    points: f64,
    x: f64,
    xx: f64,
    y: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        let kept = 1.0 - 1.0 / MEMORY;
        self.points = self.points * kept + 1.0;
        self.x = self.x * kept + x;
        self.xx = self.xx * kept + x * x;
        self.y = self.y * kept + y;
        self.xy = self.xy * kept + x * y;
    }

    /// Where it meets zero, and how steep it is; `None` as long as all points are above one another.
    fn fit(&self) -> Option<(f64, f64)> {
        let spread = self.points * self.xx - self.x * self.x;
        // The squares' rounding errors are far below this.
        if spread <= 1e-6 * self.points * self.xx {
            return None;
        }
        let slope = (self.points * self.xy - self.x * self.y) / spread;
        Some(((self.y - slope * self.x) / self.points, slope))
    }

    /// How steep it is if it meets zero there.
    fn slope_from(&self, zero: f64) -> f64 {
        (self.xy - zero * self.x) / self.xx
    }
}

impl BatchSize {
    /// Nothing is known yet: `first` packets.
    pub fn new(bounds: BatchBounds, first: usize) -> BatchSize {
        BatchSize {
            bounds,
            line: Line::default(),
            size: first.clamp(1, bounds.most.max(1)),
            batches: 0,
            empty: 0.0,
        }
    }

    /// What a batch of no packets takes: no batch costs less besides its packets.
    pub fn set_empty(&mut self, took: Nanos) {
        self.empty = took.0 as f64;
    }

    /// The size of batches for now.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The most packets of the next batch: the size, or now and then half of it.
    pub fn next(&self) -> usize {
        match self.batches % HALF_EVERY {
            0 => self.size.div_ceil(2),
            _ => self.size,
        }
    }

    /// What batches cost, if that has been measured.
    pub fn costs(&self) -> Option<BatchCosts> {
        let (mut switches, mut packet) = self.line.fit()?;
        if switches < self.empty {
            (switches, packet) = (self.empty, self.line.slope_from(self.empty));
        }
        let measured = self.line.points >= FIRST && packet > 0.0;
        measured.then_some(BatchCosts { switches, packet })
    }

    /// A batch of so many packets, which are not none, took so long.
    pub fn observe(&mut self, packets: usize, took: Nanos) {
        self.batches = self.batches.wrapping_add(1);
        let (packets, took) = (packets as f64, took.0 as f64);
        // A time far above what is usual is the machine's: it was away.
        let usual = self
            .costs()
            .map(|costs| 3.0 * (costs.switches + costs.packet * packets));
        self.line.add(packets, usual.map_or(took, |most| took.min(most)));
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

    /// Has so many batches cost this, and gives the size after.
    fn run(size: &mut BatchSize, costs: &BatchCosts, batches: usize) -> usize {
        for _ in 0..batches {
            let packets = size.next();
            let took = costs.switches + costs.packet * packets as f64;
            size.observe(packets, Nanos(took as u64));
        }
        size.size()
    }

    #[test]
    fn the_size_follows_the_costs() {
        let mut size = BatchSize::new(BOUNDS, 32);
        size.observe(32, Nanos(70_000));
        assert_eq!((size.size(), size.costs()), (32, None));
        for (switches, packet, least, most) in [
            (4_700.0, 2_000.0, 70, 86),
            (4_700.0, 12_000.0, 12, 16),
            // Caches that have to be filled again count as switches do.
            (27_000.0, 6_600.0, 70, 76),
            (4_700.0, 50.0, 231, 256),
            (4_700.0, 2_000.0, 70, 86),
        ] {
            let costs = costs(switches, packet);
            let found = run(&mut size, &costs, 4_000);
            assert!((least..=most).contains(&found), "{costs:?}: {found}");
        }
    }

    #[test]
    fn batches_of_any_sizes_tell_what_they_cost() {
        let mut size = BatchSize::new(BOUNDS, 32);
        for i in 0..1_000u64 {
            // What has arrived: fewer packets than a batch may have.
            let packets = 1 + i * 7 % 30;
            size.observe(packets as usize, Nanos(5_000 + 1_500 * packets));
        }
        let costs = size.costs().unwrap();
        assert!((costs.switches - 5_000.0).abs() < 10.0, "{costs:?}");
        assert!((costs.packet - 1_500.0).abs() < 1.0, "{costs:?}");
    }

    #[test]
    fn packets_that_become_cheaper_do_not_make_batches_small() {
        let mut size = BatchSize::new(BOUNDS, 32);
        size.set_empty(Nanos(4_700));
        let (mut least, mut steep) = (usize::MAX, false);
        for i in 0..2_000u64 {
            // A queue that gets shorter while flows that are new become known.
            let dear = 1_000 * 1_000u64.saturating_sub(i) / 1_000;
            let packets = 1 + (size.next() as u64).min(4 + dear / 8);
            size.observe(packets as usize, Nanos(4_700 + (1_000 + dear) * packets));
            steep |= size.line.fit().is_some_and(|(switches, _)| switches < 2_000.0);
            if i >= 64 {
                least = least.min(size.size());
            }
        }
        // At first a packet takes twice as long: 79 packets.
        assert!(steep && least >= 70, "{least}");
        let size = run(&mut size, &costs(4_700.0, 1_000.0), 1_000);
        assert!((140..=174).contains(&size), "{size}");
    }

    #[test]
    fn a_machine_that_was_away_changes_little() {
        let mut size = BatchSize::new(BOUNDS, 32);
        let costs = costs(4_700.0, 2_000.0);
        let before = run(&mut size, &costs, 1_000);
        size.observe(size.next(), Nanos::from_millis(50));
        let after = run(&mut size, &costs, 1_000);
        assert!(after.abs_diff(before) * 8 <= before, "{before}, then {after}");
    }
}
