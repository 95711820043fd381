//! Observations of functions in situations that real processes reach only by chance.

use super::*;

const LIMITS: TurnLimits = TurnLimits {
    deadline: Duration::from_millis(10),
    elapsed: Duration::from_secs(1),
    budget: Duration::from_millis(2),
};

/// Interval of the kernel's clock, at which it updates the processor time of one that runs, in milliseconds.
const TICK: u64 = 4;

/// State of one function over a time.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    /// It waits for its turn, ready to run.
    Waits,
    /// It holds the core.
    Runs,
    /// It sleeps.
    Sleeps,
}

/// States of functions and of their worker.
struct Scene<'a> {
    does: &'a [Does],
    worker_is_ready: bool,
    /// Time at which the core runs.
    core: Instant,
}

impl States for Scene<'_> {
    fn is_idle(&self, k: usize) -> bool {
        self.does[k] == Does::Sleeps
    }

    fn is_worker_ready(&self) -> bool {
        self.worker_is_ready
    }

    fn wait_for_core(&self) -> Instant {
        self.core
    }
}

/// Observes functions every millisecond. `round` returns the round, and what each of them does in that millisecond.
/// Returns the first to be ended, with the time.
fn watch(
    functions: usize,
    due: Option<usize>,
    gave_up: Option<usize>,
    milliseconds: u64,
    round: impl Fn(u64) -> (u64, Vec<Does>),
) -> Option<(usize, Fault, u64)> {
    watch_beside(true, (functions, due, gave_up), milliseconds, round)
}

/// As [`watch`], beside a worker that is ready or asleep.
fn watch_beside(
    worker_is_ready: bool,
    (functions, due, gave_up): (usize, Option<usize>, Option<usize>),
    milliseconds: u64,
    round: impl Fn(u64) -> (u64, Vec<Does>),
) -> Option<(usize, Fault, u64)> {
    let mut watch = TurnWatch::new(functions);
    let began = Instant::now();
    let mut exact = vec![Duration::from_secs(7); functions];
    let mut times: Vec<_> = exact.iter().copied().map(Some).collect();
    for ms in 0..milliseconds {
        let (number, does) = round(ms);
        for (k, does) in does.iter().enumerate() {
            if *does != Does::Runs || ms % TICK == 0 {
                times[k] = Some(exact[k]);
            }
        }
        let sample = Sample {
            now: began + Duration::from_millis(ms),
            round: number,
            is_under_way: due.is_some(),
            due,
            gave_up,
            times: &times,
            worker: Some(Duration::ZERO),
        };
        let states = Scene {
            does: &does,
            worker_is_ready,
            core: sample.now,
        };
        if let Some((k, fault)) = watch.check(&sample, |_| LIMITS, &states) {
            return Some((k, fault, ms));
        }
        for (time, does) in exact.iter_mut().zip(&does) {
            if *does == Does::Runs {
                *time += Duration::from_millis(1);
            }
        }
    }
    None
}

use Does::{Runs, Sleeps, Waits};

/// The function in front is done, and holds the core. The next one cannot begin.
#[test]
fn one_that_is_done_and_spins_is_guilty_and_not_its_neighbour() {
    for neighbour in [Waits, Sleeps] {
        let found = watch(2, Some(1), None, 1_000, |_| (5, vec![Runs, neighbour]));
        assert_eq!(found, Some((0, Fault::Overdue, 17)));
    }
}

#[test]
fn one_that_spins_in_its_turn_or_between_rounds_is_guilty() {
    let found = watch(2, Some(0), None, 1_000, |_| (5, vec![Runs, Waits]));
    assert_eq!(found, Some((0, Fault::Overdue, 17)));
    let found = watch(2, None, None, 1_000, |_| (5, vec![Sleeps, Runs]));
    assert_eq!(found, Some((1, Fault::Overdue, 16)));
    // It may poll while the worker sleeps.
    let polls = |_| (5, vec![Sleeps, Runs]);
    assert_eq!(watch_beside(false, (2, None, None), 1_000, polls), None);
}

#[test]
fn one_that_sleeps_in_its_turn_is_guilty() {
    let found = watch(2, Some(1), None, 1_000, |_| (5, vec![Waits, Sleeps]));
    assert_eq!(found, Some((1, Fault::Overdue, 15)));
    // It wakes up now and then, and yields.
    let found = watch(2, Some(1), Some(1), 1_000, |_| (5, vec![Waits, Waits]));
    assert_eq!(found, Some((1, Fault::Overdue, 15)));
}

/// The machine does something else.
#[test]
fn one_that_does_not_get_its_core_is_innocent() {
    assert_eq!(watch(2, Some(0), None, 1_000, |_| (5, vec![Waits, Waits])), None);
    // Not for ever: the run must end.
    let found = watch(2, Some(0), None, 2_000, |_| (5, vec![Waits, Waits]));
    assert_eq!(found, Some((0, Fault::Overdue, 1_005)));
}

/// Turns of 5 ms are below the deadline.
#[test]
fn one_that_exceeds_its_budget_again_and_again_is_guilty() {
    let round = |ms: u64| (ms / 6, vec![Waits, if ms % 6 < 5 { Runs } else { Waits }]);
    let found = watch(2, Some(1), None, 10_000, round);
    assert!(matches!(found, Some((1, Fault::OverBudget, 60..200))), "{found:?}");
    // Twice a second is what a machine does that preempts functions.
    let round = |ms: u64| (ms / 500, vec![Waits, if ms % 500 < 5 { Runs } else { Waits }]);
    assert_eq!(watch(2, Some(1), None, 10_000, round), None);
    // A function may need the core all the time, in short turns.
    assert_eq!(watch(2, Some(1), None, 10_000, |ms| (ms, vec![Waits, Runs])), None);
}

/// A function that spins in its last turn must not keep a run from ending.
#[test]
fn a_last_turn_is_short_unless_it_writes_files() {
    let limits = GroupLimits {
        deadline: Duration::from_millis(10),
        patience: Duration::from_secs(30),
        budget: Nanos::from_millis(2),
    };
    assert_eq!(limits.of_last_turn(false).elapsed, LAST_TURN);
    assert_eq!(limits.of_last_turn(true).elapsed, limits.patience);
    let impatient = GroupLimits {
        patience: Duration::from_millis(1),
        ..limits
    };
    assert_eq!(impatient.of_last_turn(false).elapsed, impatient.patience);
}

#[test]
fn a_replaced_one_has_no_debts() {
    let mut watch = TurnWatch::new(1);
    let began = Instant::now();
    let mut check = |ms: u64, time: u64, replaced: bool| {
        if replaced {
            watch.replaced(0);
        }
        let sample = Sample {
            now: began + Duration::from_millis(ms),
            round: 1,
            is_under_way: true,
            due: Some(0),
            gave_up: None,
            times: &[Some(Duration::from_millis(time))],
            worker: None,
        };
        let states = Scene {
            does: &[Runs],
            worker_is_ready: true,
            core: sample.now,
        };
        watch.check(&sample, |_| LIMITS, &states)
    };
    assert_eq!(check(0, 0, false), None);
    assert_eq!(check(5, 5, false), None);
    assert_eq!(check(10, 10, true), None);
    assert_eq!(check(15, 15, false), None);
    assert_eq!(check(20, 20, false), None);
    assert_eq!(check(25, 25, false), Some((0, Fault::Overdue)));
}

/// Before, a host that ran something else on the core for longer than a deadline got an innocent function ended: its
/// kernel accounts that time to the process that has the core.
#[test]
fn one_whose_core_was_taken_away_is_innocent() {
    let began = Instant::now();
    let at = |ms: u64| began + Duration::from_millis(ms);
    let watch_until = |end_of_turn: u64| {
        let mut watch = TurnWatch::new(1);
        // The core is taken away from 2 to 40 ms. The watchdog, on another core, waits for it from 10 ms on.
        let times = [0, 1, 2, 3, 10, 40, 41, 42, 43, 44, 45, 46, 47];
        times.into_iter().find_map(|ms| {
            let is_over = ms >= end_of_turn;
            let sample = Sample {
                now: at(ms),
                round: if is_over { 2 } else { 1 },
                is_under_way: true,
                due: Some(0),
                gave_up: None,
                times: &[Some(Duration::from_millis(ms))],
                worker: None,
            };
            let states = Scene {
                does: &[Runs],
                worker_is_ready: true,
                core: at(ms.max(40)),
            };
            let found = watch.check(&sample, |_| LIMITS, &states);
            found.map(|(function, fault)| (function, fault, ms))
        })
    };
    assert_eq!(watch_until(42), None);
    assert_eq!(watch_until(u64::MAX), Some((0, Fault::Overdue, 45)));
}
