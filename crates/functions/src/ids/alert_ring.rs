//! Ring of alerts in memory that an isolated function's process shares with the host, which writes the alert file.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_ids::alert::Alert;

/// Alerts that can wait for the host.
const ALERTS: usize = 2048;

/// Ring of one process's alerts. It outlives the process, whose successor continues it.
#[derive(Debug)]
pub(super) struct AlertRing {
    /// Number of alerts that were sent.
    sent: CounterArray,
    /// Number of alerts that the host has taken.
    taken: CounterArray,
    words: CounterArray,
}

impl AlertRing {
    /// Takes a ring from the counters.
    pub(super) fn new(shared_counters: &SharedCounters) -> AlertRing {
        AlertRing {
            sent: shared_counters.take(1),
            taken: shared_counters.take(1),
            words: shared_counters.take(ALERTS * Alert::WORDS),
        }
    }

    /// Returns the bytes of counters for a ring.
    pub(super) fn shared_bytes() -> usize {
        2 * SharedCounters::bytes_of(1) + SharedCounters::bytes_of(ALERTS * Alert::WORDS)
    }

    /// Sends an alert. Returns `false` if it is lost because the ring is full.
    #[must_use]
    pub(super) fn send(&self, alert: &Alert) -> bool {
        let (sent, taken) = (self.sent[0].load(Relaxed), self.taken[0].load(Acquire));
        if sent.wrapping_sub(taken) >= ALERTS as u64 {
            return false;
        }
        let start = sent as usize % ALERTS * Alert::WORDS;
        for (to, word) in self.words[start..].iter().zip(alert.to_words()) {
            to.store(word, Relaxed);
        }
        self.sent[0].store(sent.wrapping_add(1), Release);
        true
    }
}

/// The host's end of a ring.
#[derive(Debug)]
pub(super) struct AlertReader {
    ring: AlertRing,
    /// Number of alerts taken: that in the ring may have been overwritten.
    taken: u64,
}

impl AlertReader {
    /// Creates the reader of a ring from which nothing has been taken.
    pub(super) fn new(ring: AlertRing) -> AlertReader {
        AlertReader { ring, taken: 0 }
    }

    /// Passes the alerts in the ring to `each`, without what is none. A process may write anything; one that claims to
    /// have sent more than there is room for has sent nothing.
    pub(super) fn take_all(&mut self, mut each: impl FnMut(&Alert)) {
        let sent = self.ring.sent[0].load(Acquire);
        if sent.wrapping_sub(self.taken) > ALERTS as u64 {
            self.taken = sent;
        }
        while self.taken != sent {
            let start = self.taken as usize % ALERTS * Alert::WORDS;
            let words = self.ring.words[start..].first_chunk::<{ Alert::WORDS }>();
            let words = words.map(|words| words.each_ref().map(|word| word.load(Relaxed)));
            if let Some(alert) = words.and_then(|words| Alert::from_words(&words)) {
                each(&alert);
            }
            self.taken = self.taken.wrapping_add(1);
        }
        self.ring.taken[0].store(self.taken, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tailwater_chain::rig::unlinked_file;

    fn alert(rule: u32) -> Alert {
        let mut words = [0; Alert::WORDS];
        words[0] = rule.into();
        Alert::from_words(&words).unwrap()
    }

    fn ends() -> [AlertRing; 2] {
        let file = unlinked_file(AlertRing::shared_bytes());
        [(); 2].map(|()| AlertRing::new(&SharedCounters::in_file(&file).unwrap()))
    }

    #[test]
    fn every_alert_arrives_once_and_a_successor_continues() {
        let [ring, other] = ends();
        let mut reader = AlertReader::new(other);
        let mut next = 0;
        for round in 0..5u32 {
            let count = 700 * round;
            let accepted = (0..count).filter(|i| ring.send(&alert(next + i))).count();
            assert_eq!(accepted, (count as usize).min(ALERTS));
            let mut seen = Vec::new();
            reader.take_all(|alert| seen.push(alert.rule));
            assert!(seen.into_iter().eq(next..next + accepted as u32));
            next += count;
        }
    }

    proptest! {
        /// Nothing that a process writes makes the host read without end, or anything but alerts.
        #[test]
        fn any_words_are_read_in_bounded_time(
            sent in prop::collection::vec(any::<u64>(), 1..8), near: bool, word: u64,
        ) {
            let [ring, other] = ends();
            let mut reader = AlertReader::new(other);
            ring.words.iter().step_by(3).for_each(|it| it.store(word, Relaxed));
            for sent in sent {
                ring.sent[0].store(if near { sent % 4096 } else { sent }, Relaxed);
                let mut count = 0;
                reader.take_all(|_| count += 1);
                prop_assert!(count <= ALERTS);
            }
        }
    }
}
