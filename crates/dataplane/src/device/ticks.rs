//! A device's clock: what its times of arrival are on ours.
//!
//! A NIC that stamps packets counts ticks of a clock of its own, whose rate nobody knows exactly and which starts
//! anywhere. So both clocks are read together, now and then: the device's ticks between two readings of ours. From
//! such [`Reading`]s [`DeviceClock`] learns rate and offset, and how far off they may be: each reading is
//! uncertain by half of the time between ours, and a tick, which grows with the time since. The thread that looks after ports
//! reads and learns ([`Learner`]); workers go by what was learnt last ([`ClockView`]), without waiting.

use crate::clock::Clock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailwater_net::Nanos;

/// The most that times may be off. A clock of which more must be feared is not gone by.
pub const BOUND: Nanos = Nanos::from_micros(10);

/// How much a crystal's rate changes while nobody looks, as a part of the time: temperature moves it by less in
/// some seconds.
const WANDER: f64 = 1e-6;

/// Nobody goes by a clock that has not been read for so long.
const STALE: Nanos = Nanos::from_millis(10_000);

/// A packet that is said to have come so long before or after now was stamped by another clock than was read: some
/// devices have two.
const FAR: u64 = 1_000_000_000;

/// How often a clock is read, if it is known well.
const EVERY: Nanos = Nanos::from_millis(1000);

/// So long before a clock is not known any more, it is read again.
const AHEAD: Nanos = Nanos::from_millis(300);

/// Readings that are kept: what the rate is learnt from.
const KEPT: usize = 8;

/// Two readings give a rate, and one more has to agree with it.
const ENOUGH: usize = 3;

/// Nanoseconds a tick that are believable: clocks of 100 kHz to 10 GHz.
const BELIEVABLE: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// Rounding of a conversion, in nanoseconds.
const ROUNDING: f64 = 2.0;

/// Times that a clock is read in a row; the reading that took the shortest counts.
const TRIES: usize = 5;

/// A device's ticks, read between two readings of our clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The device's ticks.
    pub ticks: u64,
    /// Our time before they were read.
    pub before: Nanos,
    /// Our time after.
    pub after: Nanos,
}

impl Reading {
    /// The surest of some readings in a row; `None` if the device does not answer.
    fn take(clock: &Clock, read: &mut dyn FnMut() -> Option<u64>) -> Option<Reading> {
        let readings = (0..TRIES).filter_map(|_| {
            let before = clock.now();
            let ticks = read()?;
            let after = clock.now();
            Some(Reading { ticks, before, after })
        });
        readings.min_by_key(|reading| reading.after - reading.before)
    }

    /// How far it may be off, in nanoseconds.
    fn half(&self) -> f64 {
        self.after.saturating_sub(self.before).0 as f64 / 2.0
    }

    fn middle(&self) -> Nanos {
        Nanos(self.before.0 + self.after.saturating_sub(self.before).0 / 2)
    }
}

/// How a device's ticks become our time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The last reading.
    ticks: u64,
    time: Nanos,
    /// Nanoseconds a tick, as a fraction of 2^32.
    rate: u64,
    /// How far off it is at that reading, in nanoseconds, and how much more with each nanosecond since.
    off: f64,
    slope: f64,
}

impl Scale {
    /// From the first and the last of some readings; `None` if no clock counts so.
    fn between(first: &Reading, last: &Reading) -> Option<Scale> {
        let ticks = last.ticks.checked_sub(first.ticks)?;
        let time = last.middle().0.checked_sub(first.middle().0)?;
        let per_tick = time as f64 / ticks as f64;
        // Ticks are told whole.
        let [off, first_off] = [last, first].map(|reading| reading.half() + per_tick);
        BELIEVABLE.contains(&per_tick).then(|| Scale {
            ticks: last.ticks,
            time: last.middle(),
            rate: (per_tick * (1u64 << 32) as f64) as u64,
            off: off + ROUNDING,
            slope: (off + first_off) / time as f64 + WANDER,
        })
    }

    /// Our time of those ticks.
    #[inline]
    pub fn at(&self, ticks: u64) -> Nanos {
        // The difference is small, and of either sign.
        let apart = ticks.wrapping_sub(self.ticks) as i64;
        let apart = (i128::from(apart) * i128::from(self.rate)) >> 32;
        let time = i128::from(self.time.0) + apart;
        Nanos(u64::try_from(time.max(0)).unwrap_or(u64::MAX))
    }

    /// How long a tick is, in nanoseconds.
    fn tick(&self) -> f64 {
        self.rate as f64 / (1u64 << 32) as f64
    }

    /// How far off it may be at that time, in nanoseconds.
    fn error(&self, at: Nanos) -> f64 {
        self.off + at.0.abs_diff(self.time.0) as f64 * self.slope
    }

    /// Until when it is no further off than [`BOUND`], if no reading comes.
    pub fn until(&self) -> Nanos {
        let left = (BOUND.0 as f64 - self.off) / self.slope;
        // Nothing is left if it is negative.
        self.time + Nanos(left as u64).min(STALE)
    }
}

/// Learns a device's clock from readings. It reads none, and is told the time.
#[derive(Clone, Debug, Default)]
pub struct DeviceClock {
    /// Of one steady clock, as far as can be seen, oldest first.
    readings: VecDeque<Reading>,
    scale: Option<Scale>,
}

impl DeviceClock {
    /// Learns from a reading. One that took too long says nothing. One that does not agree with what was learnt says that
    /// the clock was set, or is not steady: everything is learnt anew from there.
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

    /// Whether a reading may be of the clock that the others are of.
    fn agrees(&self, reading: &Reading) -> bool {
        let later = |last: &Reading| reading.ticks > last.ticks && reading.before >= last.after;
        self.readings.back().is_none_or(later)
            && self.scale.is_none_or(|scale| {
                let apart = scale.at(reading.ticks).0.abs_diff(reading.middle().0) as f64;
                apart <= scale.error(reading.middle()) + reading.half() + scale.tick()
            })
    }

    /// The device does not answer: nothing is known any more.
    pub fn forget(&mut self) {
        self.readings.clear();
        self.scale = None;
    }

    /// What was learnt, if it is enough to go by.
    pub fn scale(&self) -> Option<Scale> {
        self.scale.filter(|_| self.readings.len() >= ENOUGH)
    }

    /// Whether it is time for another reading.
    pub fn is_due(&self, now: Nanos) -> bool {
        let last = self.readings.back().map(|last| last.after);
        last.is_none_or(|last| now.saturating_sub(last) >= EVERY)
            || self.scale().is_none_or(|scale| now + AHEAD >= scale.until())
    }
}

/// What was learnt last, for workers.
#[derive(Debug, Default)]
struct Learnt {
    /// Counts what was learnt.
    version: AtomicU64,
    scale: Mutex<Option<Scale>>,
    /// Whether packets are stamped by another clock.
    other: AtomicBool,
}

impl Learnt {
    fn lock(&self) -> MutexGuard<'_, Option<Scale>> {
        self.scale.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows a device's clock: for the thread that looks after it.
#[derive(Debug)]
pub struct Learner {
    clock: Clock,
    device: Mutex<DeviceClock>,
    learnt: Arc<Learnt>,
}

impl Learner {
    /// Of a device of which nothing is known yet. Our times are on `clock`.
    pub fn new(clock: Clock) -> Learner {
        Learner {
            clock,
            device: Mutex::default(),
            learnt: Arc::default(),
        }
    }

    /// Reads the device's clock by `read`, if it is time to. Returns whether it is known.
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

    /// Whether times of the device can be told now.
    pub fn is_known(&self) -> bool {
        let now = self.clock.now();
        let other = self.learnt.other.load(Ordering::Relaxed);
        !other && self.learnt.lock().is_some_and(|scale| now <= scale.until())
    }

    /// For a worker.
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

/// A device queue's view of its clock.
#[derive(Debug)]
pub struct ClockView {
    learnt: Arc<Learnt>,
    version: u64,
    scale: Option<Scale>,
    until: Nanos,
    /// The latest time that it has told.
    last: Nanos,
}

impl ClockView {
    /// Writes when packets came that the device stamped so, in order: never back, nor later than `now`, nor before
    /// `earliest`, which is also the time of those without a stamp. Returns whether it did: not while the
    /// clock is not known, and never again once a stamp is of another clock.
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
                // A packet may have waited while the whole machine stood still, but not since before the last look.
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

    /// Learns what is new, unless it is being written just now.
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
