//! Conversion of a device's timestamps to the run's clock.
//!
//! A NIC that timestamps packets counts ticks of its own clock, whose exact rate is unknown and whose origin is
//! arbitrary. So both clocks are sampled together periodically: the device's ticks between two readings of ours. From
//! such [`Reading`]s [`DeviceClock`] estimates rate and offset with error bounds. Each reading is uncertain by half of
//! the time between ours, plus one tick. The uncertainty grows with the time since. The thread that monitors ports
//! takes the readings ([`Learner`]). Workers use the latest estimate ([`ClockView`]) without waiting.

use crate::clock::Clock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailwater_net::Nanos;

/// Maximum error of converted times. A clock with a larger possible error is not used.
pub const BOUND: Nanos = Nanos::from_micros(10);

/// Maximum drift of a crystal's rate between readings, as a fraction of the time: temperature changes it by less within
/// some seconds.
const WANDER: f64 = 1e-6;

/// Age of the last reading beyond which the clock is not used.
const STALE: Nanos = Nanos::from_millis(10_000);

/// Distance from now, in nanoseconds, beyond which a timestamp must come from another clock than the one read: some
/// devices have two.
const FAR: u64 = 1_000_000_000;

/// Interval between readings of a well-known clock.
const EVERY: Nanos = Nanos::from_millis(1000);

/// Time before the estimate expires at which the clock is read again.
const AHEAD: Nanos = Nanos::from_millis(300);

/// Readings from which the rate is estimated.
const KEPT: usize = 8;

/// Minimum number of readings: two give a rate, and one more has to agree with it.
const ENOUGH: usize = 3;

/// Plausible nanoseconds per tick: clocks of 100 kHz to 10 GHz.
const BELIEVABLE: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// Rounding error of a conversion, in nanoseconds.
const ROUNDING: f64 = 2.0;

/// Attempts per reading. The one that took the shortest counts.
const TRIES: usize = 5;

/// Device ticks, read between two readings of our clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Ticks of the device.
    pub ticks: u64,
    /// Our time before the device was read.
    pub before: Nanos,
    /// Our time afterwards.
    pub after: Nanos,
}

impl Reading {
    /// Most precise of several readings, or `None` if the device does not answer.
    fn take(clock: &Clock, read: &mut dyn FnMut() -> Option<u64>) -> Option<Reading> {
        let readings = (0..TRIES).filter_map(|_| {
            let before = clock.now();
            let ticks = read()?;
            let after = clock.now();
            Some(Reading { ticks, before, after })
        });
        readings.min_by_key(|reading| reading.after - reading.before)
    }

    /// Maximum error, in nanoseconds.
    fn half(&self) -> f64 {
        self.after.saturating_sub(self.before).0 as f64 / 2.0
    }

    fn middle(&self) -> Nanos {
        Nanos(self.before.0 + self.after.saturating_sub(self.before).0 / 2)
    }
}

/// Linear conversion from device ticks to our time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Ticks of the last reading.
    ticks: u64,
    time: Nanos,
    /// Nanoseconds per tick, times 2^32.
    rate: u64,
    /// Maximum error at that reading, in nanoseconds, and its growth per nanosecond since.
    off: f64,
    slope: f64,
}

impl Scale {
    /// Conversion from the first and the last of some readings, or `None` if the rate is implausible.
    fn between(first: &Reading, last: &Reading) -> Option<Scale> {
        let ticks = last.ticks.checked_sub(first.ticks)?;
        let time = last.middle().0.checked_sub(first.middle().0)?;
        let per_tick = time as f64 / ticks as f64;
        // Readings are truncated to whole ticks.
        let [off, first_off] = [last, first].map(|reading| reading.half() + per_tick);
        BELIEVABLE.contains(&per_tick).then(|| Scale {
            ticks: last.ticks,
            time: last.middle(),
            rate: (per_tick * (1u64 << 32) as f64) as u64,
            off: off + ROUNDING,
            slope: (off + first_off) / time as f64 + WANDER,
        })
    }

    /// Our time of the given ticks.
    #[inline]
    pub fn at(&self, ticks: u64) -> Nanos {
        // The difference is small, and of either sign.
        let apart = ticks.wrapping_sub(self.ticks) as i64;
        let apart = (i128::from(apart) * i128::from(self.rate)) >> 32;
        let time = i128::from(self.time.0) + apart;
        Nanos(u64::try_from(time.max(0)).unwrap_or(u64::MAX))
    }

    /// Duration of a tick, in nanoseconds.
    fn tick(&self) -> f64 {
        self.rate as f64 / (1u64 << 32) as f64
    }

    /// Maximum error at the given time, in nanoseconds.
    fn error(&self, at: Nanos) -> f64 {
        self.off + at.0.abs_diff(self.time.0) as f64 * self.slope
    }

    /// Time until which the error stays within [`BOUND`] without another reading.
    pub fn until(&self) -> Nanos {
        let left = (BOUND.0 as f64 - self.off) / self.slope;
        // A negative value saturates to zero.
        self.time + Nanos(left as u64).min(STALE)
    }
}

/// Estimator of a device's clock. Pure: readings and times are its inputs.
#[derive(Clone, Debug, Default)]
pub struct DeviceClock {
    /// Readings consistent with one steady clock, oldest first.
    readings: VecDeque<Reading>,
    scale: Option<Scale>,
}

impl DeviceClock {
    /// Adds a reading. One that took too long is ignored. One that contradicts the estimate means that the clock was
    /// set, or is not steady: the estimate starts anew from it.
    pub fn observe(&mut self, reading: Reading) {
        if reading.half() > BOUND.0 as f64 {
            return;
        }
        if !self.agrees(&reading) {
            self.forget();
        }
        if self.readings.len() == KEPT {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
        self.scale = match &*self.readings.make_contiguous() {
            [first, .., last] => Scale::between(first, last),
            _ => None,
        };
    }

    /// Returns `true` if the reading is consistent with the others.
    fn agrees(&self, reading: &Reading) -> bool {
        let later = |last: &Reading| reading.ticks > last.ticks && reading.before >= last.after;
        self.readings.back().is_none_or(later)
            && self.scale.is_none_or(|scale| {
                let apart = scale.at(reading.ticks).0.abs_diff(reading.middle().0) as f64;
                apart <= scale.error(reading.middle()) + reading.half() + scale.tick()
            })
    }

    /// Discards the estimate, as the device does not answer.
    pub fn forget(&mut self) {
        self.readings.clear();
        self.scale = None;
    }

    /// Current conversion, if it is precise enough.
    pub fn scale(&self) -> Option<Scale> {
        self.scale.filter(|_| self.readings.len() >= ENOUGH)
    }

    /// Returns `true` if another reading is due.
    pub fn is_due(&self, now: Nanos) -> bool {
        let last = self.readings.back().map(|last| last.after);
        last.is_none_or(|last| now.saturating_sub(last) >= EVERY)
            || self.scale().is_none_or(|scale| now + AHEAD >= scale.until())
    }
}

/// Latest conversion, shared with workers. They take the lock only when `version` has changed.
#[derive(Debug, Default)]
struct Learnt {
    /// Incremented with each new conversion.
    version: AtomicU64,
    scale: Mutex<Option<Scale>>,
    /// Set once packets carry timestamps of another clock.
    other: AtomicBool,
}

impl Learnt {
    fn lock(&self) -> MutexGuard<'_, Option<Scale>> {
        self.scale.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tracks a device's clock, in the thread that monitors ports.
#[derive(Debug)]
pub struct Learner {
    clock: Clock,
    device: Mutex<DeviceClock>,
    learnt: Arc<Learnt>,
}

impl Learner {
    /// Creates a learner without readings. Our times are on `clock`.
    pub fn new(clock: Clock) -> Learner {
        Learner {
            clock,
            device: Mutex::default(),
            learnt: Arc::default(),
        }
    }

    /// Reads the device's clock with `read`, if a reading is due. Returns `true` if the clock is known.
    pub fn look(&self, read: &mut dyn FnMut() -> Option<u64>) -> bool {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if device.is_due(self.clock.now()) {
            match Reading::take(&self.clock, read) {
                Some(reading) => device.observe(reading),
                None => device.forget(),
            }
            *self.learnt.lock() = device.scale();
            self.learnt.version.fetch_add(1, Ordering::Release);
        }
        drop(device);
        self.is_known()
    }

    /// Returns `true` if timestamps of the device can be converted now.
    pub fn is_known(&self) -> bool {
        let now = self.clock.now();
        let other = self.learnt.other.load(Ordering::Relaxed);
        !other && self.learnt.lock().is_some_and(|scale| now <= scale.until())
    }

    /// Creates a worker's view.
    pub fn view(&self) -> ClockView {
        ClockView {
            learnt: Arc::clone(&self.learnt),
            version: 0,
            scale: None,
            until: Nanos::ZERO,
            last: Nanos::ZERO,
        }
    }
}

/// View of a device's clock by one of its queues.
#[derive(Debug)]
pub struct ClockView {
    learnt: Arc<Learnt>,
    version: u64,
    scale: Option<Scale>,
    until: Nanos,
    /// Latest time returned.
    last: Nanos,
}

impl ClockView {
    /// Converts timestamps to non-decreasing arrival times between `earliest` and `now`. Packets without a timestamp
    /// get `earliest` as theirs. Returns `true` if the times were written: not while the clock is unknown, and never
    /// again once a timestamp belongs to another clock.
    #[inline]
    pub fn arrivals(&mut self, stamps: &[Option<u64>], [earliest, now]: [Nanos; 2], into: &mut Vec<Nanos>) -> bool {
        if self.learnt.version.load(Ordering::Acquire) != self.version {
            self.refresh();
        }
        let Some(scale) = self.scale.filter(|_| now <= self.until) else {
            return false;
        };
        let mut other = false;
        into.clear();
        into.extend(stamps.iter().map(|stamp| match stamp {
            None => earliest,
            Some(ticks) => {
                let time = scale.at(*ticks);
                // A packet may have waited while the whole machine stood still, but not since before the last poll.
                other |= time.0 > now.0 + FAR || time.0 + FAR < earliest.0;
                self.last = time.max(self.last).max(earliest).min(now);
                self.last
            }
        }));
        if other {
            self.learnt.other.store(true, Ordering::Relaxed);
            self.until = Nanos::ZERO;
        }
        !other
    }

    /// Reads the latest conversion, unless it is being written right now.
    #[cold]
    fn refresh(&mut self) {
        let version = self.learnt.version.load(Ordering::Acquire);
        if let Ok(scale) = self.learnt.scale.try_lock() {
            self.scale = *scale;
            let other = self.learnt.other.load(Ordering::Relaxed);
            let until = scale.map_or(Nanos::ZERO, |scale| scale.until());
            self.until = if other { Nanos::ZERO } else { until };
            self.version = version;
        }
    }
}

#[cfg(test)]
mod tests;
