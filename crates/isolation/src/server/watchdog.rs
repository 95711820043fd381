//! Watchdog thread, which ends failed processes and replaces them.

use super::config::IsolationConfig;
use super::error::IsolationError;
use super::group::Group;
use super::guard::{Guard, GuardLimits};
use super::process::Program;
use super::report::IsolationReport;
use super::schedule::WATCH_PRIORITY;
use super::turn_watch::GroupLimits;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_confine::{ThreadRole, keep_capabilities};
use tailwater_handover::priority::Priority;

/// Poll interval.
const PERIOD: Duration = Duration::from_millis(1);
/// Poll interval while a worker may be waiting.
const FAST_PERIOD: Duration = Duration::from_micros(100);

/// Watchdog of all groups. Ends all processes when dropped.
pub(super) struct Watchdog {
    config: Arc<IsolationConfig>,
    groups: Arc<Mutex<Vec<Group>>>,
    shutting_down: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    guard: Option<Guard>,
}

impl Watchdog {
    pub(super) fn start(groups: Vec<Group>, config: Arc<IsolationConfig>) -> Result<Watchdog, IsolationError> {
        let statuses = groups.iter().map(|group| Arc::clone(&group.status)).collect();
        let guarded = GuardLimits {
            deadline: config.deadline,
            patience: config.patience,
            server: config.limits_server,
        };
        let guard = Guard::start(statuses, guarded).map_err(IsolationError::Thread)?;
        let groups = Arc::new(Mutex::new(groups));
        let over = Arc::new(AtomicBool::new(false));
        let (watched, end) = (Arc::clone(&groups), Arc::clone(&over));
        let limits = GroupLimits {
            deadline: config.deadline,
            patience: config.patience,
            budget: config.batch.turn_budget(),
        };
        let limits_server = config.limits_server;
        let thread = thread::Builder::new()
            .name("isolation".to_owned())
            .spawn(move || {
                // Above the functions' priority, so that one that does not yield cannot starve it.
                let (_priority, _refused) = Priority::fifo_or_ordinary(WATCH_PRIORITY);
                if limits_server {
                    // Dropping capabilities is always permitted.
                    let _ = keep_capabilities(ThreadRole::Watchdog);
                }
                while !end.load(Ordering::Acquire) {
                    let mut groups = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    for group in groups.iter_mut() {
                        group.poll(&limits, Instant::now());
                    }
                    let hurried = groups.iter().any(Group::needs_fast_poll);
                    drop(groups);
                    thread::park_timeout(if hurried { FAST_PERIOD } else { PERIOD });
                }
            })
            .map_err(IsolationError::Thread)?;
        Ok(Watchdog {
            config,
            groups,
            shutting_down: over,
            thread: Some(thread),
            guard: Some(guard),
        })
    }

    pub(super) fn with_group<T>(&self, i: usize, look: impl FnOnce(&Group) -> T) -> T {
        look(&self.groups.lock().unwrap_or_else(PoisonError::into_inner)[i])
    }

    /// See [`Isolation::leave_cores`](super::Isolation::leave_cores).
    pub(super) fn leave_cores(&self) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter_mut().for_each(Group::leave_core);
    }

    pub(super) fn is_real_time(&self) -> bool {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().all(Group::is_real_time)
    }

    fn stop(&mut self) -> Vec<Group> {
        self.shutting_down.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Even after a panic of the thread, the processes are ended below.
            let _ = thread.join();
        }
        self.guard = None;
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *groups)
    }

    pub(super) fn finish(mut self) -> IsolationReport {
        let real_time = self.is_real_time();
        let programs = &self.config.programs;
        let in_container = |program: &Program| {
            let confined = program.confined.as_ref();
            confined.is_some_and(|confined| confined.container.is_some())
        };
        let mut without: Vec<&str> = programs.iter().flat_map(Program::without).collect();
        without.sort_unstable();
        without.dedup();
        let mut report = IsolationReport {
            mode: match programs.iter().any(in_container) {
                true => "container",
                false if programs.iter().all(|program| program.joins.is_some()) => "joined",
                false => "process",
            },
            without,
            real_time,
            ..IsolationReport::default()
        };
        for group in self.stop() {
            let measured = group.status.measured();
            report.batch = report.batch.max(measured.batch as u64);
            report.empty_us = report.empty_us.max(measured.empty / 1e3);
            report.switches_us = report.switches_us.max(measured.switches / 1e3);
            report.packet_us = report.packet_us.max(measured.packet / 1e3);
            group.finish(&mut report.functions, &mut report.failures);
        }
        report
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop());
    }
}
