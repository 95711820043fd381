//! Windows of a chain that is promised 500,000 packets per second of 1,000 ns.

use super::*;
use proptest::prelude::*;

const PROMISE: DriftPromise = DriftPromise {
    throughput: 500_000.0,
    cost: 1000.0,
};

/// Window of full batches whose packets took so long.
fn costing(nanos: u64) -> DriftWindow {
    DriftWindow {
        busy: Nanos(nanos * 3200),
        batches: 100,
        packets: 3200,
        offered: 400_000.0,
        met: Some(true),
    }
}

fn missed() -> DriftWindow {
    DriftWindow {
        met: Some(false),
        ..costing(1000)
    }
}

/// Changes with the number of the window, from 1.
fn changes(windows: impl IntoIterator<Item = DriftWindow>) -> Vec<(usize, DriftChange)> {
    let mut monitor = DriftMonitor::default();
    let all = windows.into_iter().enumerate();
    all.filter_map(|(at, window)| Some((at + 1, monitor.observe(&window, &PROMISE)?)))
        .collect()
}

fn repeated(window: DriftWindow, times: usize) -> impl Iterator<Item = DriftWindow> {
    std::iter::repeat_n(window, times)
}

#[test]
fn costs_beyond_the_tolerance_are_drift_after_eight_windows_and_end_with_eight_others() {
    let drifted = |measured| DriftChange::Drifted(DriftCause::Cost { measured });
    let windows = repeated(costing(1200), 20).chain(repeated(costing(1100), 20));
    assert_eq!(changes(windows), [(8, drifted(1200.0)), (28, DriftChange::Kept)]);
    assert_eq!(changes(repeated(costing(1150), 50)), []);
    assert_eq!(changes(repeated(costing(1151), 8)), [(8, drifted(1151.0))]);
    // Three of ten stay drift.
    let mixed = (0..50).map(|at| costing(if at % 10 < 3 { 1500 } else { 1000 }));
    let windows = repeated(costing(1500), 10).chain(mixed.clone());
    assert_eq!(changes(windows), [(8, drifted(1500.0))]);
    // And begin none.
    assert_eq!(changes(mixed), []);
}

#[test]
fn a_missed_objective_is_drift_only_within_the_promised_rate() {
    let windows = repeated(missed(), 10).chain(repeated(costing(1000), 10));
    let drifted = DriftChange::Drifted(DriftCause::Objective { offered: 400_000.0 });
    assert_eq!(changes(windows), [(8, drifted), (18, DriftChange::Kept)]);
    let more = DriftWindow {
        offered: 500_001.0,
        ..missed()
    };
    assert_eq!(changes(repeated(more, 50)), []);
    // Nor is a cost there compared: nothing is promised beyond the rate.
    let more = DriftWindow {
        offered: 500_001.0,
        ..costing(9000)
    };
    assert_eq!(changes(repeated(more, 50)), []);
}

#[test]
fn costs_of_emptier_batches_or_of_few_packets_are_not_compared() {
    let emptier = DriftWindow {
        batches: 201,
        ..costing(9000)
    };
    assert_eq!(emptier.cost(), None);
    assert_eq!(changes(repeated(emptier, 50)), []);
    let half = DriftWindow {
        batches: 200,
        ..costing(9000)
    };
    assert_eq!(half.cost(), Some(9000.0));
    let few = DriftWindow {
        batches: 1,
        packets: 319,
        ..costing(9000)
    };
    assert_eq!(few.cost(), None);
    assert_eq!(DriftWindow::default().cost(), None);
}

#[test]
fn an_idle_chain_that_drifted_stays_so_until_it_has_packets_again() {
    let idle = DriftWindow::default();
    let windows = repeated(costing(2000), 8).chain(repeated(idle, 100));
    assert_eq!(changes(windows).len(), 1);
}

fn window() -> impl Strategy<Value = DriftWindow> {
    let met = prop_oneof![Just(None), Just(Some(true)), Just(Some(false))];
    (500_u64..2000, 1_u64..250, 0.0..1e6, met).prop_map(|(cost, batches, offered, met)| DriftWindow {
        batches,
        offered,
        met,
        ..costing(cost)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A change back takes at least as many windows as must have been kept, and causes exceed the prediction.
    #[test]
    fn changes_alternate_and_have_a_distance(windows in prop::collection::vec(window(), 0..300)) {
        let found = changes(windows);
        for (at, pair) in found.windows(2).enumerate() {
            prop_assert!(pair[1].0 - pair[0].0 >= BEGIN - END, "{at}");
            let is_kept = |change: &DriftChange| *change == DriftChange::Kept;
            prop_assert_ne!(is_kept(&pair[0].1), is_kept(&pair[1].1));
        }
        for (at, change) in found {
            match change {
                DriftChange::Drifted(DriftCause::Cost { measured }) => {
                    prop_assert!(at >= BEGIN && measured > PROMISE.cost * (1.0 + TOLERANCE));
                }
                DriftChange::Drifted(DriftCause::Objective { offered }) => {
                    prop_assert!(at >= BEGIN && offered <= PROMISE.throughput);
                }
                DriftChange::Kept => {}
            }
        }
    }

    /// No window within the prediction, and none beyond the promised rate, is drift.
    #[test]
    fn windows_within_the_prediction_are_no_drift(windows in prop::collection::vec(window(), 0..300)) {
        let within = windows.into_iter().map(|window| match window.offered > PROMISE.throughput {
            true => window,
            false => DriftWindow { busy: Nanos(1100 * window.packets), met: window.met.map(|_| true), ..window },
        });
        prop_assert_eq!(changes(within), []);
    }
}
