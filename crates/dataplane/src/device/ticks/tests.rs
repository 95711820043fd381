use super::*;
use proptest::prelude::*;

/// Clock with a frequency in Hz, and its ticks when ours was at 0.
#[derive(Clone, Copy, Debug)]
struct Crystal {
    hertz: u64,
    first: u64,
}

impl Crystal {
    fn ticks(&self, time: u64) -> u64 {
        let ticks = u128::from(time) * u128::from(self.hertz) / 1_000_000_000;
        self.first + ticks as u64
    }

    /// A reading that took `width`, in which the device was read after `part` / 256 of it.
    fn reading(&self, before: u64, width: u64, part: u8) -> Reading {
        Reading {
            ticks: self.ticks(before + width * u64::from(part) / 256),
            before: Nanos(before),
            after: Nanos(before + width),
        }
    }
}

fn crystals() -> impl Strategy<Value = Crystal> {
    // Ticks of at most half a microsecond, as packet clocks have.
    (2_000_000..3_000_000_000u64, 0..1u64 << 62).prop_map(|(hertz, first)| Crystal { hertz, first })
}

/// Time since the last reading, duration of this one, and the fraction of it at which the device was read.
type Step = (u64, u64, u8);

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (20_000_000..1_000_000_000u64, 100..2_000u64, any::<u8>());
    prop::collection::vec(step, ENOUGH..most)
}

/// Estimate after these readings, and the end of the last one.
fn learn(crystal: Crystal, steps: &[Step]) -> (DeviceClock, u64) {
    let (mut clock, mut time) = (DeviceClock::default(), 0);
    for &(after, width, part) in steps {
        clock.observe(crystal.reading(time + after, width, part));
        time += after + width;
    }
    (clock, time)
}

/// Additional error of a timestamp: one tick.
fn tick(crystal: Crystal) -> u64 {
    1_000_000_000 / crystal.hertz + 1
}

proptest! {
    /// A steady clock is never taken for another, and its times are within the stated bound for as long as stated.
    #[test]
    fn a_steady_clock_is_known_within_the_bound(
        crystal in crystals(), steps in steps(30), when in 0.0..1.0f64,
    ) {
        let (clock, time) = learn(crystal, &steps);
        prop_assert_eq!(clock.readings.len(), steps.len().min(KEPT));
        let scale = clock.scale().unwrap();
        prop_assert!(scale.until().0 > time);
        let at = time + ((scale.until().0 - time) as f64 * when) as u64;
        let told = scale.at(crystal.ticks(at)).0;
        let most = BOUND.0 + tick(crystal);
        prop_assert!(told.abs_diff(at) <= most, "{told} for {at}");
    }

    /// A clock that is set is not used until it is known again.
    #[test]
    fn a_clock_that_is_set_is_learnt_anew(
        crystal in crystals(), steps in steps(12), by in 40_000..1u64 << 40, back: bool,
    ) {
        let (mut clock, time) = learn(crystal, &steps);
        let ticks = crystal.ticks(by) - crystal.first;
        let first = match back {
            true => crystal.first.checked_sub(ticks),
            false => Some(crystal.first + ticks),
        };
        prop_assume!(first.is_some());
        let set = Crystal { first: first.unwrap(), ..crystal };
        // Soon, while the old estimate is still valid.
        let soon = clock.scale().unwrap().until().0.min(time + 100_000_000);
        clock.observe(set.reading(soon, 500, 128));
        prop_assert_eq!(clock.scale(), None);
        for i in 1..ENOUGH as u64 {
            clock.observe(set.reading(soon + i * 1_000_000_000, 500, 128));
        }
        let scale = clock.scale().unwrap();
        let at = soon + 3_000_000_000;
        prop_assert!(scale.at(set.ticks(at)).0.abs_diff(at) <= BOUND.0 + tick(crystal));
    }

    /// Times lie between the bounds and never decrease, whatever the device's timestamps are. Packets without a
    /// timestamp get the earliest.
    #[test]
    fn times_never_go_back_nor_beyond_the_bounds(
        bursts in prop::collection::vec(
            (0..1_000_000u64, 0..1_000_000u64, prop::collection::vec(any::<Option<u64>>(), 1..8)),
            1..20,
        ),
        wrong: Option<prop::sample::Index>,
    ) {
        let crystal = Crystal { hertz: 1_000_000_000, first: 5 };
        let learner = Learner::new(Clock::start());
        let (clock, mut now) = learn(crystal, &[(20_000_000, 200, 100); 10]);
        *learner.learnt.lock() = clock.scale();
        learner.learnt.version.fetch_add(1, Ordering::Release);
        let (mut view, mut last, mut into) = (learner.view(), Nanos::ZERO, Vec::new());
        let wrong = wrong.map(|wrong| wrong.index(bursts.len()));
        for (number, (turn, back, mut stamps)) in bursts.into_iter().enumerate() {
            now += turn;
            let bounds = [Nanos(now - back.min(now)), Nanos(now)];
            let near = |stamp: &mut u64| {
                *stamp = crystal.ticks(now + 500_000) - *stamp % 2_000_000;
            };
            stamps.iter_mut().flatten().for_each(near);
            if wrong.is_some_and(|wrong| wrong <= number) {
                // After a timestamp of another clock, this one is never used again.
                if wrong == Some(number) {
                    stamps[0] = Some(crystal.ticks(now + 2 * FAR));
                }
                prop_assert!(!view.arrivals(&stamps, bounds, &mut into));
                prop_assert!(!learner.is_known());
                continue;
            }
            prop_assert!(view.arrivals(&stamps, bounds, &mut into));
            prop_assert_eq!(into.len(), stamps.len());
            for (stamp, time) in stamps.iter().zip(&into) {
                prop_assert!((bounds[0]..=bounds[1]).contains(time));
                match stamp {
                    None => prop_assert_eq!(*time, bounds[0]),
                    Some(_) => {
                        prop_assert!(*time >= last);
                        last = *time;
                    }
                }
            }
        }
    }
}

const STEADY: Crystal = Crystal {
    hertz: 1_000_000_000,
    first: 1_000_077,
};

/// The packets waited while the whole machine was stopped: their timestamps are old, and right.
#[test]
fn a_stop_of_three_seconds_is_not_taken_for_another_clock() {
    let learner = Learner::new(Clock::start());
    let (clock, now) = learn(STEADY, &[(20_000_000, 200, 100); 10]);
    *learner.learnt.lock() = clock.scale();
    learner.learnt.version.fetch_add(1, Ordering::Release);
    let (mut view, mut into) = (learner.view(), Vec::new());
    let bounds = [Nanos(now), Nanos(now + 3_000_000_000)];
    let came = now + 1_000;
    assert!(view.arrivals(&[Some(STEADY.ticks(came))], bounds, &mut into));
    assert!(into[0].0.abs_diff(came) <= BOUND.0 + 1, "{:?}", into[0]);
    assert!(learner.is_known());
    // A timestamp in the future belongs to another clock.
    let stamps = [Some(STEADY.ticks(bounds[1].0 + 2 * FAR))];
    assert!(!view.arrivals(&stamps, bounds, &mut into));
    assert!(!learner.is_known());
}

#[test]
fn two_readings_are_not_enough_and_slow_ones_say_nothing() {
    let mut clock = DeviceClock::default();
    assert!(clock.is_due(Nanos::ZERO));
    for i in 0..2 {
        clock.observe(STEADY.reading(i * 1_000_000_000, 1000, 0));
        assert_eq!(clock.scale(), None);
    }
    clock.observe(STEADY.reading(2_000_000_000, 2 * BOUND.0 + 2, 0));
    assert_eq!(clock.scale(), None);
    clock.observe(STEADY.reading(3_000_000_000, 1000, 0));
    assert!(clock.scale().is_some());
    // Not at once, but after a second.
    assert!(!clock.is_due(Nanos(3_500_000_000)));
    assert!(clock.is_due(Nanos(4_001_001_000)));
    clock.forget();
    assert!(clock.scale().is_none() && clock.is_due(Nanos(4_001_001_000)));
}

#[test]
fn a_clock_that_stands_or_counts_too_fast_is_none() {
    for hertz in [0, 1_000, 100_000_000_000] {
        let crystal = Crystal { hertz, first: 0 };
        let (clock, _) = learn(crystal, &[(20_000_000, 500, 0); 6]);
        assert_eq!(clock.scale(), None, "{hertz} Hz");
    }
}

#[test]
fn a_clock_that_drifts_out_of_its_bound_is_not_gone_by() {
    let (mut clock, time) = learn(STEADY, &[(500_000_000, 500, 100); 8]);
    assert!(clock.scale().is_some());
    // From here on it is fast by 1 part in 10,000: 100 us per second.
    let drifted = Crystal {
        hertz: 1_000_100_000,
        first: STEADY.first - time / 10_000,
    };
    clock.observe(drifted.reading(time + 500_000_000, 500, 100));
    assert_eq!(clock.scale(), None);
}

impl Learner {
    /// Learner that has read a device's clock for some seconds, at whole ones. Its estimate is valid for as long again.
    pub(in crate::device) fn taught(clock: Clock, ticks: impl Fn(Nanos) -> u64) -> Learner {
        let mut device = DeviceClock::default();
        for second in 0..8 {
            let at = Nanos(second * 1_000_000_000);
            device.observe(Reading {
                ticks: ticks(at),
                before: at,
                after: at,
            });
        }
        let learner = Learner::new(clock);
        *learner.learnt.lock() = device.scale();
        learner.learnt.version.fetch_add(1, Ordering::Release);
        learner
    }
}

#[test]
fn workers_go_by_what_the_learner_knows() {
    let (clock, times) = (Clock::start(), &mut Vec::new());
    let learner = Learner::new(clock.clone());
    let mut view = learner.view();
    assert!(!view.arrivals(&[Some(1)], [Nanos::ZERO; 2], times));
    let ticks = |time: Nanos| time.0 / 2 + 1000;
    // A busy machine may need some more readings.
    let known = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        learner.look(&mut || Some(ticks(clock.now())));
        let now = clock.now();
        let [earliest, came] = [3_000_000, 1_000_000].map(|ago| now.saturating_sub(Nanos(ago)));
        let told = view.arrivals(&[Some(ticks(came)), None], [earliest, now], times);
        if told {
            let off = times[0].0.abs_diff(came.0);
            assert!(off <= BOUND.0 + 2, "off by {off}");
            assert_eq!(times[1], earliest);
        }
        told
    });
    assert!(known);
    // The last reading is too old.
    let late = [Nanos::ZERO, Nanos(u64::MAX)];
    assert!(!view.arrivals(&[Some(1)], late, times));
    // The device does not answer: workers see it with their next burst.
    let unknown = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        !learner.look(&mut || None)
    });
    assert!(unknown && !learner.is_known());
    assert!(!view.arrivals(&[Some(1)], [Nanos::ZERO; 2], times));
}
