//! Exponential backoff for connections.

use std::time::{Duration, Instant};

/// Initial and maximum delay after a failure. The delay doubles with each failure.
const DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Duration after which the loss of a connection resets the delay. An established connection alone is not enough,
/// because some collectors accept connections and close them at once.
const HELD: Duration = DELAYS[1];

/// Schedule of connection attempts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    at: Option<Instant>,
    after: Duration,
    connected: Option<Instant>,
}

impl Backoff {
    /// Creates a schedule whose first attempt may be made at once.
    pub(super) fn new() -> Backoff {
        Backoff {
            at: None,
            after: DELAYS[0],
            connected: None,
        }
    }

    /// Returns the time until the next attempt.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Records that a connection was established.
    pub(super) fn connected(&mut self, now: Instant) {
        (self.at, self.connected) = (None, Some(now));
    }

    /// Records that an attempt failed or a connection was lost.
    pub(super) fn failed(&mut self, now: Instant) {
        let held = self.connected.take();
        if held.is_some_and(|since| now.saturating_duration_since(since) >= HELD) {
            self.after = DELAYS[0];
        }
        self.at = now.checked_add(self.after);
        self.after = (self.after * 2).min(DELAYS[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the delay in seconds after each attempt. An attempt fails (`None`), or its connection lasts for the
    /// given number of seconds.
    fn waits(connections: &[Option<u64>]) -> Vec<u64> {
        let (mut retry, mut now) = (Backoff::new(), Instant::now());
        assert_eq!(retry.wait(now), Duration::ZERO);
        let waits = connections.iter().map(|held| {
            if let Some(held) = held {
                retry.connected(now);
                assert_eq!(retry.wait(now), Duration::ZERO);
                now += Duration::from_secs(*held);
            }
            retry.failed(now);
            let wait = retry.wait(now);
            now += wait;
            assert_eq!(retry.wait(now), Duration::ZERO);
            wait.as_secs()
        });
        waits.collect()
    }

    #[test]
    fn who_refuses_is_tried_less_and_less_often() {
        assert_eq!(waits(&[None; 7]), [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn who_accepts_and_resets_is_tried_less_and_less_often_too() {
        assert_eq!(waits(&[Some(0); 7]), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(waits(&[Some(29), None, Some(3)]), [1, 2, 4]);
    }

    #[test]
    fn after_a_connection_that_held_the_times_begin_anew() {
        let connections = [None, None, None, Some(30), None, Some(1000), Some(1)];
        assert_eq!(waits(&connections), [1, 2, 4, 1, 2, 1, 2]);
    }
}
