//! Interruptions in which the machine preempts a core.

use tailwater_policy::capacity::{MAX_PAUSED, Pause};

/// Random distribution of a core's interruptions, one after the other. Equal seeds give equal ones on any machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pauses {
    /// Mean nanoseconds from the end of one to the start of the next.
    gap: f64,
    /// Lengths, each with the upper limit of its draws.
    lengths: Vec<(u64, u64)>,
}

impl Pauses {
    /// Returns the distribution, or `None` if `pauses` is empty, or they take half of the time or more.
    pub fn new(pauses: &[Pause]) -> Option<Pauses> {
        let sum = |of: &dyn Fn(&Pause) -> f64| pauses.iter().map(of).sum::<f64>();
        let per_second = sum(&|pause| pause.per_second);
        let paused = sum(&|pause| pause.per_second * pause.nanos as f64 / 1e9);
        let fit = pauses.iter().all(|pause| pause.per_second > 0.0);
        if !fit || !per_second.is_finite() || paused >= MAX_PAUSED {
            return None;
        }
        let mut below = 0.0;
        let lengths = pauses.iter().map(|pause| {
            below += pause.per_second / per_second;
            ((below * 2_f64.powi(64)) as u64, pause.nanos)
        });
        Some(Pauses {
            gap: 1e9 * (1.0 - paused) / per_second,
            lengths: lengths.collect(),
        })
    }

    /// Returns the time from the end of one to the start of the next: exponentially distributed.
    pub fn gap(&self, random: u64) -> u64 {
        let drawn = ((random >> 11) as f64 + 0.5) / 2_f64.powi(53);
        (-libm::log(drawn) * self.gap) as u64 + 1
    }

    /// Returns the duration of one.
    pub fn length(&self, random: u64) -> u64 {
        let at = self.lengths.partition_point(|(below, _)| *below <= random);
        let last = self.lengths.len() - 1;
        self.lengths[at.min(last)].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::random;

    fn pause(per_second: f64, nanos: u64) -> Pause {
        Pause { per_second, nanos }
    }

    #[test]
    fn there_are_as_many_as_was_said_and_of_that_length() {
        let pauses = Pauses::new(&[pause(3000.0, 2_000), pause(1000.0, 10_000)]).unwrap();
        let draws = 1 << 16;
        let time: u64 = (0..draws).map(|i| pauses.gap(random(1, i))).sum();
        let lengths = (0..draws).map(|i| pauses.length(random(2, i)));
        let long = lengths.clone().filter(|length| *length == 10_000).count();
        let paused: u64 = lengths.sum();
        let (draws, time) = (draws as f64, time as f64);
        let per_second = draws * 1e9 / (time + paused as f64);
        assert!((3900.0..4100.0).contains(&per_second), "{per_second}");
        let part = long as f64 / draws;
        assert!((0.24..0.26).contains(&part), "{part}");
    }

    #[test]
    fn those_that_cannot_be_are_none() {
        for wrong in [
            &[pause(0.0, 1000)][..],
            &[pause(f64::NAN, 1000)],
            &[pause(f64::INFINITY, 1000)],
            &[pause(1e5, 2_500), pause(1e5, 2_501)],
        ] {
            assert_eq!(Pauses::new(wrong), None, "{wrong:?}");
        }
    }
}
