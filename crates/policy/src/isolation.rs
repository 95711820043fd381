//! Batch size for isolated functions (Quadrant, eq. 1).
//!
//! A batch costs one process switch per function plus one, whatever its size. Large batches make that cheap, but delay
//! packets. The size is therefore the smallest with which switching takes no more than a given share of the time, as
//! long as the objective allows it. The packet at the end of a batch may have arrived just after the previous batch was
//! taken, and waits for both.
//!
//! From the same bound follows the [budget of a turn](BatchBounds::turn_budget). A function that exceeds it again and
//! again is in [debt](TurnDebt).

use tailwater_net::Nanos;

/// Bounds on the batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchBounds {
    /// Largest relative increase of a packet's time due to switches. The paper uses 0.03.
    pub overhead: f64,
    /// The latency objective.
    pub objective: Nanos,
    /// Maximum number of packets.
    pub most: usize,
}

/// Measured costs of batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchCosts {
    /// Nanoseconds per batch, independent of its packets: N+1 switches for N functions, and refilling the caches that
    /// the other functions have used meanwhile.
    pub switches: f64,
    /// Nanoseconds per packet: the sum of all functions' times and the worker's own work.
    pub packet: f64,
}

/// Batches that must fit within the latency objective: a packet may wait for one and be in the next.
const BATCHES_IN_OBJECTIVE: f64 = 2.0;

/// Lower bound of a turn's budget: twice the interval at which processor times are read.
const LEAST_BUDGET: Nanos = Nanos::from_millis(2);

impl BatchBounds {
    /// Returns the processor time that one function's turn may take: the share of the objective that a batch of all
    /// functions may take, at least 2 ms.
    pub fn turn_budget(&self) -> Nanos {
        let batch = self.objective.0 as f64 / BATCHES_IN_OBJECTIVE;
        Nanos(batch as u64).max(LEAST_BUDGET)
    }

    /// Returns the batch size for these costs, at least 1.
    pub fn size(&self, costs: &BatchCosts) -> usize {
        // Times below one nanosecond are not real measurements, and would make any size right.
        let (switches, packet) = (costs.switches.max(0.0), costs.packet.max(1.0));
        let cheap = (switches / (self.overhead.max(1e-6) * packet)).ceil();
        let room = self.objective.0 as f64 / BATCHES_IN_OBJECTIVE - switches;
        let in_time = (room / packet).floor();
        let most = self.most.max(1) as f64;
        cheap.min(in_time).clamp(1.0, most) as usize
    }
}

/// Core time that a function took from others against the rules: a leaky bucket.
///
/// Single excesses are forgiven, since a machine may preempt a function in its turn. A function that takes
/// [more](TurnDebt::LIMIT) than it pays back must be ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnDebt {
    /// Debt at the time `at`.
    owed: Nanos,
    at: Nanos,
}

impl TurnDebt {
    /// Debt that ends a function.
    pub const LIMIT: Nanos = Nanos::from_millis(50);
    /// Most that one turn adds.
    pub const MOST_OF_A_TURN: Nanos = Nanos::from_millis(5);
    /// A hundredth of the time since is forgiven.
    const FORGIVEN: u64 = 100;

    /// Adds `taken`, of which [`TurnDebt::MOST_OF_A_TURN`] counts, at the time `now`. Returns `true` if the limit is
    /// exceeded.
    pub fn add(&mut self, now: Nanos, taken: Nanos) -> bool {
        let forgiven = Nanos(now.saturating_sub(self.at).0 / TurnDebt::FORGIVEN);
        let taken = taken.min(TurnDebt::MOST_OF_A_TURN);
        self.owed = Nanos(self.owed.saturating_sub(forgiven).0 + taken.0);
        self.at = now;
        self.owed > TurnDebt::LIMIT
    }
}

/// Number of recent measurements that have most of the weight.
const MEMORY: f64 = 256.0;
/// Relative deviation from the right size that is tolerated, to avoid useless changes.
const SLACK: f64 = 0.1;
/// Every how many batches one has half the size. Different sizes are needed to separate the cost per batch from the
/// cost per packet.
const HALF_EVERY: u32 = 8;
/// Batches before the first change of size.
const FIRST: f64 = 32.0;

/// Batch size that adapts to changing costs.
///
/// The cost per batch cannot be measured with empty batches: a function that was switched out finds its tables in no
/// cache, which only shows when it uses them. So it is the intercept at zero packets of a line through the times of
/// smaller and larger batches (least squares, recent batches weighing most). It is at least the time of an empty batch:
/// while the cost per packet changes, for example with new flows, the line is too steep or too flat.
#[derive(Clone, Debug)]
pub struct BatchSize {
    bounds: BatchBounds,
    line: Line,
    size: usize,
    batches: u32,
    /// Time of an empty batch, in nanoseconds.
    empty: f64,
}

/// Exponentially decaying sums for a line through points.
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

    /// Returns the intercept at zero and the slope, or `None` if all points have the same size.
    fn fit(&self) -> Option<(f64, f64)> {
        let spread = self.points * self.xx - self.x * self.x;
        // Rounding errors of the squares are far below this.
        if spread <= 1e-6 * self.points * self.xx {
            return None;
        }
        let slope = (self.points * self.xy - self.x * self.y) / spread;
        Some(((self.y - slope * self.x) / self.points, slope))
    }

    /// Returns the slope for the intercept `zero`.
    fn slope_from(&self, zero: f64) -> f64 {
        (self.xy - zero * self.x) / self.xx
    }
}

impl BatchSize {
    /// Creates a batch size of `first` packets, without any measurement.
    pub fn new(bounds: BatchBounds, first: usize) -> BatchSize {
        BatchSize {
            bounds,
            line: Line::default(),
            size: first.clamp(1, bounds.most.max(1)),
            batches: 0,
            empty: 0.0,
        }
    }

    /// Sets the time of an empty batch, the lower bound of the cost per batch.
    pub fn set_empty(&mut self, took: Nanos) {
        self.empty = took.0 as f64;
    }

    /// Returns the current batch size.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the maximum number of packets of the next batch: the size, or sometimes half of it.
    pub fn next(&self) -> usize {
        match self.batches % HALF_EVERY {
            0 => self.size.div_ceil(2),
            _ => self.size,
        }
    }

    /// Returns the costs of batches, if measured.
    pub fn costs(&self) -> Option<BatchCosts> {
        let (mut switches, mut packet) = self.line.fit()?;
        if switches < self.empty {
            (switches, packet) = (self.empty, self.line.slope_from(self.empty));
        }
        let measured = self.line.points >= FIRST && packet > 0.0;
        measured.then_some(BatchCosts { switches, packet })
    }

    /// Records the time of a batch. `packets` is not zero.
    pub fn observe(&mut self, packets: usize, took: Nanos) {
        self.batches = self.batches.wrapping_add(1);
        let (packets, took) = (packets as f64, took.0 as f64);
        // A time far above the usual means that the machine preempted the process.
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

    /// Returns the relative increase of a packet's time due to switches.
    fn overhead(costs: &BatchCosts, size: usize) -> f64 {
        costs.switches / size as f64 / costs.packet
    }

    #[test]
    fn the_smallest_batch_that_bounds_the_overhead() {
        // Switches in nanoseconds, time per packet, size.
        for (switches, packet, size) in [
            (4_700.0, 12_000.0, 14),
            (4_700.0, 2_000.0, 79),
            (1_400.0, 2_000.0, 24),
            // No size satisfies the bound.
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
        // 100 us allow 50 us per batch: 45 us of packets.
        let bounds = BatchBounds {
            objective: Nanos::from_micros(100),
            ..BOUNDS
        };
        assert_eq!(bounds.size(&costs(5_000.0, 1_000.0)), 45);
        assert_eq!(bounds.size(&costs(60_000.0, 1_000.0)), 1);
    }

    #[test]
    fn a_turn_may_take_what_a_batch_may() {
        for (objective, budget) in [(200, 2_000), (4_000, 2_000), (10_000, 5_000)] {
            let bounds = BatchBounds {
                objective: Nanos::from_micros(objective),
                ..BOUNDS
            };
            assert_eq!(bounds.turn_budget(), Nanos::from_micros(budget));
        }
    }

    #[test]
    fn debts_end_who_repeats_them_and_are_forgiven_otherwise() {
        let ms = Nanos::from_millis;
        // Turns of 9 ms in a row: each counts as 5 ms.
        let mut debt = TurnDebt::default();
        let ended = (1..100).find(|turn| debt.add(ms(1_000 + turn * 9), ms(9)));
        assert_eq!(ended, Some(11));
        // One of 30 ms, twice a second, as a machine that preempts.
        let mut debt = TurnDebt::default();
        assert!((1..100).all(|turn| !debt.add(ms(turn * 500), ms(30))));
        // One in each 100 ms is too much.
        let mut debt = TurnDebt::default();
        assert!((1..100).any(|turn| debt.add(ms(turn * 100), ms(30))));
    }

    /// Records `batches` batches of the given costs and returns the resulting size.
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
            // Refilling caches counts as switching.
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
            // Arrived packets: fewer than the maximum batch size.
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
            // A queue that shrinks while new flows become known.
            let dear = 1_000 * 1_000u64.saturating_sub(i) / 1_000;
            let packets = 1 + (size.next() as u64).min(4 + dear / 8);
            size.observe(packets as usize, Nanos(4_700 + (1_000 + dear) * packets));
            steep |= size.line.fit().is_some_and(|(switches, _)| switches < 2_000.0);
            if i >= 64 {
                least = least.min(size.size());
            }
        }
        // Initially a packet takes twice as long: 79 packets.
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
