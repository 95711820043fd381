//! Requests to a chain, carried out by one of its workers between two turns.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tailwater_chain::chain::Chain;

/// Request to a chain.
struct ChainRequest {
    /// It waits until no packet is in the chain.
    needs_quiet: bool,
    run: Box<dyn FnOnce(&mut Chain) + Send>,
}

/// Request that waits for a worker, if there is one.
#[derive(Default)]
pub(crate) struct ChainRequests {
    is_pending: AtomicBool,
    request: Mutex<Option<ChainRequest>>,
}

impl fmt::Debug for ChainRequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainRequests")
            .field("is_pending", &self.is_pending)
            .finish_non_exhaustive()
    }
}

impl ChainRequests {
    /// Runs `f` on the chain, once no packet is in it if it `needs_quiet`. `None` if that took longer than `timeout`:
    /// it does not run any more then.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        needs_quiet: bool,
        timeout: Duration,
        f: impl FnOnce(&mut Chain) -> R + Send + 'static,
    ) -> Option<R> {
        let (answer, answered) = sync_channel(1);
        let run = Box::new(move |chain: &mut Chain| {
            // The caller may have given up.
            let _ = answer.send(f(chain));
        });
        *self.lock() = Some(ChainRequest { needs_quiet, run });
        // Release: the request is there before the flag is seen.
        self.is_pending.store(true, Ordering::Release);
        let result = answered.recv_timeout(timeout);
        let withdrawn = self.lock().take();
        match (result, withdrawn) {
            (Ok(result), _) => Some(result),
            (Err(_), Some(_)) => None,
            // It runs at this moment.
            (Err(_), None) => answered.recv().ok(),
        }
    }

    /// Returns `true` if there may be a request.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::Relaxed)
    }

    /// Carries out the request, if there is one that does not have to wait.
    #[cold]
    pub(crate) fn carry_out(&self, chain: &mut Chain, is_quiet: bool) {
        let mut request = self.lock();
        if request.as_ref().is_some_and(|request| request.needs_quiet && !is_quiet) {
            return;
        }
        self.is_pending.store(false, Ordering::Relaxed);
        let taken = request.take();
        drop(request);
        if let Some(taken) = taken {
            (taken.run)(chain);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<ChainRequest>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
