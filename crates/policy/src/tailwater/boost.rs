//! Boost mode: a core only offloads while its dispatching alone takes most of its time.

use super::TailwaterMapper;
use crate::core::{AuxiliaryCore, View};

/// Percentage of the core's time that dispatching must take for boost mode to begin, and to last.
const BOOST_FROM: u64 = 70;
const BOOST_WHILE: u64 = 50;

impl TailwaterMapper {
    /// Updates the share of time that dispatching takes, about twice per budget.
    fn note_dispatching(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.measured_from);
        if elapsed >= self.budget / 2 {
            let dispatching = std::mem::take(&mut self.dispatching);
            self.dispatch_percent = (100 * dispatching / elapsed).min(100);
            self.measured_from = now;
        }
    }

    /// Starts and ends boost mode.
    pub(super) fn watch(&mut self, view: &View<'_>, wait: u64) {
        // A batch delays packets that arrive meanwhile, which is not an overload.
        let bearable = (self.budget / 2).max(64 * self.costs.packet(false));
        let late = std::mem::take(&mut self.lag) > bearable;
        self.late = if late { self.late.saturating_add(1) } else { 0 };
        let now = view.now.0;
        self.note_dispatching(now);
        let usable = |auxiliary: &&AuxiliaryCore| !auxiliary.taken && !auxiliary.dedicated;
        let usable = view.auxiliaries.iter().filter(usable).count() >= 2;
        let usable = usable && self.dispatch_percent >= if self.boosting { BOOST_WHILE } else { BOOST_FROM };
        if !self.boosting {
            self.boosting = usable && self.boost_after.is_some_and(|after| self.late >= after);
            self.calm = None;
            return;
        }
        let auxiliaries = view.auxiliaries.iter().filter(|auxiliary| auxiliary.active);
        let wait = wait + self.costs.of(view.parked);
        let all = auxiliaries.fold(wait, |all, auxiliary| all + self.costs.of(auxiliary.load));
        if all > self.share {
            self.calm = None;
        }
        let calm = *self.calm.get_or_insert(now);
        self.boosting = usable && (all > self.share || now - calm < self.release_timeout());
    }
}
