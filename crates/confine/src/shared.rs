//! State shared by a program's supervisor thread and its [`Child`](crate::Child).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
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
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    ended: Condvar,
    /// `true`: the program has loaded, and further loading is refused.
    sealed: AtomicBool,
    /// `true`: the program has loaded its code, and no more is mapped.
    has_code: AtomicBool,
    /// Supervisor thread.
    supervisor: Pid,
}

#[derive(Debug)]
struct State {
    /// The child; none once it is reaped, because its number is free then.
    process: Option<OwnedFd>,
    /// The program, if the child is its runtime: without a process namespace the program would outlive the runtime.
    program: Option<OwnedFd>,
    group: Option<Group>,
    stopped: Option<Stopped>,
    /// `true`: the program ended by itself, and its runtime was killed before it could report the status.
    status_lost: bool,
    /// Set once no process of the program is left.
    end: Option<End>,
    /// `true`: groups and directories are removed, too.
    cleaned_up: bool,
}

impl Shared {
    /// Creates the state. Must be called on the supervisor thread.
    pub(crate) fn new(process: Option<OwnedFd>, group: Group) -> Shared {
        Shared {
            state: Mutex::new(State {
                process,
                program: None,
                group: Some(group),
                stopped: None,
                status_lost: false,
                end: None,
                cleaned_up: false,
            }),
            ended: Condvar::new(),
            sealed: AtomicBool::new(false),
            has_code: AtomicBool::new(false),
            supervisor: gettid(),
        }
    }

    /// Locks the state. No step leaves it half-done, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.lock().program = Some(program);
    }

    /// Calls `act` with the program's groups, or with `None` if they are gone.
    pub(crate) fn with_group<T>(&self, act: impl FnOnce(Option<&Group>) -> T) -> T {
        act(self.lock().group.as_ref())
    }

    /// Records the end of the child: kills what is left in its groups, determines what stopped it, and publishes both.
    /// The caller drops the returned groups, which removes them, before it calls
    /// [`mark_cleaned_up`](Shared::mark_cleaned_up).
    pub(crate) fn record_end(&self, status: Status) -> Option<Group> {
        let mut state = self.lock();
        let status = match state.status_lost {
            true => Status::Unknown,
            false => status,
        };
        state.process = None;
        let program = state.program.take();
        let group = state.group.take();
        if state.stopped.is_none() {
            let killed = status == Status::Signal(libc::SIGKILL);
            state.stopped = match &group {
                Some(group) if killed && group.ran_out_of_memory() => Some(Stopped::Limit(Limit::Memory)),
                _ => Stopped::from_status(status),
            };
        }
        let stopped = state.stopped;
        // Emptying the groups may take long, and must not hold the lock.
        drop(state);
        if let Some(group) = &group {
            group.empty();
        }
        if let Some(program) = program {
            // A group no longer lists a process that is exiting.
            wait_for_end(&program);
        }
        self.lock().end = Some(End { status, stopped });
        group
    }

    /// Marks the program as cleaned up, and wakes waiting threads.
    pub(crate) fn mark_cleaned_up(&self) {
        self.lock().cleaned_up = true;
        self.ended.notify_all();
    }

    /// Returns how the program ended, once no process of it is left.
    pub(crate) fn ended(&self) -> Option<End> {
        self.lock().end
    }

    /// Kills the program and records `why`, unless another reason is recorded.
    pub(crate) fn stop(&self, why: Stopped) {
        let mut state = self.lock();
        // The program may have just ended by itself, with its runtime still to report that.
        let gone = state.program.as_ref().is_some_and(has_ended);
        if let Some(process) = &state.process
            && !has_ended(process)
            && pidfd_send_signal(process, Signal::KILL).is_ok()
        {
            if let Some(program) = &state.program {
                let _ = pidfd_send_signal(program, Signal::KILL);
            }
            match gone {
                true => state.status_lost = true,
                false => drop(state.stopped.get_or_insert(why)),
            }
        }
    }

    /// Calls `act` while the process number belongs to the program. Does nothing if the program has ended.
    pub(crate) fn while_there(&self, act: impl FnOnce(Option<&Group>) -> Result<(), Error>) -> Result<(), Error> {
        let state = self.lock();
        // A runtime ends after its program.
        let program = state.program.as_ref().or(state.process.as_ref());
        match program.is_some_and(|program| !has_ended(program)) {
            true => act(state.group.as_ref()),
            false => Ok(()),
        }
    }

    /// Waits until `deadline` for the program to be cleaned up, and returns its end.
    pub(crate) fn end(&self, deadline: Option<Instant>) -> Option<End> {
        let mut state = self.lock();
        loop {
            if let (Some(end), true) = (state.end, state.cleaned_up) {
                return Some(end);
            }
            state = match deadline {
                None => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.checked_duration_since(Instant::now())?;
                    let waited = self.ended.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
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
