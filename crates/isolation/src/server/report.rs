//! Report on isolated functions.

use serde::Serialize;

/// Report on isolated functions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IsolationReport {
    /// Isolation mode: `process` or `container`.
    pub mode: &'static str,
    /// Defences left out around a function's program, by the names of
    /// [`Confinement::without`](tailwater_confine::Confinement::without); `all` for a trusted program.
    pub without: Vec<&'static str>,
    /// `true` if they took turns at real-time priority.
    pub real_time: bool,
    /// Maximum batch size at the end of the run, packets, of the worker with the largest batches.
    pub batch: u64,
    /// Mean duration of a round without packets, microseconds: a switch to each function and back to the worker.
    pub empty_us: f64,
    /// Mean fixed duration of a round with packets, without the share per packet, microseconds: the switches, and the
    /// functions' cache misses.
    pub switches_us: f64,
    /// Mean additional duration per packet, microseconds.
    pub packet_us: f64,
    /// The functions in chain order, each summed over all workers.
    pub functions: Vec<FunctionReport>,
    /// Errors of processes at their exit.
    pub failures: Vec<String>,
}

impl IsolationReport {
    /// Merges the report with that of another part of the chain, whose functions took turns on the same cores.
    #[must_use]
    pub fn and(mut self, behind: IsolationReport) -> IsolationReport {
        if self.functions.is_empty() {
            self.mode = behind.mode;
        }
        self.without.extend(behind.without);
        self.without.sort_unstable();
        self.without.dedup();
        self.real_time &= behind.real_time;
        self.batch = self.batch.max(behind.batch);
        self.empty_us = self.empty_us.max(behind.empty_us);
        self.switches_us = self.switches_us.max(behind.switches_us);
        self.packet_us = self.packet_us.max(behind.packet_us);
        self.functions.extend(behind.functions);
        self.failures.extend(behind.failures);
        self
    }
}

/// Report on the processes of one function.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FunctionReport {
    /// The function's name.
    pub name: String,
    /// Batches processed.
    pub turns: u64,
    /// Replaced processes, by reason.
    pub restarts: Restarts,
    /// Distinct exits of processes that ended by themselves or were stopped by a defence, and violations for which they
    /// were ended, at most
    /// [eight](FunctionReport::MOST_ENDS).
    pub ends: Vec<String>,
    /// Bytes that processes wrote to standard error.
    pub standard_error: StandardErrorReport,
    /// Longest duration of an attachment, microseconds.
    pub attach_us: f64,
    /// Longest duration from a process's start until it was configured, milliseconds.
    pub start_ms: f64,
}

impl FunctionReport {
    /// Maximum number of distinct exits in a report.
    pub const MOST_ENDS: usize = 8;

    /// Adds an exit unless it is already listed.
    pub(super) fn note_end(&mut self, how: String) {
        if self.ends.len() < FunctionReport::MOST_ENDS && !self.ends.contains(&how) {
            self.ends.push(how);
        }
    }
}

/// Bytes that a function's processes wrote to standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StandardErrorReport {
    /// Bytes that were shown.
    pub forwarded: u64,
    /// Bytes beyond the bounds, without those that were written faster than they could be read.
    pub discarded: u64,
}

/// Replaced processes, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restarts {
    /// Exited by themselves, or by a signal that the watchdog did not send.
    pub ended: u64,
    /// Did not yield in time.
    pub overdue: u64,
    /// Responded invalidly, or violated the protocol in another way.
    pub lied: u64,
    /// Exceeded the budget of processor time of their turns again and again.
    pub over_budget: u64,
    /// Did not respond to the attachment.
    pub not_attached: u64,
}

impl Restarts {
    /// Returns the sum of all reasons.
    pub fn total(&self) -> u64 {
        self.ended + self.overdue + self.lied + self.over_budget + self.not_attached
    }
}
