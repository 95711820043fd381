//! Link between a dispatcher and an auxiliary core, or another dedicated core that helps it.

use super::lending::Borrower;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tailwater_chain::parcel::{PacketStore, Parcel, Receipt};
use tailwater_dispatch::Availability;
use tailwater_handover::helping::{HelpOffers, OfferState};
use tailwater_handover::park::Waker;
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;

/// Activation of an auxiliary core by one dispatcher at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activation(Arc<AtomicU32>);

impl Activation {
    /// Activates the auxiliary core for dispatcher `dispatcher`. Returns `true` on success.
    pub(crate) fn take(&self, dispatcher: u32) -> bool {
        // Determines who may push, not the rings' contents: those have their own ordering.
        let claimed = self
            .0
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

/// Core at the other end of a dispatcher's link.
#[derive(Debug)]
pub(crate) enum Helper {
    /// Auxiliary core. It sleeps when it has no packets.
    Auxiliary { waker: Waker, activation: Activation },
    /// Auxiliary core of a pool that several chains share, by its index there.
    Lent { borrower: Arc<Borrower>, core: usize },
    /// Another dedicated core, by number. It polls.
    Dedicated { offers: HelpOffers, core: usize },
}

impl Helper {
    /// Auxiliary core that has a link with one dispatcher only.
    pub(crate) fn auxiliary(waker: Waker) -> Helper {
        Helper::Auxiliary {
            waker,
            activation: Activation::default(),
        }
    }

    /// Returns the availability to a dispatcher, which other dedicated cores may help if `may_be_helped`.
    #[inline]
    pub(crate) fn availability(&self, dispatcher: u32, may_be_helped: bool) -> Availability {
        match self {
            Helper::Auxiliary { activation, .. } => match activation.is_free() {
                true => Availability::Free,
                false => Availability::Taken,
            },
            Helper::Lent { borrower, core } => borrower.availability(*core),
            Helper::Dedicated { .. } if !may_be_helped => Availability::Withdrawn,
            Helper::Dedicated { offers, core } => match offers.state(*core, dispatcher as usize) {
                OfferState::Taken => Availability::Taken,
                OfferState::Offered => Availability::Helpful,
                OfferState::Withdrawn => Availability::Withdrawn,
            },
        }
    }

    /// Returns `true` if it is another dedicated core.
    #[inline]
    pub(crate) fn is_dedicated(&self) -> bool {
        matches!(self, Helper::Dedicated { .. })
    }

    /// Offers of dedicated cores, if it is one.
    pub(crate) fn offers(&self) -> Option<&HelpOffers> {
        match self {
            Helper::Auxiliary { .. } | Helper::Lent { .. } => None,
            Helper::Dedicated { offers, .. } => Some(offers),
        }
    }

    /// Activates the core for a dispatcher. Returns `true` on success.
    pub(crate) fn activate(&self, dispatcher: u32, now: Nanos) -> bool {
        match self {
            Helper::Lent { borrower, core } => borrower.activate(*core, now),
            Helper::Auxiliary { activation, .. } => activation.take(dispatcher),
            Helper::Dedicated { offers, core } => offers.activate(*core, dispatcher as usize),
        }
    }

    /// Releases the core, which the dispatcher has activated.
    pub(crate) fn release(&self) {
        match self {
            Helper::Auxiliary { activation, .. } => activation.release(),
            Helper::Lent { borrower, core } => borrower.release(*core),
            Helper::Dedicated { offers, core } => offers.release(*core),
        }
    }

    fn wake(&self) {
        match self {
            Helper::Auxiliary { waker, .. } => {
                waker.wake();
            }
            Helper::Lent { borrower, core } => borrower.wake(*core),
            Helper::Dedicated { .. } => {}
        }
    }
}

/// Means no call since the auxiliary core last went to sleep, or no wake-up that the dispatcher does not know.
const NOT_CALLED: u64 = u64::MAX;

/// Dispatcher's end.
#[derive(Debug)]
pub(crate) struct ToAuxiliary {
    pub(crate) parcels: Producer<Parcel>,
    pub(crate) receipts: Consumer<Receipt>,
    /// Packets that continue on another auxiliary core.
    pub(crate) onward: Consumer<Parcel>,
    pub(crate) helper: Helper,
    called: Arc<AtomicU64>,
    woke: Arc<AtomicU64>,
    abandoned: Arc<AtomicBool>,
}

impl ToAuxiliary {
    /// Wakes the auxiliary core, for which packets have been in the ring since `now`.
    #[inline]
    pub(crate) fn call(&self, now: Nanos) {
        if self.helper.is_dedicated() {
            return;
        }
        // Only for measurement: read by the auxiliary core when it wakes up. The first call is the one that woke it.
        // More may follow before it is awake.
        if self.called.load(Ordering::Relaxed) == NOT_CALLED {
            self.called.store(now.0, Ordering::Relaxed);
        }
        self.helper.wake();
    }

    /// Time that the auxiliary core took to wake up, once after each wake-up.
    #[inline]
    pub(crate) fn take_woke(&self) -> Option<Nanos> {
        // Only for measurement, and only this end resets it.
        let woke = self.woke.load(Ordering::Relaxed);
        if woke == NOT_CALLED {
            return None;
        }
        self.woke.store(NOT_CALLED, Ordering::Relaxed);
        Some(Nanos(woke))
    }

    /// Stops the auxiliary core from processing packets of this dispatcher: those in the ring are lost.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.helper.wake();
    }
}

/// Auxiliary core's end.
#[derive(Debug)]
pub(crate) struct FromDispatcher {
    pub(crate) parcels: Consumer<Parcel>,
    pub(crate) receipts: Producer<Receipt>,
    /// Packets that continue on another auxiliary core.
    pub(crate) onward: Producer<Parcel>,
    pub(crate) store: PacketStore,
    called: Arc<AtomicU64>,
    woke: Arc<AtomicU64>,
    abandoned: Arc<AtomicBool>,
}

impl FromDispatcher {
    /// Called before the auxiliary core sleeps: resets the time of the first call.
    pub(crate) fn await_call(&self) {
        self.called.store(NOT_CALLED, Ordering::Relaxed);
    }

    /// Time of the dispatcher's first call since then.
    pub(crate) fn called(&self) -> Option<Nanos> {
        let called = self.called.load(Ordering::Relaxed);
        (called != NOT_CALLED).then_some(Nanos(called))
    }

    /// Called after the auxiliary core woke up at `now`: tells the dispatcher how long it took, if it had called.
    pub(crate) fn woke(&self, now: Nanos) {
        if let Some(called) = self.called() {
            self.woke.store(now.saturating_sub(called).0, Ordering::Relaxed);
        }
    }

    /// Has the effect of [`abandon`](ToAuxiliary::abandon) by the dispatcher.
    pub(crate) fn give_up(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }
}

/// Connects a dispatcher that has `buffers` buffers, whose packets are in `store`, with the core of `helper`. No ring
/// ever fills up, since each has room for every buffer.
pub(crate) fn link(buffers: u32, store: PacketStore, helper: Helper) -> (ToAuxiliary, FromDispatcher) {
    let size = buffers as usize;
    let (to, parcels) = ring(size);
    let (receipts, from) = ring(size);
    let (onward, from_onward) = ring(size);
    let abandoned = Arc::new(AtomicBool::new(false));
    let called = Arc::new(AtomicU64::new(NOT_CALLED));
    let woke = Arc::new(AtomicU64::new(NOT_CALLED));
    (
        ToAuxiliary {
            parcels: to,
            receipts: from,
            onward: from_onward,
            helper,
            called: Arc::clone(&called),
            woke: Arc::clone(&woke),
            abandoned: Arc::clone(&abandoned),
        },
        FromDispatcher {
            parcels,
            receipts,
            onward,
            store,
            called,
            woke,
            abandoned,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::buffer::BufferPool;
    use tailwater_handover::park::{Mode, park};

    fn asleep() -> Helper {
        let (_sleeper, waker) = park(Mode::Sleep);
        Helper::auxiliary(waker)
    }

    /// Regression: the last call counted, so an auxiliary core that was preempted for a millisecond, and called
    /// repeatedly meanwhile, seemed to have woken up at once.
    #[test]
    fn the_first_call_is_the_one_that_wakes() {
        let store = PacketStore::new(&BufferPool::new(1, 64).unwrap());
        let (near, far) = link(1, store, asleep());
        far.await_call();
        assert_eq!(far.called(), None);
        near.call(Nanos(10));
        near.call(Nanos(20));
        assert_eq!(far.called(), Some(Nanos(10)));
        far.await_call();
        near.call(Nanos(30));
        assert_eq!(far.called(), Some(Nanos(30)));
    }

    #[test]
    fn the_dispatcher_learns_each_wake_up_once() {
        let store = PacketStore::new(&BufferPool::new(1, 64).unwrap());
        let (near, far) = link(1, store, asleep());
        far.await_call();
        far.woke(Nanos(5));
        assert_eq!(near.take_woke(), None, "it was not called");
        near.call(Nanos(10));
        far.woke(Nanos(35));
        assert_eq!(near.take_woke(), Some(Nanos(25)));
        assert_eq!(near.take_woke(), None);
    }

    #[test]
    fn a_dedicated_core_helps_while_it_offers_to() {
        let offers = HelpOffers::new(2);
        let helper = Helper::Dedicated {
            offers: offers.clone(),
            core: 1,
        };
        assert_eq!(helper.availability(0, true), Availability::Withdrawn);
        offers.offer(1);
        assert_eq!(helper.availability(0, true), Availability::Helpful);
        assert_eq!(
            helper.availability(0, false),
            Availability::Withdrawn,
            "this core needs none"
        );
        assert!(helper.activate(0, Nanos::ZERO));
        assert_eq!(helper.availability(2, true), Availability::Taken);
        offers.withdraw(1);
        assert_eq!(helper.availability(0, true), Availability::Withdrawn);
        helper.release();
        assert!(!helper.activate(0, Nanos::ZERO));
    }
}
