//! Real-time priority of a core's thread, which functions in processes of their own require.
//!
//! These processes are pinned to the core, and take turns with the thread at one priority. With a lower one, the thread
//! would get the core only when all of them sleep. So it has the priority for as long as there is one of them, also
//! while it gives other chains their turns: it yields the core in the isolated chains' turns only. The thread of an
//! auxiliary core sleeps while it has no packets, and then the priority means nothing.

use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tailwater_handover::priority::Priority;
use tailwater_isolation::server::{PRIORITY, SharedCore};

/// Time after which a core that does not answer is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Orders a core's thread to raise its priority for one more chain, or to lower it for one less, which the thread
/// answers. Returns `false` if it has ended.
pub(super) type OrderPriority = Box<dyn Fn(bool, Sender<()>) -> bool + Send + Sync>;

/// Guard of a core's real-time priority. The thread has its ordinary priority again once all guards are dropped.
pub(crate) struct RealTimeCore {
    number: usize,
    order: OrderPriority,
    shared: SharedCore,
}

impl fmt::Debug for RealTimeCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RealTimeCore").field(&self.number).finish()
    }
}

impl RealTimeCore {
    /// Gives a core's thread real-time priority, if that is permitted. Returns when it has it, or `None` if the thread
    /// does not answer.
    pub(super) fn raise(number: usize, order: OrderPriority, shared: SharedCore) -> Option<RealTimeCore> {
        let guard = RealTimeCore { number, order, shared };
        // Without an answer, the guard's end is ordered, too: the thread may read both orders later.
        guard.order(true).then_some(guard)
    }

    /// The core's number.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The core, for functions that take turns on it.
    pub(crate) fn shared(&self) -> &SharedCore {
        &self.shared
    }

    fn order(&self, raise: bool) -> bool {
        let (done, answer) = channel();
        (self.order)(raise, done) && answer.recv_timeout(ANSWER_TIMEOUT).is_ok()
    }
}

impl Drop for RealTimeCore {
    fn drop(&mut self) {
        // A thread that has ended needs no priority.
        self.order(false);
    }
}

/// Real-time priority of the calling thread, as long as chains need it.
#[derive(Default)]
pub(super) struct ThreadPriority {
    chains: usize,
    raised: Option<Priority>,
}

impl ThreadPriority {
    /// Returns `true` while the priority is raised: no ordinary thread gets the core, and none of the same priority
    /// that does not take turns with this one.
    pub(super) fn is_raised(&self) -> bool {
        self.raised.is_some()
    }

    /// Raises the priority for one more chain, or lowers it after the last one.
    pub(super) fn change(&mut self, raise: bool, done: &Sender<()>) {
        self.chains = match raise {
            true => self.chains + 1,
            false => self.chains.saturating_sub(1),
        };
        if self.chains == 0 {
            self.raised = None;
        } else if self.raised.is_none() {
            // If it is refused, functions have ordinary priority, too.
            self.raised = Some(Priority::fifo_or_ordinary(PRIORITY).0);
        }
        // The other side may have given up.
        let _ = done.send(());
    }
}
