//! Guard against a watchdog that cannot act.
//!
//! The watchdog attaches processes as well as ending them: it writes to control groups, allocates, and takes locks.
//! Each of these may wait for a thread without real-time priority, or for the worker, and while a function holds their
//! core neither runs. The guard is a thread that takes no lock and allocates nothing. All that it does is end a
//! function whose worker has been ready for long and did not get the core.

use super::schedule::{self, ProcessState, WATCH_PRIORITY};
use super::status::Status;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tailwater_confine::{ThreadRole, keep_capabilities};
use tailwater_handover::priority::Priority;

/// Interval of looks.
const PERIOD: Duration = Duration::from_millis(20);
/// Shortest time that a ready worker must have waited for its core; also three times what the watchdog permits.
const LEAST_WAIT: Duration = Duration::from_millis(500);

/// Bounds of what the watchdog permits.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuardLimits {
    /// Maximum time of a turn.
    pub(super) deadline: Duration,
    /// Maximum time of a last turn.
    pub(super) patience: Duration,
    /// `true` if the server's threads give up their capabilities.
    pub(super) server: bool,
}

/// The guard of all groups. Ends when dropped.
pub(super) struct Guard {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Starts the guard over the groups with these states.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(groups: Vec<Arc<Status>>, limits: GuardLimits) -> io::Result<Guard> {
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&stop);
        let mut groups: Vec<_> = groups.into_iter().map(Watched::new).collect();
        let body = move || {
            let (_priority, _refused) = Priority::fifo_or_ordinary(WATCH_PRIORITY + 1);
            if limits.server {
                // Dropping capabilities is always permitted.
                let _ = keep_capabilities(ThreadRole::Watchdog);
            }
            while !end.load(Ordering::Acquire) {
                for group in &mut groups {
                    let bound = match group.status.is_last_round() {
                        true => limits.patience,
                        false => limits.deadline,
                    };
                    group.look(Instant::now(), LEAST_WAIT.max(3 * bound));
                }
                thread::sleep(PERIOD);
            }
        };
        let thread = thread::Builder::new().name("guard".to_owned()).spawn(body)?;
        Ok(Guard {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A group under guard.
struct Watched {
    status: Arc<Status>,
    /// The worker's thread, and its processor time.
    worker: (u32, Option<Duration>),
    /// Since when the worker has been ready and has not run.
    since: Instant,
    /// Processor time of each function's process at that time.
    before: Box<[Option<Duration>]>,
}

impl Watched {
    fn new(status: Arc<Status>) -> Watched {
        let before = (0..status.functions()).map(|_| None).collect();
        Watched {
            status,
            worker: (0, None),
            since: Instant::now(),
            before,
        }
    }

    /// Ends the function that has kept the worker waiting for `bound`, if there is one.
    fn look(&mut self, now: Instant, bound: Duration) {
        let thread = self.status.worker();
        let worker = (thread, schedule::thread_time(thread));
        let waits = thread != 0 && worker == self.worker && schedule::state(thread) == ProcessState::Runnable;
        if !waits {
            self.worker = worker;
            self.begin(now);
            return;
        }
        let waited = now.saturating_duration_since(self.since);
        if waited < bound {
            return;
        }
        let grown = |k: usize| {
            let time = schedule::processor_time(self.status.process(k));
            let grown = time
                .zip(self.before[k])
                .map(|(time, before)| time.saturating_sub(before));
            grown.unwrap_or(Duration::ZERO)
        };
        let most = (0..self.before.len()).max_by_key(|k| grown(*k));
        if let Some(k) = most.filter(|k| grown(*k) > waited / 2) {
            self.end(k);
        }
        self.begin(now);
    }

    fn begin(&mut self, now: Instant) {
        self.since = now;
        for (k, before) in self.before.iter_mut().enumerate() {
            let process = self.status.process(k);
            *before = (process != 0).then(|| schedule::processor_time(process)).flatten();
        }
    }

    /// Kills function `k`'s process. The watchdog, which then can act again, finds it ended.
    fn end(&self, k: usize) {
        let number = self.status.process(k);
        let Some(pid) = Pid::from_raw(number as i32) else {
            return;
        };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        // The number is removed before another process can get it, so the descriptor is of this one.
        if self.status.process(k) == number {
            self.status.note_ended_by_guard(k);
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::schedule::PRIORITY;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, sched_yield};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Before, a watchdog that waited for its worker, which waited for the core that a function held, hung the run.
    #[test]
    fn a_function_that_holds_the_core_is_ended_without_the_watchdog() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: real-time priority needs root");
            return;
        }
        let cores = sched_getaffinity(None).unwrap();
        let core = (0..1024).rev().find(|core| cores.is_set(*core)).unwrap();
        let status = Arc::new(Status::new(2));
        let limits = GuardLimits {
            deadline: Duration::from_millis(10),
            patience: Duration::from_secs(30),
            server: false,
        };
        let guard = Guard::start(vec![Arc::clone(&status)], limits).unwrap();
        let spins = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let (mut innocent, mut spinner) = (spins(), spins());
        let worker = thread::spawn({
            let (status, number) = (Arc::clone(&status), spinner.id());
            let idle = innocent.id();
            move || {
                let mut only = CpuSet::new();
                only.set(core);
                sched_setaffinity(None, &only).unwrap();
                for process in [idle, number] {
                    schedule::put_on(process, core).unwrap();
                }
                let _priority = Priority::fifo(PRIORITY).unwrap();
                status.set_worker(schedule::this_thread());
                status.set_process(0, idle);
                status.set_process(1, number);
                schedule::queue([number].into_iter()).unwrap();
                while !status.was_ended_by_guard(1) {
                    sched_yield();
                }
            }
        });
        let ended = spinner.wait().unwrap();
        worker.join().unwrap();
        drop(guard);
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
        assert!(!status.was_ended_by_guard(0));
        assert_eq!(innocent.try_wait().unwrap(), None);
        innocent.kill().unwrap();
        innocent.wait().unwrap();
    }

    /// A function may poll for its next turn while its worker sleeps.
    #[test]
    fn one_that_polls_while_the_worker_sleeps_is_innocent() {
        let status = Arc::new(Status::new(1));
        let sleeper = Command::new("sleep").arg("100").spawn();
        let spinner = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let (mut sleeper, mut spinner) = (sleeper.unwrap(), spinner.unwrap());
        let began = Instant::now();
        // While it starts, it is a worker that waits for a core.
        let mut asleep = 0;
        while asleep < 20 {
            let is_asleep = schedule::state(sleeper.id()) == ProcessState::Idle;
            asleep = if is_asleep { asleep + 1 } else { 0 };
            thread::sleep(Duration::from_millis(1));
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        status.set_worker(sleeper.id());
        status.set_process(0, spinner.id());
        let mut watched = Watched::new(Arc::clone(&status));
        while schedule::processor_time(spinner.id()).unwrap() < Duration::from_millis(50) {
            watched.look(Instant::now(), Duration::from_millis(1));
            thread::sleep(Duration::from_millis(1));
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        let innocent = !status.was_ended_by_guard(0) && spinner.try_wait().unwrap().is_none();
        for process in [&mut sleeper, &mut spinner] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert!(innocent);
    }
}
