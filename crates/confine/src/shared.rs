//! State shared by a program's supervisor thread and its [`Child`](crate::Child).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, pidfd_send_signal};
use rustix::thread::gettid;

use crate::cgroup::Group;
use crate::error::Error;
use crate::schedule;
use crate::stopped::{End, Limit, Status, Stopped};

/// State shared by the supervisor thread and the holder of the [`Child`](crate::Child).
///
/// The holder may be a thread of high priority that must act in time. Killing the program, and asking whether it has
/// ended, take no lock: a thread of ordinary priority could hold one, and wait for the kernel or for a core that the
/// program keeps.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The child.
    process: Option<OwnedFd>,
    /// The program, if the child is its runtime: without a process namespace the program would outlive the runtime.
    program: OnceLock<OwnedFd>,
    /// The program's groups, until its end.
    group: Mutex<Option<Group>>,
    stopped: OnceLock<Stopped>,
    /// `true`: the program ended by itself, and its runtime was killed before it could report the status.
    status_lost: AtomicBool,
    /// Set once no process of the program is left.
    end: OnceLock<End>,
    /// `true`: groups and directories are removed, too.
    cleaned_up: Mutex<bool>,
    cleaning: Condvar,
    /// `true`: the program has loaded, and further loading is refused.
    sealed: AtomicBool,
    /// `true`: the program has loaded its code, and no more is mapped.
    has_code: AtomicBool,
    /// Supervisor thread.
    supervisor: Pid,
}

impl Shared {
    /// Creates the state. Must be called on the supervisor thread.
    pub(crate) fn new(process: Option<OwnedFd>, group: Group) -> Shared {
        Shared {
            process,
            program: OnceLock::new(),
            group: Mutex::new(Some(group)),
            stopped: OnceLock::new(),
            status_lost: AtomicBool::new(false),
            end: OnceLock::new(),
            cleaned_up: Mutex::new(false),
            cleaning: Condvar::new(),
            sealed: AtomicBool::new(false),
            has_code: AtomicBool::new(false),
            supervisor: gettid(),
        }
    }

    /// Locks the groups. No step leaves them half-done, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, Option<Group>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn refuse_code(&self) {
        self.has_code.store(true, Ordering::SeqCst);
    }

    pub(crate) fn refuses_code(&self) -> bool {
        self.has_code.load(Ordering::SeqCst)
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::SeqCst)
    }

    /// Gives the supervisor a priority above the program's real-time priority `priority`. Otherwise the program could
    /// keep the core from it. Does nothing before the program is sealed: until then it can keep the supervisor busy
    /// with calls. Afterwards its first reported call kills it.
    pub(crate) fn raise_above(&self, priority: u8) {
        if self.is_sealed() {
            // Without the right to do so, the program has no such priority either.
            let _ = schedule::raise_above(self.supervisor, priority);
        }
    }

    /// Records the program that the child, a runtime, has started.
    pub(crate) fn set_program(&self, program: OwnedFd) {
        let _ = self.program.set(program);
    }

    /// Calls `act` with the program's groups, or with `None` if they are gone.
    pub(crate) fn with_group<T>(&self, act: impl FnOnce(Option<&Group>) -> T) -> T {
        act(self.lock().as_ref())
    }

    /// Records the end of the child: kills what is left in its groups, determines what stopped it, and publishes both.
    /// The caller drops the returned groups, which removes them, before it calls
    /// [`mark_cleaned_up`](Shared::mark_cleaned_up).
    pub(crate) fn record_end(&self, status: Status) -> Option<Group> {
        let status = match self.status_lost.load(Ordering::SeqCst) {
            true => Status::Unknown,
            false => status,
        };
        let group = self.lock().take();
        let stopped = self.stopped.get().copied().or_else(|| {
            let killed = status == Status::Signal(libc::SIGKILL);
            match &group {
                Some(group) if killed && group.ran_out_of_memory() => Some(Stopped::Limit(Limit::Memory)),
                _ => Stopped::from_status(status),
            }
        });
        if let Some(group) = &group {
            group.empty();
        }
        if let Some(program) = self.program.get() {
            // A group no longer lists a process that is exiting.
            wait_for_end(program);
        }
        let _ = self.end.set(End { status, stopped });
        group
    }

    /// Marks the program as cleaned up, and wakes waiting threads.
    pub(crate) fn mark_cleaned_up(&self) {
        *self.cleaned_up.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.cleaning.notify_all();
    }

    /// Returns how the program ended, once no process of it is left.
    pub(crate) fn ended(&self) -> Option<End> {
        self.end.get().copied()
    }

    /// Kills the program and records `why`, unless another reason is recorded.
    pub(crate) fn stop(&self, why: Stopped) {
        let Some(process) = self.process.as_ref().filter(|process| !has_ended(process)) else {
            return;
        };
        // The program may have just ended by itself, with its runtime still to report that.
        match self.program.get() {
            Some(program) if has_ended(program) => self.status_lost.store(true, Ordering::SeqCst),
            _ => drop(self.stopped.set(why)),
        }
        // Reasons come first: the supervisor reads them when the child has ended.
        for process in self.program.get().into_iter().chain([process]) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Calls `act` while the process number belongs to the program. Does nothing if the program has ended.
    pub(crate) fn while_there(&self, act: impl FnOnce(Option<&Group>) -> Result<(), Error>) -> Result<(), Error> {
        // A runtime ends after its program.
        let program = self.program.get().or(self.process.as_ref());
        match program.is_some_and(|program| !has_ended(program)) {
            true => act(self.lock().as_ref()),
            false => Ok(()),
        }
    }

    /// Waits until `deadline` for the program to be cleaned up, and returns its end.
    pub(crate) fn end(&self, deadline: Option<Instant>) -> Option<End> {
        let mut cleaned_up = self.cleaned_up.lock().unwrap_or_else(PoisonError::into_inner);
        while !*cleaned_up {
            cleaned_up = match deadline {
                None => self.cleaning.wait(cleaned_up).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    let waited = self.cleaning.wait_timeout(cleaned_up, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.ended()
    }
}

/// Waits until a process has ended.
fn wait_for_end(process: &OwnedFd) {
    let mut waited = [PollFd::new(process, PollFlags::IN)];
    while poll(&mut waited, None) == Err(Errno::INTR) {}
}

/// Returns `true` if a process has ended, reaped or not.
fn has_ended(process: &OwnedFd) -> bool {
    let mut waited = [PollFd::new(process, PollFlags::IN)];
    poll(&mut waited, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
