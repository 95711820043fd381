//! What the machine takes from a core: moments in which it runs something else, and speed.
//!
//! Pauses come whether a core has work or not, so each core has its own series of them, drawn from the seed. One
//! that comes while a batch is processed makes that batch longer; one that comes while the core waits for packets
//! delays the next batch if it lasts until then.

use crate::chain::random;
use crate::pauses::Pauses;
use crate::rack::Pace;

/// A [`Pace`], ready to be looked up.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    step: u64,
    /// In parts of 65,536.
    times: Box<[u64]>,
}

impl Speed {
    /// Of a pace that has been [checked](crate::Rack::check).
    pub fn new(pace: &Pace) -> Speed {
        let times = pace.times.iter();
        Speed {
            step: pace.step.0,
            times: times.map(|times| (times * 65_536.0) as u64).collect(),
        }
    }

    /// How long it takes what costs `picos` if it begins at `now`.
    pub fn apply(&self, picos: u64, now: u64) -> u64 {
        let step = (now / self.step) as usize;
        let times = self.times[step.min(self.times.len() - 1)];
        ((u128::from(picos) * u128::from(times)) >> 16) as u64
    }
}

/// A core's pauses: the next one, and how many were drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pausing {
    begins: u64,
    ends: u64,
    drawn: u64,
}

impl Pausing {
    /// When a batch is done that is begun at `now` and would be done at `end`.
    pub fn delay(&mut self, pauses: &Pauses, seed: u64, now: u64, mut end: u64) -> u64 {
        if self.drawn == 0 {
            self.draw(pauses, seed);
        }
        while self.begins < end {
            // Of one that began before, only what is left of it counts.
            end += self.ends.saturating_sub(self.begins.max(now));
            self.draw(pauses, seed);
        }
        end
    }

    /// Draws the next one: none begins before the last has ended.
    fn draw(&mut self, pauses: &Pauses, seed: u64) {
        let [gap, length] = [0, 1].map(|part| random(seed, 2 * self.drawn + part));
        self.drawn += 1;
        self.begins = self.ends + pauses.gap(gap);
        self.ends = self.begins + pauses.length(length);
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
            now = pausing.delay(&pauses, 7, now, now + 1000);
            batches += 1;
        }
        let lost = (now - batches * 1000) as f64 / now as f64;
        // 7 us a millisecond, of the time that is left.
        assert!((lost - 0.007).abs() < 3e-4, "{lost}");
    }

    #[test]
    fn each_step_has_its_speed_and_the_last_one_stays() {
        let speed = Speed::new(&Pace {
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
        pausing.draw(&pauses, 3);
        let (begins, ends) = (pausing.begins, pausing.ends);
        assert!(ends - begins == 3_000 || ends - begins == 8_000);
        // Done just before it.
        assert_eq!(pausing.delay(&pauses, 3, 0, begins), begins);
        // Begun in its midst.
        let mut other = pausing;
        assert_eq!(other.delay(&pauses, 3, ends - 10, ends), ends + 10);
        // It began while the batch was processed.
        let mut other = pausing;
        let done = other.delay(&pauses, 3, begins - 10, begins + 10);
        assert_eq!(done, begins + 10 + (ends - begins));
        // Long over.
        let mut other = pausing;
        let (now, end) = (ends, ends + 1);
        assert_eq!(other.delay(&pauses, 3, now, end), end);
    }
}
