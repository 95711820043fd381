//! What isolated functions did, for reports.

use serde::Serialize;

/// What isolated functions did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IsolationReport {
    /// How they were isolated: `process` or `container`.
    pub mode: &'static str,
    /// Defences that were left out around a function's program, by the names that
    /// [`Confinement::without`](tailwater_confine::Confinement::without) gives; `all` for a program that was trusted.
    pub without: Vec<&'static str>,
    /// Whether they took turns at real-time priority.
    pub real_time: bool,
    /// Packets that a batch had at most, at the end, by the worker with the largest batches.
    pub batch: u64,
    /// What a batch of no packets took on average: a switch to each function and back to the worker, microseconds.
    pub empty_us: f64,
    /// What a batch took on average besides its packets, microseconds: the switches, and what functions had to fetch
    /// anew into caches.
    pub switches_us: f64,
    /// What each packet added on average, microseconds.
    pub packet_us: f64,
    /// The functions, in the chain's order, all workers' processes together.
    pub functions: Vec<FunctionReport>,
    /// What processes could not do at their ends.
    pub failures: Vec<String>,
}

impl IsolationReport {
    /// This, and what the functions of another part of the chain did, which took turns on the same cores.
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

/// What the processes of one function did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FunctionReport {
    /// The function's name.
    pub name: String,
    /// Batches processed.
    pub turns: u64,
    /// Processes that were replaced, by why.
    pub restarts: Restarts,
    /// How those ended that ended by themselves, or were stopped by a defence: each way once, at most
    /// [eight](FunctionReport::MOST_ENDS) of them.
    pub ends: Vec<String>,
    /// The longest time that a process took to be attached, microseconds.
    pub attach_us: f64,
    /// The longest time that a process took from its start until it waited to be attached, milliseconds.
    pub start_ms: f64,
}

impl FunctionReport {
    /// The most ways of ending that are told.
    pub const MOST_ENDS: usize = 8;

    /// Notes how a process ended, if that is news.
    pub(super) fn note_end(&mut self, how: String) {
        if self.ends.len() < FunctionReport::MOST_ENDS && !self.ends.contains(&how) {
            self.ends.push(how);
        }
    }
}

/// Processes that were replaced, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restarts {
    /// Ended by themselves, or by a signal that was not the watch's.
    pub ended: u64,
    /// Did not yield in time.
    pub overdue: u64,
    /// Lied about packets.
    pub lied: u64,
    /// Were to be attached and did not answer.
    pub not_attached: u64,
}

impl Restarts {
    /// All together.
    pub fn total(&self) -> u64 {
        self.ended + self.overdue + self.lied + self.not_attached
    }
}
