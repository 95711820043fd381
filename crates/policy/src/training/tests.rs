use super::*;
use crate::core::QueuedFlow;

const EPOCH: Nanos = Nanos::from_micros(80);

/// Core with a scripted queue and clock.
struct Core {
    mapper: TrainingMapper,
    recorder: TrainingRecorder,
    now: Nanos,
    plan: Plan,
}

impl Core {
    fn new() -> Core {
        let recorder = TrainingRecorder::new(100);
        Core {
            mapper: recorder.mapper(EPOCH),
            recorder,
            now: Nanos::from_millis(1),
            plan: Plan::default(),
        }
    }

    /// Calls the mapper if it is due, with the given number of waiting packets per flow.
    fn turn(&mut self, queue: &[u32]) {
        let packets = queue.iter().sum();
        if !self.mapper.due(self.now, packets) {
            return;
        }
        let queued: Vec<QueuedFlow> = queue
            .iter()
            .map(|&packets| QueuedFlow { packets, bound: false })
            .collect();
        let view = View {
            now: self.now,
            oldest: self.now,
            parked: Load::default(),
            queued: &queued,
            packets,
            auxiliaries: &[],
        };
        self.plan.clear(queued.len());
        self.mapper.decide(&view, &mut self.plan);
    }

    /// Reports a batch that took `micros` microseconds.
    fn batch(&mut self, packets: u32, micros: u64) {
        let took = Nanos::from_micros(micros);
        self.now += took;
        self.mapper.completed(packets, 0, took);
    }

    /// Runs epochs of eight batches of 32 packets, 10 us each, with the given queue at their ends.
    fn epochs(&mut self, epochs: usize, queue: &[u32]) {
        for _ in 0..epochs {
            for _ in 0..8 {
                self.turn(queue);
                self.batch(32, 10);
            }
        }
        self.turn(queue);
    }

    fn loads(&self) -> Vec<(u32, u32)> {
        let seen = self.recorder.take();
        seen.iter().map(|seen| (seen.load.flows, seen.load.packets)).collect()
    }
}

#[test]
fn a_violating_epoch_is_noted() {
    let mut core = Core::new();
    core.epochs(3, &[1000]);
    assert_eq!(core.loads(), [(1, 256); 3]);
    assert!(core.loads().is_empty(), "they were taken");
    assert!(
        core.plan
            .destinations
            .iter()
            .all(|place| place.as_auxiliary().is_none())
    );
}

#[test]
fn an_epoch_that_leaves_nothing_or_begins_with_nothing_is_not() {
    let mut core = Core::new();
    core.turn(&[200]);
    (0..8).for_each(|_| core.batch(32, 10));
    core.turn(&[]);
    (0..8).for_each(|_| core.batch(32, 10));
    core.turn(&[500]);
    assert!(core.loads().is_empty());
}

/// The count is exact where possible, and never too high.
#[test]
fn only_flows_that_were_certainly_processed_count() {
    for (queue, flows) in [
        // One packet each: the first 256 flows.
        (vec![1; 400], 256),
        // All waiting packets were processed.
        (vec![2; 100], 100),
        // The first flow may have taken all.
        (vec![300, 1, 1, 1], 1),
        // In any order, the second flow's first packet is among the first 101.
        (vec![100, 156, 200], 2),
        (vec![100, 155, 200], 3),
    ] {
        let mut core = Core::new();
        core.epochs(1, &queue);
        assert_eq!(core.loads(), [(flows, 256)], "{queue:?}");
    }
}

/// Checks the bound against processing packets one by one in many orders.
#[test]
fn the_count_of_flows_is_a_lower_bound_in_any_order() {
    let mut state = 7_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for _ in 0..300 {
        let mut arrivals: Vec<usize> = (0..300).map(|_| random(40)).collect();
        for _ in 0..random(20) {
            let (start, flow) = (random(280), random(40));
            arrivals[start..start + 20].fill(flow);
        }
        let mut order: Vec<usize> = Vec::new();
        for &flow in &arrivals {
            if !order.contains(&flow) {
                order.push(flow);
            }
        }
        let queue: Vec<u32> = order
            .iter()
            .map(|flow| arrivals.iter().filter(|other| *other == flow).count() as u32)
            .collect();
        let mut processed = arrivals[..256].to_vec();
        processed.sort_unstable();
        processed.dedup();
        let mut core = Core::new();
        core.epochs(1, &queue);
        let (flows, _) = core.loads()[0];
        assert!(flows as usize <= processed.len(), "{arrivals:?}");
    }
}

#[test]
fn an_epoch_that_ends_late_counts_for_its_share() {
    let mut core = Core::new();
    core.turn(&[1000]);
    // Five batches of 20 us: the epoch ends at 80 us, in time; then four of 30 us, at 120.
    (0..4).for_each(|_| core.batch(32, 20));
    core.turn(&[1000]);
    (0..4).for_each(|_| core.batch(32, 30));
    core.turn(&[1000]);
    let seen = core.recorder.take();
    assert_eq!(seen[0].load.packets, 128);
    assert_eq!(seen[1].elapsed, Nanos::from_micros(120));
    assert_eq!(seen[1].load.packets, 128 * 80 / 120);
}

#[test]
fn an_epoch_with_the_core_away_is_not_noted() {
    let mut core = Core::new();
    core.epochs(4, &[1000]);
    assert_eq!(core.loads().len(), 4);
    // Preemption in the middle of an epoch, and in its first iteration.
    for away in [3, 0] {
        for batch in 0..8 {
            core.turn(&[1000]);
            core.batch(32, if batch == away { 300 } else { 10 });
        }
        core.epochs(2, &[1000]);
        let loads = core.loads();
        assert!(loads.iter().all(|load| *load == (1, 256)), "{loads:?}");
        assert!((1..=3).contains(&loads.len()), "{loads:?}");
    }
}

/// Receiving many packets before the epoch begins does not count as preemption within it.
#[test]
fn what_the_first_turn_did_before_is_not_held_against_it() {
    let mut core = Core::new();
    core.epochs(4, &[1000]);
    core.loads();
    core.now += Nanos::from_millis(5);
    core.turn(&[1000]);
    core.now += Nanos::from_micros(10);
    // The iteration began 190 us before the epoch.
    core.mapper.completed(32, 0, Nanos::from_micros(200));
    (0..7).for_each(|_| core.batch(32, 10));
    core.turn(&[1000]);
    assert_eq!(core.loads(), [(1, 256)]);
}

#[test]
fn an_epoch_in_which_the_queue_ran_dry_is_not_noted() {
    let mut core = Core::new();
    core.turn(&[64]);
    core.batch(32, 10);
    core.batch(32, 10);
    core.now += Nanos::from_micros(60);
    core.turn(&[500]);
    assert!(core.loads().is_empty());
}

#[test]
fn notes_are_bounded() {
    let mut core = Core::new();
    core.epochs(150, &[1000]);
    assert_eq!(core.loads().len(), 100);
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    let mut core = Core::new();
    let queue = vec![
        QueuedFlow {
            packets: 2,
            bound: false
        };
        2000
    ];
    core.plan.clear(queue.len());
    let allocations = allocation_counter::measure(|| {
        for _ in 0..50 {
            (0..8).for_each(|_| core.batch(32, 10));
            let view = View {
                now: core.now,
                oldest: core.now,
                parked: Load::default(),
                queued: &queue,
                packets: 4000,
                auxiliaries: &[],
            };
            core.plan.clear(queue.len());
            core.mapper.decide(&view, &mut core.plan);
        }
    });
    assert_eq!(allocations.count_total, 0);
    assert_eq!(core.loads().len(), 49);
}
