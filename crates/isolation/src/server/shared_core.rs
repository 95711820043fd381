//! Core on which one thread gives several chains their turns.

use super::schedule;
use super::status::Status;
use std::sync::{Arc, Mutex, PoisonError};

/// Core whose thread runs the rounds of several groups, one at a time. The functions of the group whose round it is, or
/// was last, have the thread's priority. Those of all others are held below it: the thread never sleeps within a round,
/// so they cannot run in a round that is not theirs.
#[derive(Clone, Debug, Default)]
pub struct SharedCore(Arc<Mutex<Option<Arc<Status>>>>);

impl SharedCore {
    /// Gives the core to a group, and holds the functions of the group that had it. Returns `true` if that was another
    /// one: the group's own functions are yet to be queued. Called by the core's thread.
    #[inline]
    pub(super) fn take(&self, status: &Arc<Status>) -> bool {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, status)) {
            return false;
        }
        if let Some(before) = current.replace(Arc::clone(status)) {
            before.with_processes(|processes| processes.iter().for_each(|process| schedule::set_back(*process)));
        }
        true
    }

    /// Forgets a group whose processes leave the core, or end: their numbers may soon be those of other processes.
    pub(super) fn leave(&self, status: &Arc<Status>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, status)) {
            *current = None;
        }
    }
}

/// Core of a worker and its functions.
#[derive(Clone, Debug)]
pub struct WorkerCore {
    /// Its number.
    pub number: usize,
    /// The core, if its thread gives several chains their turns; `None` for a worker with a thread of its own.
    pub shared: Option<SharedCore>,
    /// `true` if it is an auxiliary core, which belongs to ordinary programs while its worker sleeps: the functions
    /// [rest](tailwater_chain::chain::Chain::before_sleep) then.
    pub is_auxiliary: bool,
}

impl From<usize> for WorkerCore {
    /// Dedicated core of a worker with a thread of its own.
    fn from(number: usize) -> WorkerCore {
        WorkerCore {
            number,
            shared: None,
            is_auxiliary: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_group_at_a_time_has_the_core() {
        let core = SharedCore::default();
        let [first, second] = [(); 2].map(|()| Arc::new(Status::new(1)));
        assert!(core.take(&first));
        assert!(!core.take(&first));
        assert!(core.take(&second));
        // One that left has to be queued again, and another one does not notice.
        core.leave(&first);
        assert!(!core.take(&second));
        core.leave(&second);
        assert!(core.take(&second));
    }
}
