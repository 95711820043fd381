//! What connects a dispatcher with a helper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tailwater_handover::park::Waker;
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;
use tailwater_nf::parcel::{PacketStore, Parcel, Receipt};

/// Who has recruited a helper: one dispatcher at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim(Arc<AtomicU32>);

impl Claim {
    /// Claims the helper for dispatcher `dispatcher`. Whether it is its now.
    pub(crate) fn take(&self, dispatcher: u32) -> bool {
        // Says who may push, not what is in the rings: those have their own ordering.
        let claimed =
            self.0
                .compare_exchange(0, dispatcher + 1, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok()
    }

    pub(crate) fn release(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The dispatcher's end.
#[derive(Debug)]
pub(crate) struct ToHelper {
    pub(crate) parcels: Producer<Parcel>,
    pub(crate) receipts: Consumer<Receipt>,
    pub(crate) waker: Waker,
    pub(crate) claim: Claim,
    called: Arc<AtomicU64>,
    abandoned: Arc<AtomicBool>,
}

impl ToHelper {
    /// Wakes the helper, for whom there is something in the ring since `now`.
    #[inline]
    pub(crate) fn call(&self, now: Nanos) {
        // Only for the record: read by the helper when it wakes up.
        self.called.store(now.0, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Tells the helper to process nothing more of this dispatcher's: what is in the ring is lost.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// The helper's end.
#[derive(Debug)]
pub(crate) struct FromDispatcher {
    pub(crate) parcels: Consumer<Parcel>,
    pub(crate) receipts: Producer<Receipt>,
    pub(crate) store: PacketStore,
    called: Arc<AtomicU64>,
    abandoned: Arc<AtomicBool>,
}

impl FromDispatcher {
    /// When the dispatcher last called the helper.
    pub(crate) fn called(&self) -> Nanos {
        Nanos(self.called.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// Connects a dispatcher that has `buffers` buffers, whose packets are in `store`, with a helper.
/// Neither ring is ever full, since it has room for every buffer.
pub(crate) fn link(
    buffers: u32,
    store: PacketStore,
    waker: Waker,
    claim: Claim,
) -> (ToHelper, FromDispatcher) {
    let size = buffers as usize;
    let (to, parcels) = ring(size);
    let (receipts, from) = ring(size);
    let abandoned = Arc::new(AtomicBool::new(false));
    let called = Arc::new(AtomicU64::new(0));
    (
        ToHelper {
            parcels: to,
            receipts: from,
            waker,
            claim,
            called: Arc::clone(&called),
            abandoned: Arc::clone(&abandoned),
        },
        FromDispatcher {
            parcels,
            receipts,
            store,
            called,
            abandoned,
        },
    )
}
