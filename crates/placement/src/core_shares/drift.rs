//! Drift: comparison of a promised chain's windows with its prediction.
//!
//! Two figures of each window are compared, as long as the chain is offered no more than it is promised:
//! - the time of a packet with that of its profile. A turn costs some time whatever the number of its packets, and a
//!   profile is that of full batches. So only windows whose batches were at least half full are compared: with emptier
//!   ones the core has time to spare;
//! - latency and loss with the objective, by the window's own verdict.
//!
//! One window decides nothing: other programs, or a page fault, disturb some. A chain has drifted if 8 of the last 10
//! compared windows exceed the prediction, and keeps its promise again if at most 2 of them do.
//!
//! Pure: times and counts are passed in.

use std::collections::VecDeque;
use tailwater_net::Nanos;

/// Compared windows that decide.
const WINDOWS: usize = 10;
/// Windows among these beyond the prediction, from which a chain has drifted.
const BEGIN: usize = 8;
/// The same, up to which it keeps its promise again.
const END: usize = 2;
/// Excess over the predicted time of a packet that is noise.
pub const TOLERANCE: f64 = 0.15;
/// Packets of a batch from which its time is compared: half of a full one.
const HALF_BATCH: u64 = 16;
/// Minimum number of packets of a window whose time is compared.
const FEW: u64 = 320;

/// Measurements of a chain's window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriftWindow {
    /// Time of its core that it used.
    pub busy: Nanos,
    /// Batches that it processed in this time.
    pub batches: u64,
    /// Packets of these.
    pub packets: u64,
    /// Packets offered, per second.
    pub offered: f64,
    /// Verdict on the objective: latency at its percentile, and loss.
    pub met: Option<bool>,
}

impl DriftWindow {
    /// Nanoseconds of a packet, if the batches were full enough to compare it with a profile's.
    pub fn cost(&self) -> Option<f64> {
        let is_comparable = self.packets >= FEW && self.packets >= HALF_BATCH.saturating_mul(self.batches);
        is_comparable.then(|| self.busy.0 as f64 / self.packets as f64)
    }
}

/// Promise that the windows are compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftPromise {
    /// Packets per second.
    pub throughput: f64,
    /// Predicted time of a packet in nanoseconds.
    pub cost: f64,
}

/// Cause of a promise that is not kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DriftCause {
    /// Packets cost more than predicted.
    Cost {
        /// Median time of a packet in nanoseconds.
        measured: f64,
    },
    /// The objective is missed although the chain is offered no more than it is promised.
    Objective {
        /// Median of the offered packets per second.
        offered: f64,
    },
}

/// Change of a chain's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DriftChange {
    /// The promise is not kept from now on.
    Drifted(DriftCause),
    /// It is kept again.
    Kept,
}

/// Latest compared windows of one figure: its value, and whether it exceeds the prediction.
#[derive(Clone, Debug, Default, PartialEq)]
struct Latest(VecDeque<(f64, bool)>);

impl Latest {
    fn add(&mut self, value: f64, exceeds: bool) {
        if self.0.len() == WINDOWS {
            self.0.pop_front();
        }
        self.0.push_back((value, exceeds));
    }

    /// Windows beyond the prediction.
    fn beyond(&self) -> usize {
        self.0.iter().filter(|(_, exceeds)| *exceeds).count()
    }

    /// Median value of the windows beyond the prediction.
    fn median(&self) -> f64 {
        let beyond = self.0.iter().filter(|(_, exceeds)| *exceeds);
        let mut values: Vec<f64> = beyond.map(|(value, _)| *value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    }

    /// Returns `true` if as many windows as decide have been compared, and few of them exceed the prediction; or if
    /// none was ever compared.
    fn is_kept(&self) -> bool {
        self.0.is_empty() || self.0.len() == WINDOWS && self.beyond() <= END
    }
}

/// State of one promised chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriftMonitor {
    cost: Latest,
    objective: Latest,
    has_drifted: bool,
}

impl DriftMonitor {
    /// Returns `true` while the promise is not kept.
    pub fn has_drifted(&self) -> bool {
        self.has_drifted
    }

    /// Adds a window. Returns the change, if the promise is not kept, or is kept again, from now on.
    pub fn observe(&mut self, window: &DriftWindow, promise: &DriftPromise) -> Option<DriftChange> {
        if window.offered > promise.throughput {
            return None;
        }
        if let Some(cost) = window.cost() {
            self.cost.add(cost, cost > promise.cost * (1.0 + TOLERANCE));
        }
        if let Some(met) = window.met {
            self.objective.add(window.offered, !met);
        }
        match self.has_drifted {
            false => {
                let cause = self.cause()?;
                self.has_drifted = true;
                Some(DriftChange::Drifted(cause))
            }
            true if self.cost.is_kept() && self.objective.is_kept() => {
                self.has_drifted = false;
                Some(DriftChange::Kept)
            }
            true => None,
        }
    }

    /// Cause for which the promise is not kept by the latest windows; the time of a packet explains a missed objective.
    fn cause(&self) -> Option<DriftCause> {
        if self.cost.beyond() >= BEGIN {
            let measured = self.cost.median();
            return Some(DriftCause::Cost { measured });
        }
        (self.objective.beyond() >= BEGIN).then(|| DriftCause::Objective {
            offered: self.objective.median(),
        })
    }
}

#[cfg(test)]
mod tests;
