//! Real-time priority for threads that ordinary threads must not preempt.
//!
//! `SCHED_FIFO` threads run before all ordinary ones on their core. They need `CAP_SYS_NICE` (root) or a limit
//! `RLIMIT_RTPRIO`. In a version 1 control group they also need a share of real-time, `cpu.rt_runtime_us`, which is 0
//! in a new group. By default the kernel reserves 5 % of each second for ordinary threads
//! (`kernel.sched_rt_runtime_us`): it then stops a real-time thread that never sleeps for up to 50 ms.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Cause why real-time priority was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// Priority out of range.
    #[error("expected a real-time priority from 1 to {MAX}, found {priority}")]
    NoSuch {
        /// Requested priority.
        priority: u8,
    },
    /// Insufficient privileges.
    #[error(
        "real-time priority {priority} is not permitted: requires root, CAP_SYS_NICE or an \
         RLIMIT_RTPRIO of {priority}, and in a control group a cpu.rt_runtime_us above 0"
    )]
    NotPermitted {
        /// Requested priority.
        priority: u8,
    },
    /// Any other kernel error.
    #[error("real-time priority {priority} is refused: {reason}")]
    Refused {
        /// Requested priority.
        priority: u8,
        /// The kernel's error message.
        reason: String,
    },
}

/// Highest real-time priority.
pub const MAX: u8 = 99;

/// Guard of the calling thread's real-time priority. Restores the previous priority on drop.
///
/// Threads spawned meanwhile inherit the raised priority.
#[derive(Debug)]
pub struct Priority {
    /// Scheduling to restore, or `None` if nothing was changed.
    before: Option<Schedule>,
    /// Keeps the guard on the thread that created it.
    not_send: PhantomData<*const ()>,
}

impl Priority {
    /// Gives the calling thread the real-time priority (`SCHED_FIFO`) `priority`, 1 to [`MAX`].
    ///
    /// # Errors
    /// If the priority is out of range, or the kernel refuses. The thread is unchanged then.
    pub fn fifo(priority: u8) -> Result<Priority, PriorityError> {
        if !(1..=MAX).contains(&priority) {
            return Err(PriorityError::NoSuch { priority });
        }
        let refused = |error: io::Error| match error.raw_os_error() {
            Some(libc::EPERM) => PriorityError::NotPermitted { priority },
            _ => PriorityError::Refused {
                priority,
                reason: error.to_string(),
            },
        };
        let before = Schedule::current().map_err(refused)?;
        let wanted = Schedule {
            policy: libc::SCHED_FIFO,
            priority: priority.into(),
        };
        wanted.apply().map_err(refused)?;
        Ok(Priority {
            before: Some(before),
            not_send: PhantomData,
        })
    }

    /// Like [`Priority::fifo`], but a refused thread keeps its ordinary priority. The error is then returned as well,
    /// for a log line.
    pub fn fifo_or_ordinary(priority: u8) -> (Priority, Option<PriorityError>) {
        match Priority::fifo(priority) {
            Ok(raised) => (raised, None),
            Err(error) => {
                let unchanged = Priority {
                    before: None,
                    not_send: PhantomData,
                };
                (unchanged, Some(error))
            }
        }
    }

    /// Returns `true` if the priority was raised.
    pub fn is_raised(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Lowering is always permitted.
            let _ = before.apply();
        }
    }
}

/// Scheduling policy of the kernel, and its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    policy: libc::c_int,
    /// 0 for ordinary policies.
    priority: libc::c_int,
}

impl Schedule {
    /// Scheduling of the calling thread.
    fn current() -> io::Result<Schedule> {
        let mut policy = 0;
        let mut parameters = MaybeUninit::<libc::sched_param>::zeroed();
        // SAFETY: the thread is this one; both pointers are valid for writing.
        let error = unsafe { libc::pthread_getschedparam(libc::pthread_self(), &mut policy, parameters.as_mut_ptr()) };
        result(error)?;
        // SAFETY: plain numbers, for all of which zero is valid.
        let parameters = unsafe { parameters.assume_init() };
        Ok(Schedule {
            policy,
            priority: parameters.sched_priority,
        })
    }

    /// Applies the scheduling to the calling thread.
    fn apply(self) -> io::Result<()> {
        // Some systems have more fields.
        let mut parameters = MaybeUninit::<libc::sched_param>::zeroed();
        // SAFETY: plain numbers, for all of which zero is valid; the thread is this one, and the parameters are only
        // read.
        let error = unsafe {
            parameters.assume_init_mut().sched_priority = self.priority;
            libc::pthread_setschedparam(libc::pthread_self(), self.policy, parameters.as_ptr())
        };
        result(error)
    }
}

/// Converts an error number that a pthread function returns.
fn result(error: libc::c_int) -> io::Result<()> {
    match error {
        0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn raised_and_restored_or_refused_with_a_reason() {
        std::thread::spawn(|| {
            let before = Schedule::current().unwrap();
            let (priority, error) = Priority::fifo_or_ordinary(1);
            assert_eq!(priority.is_raised(), error.is_none());
            let during = Schedule::current().unwrap();
            match error {
                None => assert_eq!((during.policy, during.priority), (libc::SCHED_FIFO, 1)),
                Some(error) => {
                    println!("skipped in part: {error}");
                    assert_eq!(error, PriorityError::NotPermitted { priority: 1 });
                    assert_eq!(during, before);
                }
            }
            drop(priority);
            assert_eq!(Schedule::current().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn priorities_that_do_not_exist_are_named() {
        for priority in [0, 100] {
            let error = Priority::fifo(priority).unwrap_err();
            assert_eq!(error, PriorityError::NoSuch { priority });
            assert!(error.to_string().contains("from 1 to 99"));
        }
    }
}
