//! What the keeper of a program and the holder of its [`Child`](crate::Child) share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use rustix::thread::gettid;

use crate::cgroup::Group;
use crate::error::Error;
use crate::schedule;
use crate::stopped::{End, Limit, Status, Stopped};

/// What the keeper and the holder of a [`Child`](crate::Child) share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    ended: Condvar,
    /// Whether the program has loaded.
    sealed: AtomicBool,
    /// The keeper's thread.
    keeper: Pid,
}

#[derive(Debug)]
struct State {
    /// The child; none once it is buried, for its number is free then.
    process: Option<OwnedFd>,
    /// The program, where the child is its runtime: without a process namespace it would outlive that.
    program: Option<OwnedFd>,
    group: Option<Group>,
    stopped: Option<Stopped>,
    /// The program ended by itself, and its runtime was killed before it could tell how.
    untold: bool,
    /// Once no process of it is left.
    end: Option<End>,
    /// Nothing else of it is left, either.
    buried: bool,
}

impl Shared {
    /// To be called by the keeper.
    pub(crate) fn new(process: Option<OwnedFd>, group: Group) -> Shared {
        Shared {
            state: Mutex::new(State {
                process,
                program: None,
                group: Some(group),
                stopped: None,
                untold: false,
                end: None,
                buried: false,
            }),
            ended: Condvar::new(),
            sealed: AtomicBool::new(false),
            keeper: gettid(),
        }
    }

    /// No step leaves it half-done, so what a panic left is as good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::SeqCst)
    }

    /// Has the keeper run before a program with this real-time priority, which might never leave it a core. Not before
    /// the program is sealed: until then it can keep the keeper busy, after that it can ask once.
    pub(crate) fn keep_ahead_of(&self, priority: u8) {
        if self.is_sealed() {
            // Without that right the program has no such priority, either.
            let _ = schedule::keep_ahead_of(self.keeper, priority);
        }
    }

    /// The child, which is a runtime, has made the program.
    pub(crate) fn has_program(&self, program: OwnedFd) {
        self.lock().program = Some(program);
    }

    /// Does something with its groups, if they are still there.
    pub(crate) fn with_group<T>(&self, act: impl FnOnce(Option<&Group>) -> T) -> T {
        act(self.lock().group.as_ref())
    }

    /// It has ended so: ends what it has left in its groups, works out what stopped it, and has that be known. The groups
    /// are to be removed, by dropping them, before [`is_buried`](Shared::is_buried).
    pub(crate) fn has_ended(&self, status: Status) -> Option<Group> {
        let mut state = self.lock();
        let status = match state.untold {
            true => Status::Unknown,
            false => status,
        };
        state.process = None;
        state.program = None;
        let group = state.group.take();
        if state.stopped.is_none() {
            let killed = status == Status::Signal(libc::SIGKILL);
            state.stopped = match &group {
                Some(group) if killed && group.ran_out_of_memory() => Some(Stopped::Limit(Limit::Memory)),
                _ => Stopped::from_status(status),
            };
        }
        let stopped = state.stopped;
        // That may take its time, in which nobody is to wait for the state.
        drop(state);
        if let Some(group) = &group {
            group.empty();
        }
        self.lock().end = Some(End { status, stopped });
        group
    }

    /// Nothing of it is left.
    pub(crate) fn is_buried(&self) {
        self.lock().buried = true;
        self.ended.notify_all();
    }

    /// How it has ended, once no process of it is left.
    pub(crate) fn ended(&self) -> Option<End> {
        self.lock().end
    }

    /// Kills it for this reason, unless there is one already.
    pub(crate) fn stop(&self, why: Stopped) {
        let mut state = self.lock();
        // It may just have ended: then it ended by itself. So may the program of a runtime that has yet to tell.
        let gone = state.program.as_ref().is_some_and(has_ended);
        if let Some(process) = &state.process
            && !has_ended(process)
            && pidfd_send_signal(process, Signal::KILL).is_ok()
        {
            if let Some(program) = &state.program {
                let _ = pidfd_send_signal(program, Signal::KILL);
            }
            match gone {
                true => state.untold = true,
                false => drop(state.stopped.get_or_insert(why)),
            }
        }
    }

    /// Does something to the program while its number is its own; nothing if it has ended.
    pub(crate) fn while_there(&self, act: impl FnOnce(Option<&Group>) -> Result<(), Error>) -> Result<(), Error> {
        let state = self.lock();
        // A runtime ends after its program.
        let program = state.program.as_ref().or(state.process.as_ref());
        match program.is_some_and(|program| !has_ended(program)) {
            true => act(state.group.as_ref()),
            false => Ok(()),
        }
    }

    /// Its end, once nothing of it is left, waiting for that at most until then.
    pub(crate) fn end(&self, deadline: Option<Instant>) -> Option<End> {
        let mut state = self.lock();
        loop {
            if let (Some(end), true) = (state.end, state.buried) {
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

/// Whether a process has ended, buried or not.
fn has_ended(process: &OwnedFd) -> bool {
    let mut waited = [PollFd::new(process, PollFlags::IN)];
    poll(&mut waited, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
