//! Events of a server: a bounded list of the latest ones.

use std::collections::VecDeque;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Maximum number of events that are kept.
pub const CAPACITY: usize = 1024;
/// Longest message in bytes.
const LONGEST: usize = 2048;

/// Importance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something expected happened.
    Normal,
    /// Something failed.
    Warning,
}

/// Something that happened to a chain or the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number, rising by one from 1.
    pub sequence: u64,
    /// Time since the Unix epoch.
    pub time: Nanos,
    /// Importance.
    pub severity: Severity,
    /// Chain, if it is about one.
    pub chain: Option<String>,
    /// One word for programs, such as `Started`.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
}

/// Latest events.
#[derive(Clone, Debug, Default)]
pub struct EventRing {
    events: VecDeque<Arc<Event>>,
    last: u64,
}

impl EventRing {
    /// Adds an event. The oldest one is discarded if there are too many. A long message is cut, and its lines become
    /// parts of one.
    pub fn add(&mut self, time: Nanos, severity: Severity, chain: Option<&str>, reason: &'static str, message: &str) {
        self.last += 1;
        let mut message = message.lines().collect::<Vec<_>>().join("; ");
        message.truncate(start_of(&message, LONGEST).len());
        if self.events.len() == CAPACITY {
            self.events.pop_front();
        }
        self.events.push_back(Arc::new(Event {
            sequence: self.last,
            time,
            severity,
            chain: chain.map(str::to_owned),
            reason,
            message,
        }));
    }

    /// Sequence number of the latest event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Events after a sequence number, oldest first. Some after it may have been discarded: their numbers are missing.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = &Arc<Event>> {
        let newer = self.last.saturating_sub(sequence).min(self.events.len() as u64) as usize;
        self.events.range(self.events.len() - newer..)
    }
}

/// Longest start of a text that has at most `most` bytes.
pub(crate) fn start_of(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(ring: &mut EventRing, message: &str) {
        ring.add(Nanos(7), Severity::Normal, Some("edge"), "Started", message);
    }

    #[test]
    fn the_oldest_events_are_discarded_and_numbers_continue() {
        let mut ring = EventRing::default();
        assert_eq!((ring.last(), ring.after(0).count()), (0, 0));
        for _ in 0..CAPACITY + 10 {
            add(&mut ring, "x");
        }
        let last = CAPACITY as u64 + 10;
        assert_eq!(ring.last(), last);
        assert_eq!(
            ring.after(0).map(|event| event.sequence).collect::<Vec<_>>(),
            (11..=last).collect::<Vec<_>>()
        );
        assert_eq!(
            ring.after(last - 2).map(|event| event.sequence).collect::<Vec<_>>(),
            [last - 1, last]
        );
        assert_eq!((ring.after(last).count(), ring.after(u64::MAX).count()), (0, 0));
    }

    #[test]
    fn messages_are_short_lines() {
        let mut ring = EventRing::default();
        add(&mut ring, &format!("a\nb{}", "\u{e9}".repeat(LONGEST)));
        let event = ring.after(0).next().unwrap();
        assert!(event.message.starts_with("a; b\u{e9}") && event.message.len() == LONGEST);
    }
}
