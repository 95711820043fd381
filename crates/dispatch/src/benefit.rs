//! Benefit of auxiliary cores, measured: packets that a busy dispatcher gets off its hands, with and without them. What
//! it offloads counts at once: auxiliary cores have short queues, and finish them after a burst.
//!
//! Offloading costs time on the dispatcher, and cores share caches, memory bandwidth or, as hardware threads, even
//! their execution units. For a cheap chain on such a machine, two cores together may do no more than one alone.

use tailwater_net::Nanos;

/// Packets to get off one's hands with auxiliary cores, in percent of those without. The cost alone is measured in the
/// best case, short queues with warm caches, so what looks like somewhat less may be more.
const NEEDED: u64 = 75;
/// Busy time with auxiliary cores after which they are judged.
const JUDGED: Nanos = Nanos::from_millis(1);
/// Longest turn that counts. In a longer one the core was taken away.
const LONGEST: Nanos = Nanos::from_micros(500);
/// Time without auxiliary cores after they were of no benefit. It doubles each time in a row, up to the maximum.
const PAUSE: Nanos = Nanos::from_millis(10);
/// Time without auxiliary cores to measure the core alone.
const TRIAL: Nanos = Nanos::from_millis(1);
const LONGEST_PAUSE: Nanos = Nanos::from_millis(640);
/// Smallest batch that shows the cost of a packet.
const LEAST_BATCH: u32 = 16;
/// Costs are in sixteenths of a nanosecond.
const FRACTION: u32 = 4;
/// Divisor of the difference that one batch moves the cost by.
const STEADY: i64 = 8;

/// Measurement of a dispatcher.
#[derive(Debug)]
pub(crate) struct Benefit {
    /// Cost of a packet on this core alone. 0 if unknown.
    alone: u64,
    /// Busy time with auxiliary cores since they were last judged, and the packets meanwhile.
    time: Nanos,
    packets: u64,
    /// Start of the current turn, if this core is busy in it, the number of packets before, and `true` if auxiliary
    /// cores have packets at its start.
    since: Option<(Nanos, u64, bool)>,
    pause: Nanos,
    /// Auxiliary cores are of no benefit until then.
    until: Nanos,
}

impl Benefit {
    pub(crate) fn new() -> Benefit {
        Benefit {
            alone: 0,
            time: Nanos::ZERO,
            packets: 0,
            since: None,
            pause: PAUSE,
            until: Nanos::ZERO,
        }
    }

    /// Notes a batch that was processed straight from the port, without auxiliary cores.
    #[inline]
    pub(crate) fn alone(&mut self, packets: u32, took: Nanos) {
        if packets < LEAST_BATCH || took > LONGEST {
            return;
        }
        let sample = (took.0 << FRACTION) / u64::from(packets);
        self.alone = match self.alone {
            0 => sample,
            cost => cost.saturating_add_signed((sample as i64 - cost as i64) / STEADY),
        };
    }

    /// Ends a turn at `now`, up to which `packets` packets are off this core's hands in all. A turn counts if the core
    /// `is_busy` before it, and auxiliary cores have packets (`is_helped`) before it or after it. Returns `true` if
    /// they were found to be of no benefit.
    #[inline]
    pub(crate) fn turned(&mut self, now: Nanos, packets: u64, (is_busy, is_helped): (bool, bool)) -> bool {
        if let Some((since, before, was_helped)) = self.since.take()
            && (was_helped || is_helped)
            && now.saturating_sub(since) <= LONGEST
        {
            self.time += now.saturating_sub(since);
            self.packets += packets.saturating_sub(before);
        }
        self.since = is_busy.then_some((now, packets, is_helped));
        self.time >= JUDGED && self.judge(now)
    }

    /// Skips a turn that has nothing to do with auxiliary cores.
    #[inline]
    pub(crate) fn skip(&mut self) {
        self.since = None;
    }

    #[cold]
    fn judge(&mut self, now: Nanos) -> bool {
        let (time, packets) = (std::mem::take(&mut self.time), std::mem::take(&mut self.packets));
        if self.alone == 0 {
            // A policy whose dispatcher never processes straight from the port: try.
            self.until = now + TRIAL;
            return false;
        }
        let alone = (time.0 << FRACTION) / self.alone;
        if 100 * packets >= NEEDED * alone {
            self.pause = PAUSE;
            return false;
        }
        self.until = now + self.pause;
        self.pause = Nanos(2 * self.pause.0).min(LONGEST_PAUSE);
        true
    }

    /// Returns `true` while auxiliary cores are not to be used.
    #[inline]
    pub(crate) fn is_pause(&self, now: Nanos) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a core work for 3 ms with auxiliary cores, with which it takes `nanos` a packet in turns of 32. Returns the
    /// time at which they were found to be of no benefit.
    fn worked(benefit: &mut Benefit, from: Nanos, nanos: u64) -> Option<Nanos> {
        let turn = Nanos(32 * nanos);
        let mut now = from;
        for turns in 0.. {
            if now > from + Nanos::from_millis(3) {
                break;
            }
            if benefit.turned(now, 32 * turns, (true, true)) {
                benefit.turned(now, 0, (false, false));
                return Some(now);
            }
            now += turn;
        }
        benefit.turned(now, 0, (false, false));
        None
    }

    #[test]
    fn what_brings_no_benefit_pauses_longer_each_time() {
        let mut benefit = Benefit::new();
        assert_eq!(worked(&mut benefit, Nanos(1), 300), None, "nothing to compare with");
        assert!(benefit.is_pause(Nanos::from_millis(3)), "a trial");
        let measured = || {
            let mut benefit = Benefit::new();
            benefit.alone(32, Nanos(32 * 200));
            // Too small to tell.
            benefit.alone(2, Nanos(2_000));
            benefit
        };
        assert_eq!(worked(&mut measured(), Nanos::from_secs(1), 150), None);
        benefit = measured();
        let mut now = Nanos::from_secs(2);
        for pause in [10, 20, 40, 80, 160, 320, 640, 640] {
            let at = worked(&mut benefit, now, 290).unwrap();
            assert!((at - now).0.abs_diff(JUDGED.0) < 10_000, "{at}");
            assert!(benefit.is_pause(at) && benefit.is_pause(at + Nanos::from_millis(pause) - Nanos(1)));
            now = at + Nanos::from_millis(pause);
            assert!(!benefit.is_pause(now));
        }
        // It was of some.
        assert_eq!(worked(&mut benefit, now, 100), None);
        let at = worked(&mut benefit, now + Nanos::from_millis(10), 310).unwrap();
        assert!(!benefit.is_pause(at + PAUSE));
    }

    /// Regression: the time of batches that went straight from the port, without the dispatcher, counted as time with
    /// auxiliary cores if they had packets again at the end of the next turn.
    #[test]
    fn turns_without_the_dispatcher_do_not_count() {
        let mut benefit = Benefit::new();
        benefit.alone(32, Nanos(32 * 200));
        for turn in 0..1_000 {
            let now = Nanos(turn * 20_000);
            benefit.turned(now, 32 * turn, (true, false));
            benefit.skip();
            assert!(!benefit.turned(now + Nanos(10_000), 32 * turn, (true, true)));
            benefit.skip();
        }
    }

    /// The core was taken away, which says nothing about auxiliary cores.
    #[test]
    fn long_turns_do_not_count() {
        let mut benefit = Benefit::new();
        benefit.alone(32, Nanos(32 * 200));
        for turn in 0..100 {
            assert!(!benefit.turned(Nanos::from_millis(turn), 32 * turn, (true, true)));
        }
    }
}
