//! Succession of one chain by another on the same port: its functions and flows pass from worker to worker.
//!
//! From the moment at which packets go to the successor, the predecessor gets none. Each of its workers processes those
//! that it has, and leaves its instance of the chain in its [estate](Estate). The successor's worker of the same
//! number, which has the same RSS buckets, waits for that; its packets wait in its ring meanwhile. So each packet
//! passes one of the two chains, in the order of its flow. The two workers may be on different cores.
//!
//! With different numbers of workers, buckets come from several. Then each worker waits until all of the predecessor's
//! have ended, and nothing passes over.

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
    /// The successor takes the chain.
    takes_chain: bool,
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
    /// Returns `true` if the successor takes the chain. Otherwise it only waits for the worker's end.
    pub(crate) fn takes_chain(&self) -> bool {
        self.takes_chain
    }

    /// Leaves a chain, or nothing if the worker died, or if the successor takes none.
    pub(crate) fn leave(&self, chain: Option<Chain>) {
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = chain;
        // Release: the chain is there before the flag is seen.
        self.is_left.store(true, Ordering::Release);
    }

    /// Takes what was left: `None` before that, and nothing if there is no chain.
    #[inline]
    fn take(&self) -> Option<Option<Chain>> {
        let is_left = self.is_left.load(Ordering::Acquire);
        is_left.then(|| self.chain.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

impl Drop for Estate {
    /// Ends the flows of a chain that nobody took.
    fn drop(&mut self) {
        let chain = self.chain.get_mut().unwrap_or_else(PoisonError::into_inner);
        chain.take().into_iter().for_each(|chain| drop(chain.drain()));
    }
}

/// Estates of a chain's workers, by their number.
pub(crate) type Estates = Arc<[Arc<Estate>]>;

/// Estates for a successor, once there is one.
pub(crate) type Heir = Arc<OnceLock<Estates>>;

/// Flags of a run's workers, their number once it is known, and their heir.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEnds {
    pub(crate) flags: Arc<WorkerFlags>,
    pub(crate) workers: Arc<OnceLock<u16>>,
    pub(crate) heir: Heir,
    /// Requests to each worker, once their number is known.
    requests: Arc<OnceLock<Box<[Arc<ChainRequests>]>>>,
}

impl RunEnds {
    /// Notes the number of workers.
    pub(crate) fn set_workers(&self, workers: u16) {
        // A run has one number.
        let _ = self.workers.set(workers);
        let _ = self
            .requests
            .set((0..workers).map(|_| Arc::<ChainRequests>::default()).collect());
    }

    /// Requests to a worker; `None` if the run has no such worker yet.
    pub(crate) fn requests_to(&self, worker: usize) -> Option<Arc<ChainRequests>> {
        self.requests.get()?.get(worker).cloned()
    }

    /// Names of the functions that a successor keeps.
    pub(crate) fn kept(heir: Option<&Heir>) -> &[String] {
        let estates = heir.and_then(|heir| heir.get());
        estates
            .and_then(|estates| estates.first())
            .map_or(&[], |estate| &estate.kept)
    }
}

/// Inheritance of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Succession {
    pub(crate) estates: Estates,
    pub(crate) kept: Vec<KeptFunction>,
}

impl Succession {
    /// Inheritance of a chain with this number of workers, from one with `before`.
    pub(crate) fn new(kept: Vec<KeptFunction>, workers: u16, before: u16) -> Succession {
        let takes_chain = workers == before;
        let kept = if takes_chain { kept } else { Vec::new() };
        let estate = |_| {
            Arc::new(Estate {
                kept: kept.iter().map(|function| function.name().to_owned()).collect(),
                takes_chain,
                is_left: AtomicBool::default(),
                chain: Mutex::default(),
            })
        };
        Succession {
            estates: (0..before).map(estate).collect(),
            kept,
        }
    }

    /// Inheritance of the worker of this number.
    pub(crate) fn of(&self, worker: usize) -> Inheritance {
        Inheritance {
            estates: Arc::clone(&self.estates),
            worker,
        }
    }
}

/// Inheritance of one worker.
#[derive(Debug)]
pub(crate) struct Inheritance {
    estates: Estates,
    worker: usize,
}

impl Inheritance {
    /// Takes the chain that was left: `None` before the predecessor has ended, and nothing if there is no chain.
    #[inline]
    pub(crate) fn take(&self) -> Option<Option<Chain>> {
        match self.estates.get(self.worker).filter(|estate| estate.takes_chain) {
            Some(own) => own.take(),
            None => {
                let mut all = self.estates.iter();
                all.all(|estate| estate.is_left.load(Ordering::Acquire)).then_some(None)
            }
        }
    }

    /// Names of the functions that are kept.
    pub(crate) fn kept(&self) -> &[String] {
        self.estates.first().map_or(&[], |estate| &estate.kept)
    }
}
