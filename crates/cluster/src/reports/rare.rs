//! Lines for operators that others can cause at any rate.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Shortest time between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets one line pass in a while, with the number of those that it did not let pass before.
#[derive(Debug, Default)]
pub(super) struct Rare(Mutex<(Option<Instant>, u64)>);

impl Rare {
    /// Returns the line to write, if one is due.
    pub(super) fn line(&self, now: Instant, line: &str) -> Option<String> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (last, held) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            *held += 1;
            return None;
        }
        *last = Some(now);
        Some(match std::mem::take(held) {
            0 => line.to_owned(),
            more => format!("{line} (and {more} more like it since the last such line)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_come_too_fast_are_counted() {
        let (rare, begin) = (Rare::default(), Instant::now());
        assert_eq!(rare.line(begin, "no"), Some("no".to_owned()));
        for _ in 0..1000 {
            assert_eq!(rare.line(begin + PAUSE / 2, "no"), None);
        }
        let counted = "never (and 1000 more like it since the last such line)";
        assert_eq!(rare.line(begin + PAUSE, "never"), Some(counted.to_owned()));
        assert_eq!(rare.line(begin + PAUSE * 2, "no"), Some("no".to_owned()));
    }
}
