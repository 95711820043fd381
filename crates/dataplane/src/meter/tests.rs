use super::*;
use crate::telemetry::windows;
use tailwater_api::{PacketAction, WhenOverloaded};
use tailwater_chain::chain::InputPolicy;

fn meter(chain: &Chain) -> Meter {
    let config = WorkerConfig {
        slo: Nanos::from_micros(200),
        when_overloaded: WhenOverloaded::InOrder,
        window: Nanos::from_millis(100),
        start: Nanos::ZERO,
        batch: 32,
        late: Default::default(),
    };
    Meter::new(&config, windows(1, [chain.reasons().len(), 0]).0.remove(0))
}

fn no_functions() -> Chain {
    let input = InputPolicy {
        malformed: PacketAction::Drop,
        non_ip: PacketAction::Drop,
    };
    Chain::new(Vec::new(), None, input)
}

#[test]
fn what_a_full_ring_lost_has_a_cause() {
    let mut meter = meter(&no_functions());
    let received = Received {
        offered: 10,
        lost_ring_full: 3,
        ..Received::default()
    };
    let at = |us| [Nanos::from_micros(us); 2];
    let late = |meter: &mut Meter| {
        [Cause::RingFull, Cause::Waking, Cause::Preempted].map(|cause| meter.window().late[cause as usize])
    };
    meter.note_arrivals(received, at(1), || Cause::RingFull);
    assert_eq!(late(&mut meter), [3, 0, 0]);
    meter.note_arrivals(received, at(2), || Cause::Waking);
    assert_eq!(late(&mut meter), [3, 3, 0]);
    // A gap longer than the objective takes precedence.
    let span = [Nanos::from_micros(2), Nanos::from_micros(302)];
    meter.note_arrivals(received, span, || Cause::Waking);
    assert_eq!(late(&mut meter), [3, 3, 3]);
    assert_eq!(meter.window().lost(), 9);
}

#[test]
fn what_is_too_late_has_the_cause_of_a_late_packet() {
    let mut meter = meter(&no_functions());
    // It has waited for less than the objective, but its processing would exceed it.
    meter.note_too_late(Nanos::from_micros(900), 7, Nanos::from_micros(1_090));
    let window = meter.window();
    assert_eq!((window.lost_too_late, window.lost()), (1, 1));
    assert_eq!(window.late[Cause::QueuedBehindOthers as usize], 1);
    meter.note_gap(Nanos::from_micros(500), Nanos::from_micros(1_500));
    meter.note_too_late(Nanos::from_micros(1_100), 7, Nanos::from_micros(1_500));
    assert_eq!(meter.window().late[Cause::Preempted as usize], 1);
    assert_eq!(meter.window().late_or_lost(), 2);
}

#[test]
fn what_a_dead_worker_never_did_is_lost_with_it() {
    let mut meter = meter(&no_functions());
    meter.note_undrained(Nanos(1), 7, Nanos::from_millis(1));
    meter.on_panic();
    meter.note_undrained(Nanos(1), 7, Nanos::from_millis(1));
    let window = meter.window();
    assert_eq!((window.lost_undrained, window.lost_with_worker), (1, 1));
    assert_eq!(window.late[Cause::Preempted as usize], 1);
    assert_eq!(window.late_or_lost(), 2);
}

#[test]
fn a_new_window_allocates_nothing() {
    let chain = no_functions();
    let config = WorkerConfig {
        slo: Nanos::from_micros(200),
        when_overloaded: WhenOverloaded::InOrder,
        window: Nanos(100),
        start: Nanos::ZERO,
        batch: 32,
        late: Default::default(),
    };
    let (mut senders, receiver) = windows(1, [chain.reasons().len(), 0]);
    let mut meter = Meter::new(&config, senders.remove(0));
    // More rolls than windows, so every window is filled.
    let roll = || (1..10).for_each(|i| meter.roll(Nanos(100 * i), &chain));
    assert_eq!(allocation_counter::measure(roll).count_total, 0);
    meter.finish(&chain);
    let mut filled = 0;
    let reasons = chain.reasons().len();
    while receiver
        .receive(std::time::Duration::ZERO, |window| {
            filled += usize::from(window.reasons.len() == reasons);
        })
        .is_ok()
    {}
    assert!(filled > 1, "{filled}");
}

#[test]
fn pace_tells_gaps_from_work() {
    let mut pace = GapDetector::default();
    for _ in 0..1000 {
        assert_eq!(pace.gap(32, Nanos(3_200)), None);
        assert_eq!(pace.gap(1, Nanos(300)), None);
    }
    // Three times as slow is work; 200 us more is preemption.
    assert_eq!(pace.gap(32, Nanos(10_000)), None);
    let gap = pace.gap(32, Nanos(203_200)).unwrap();
    assert!((180_000..203_200).contains(&gap.0), "{gap}");
    // Slow functions have long batches, which are not gaps.
    let mut slow = GapDetector::default();
    for _ in 0..1000 {
        assert_eq!(slow.gap(32, Nanos(320_000)), None);
    }
    assert_eq!(slow.gap(32, Nanos(900_000)), None);
    assert!(slow.gap(32, Nanos(2_000_000)).is_some());
}

/// Regression: the mean was not updated by a batch taken for a gap, so functions that had become slow for good were
/// taken for gaps for ever.
#[test]
fn pace_gets_used_to_slower_packets() {
    let mut pace = GapDetector::default();
    for _ in 0..1000 {
        assert_eq!(pace.gap(32, Nanos(3_200)), None);
    }
    let gaps = (0..100_000).filter(|_| pace.gap(32, Nanos(81_000)).is_some()).count();
    assert!(gaps < 200, "{gaps} gaps");
}

/// Packets of one arrival time are recorded at once, with the same result. Those that bypassed the chain come last, so
/// that the first and the last packet say nothing about the others.
#[test]
fn latencies_are_those_of_each_packet() {
    use tailwater_chain::buffer::BufferPool;
    for arrivals in [&[5, 5, 5, 5][..], &[5, 6, 7], &[5, 900, 5], &[5], &[]] {
        let mut pool = BufferPool::new(4, 64).unwrap();
        let mut batch = Batch::new(&pool, 4);
        let mut expected = tailwater_measure::histogram::LatencyHistogram::default();
        for (i, &arrival) in arrivals.iter().enumerate() {
            assert!(batch.push(&mut pool, &vec![0; 10 + i], Nanos(arrival), 0));
            expected.record(Nanos(1_000 - arrival));
        }
        let mut meter = meter(&no_functions());
        meter.note_delivered(&batch, [Nanos(1_000); 2]);
        let window = meter.window();
        let of = |histogram: &tailwater_measure::histogram::LatencyHistogram| {
            let percentiles = [1.0, 34.0, 67.0, 100.0].map(|percentile| histogram.percentile(percentile));
            (histogram.total(), histogram.sum(), histogram.max(), percentiles)
        };
        assert_eq!(of(&window.latency), of(&expected), "{arrivals:?}");
        let bytes: usize = (0..arrivals.len()).map(|i| 10 + i).sum();
        assert_eq!(window.delivered_bytes, bytes as u64);
    }
}
