//! Traces of single packets through a running chain: what each function did to them, and when.
//!
//! All instances of a chain share a [`PacketTraces`]. While nobody traces, an instance reads one number of it for each
//! batch, as it does anyway to find out whether it [times](crate::chain::Chain::sample_functions) the batch.

pub mod filter;
mod node;
mod quick;
pub(crate) mod request;

pub use filter::{FilterError, PacketFilter};
pub use request::{CAPTURED, TracePlace, TraceRole, TraceStep, TracedFlow};

use request::TraceRequest;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// One batch in so many is timed while nobody traces.
pub(crate) const TIMED_BATCHES: u32 = 64;

/// Steps that wait for their reader; more are lost and counted.
const WAITING: usize = 4096;

/// Function of a chain, as traces name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedFunction {
    /// Name.
    pub name: String,
    /// Reasons for which it drops packets, by their numbers.
    pub reasons: Vec<String>,
}

/// Switch of a chain's traces, which all of its instances share.
#[derive(Debug, Default)]
pub struct PacketTraces {
    /// One batch in so many is looked at; 0 stands for [`TIMED_BATCHES`].
    every: AtomicU32,
    /// Changes with each request.
    generation: AtomicU32,
    requests: Mutex<Requests>,
    functions: OnceLock<Vec<TracedFunction>>,
}

#[derive(Debug, Default)]
struct Requests {
    current: Option<Arc<TraceRequest>>,
    /// Requests that instances may still have: their memory is freed here, by no core that processes packets.
    ended: Vec<Arc<TraceRequest>>,
}

/// Somebody traces the chain already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("somebody traces packets of this chain already")]
pub struct AlreadyTraced;

impl PacketTraces {
    /// Switch of a chain of which all batches are timed.
    pub fn timing_all() -> Arc<PacketTraces> {
        Arc::new(PacketTraces {
            every: AtomicU32::new(1),
            ..PacketTraces::default()
        })
    }

    /// Traces the next `count` packets that match, until the stream is dropped. A [sample](Self::sample) ends.
    ///
    /// # Errors
    /// There is another stream.
    pub fn begin(self: &Arc<Self>, filter: PacketFilter, count: u32) -> Result<TraceStream, AlreadyTraced> {
        self.request_steps(filter, count, false)
    }

    /// Traces the next `count` packets, whatever they are, until the stream is dropped or somebody else traces.
    ///
    /// # Errors
    /// There is another stream.
    pub fn sample(self: &Arc<Self>, count: u32) -> Result<TraceStream, AlreadyTraced> {
        self.request_steps(PacketFilter::all(), count, true)
    }

    fn request_steps(
        self: &Arc<Self>,
        filter: PacketFilter,
        count: u32,
        is_sample: bool,
    ) -> Result<TraceStream, AlreadyTraced> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.current.as_ref().is_some_and(|current| !current.is_sample) {
            return Err(AlreadyTraced);
        }
        requests.ended.retain(|ended| Arc::strong_count(ended) > 1);
        let (sender, receiver) = sync_channel(WAITING);
        let begun = Arc::new(TraceRequest {
            filter,
            is_sample,
            left: AtomicU32::new(count),
            steps: sender,
            lost: AtomicU64::new(0),
        });
        let sample = requests.current.replace(Arc::clone(&begun));
        requests.ended.extend(sample);
        self.generation.fetch_add(1, Ordering::Release);
        self.every.store(1, Ordering::Relaxed);
        Ok(TraceStream::new(Arc::clone(self), begun, receiver))
    }

    /// The chain's functions, once it runs.
    pub fn functions(&self) -> &[TracedFunction] {
        self.functions.get().map_or(&[], Vec::as_slice)
    }

    /// Names the functions. Only the first call counts.
    pub fn set_functions(&self, functions: Vec<TracedFunction>) {
        let _ = self.functions.set(functions);
    }

    /// Ends a request, unless another one has taken its place.
    fn end(&self, request: &Arc<TraceRequest>) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = requests.current.take_if(|current| Arc::ptr_eq(current, request)) else {
            return;
        };
        requests.ended.push(ended);
        self.generation.fetch_add(1, Ordering::Release);
        self.every.store(0, Ordering::Relaxed);
    }

    /// One batch in so many is looked at.
    #[inline]
    pub(crate) fn every(&self) -> u32 {
        match self.every.load(Ordering::Relaxed) {
            0 => TIMED_BATCHES,
            every => every,
        }
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The request, unless it is being changed.
    pub(crate) fn request(&self) -> Option<Option<Arc<TraceRequest>>> {
        self.requests.try_lock().ok().map(|requests| requests.current.clone())
    }
}

/// Steps of traced packets. Tracing ends when it is dropped.
#[derive(Debug)]
pub struct TraceStream {
    traces: Arc<PacketTraces>,
    request: Arc<TraceRequest>,
    steps: Receiver<TraceStep>,
}

impl TraceStream {
    fn new(traces: Arc<PacketTraces>, request: Arc<TraceRequest>, steps: Receiver<TraceStep>) -> TraceStream {
        TraceStream { traces, request, steps }
    }

    /// Next step, if there is one now. Steps of a packet come in order.
    pub fn next_step(&self) -> Option<TraceStep> {
        self.steps.try_recv().ok()
    }

    /// Packets that have not been found yet.
    pub fn left(&self) -> u32 {
        self.request.left.load(Ordering::Relaxed)
    }

    /// Steps that were lost since nobody read them in time.
    pub fn lost(&self) -> u64 {
        self.request.lost.load(Ordering::Relaxed)
    }

    /// Returns `true` until another stream has taken the place of this one, a [sample](PacketTraces::sample).
    pub fn is_current(&self) -> bool {
        let requests = self.traces.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests
            .current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, &self.request))
    }

    /// The chain's traces.
    pub fn traces(&self) -> &PacketTraces {
        &self.traces
    }
}

impl Drop for TraceStream {
    fn drop(&mut self) {
        self.traces.end(&self.request);
    }
}

#[cfg(test)]
mod tests;
