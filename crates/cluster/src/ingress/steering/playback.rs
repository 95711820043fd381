//! Counters between two reports: they grow evenly, over the time in which they were measured.
//!
//! A server's counters come in steps, each of the time of a window. A mapper that measures rates over other times would
//! see twice the load in one period and none in the next.

use tailwater_net::Nanos;
use tailwater_policy::server::ServerCounters;

/// Longest time over which counters grow: reports that were missing are no reason to see a load late.
const LONGEST: Nanos = Nanos::from_secs(1);

/// Counters that grow from a report to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Playback {
    /// Counters of the last report, as they came, and the server's time of their measurement.
    raw: Option<(ServerCounters, Option<Nanos>)>,
    /// Counters at the start and at the end of the growth. They never fall, though a server's own may begin anew.
    from: ServerCounters,
    to: ServerCounters,
    begun: Nanos,
    length: Nanos,
}

impl Playback {
    /// Takes counters that were measured at a server's time `measured`, or now if it has none. Returns `false` if they
    /// are known already.
    pub fn report(&mut self, counters: ServerCounters, measured: Option<Nanos>, now: Nanos) -> bool {
        let before = self.raw.replace((counters, measured));
        let Some((raw, at)) = before else { return true };
        if measured.is_some() && measured == at {
            self.raw = before;
            return false;
        }
        let length = match (at, measured) {
            // Counters that fell began anew: what they had counted before is not known.
            (Some(at), Some(measured)) => measured.saturating_sub(at).min(LONGEST),
            _ => Nanos::ZERO,
        };
        self.from = self.at(now);
        self.to = ServerCounters {
            offered: self.to.offered + counters.offered.saturating_sub(raw.offered),
            processed: self.to.processed + counters.processed.saturating_sub(raw.processed),
            busy: self.to.busy + counters.busy.saturating_sub(raw.busy),
            late: self.to.late + counters.late.saturating_sub(raw.late),
        };
        (self.begun, self.length) = (now, length);
        true
    }

    /// Returns the counters at a time.
    pub fn at(&self, now: Nanos) -> ServerCounters {
        let (part, whole) = (now.saturating_sub(self.begun).0, self.length.0);
        if part >= whole {
            return self.to;
        }
        let between = |from: u64, to: u64| from + (u128::from(to - from) * u128::from(part) / u128::from(whole)) as u64;
        ServerCounters {
            offered: between(self.from.offered, self.to.offered),
            processed: between(self.from.processed, self.to.processed),
            busy: Nanos(between(self.from.busy.0, self.to.busy.0)),
            late: between(self.from.late, self.to.late),
        }
    }

    /// Returns the time by which the counters are behind: that of their measurement, and that of their growth.
    pub fn delay(&self) -> Nanos {
        Nanos(2 * self.length.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(offered: u64) -> ServerCounters {
        ServerCounters {
            offered,
            processed: offered,
            busy: Nanos(100 * offered),
            late: 0,
        }
    }

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn counters_grow_in_the_time_in_which_they_were_measured() {
        let mut playback = Playback::default();
        assert!(playback.report(counters(5_000), Some(at(70_000)), at(0)));
        assert_eq!(playback.at(at(50)).offered, 0);
        assert!(playback.report(counters(5_300), Some(at(70_300)), at(310)));
        let grown = |playback: &Playback, millis| playback.at(at(millis)).offered;
        assert_eq!(
            [310, 410, 610, 900].map(|millis| grown(&playback, millis)),
            [0, 100, 300, 300]
        );
        assert_eq!(playback.at(at(410)).busy, Nanos(10_000));
        assert_eq!(playback.delay(), at(600));
        // The same again says nothing, and does not begin the growth anew.
        assert!(!playback.report(counters(5_300), Some(at(70_300)), at(510)));
        assert_eq!(grown(&playback, 510), 200);
        // The next is early: nothing is left out.
        assert!(playback.report(counters(5_600), Some(at(70_600)), at(560)));
        assert_eq!([560, 860].map(|millis| grown(&playback, millis)), [250, 600]);
        // The chain began anew.
        assert!(playback.report(counters(10), Some(at(300)), at(900)));
        assert_eq!([900, 1_500].map(|millis| grown(&playback, millis)), [600, 600]);
        assert!(playback.report(counters(20), Some(at(600)), at(1_500)));
        assert_eq!(grown(&playback, 1_800), 610);
    }

    #[test]
    fn counters_without_a_time_count_at_once() {
        let mut playback = Playback::default();
        playback.report(counters(7), None, at(0));
        playback.report(counters(17), None, at(20));
        assert_eq!((playback.at(at(20)).offered, playback.delay()), (10, Nanos::ZERO));
    }
}
