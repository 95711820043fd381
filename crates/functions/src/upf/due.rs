//! Usage that is due for a report: workers mark sessions, and the thread that writes reports collects them.

use super::records::{Record, Usage};
use super::table::{NUMBERS_UNWRITTEN, UpfTable};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

/// Trigger of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportDue {
    Volume,
    Time,
}

impl UpfTable {
    /// Adds reports that could not be written, for the workers to count.
    pub(super) fn add_unwritten(&self, lost: u64) {
        if lost > 0 {
            self.numbers[NUMBERS_UNWRITTEN].fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Returns and resets the number of reports that could not be written and that no worker has counted.
    #[inline]
    pub(super) fn take_unwritten(&self) -> u64 {
        match self.numbers[NUMBERS_UNWRITTEN].load(Ordering::Relaxed) {
            0 => 0,
            _ => self.numbers[NUMBERS_UNWRITTEN].swap(0, Ordering::Relaxed),
        }
    }

    /// Marks the session in a slot as due for a volume report.
    #[inline]
    pub(super) fn set_due(&self, place: u32) {
        if let Some(word) = self.due.get(place as usize / 64) {
            word.fetch_or(1 << (place % 64), Ordering::Relaxed);
        }
    }

    pub(super) fn clear_due(&self, place: u32) {
        if let Some(word) = self.due.get(place as usize / 64) {
            word.fetch_and(!(1 << (place % 64)), Ordering::Relaxed);
        }
    }

    /// Passes sessions due for a volume report to `each`; with `times`, also those due for a time report.
    pub(super) fn take_due(&self, times: bool, mut each: impl FnMut(ReportDue, &Record, Usage)) {
        for (at, word) in (0u32..).zip(&*self.due) {
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::Relaxed),
            };
            while bits != 0 {
                let place = at * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                if let Some(record) = self.records.read(place) {
                    each(ReportDue::Volume, &record, self.records.usage(place));
                }
            }
        }
        if times && self.profiles.iter().any(|used| used.profile.time.is_some()) {
            let now = self.now().0;
            for place in 0..self.records.capacity() {
                if let Some(record) = self.records.read(place)
                    && let Some(time) = self.profile(record.forward.profile).and_then(|p| p.time)
                    && self.records.time_is_due(place, now, time.0)
                {
                    each(ReportDue::Time, &record, self.records.usage(place));
                }
            }
        }
    }

    /// Takes the usage of sessions removed since the last call.
    pub(super) fn take_removed(&self) -> Vec<(u64, IpAddr, Usage)> {
        std::mem::take(&mut self.lock().removed)
    }

    /// Passes all sessions with their usage to `each`.
    pub(super) fn each(&self, mut each: impl FnMut(&Record, Usage)) {
        for place in 0..self.records.capacity() {
            if let Some(record) = self.records.read(place) {
                each(&record, self.records.usage(place));
            }
        }
    }
}
