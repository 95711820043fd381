//! Effects of the machine on a core: interruptions, in which it runs something else, and speed.
//!
//! Interruptions occur with or without work on a core, so each core draws its own series of them from the seed, or has
//! a [measured](crate::Rack::interruptions) one. One that begins during a batch lengthens that batch. One that begins while the core waits for packets delays the next
//! batch if it lasts until then.

use crate::chain::random;
use crate::pauses::Pauses;
use crate::rack::{Interruption, SpeedProfile};

/// [`SpeedProfile`] prepared for look-ups.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    step: u64,
    /// Factors on the time, in units of 1/65,536.
    times: Box<[u64]>,
}

impl Speed {
    /// Creates the look-up table of a pace that has been [checked](crate::Rack::check).
    pub fn new(pace: &SpeedProfile) -> Speed {
        let times = pace.times.iter();
        Speed {
            step: pace.step.0,
            times: times.map(|times| (times * 65_536.0) as u64).collect(),
        }
    }

    /// Returns the time that work of `picos` takes if it begins at `now`.
    pub fn apply(&self, picos: u64, now: u64) -> u64 {
        let step = (now / self.step) as usize;
        let times = self.times[step.min(self.times.len() - 1)];
        ((u128::from(picos) * u128::from(times)) >> 16) as u64
    }
}

/// Interruptions of a core: the next one, and the number before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Pausing {
    begins: u64,
    ends: u64,
    drawn: u64,
    /// All of them, if they were measured.
    measured: Option<Box<[Interruption]>>,
}

impl Pausing {
    /// Creates the series of a core whose interruptions were measured.
    pub fn of(measured: &[Interruption]) -> Pausing {
        Pausing {
            measured: Some(measured.into()),
            ..Pausing::default()
        }
    }

    /// Returns the end of a batch that begins at `now` and would end at `end` without interruptions. Those that were
    /// not measured are drawn from `pauses`.
    pub fn delay(&mut self, pauses: Option<&Pauses>, seed: u64, now: u64, mut end: u64) -> u64 {
        if pauses.is_none() && self.measured.is_none() {
            return end;
        }
        if self.drawn == 0 {
            self.draw(pauses, seed);
        }
        while self.begins < end {
            // Of an interruption that began earlier, only the rest counts.
            end += self.ends.saturating_sub(self.begins.max(now));
            self.draw(pauses, seed);
        }
        end
    }

    /// Draws the next interruption. None begins before the last one has ended.
    fn draw(&mut self, pauses: Option<&Pauses>, seed: u64) {
        let number = self.drawn;
        self.drawn += 1;
        (self.begins, self.ends) = match (&self.measured, pauses) {
            (Some(measured), _) => measured.get(number as usize).map_or((u64::MAX, u64::MAX), |next| {
                (next.begins.0, next.begins.0 + next.length.0)
            }),
            (None, Some(pauses)) => {
                let [gap, length] = [0, 1].map(|part| random(seed, 2 * number + part));
                let begins = self.ends + pauses.gap(gap);
                (begins, begins + pauses.length(length))
            }
            (None, None) => (u64::MAX, u64::MAX),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_policy::capacity::Pause;

    fn pauses() -> Pauses {
        let pause = |per_second, nanos| Pause { per_second, nanos };
        Pauses::new(&[pause(1000.0, 3_000), pause(500.0, 8_000)]).unwrap()
    }

    #[test]
    fn a_core_that_always_works_loses_what_pauses_take() {
        let (mut pausing, pauses) = (Pausing::default(), pauses());
        let (mut now, mut batches) = (0, 0);
        while now < 10_000_000_000 {
            now = pausing.delay(Some(&pauses), 7, now, now + 1000);
            batches += 1;
        }
        let lost = (now - batches * 1000) as f64 / now as f64;
        // 7 us per millisecond, of the remaining time.
        assert!((lost - 0.007).abs() < 3e-4, "{lost}");
    }

    #[test]
    fn each_step_has_its_speed_and_the_last_one_stays() {
        let speed = Speed::new(&SpeedProfile {
            step: tailwater_net::Nanos(100),
            times: vec![1.0, 1.5, 0.5],
        });
        let took = [0, 99, 100, 199, 200, 1 << 40].map(|now| speed.apply(1000, now));
        assert_eq!(took, [1000, 1000, 1500, 1500, 500, 500]);
    }

    #[test]
    fn a_core_that_waits_is_delayed_by_what_is_left_of_a_pause() {
        let pauses = pauses();
        let mut pausing = Pausing::default();
        pausing.draw(Some(&pauses), 3);
        let (begins, ends) = (pausing.begins, pausing.ends);
        assert!(ends - begins == 3_000 || ends - begins == 8_000);
        // The batch ends just before it.
        assert_eq!(pausing.delay(Some(&pauses), 3, 0, begins), begins);
        // The batch begins in the middle of it.
        let mut other = pausing.clone();
        assert_eq!(other.delay(Some(&pauses), 3, ends - 10, ends), ends + 10);
        // It begins during the batch.
        let mut other = pausing.clone();
        let done = other.delay(Some(&pauses), 3, begins - 10, begins + 10);
        assert_eq!(done, begins + 10 + (ends - begins));
        // It ended long before.
        let mut other = pausing;
        let (now, end) = (ends, ends + 1);
        assert_eq!(other.delay(Some(&pauses), 3, now, end), end);
    }

    #[test]
    fn measured_interruptions_come_when_they_came() {
        let at = |begins, length| Interruption {
            begins: tailwater_net::Nanos(begins),
            length: tailwater_net::Nanos(length),
        };
        let mut pausing = Pausing::of(&[at(100, 50), at(400, 10)]);
        assert_eq!(pausing.delay(None, 1, 0, 90), 90);
        assert_eq!(pausing.delay(None, 1, 95, 120), 170);
        // In the middle of the second, and long after both.
        assert_eq!(pausing.delay(None, 1, 405, 420), 425);
        assert_eq!(pausing.delay(None, 1, 1_000, 2_000), 2_000);
        assert_eq!(Pausing::default().delay(None, 1, 0, 500), 500);
    }
}
