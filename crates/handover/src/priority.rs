//! Real-time priority for a thread that must not wait for ordinary ones.
//!
//! `SCHED_FIFO` threads run before all ordinary ones on their core. They need `CAP_SYS_NICE` (root)
//! or a limit `RLIMIT_RTPRIO`; in a control group of version 1 they also need a share of
//! real-time, `cpu.rt_runtime_us`, which is 0 in a new group. By default the kernel leaves 5 % of
//! each second to ordinary threads (`kernel.sched_rt_runtime_us`): a real-time thread that never
//! sleeps is stopped for up to 50 ms then.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Why a thread keeps its ordinary priority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// No such priority.
    #[error("real-time priority {priority} does not exist: they go from 1 to {MAX}")]
    NoSuch {
        /// The priority.
        priority: u8,
    },
    /// Not allowed.
    #[error(
        "real-time priority {priority} is not permitted: it needs root, CAP_SYS_NICE or an \
         RLIMIT_RTPRIO of {priority}, and in a control group a cpu.rt_runtime_us above 0"
    )]
    NotPermitted {
        /// The priority.
        priority: u8,
    },
    /// The kernel refuses for another reason.
    #[error("real-time priority {priority} is refused: {reason}")]
    Refused {
        /// The priority.
        priority: u8,
        /// What the kernel says.
        reason: String,
    },
}

/// The highest real-time priority.
pub const MAX: u8 = 99;

/// The calling thread's priority, as it was, until dropped: then it is restored.
///
/// Threads that it starts meanwhile inherit the new priority.
#[derive(Debug)]
pub struct Priority {
    /// What to restore; none if nothing was changed.
    before: Option<Schedule>,
    /// It belongs to the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl Priority {
    /// Gives the calling thread the real-time priority (`SCHED_FIFO`) `priority`, 1 to [`MAX`].
    ///
    /// # Errors
    /// If there is no such priority, or the kernel refuses. Nothing has changed then.
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

    /// As [`Priority::fifo`], but a thread to which it is refused goes on as it is. The error then
    /// stands beside, for a line in a log.
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

    /// Whether the priority was raised.
    pub fn is_raised(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Down is always permitted.
            let _ = before.apply();
        }
    }
}

/// A policy of the kernel's scheduler, and the priority in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    policy: libc::c_int,
    /// 0 for ordinary policies.
    priority: libc::c_int,
}

impl Schedule {
    /// The calling thread's.
    fn current() -> io::Result<Schedule> {
        let mut policy = 0;
        let mut parameters = MaybeUninit::<libc::sched_param>::zeroed();
        // SAFETY: the thread is this one; both pointers are valid for writing.
        let error = unsafe { libc::pthread_getschedparam(libc::pthread_self(), &mut policy, parameters.as_mut_ptr()) };
        result(error)?;
        // SAFETY: plain numbers, zero is valid for all of them.
        let parameters = unsafe { parameters.assume_init() };
        Ok(Schedule {
            policy,
            priority: parameters.sched_priority,
        })
    }

    /// Makes it the calling thread's.
    fn apply(self) -> io::Result<()> {
        // Some systems have more fields.
        let mut parameters = MaybeUninit::<libc::sched_param>::zeroed();
        // SAFETY: plain numbers, zero is valid for all of them; the thread is this one, and the
        // parameters are only read.
        let error = unsafe {
            parameters.assume_init_mut().sched_priority = self.priority;
            libc::pthread_setschedparam(libc::pthread_self(), self.policy, parameters.as_ptr())
        };
        result(error)
    }
}

/// The threads library returns its errors.
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
