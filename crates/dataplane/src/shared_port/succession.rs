//! Succession of one chain by another on the same port: its functions and flows pass from worker to worker.
//!
//! From the moment at which packets go to the successor, the predecessor gets none. It processes those that it has, and
//! leaves its instance of the chain in the [estate](Estate). The successor's worker waits for that; its packets wait in
//! its ring meanwhile. So each packet passes one of the two chains, in the order of its flow.

use super::ChainRequests;
use crate::worker::flags::WorkerFlags;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tailwater_chain::chain::Chain;
use tailwater_functions::build::KeptFunction;
use tailwater_net::Nanos;

/// Time after which a worker waits for its predecessor no more.
pub(crate) const LONGEST_WAIT: Nanos = Nanos::from_secs(2);

/// Place where a worker leaves its chain for its successor.
pub(crate) struct Estate {
    /// Names of the functions that the successor keeps.
    kept: Vec<String>,
    is_left: AtomicBool,
    chain: Mutex<Option<Chain>>,
}

impl fmt::Debug for Estate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estate")
            .field("kept", &self.kept)
            .field("is_left", &self.is_left)
            .finish_non_exhaustive()
    }
}

impl Estate {
    /// Leaves a chain, or nothing if the worker died.
    pub(crate) fn leave(&self, chain: Option<Chain>) {
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = chain;
        // Release: the chain is there before the flag is seen.
        self.is_left.store(true, Ordering::Release);
    }

    /// Takes what was left: `None` before that, and nothing if there is no chain.
    #[inline]
    pub(crate) fn take(&self) -> Option<Option<Chain>> {
        let is_left = self.is_left.load(Ordering::Acquire);
        is_left.then(|| self.chain.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    /// Names of the functions that the successor keeps.
    pub(crate) fn kept(&self) -> &[String] {
        &self.kept
    }
}

impl Drop for Estate {
    /// Ends the flows of a chain that nobody took.
    fn drop(&mut self) {
        let chain = self.chain.get_mut().unwrap_or_else(PoisonError::into_inner);
        chain.take().into_iter().for_each(|chain| drop(chain.drain()));
    }
}

/// Estate for a successor, once there is one.
pub(crate) type Heir = Arc<OnceLock<Arc<Estate>>>;

/// Flags of a run's workers, and their heir.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEnds {
    pub(crate) flags: Arc<WorkerFlags>,
    pub(crate) heir: Heir,
    pub(crate) requests: Arc<ChainRequests>,
}

/// Inheritance of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Succession {
    pub(crate) estate: Arc<Estate>,
    pub(crate) kept: Vec<KeptFunction>,
}

impl Succession {
    pub(crate) fn new(kept: Vec<KeptFunction>) -> Succession {
        let names = kept.iter().map(|function| function.name().to_owned());
        Succession {
            estate: Arc::new(Estate {
                kept: names.collect(),
                is_left: AtomicBool::default(),
                chain: Mutex::default(),
            }),
            kept,
        }
    }
}
