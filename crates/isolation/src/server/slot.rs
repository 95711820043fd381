//! Slot of one function in a group: its processes, and the starts of further ones.

use super::process::{Detached, Process, Program, SharedByProcesses};
use super::report::{FunctionReport, Restarts};
use super::restart::RestartPace;
use super::schedule::{self, ProcessState};
#[cfg(test)]
use super::standard_error::StandardError;
use super::starter::Starter;
use crate::message::Description;
#[cfg(test)]
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which a standby process is checked for being stopped.
const LOOK: Duration = Duration::from_millis(50);

/// Slot of one function in a group.
pub(super) struct FunctionSlot {
    pub(super) program: Program,
    /// Descriptors that all processes of the function share.
    pub(super) shared: SharedByProcesses,
    pub(super) description: Description,
    pub(super) process: Option<Process>,
    /// Reason for which the process is being ended, if it is.
    pub(super) ending: Option<EndReason>,
    /// The first process, until it is attached.
    pub(super) first: Option<Detached>,
    /// The process being attached.
    pub(super) attaching: Option<Attaching>,
    pub(super) standby: Standby,
    /// Time of the next check of the standby process.
    check_standby_at: Instant,
    /// Number of processes attached so far.
    pub(super) attached: u32,
    pub(super) attached_at: Instant,
    pub(super) pace: RestartPace,
    /// Number of turns of earlier processes.
    pub(super) turns_before: u64,
    pub(super) report: FunctionReport,
    /// Present once the first process is attached.
    pub(super) starter: Option<Starter>,
}

/// State of the standby process.
pub(super) enum Standby {
    None,
    Starting,
    Ready(Detached),
}

/// A process that was sent its memory to map, and the time of that.
pub(super) struct Attaching {
    pub(super) process: Process,
    pub(super) began: Instant,
}

impl Attaching {
    pub(super) fn new(detached: Detached) -> Attaching {
        Attaching {
            process: detached.process,
            began: Instant::now(),
        }
    }
}

/// Reasons for which a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// It has already ended.
    Ended,
    /// It did not yield in time.
    Overdue,
    /// It exceeded its budget again and again.
    OverBudget,
    /// It violated the protocol.
    Violation,
}

impl FunctionSlot {
    /// Slot for the process `first`, with a standby process unless the program is
    /// [single-instance](Program::single_instance).
    pub(super) fn new(
        program: Program,
        shared: SharedByProcesses,
        first: Detached,
        standby: Option<Detached>,
    ) -> FunctionSlot {
        let now = Instant::now();
        FunctionSlot {
            report: FunctionReport {
                name: program.function.clone(),
                start_ms: first.took.as_secs_f64() * 1e3,
                ..FunctionReport::default()
            },
            description: first.description.clone(),
            pace: RestartPace::new(first.took, now),
            program,
            shared,
            process: None,
            ending: None,
            first: Some(first),
            attaching: None,
            check_standby_at: now,
            standby: standby.map_or(Standby::None, Standby::Ready),
            attached: 0,
            attached_at: now,
            turns_before: 0,
            starter: None,
        }
    }

    /// Slot without a process.
    #[cfg(test)]
    pub(super) fn vacant(program: Program, description: Description) -> FunctionSlot {
        let now = Instant::now();
        let errors = StandardError::new(&program.function).unwrap();
        FunctionSlot {
            report: FunctionReport::default(),
            program,
            shared: SharedByProcesses {
                counters: None,
                errors: Arc::new(errors),
                socket: None,
            },
            pace: RestartPace::new(Duration::ZERO, now),
            description,
            process: None,
            ending: None,
            first: None,
            attaching: None,
            check_standby_at: now,
            standby: Standby::None,
            attached: 0,
            attached_at: now,
            turns_before: 0,
            starter: None,
        }
    }

    /// Counts the failure of a process that was attached for `uptime`. After several consecutive ones, the start of the
    /// next process is delayed.
    pub(super) fn fail(&mut self, uptime: Duration, now: Instant, count: impl FnOnce(&mut Restarts) -> &mut u64) {
        *count(&mut self.report.restarts) += 1;
        self.pace.on_failure(uptime, now);
    }

    /// Advances the standby process. A program that can no longer be started is retried after a delay.
    pub(super) fn poll_standby(&mut self, now: Instant) {
        let is_served = self.process.is_some() || self.attaching.is_some();
        let Some(starter) = &self.starter else {
            return;
        };
        if self.program.single_instance && is_served {
            return;
        }
        let useless = match std::mem::replace(&mut self.standby, Standby::None) {
            Standby::None => {
                if self.pace.may_start(now) {
                    starter.start();
                    self.standby = Standby::Starting;
                }
                return;
            }
            Standby::Starting => match starter.started() {
                None => {
                    self.standby = Standby::Starting;
                    return;
                }
                // Its description must equal that of the function's other processes.
                Some(Ok(detached)) if detached.description == self.description => {
                    self.pace.on_start(detached.took);
                    let took = detached.took.as_secs_f64() * 1e3;
                    self.report.start_ms = self.report.start_ms.max(took);
                    self.standby = Standby::Ready(detached);
                    return;
                }
                Some(started) => started.ok(),
            },
            Standby::Ready(mut detached) => {
                let look = now >= self.check_standby_at;
                if look {
                    self.check_standby_at = now + LOOK;
                }
                // A standby process that has ended or is stopped would be of no use on a failure.
                let process = &mut detached.process;
                let is_stopped = look && schedule::state(process.id()) == ProcessState::Stopped;
                if process.ended().is_none() && !is_stopped {
                    self.standby = Standby::Ready(detached);
                    return;
                }
                Some(detached)
            }
        };
        if let Some(Detached { process, .. }) = useless {
            starter.reap(process);
        }
        self.fail(Duration::ZERO, now, |restarts| &mut restarts.not_attached);
    }

    /// Hands a process that is no longer the function's to the starter for reaping.
    pub(super) fn reap(&self, process: Process) {
        if let Some(starter) = &self.starter {
            starter.reap(process);
        }
    }
}
