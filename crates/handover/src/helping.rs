//! Offers of polling cores to process packets of others for a while, and their activation by one other core at a time.
//!
//! A core that polls knows its own load, and a core that is behind must not wait for an answer. So they share one word
//! per offering core, and a counter of requests:
//!
//! 1. A core that is behind [requests](HelpOffers::request) help. Without a request no core publishes anything: an
//!    iteration of its loop takes one [load](HelpOffers::is_requested).
//! 2. While there is a request, a core with time [offers](HelpOffers::offer) help, and
//!    [withdraws](HelpOffers::withdraw) the offer when it has none.
//! 3. A core that is behind [activates](HelpOffers::activate) an offering core by a compare-exchange, pushes packets
//!    into a ring to it, and [releases](HelpOffers::release) it once all have come back. An offer that is withdrawn
//!    meanwhile is a hint to send nothing more: the packets already sent are still processed.
//!
//! The word holds both the offer and the activation. So a core that withdraws its offer before it stops polling, to
//! sleep for example, learns in the same step whether another one has activated it. Ordering between packets comes from
//! the rings; here all accesses are relaxed.
//!
//! Two cores may activate each other, if both had time a moment ago. Neither waits for the other: each processes its
//! own packets and the other's in turns.

use crate::sync::{Arc, AtomicU32, Ordering};

/// Bit of a word: the core offers help. The bits above hold the number of the core that activated it, plus one.
const OFFERED: u32 = 1;
const ACTIVATED_BY: u32 = 1;

/// Word of a core, in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Offer(AtomicU32);

#[derive(Debug)]
struct Shared {
    requests: Offer,
    offers: Box<[Offer]>,
}

/// Offers of some cores, by number. Clones share them.
#[derive(Clone, Debug)]
pub struct HelpOffers(Arc<Shared>);

/// State of an offer as another core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferState {
    /// The core offers help, and works for this core or for none.
    Offered,
    /// The core works for a third one.
    Taken,
    /// The core offers no help. It may still have packets of this core.
    Withdrawn,
}

impl HelpOffers {
    /// No core offers help.
    pub fn new(cores: usize) -> HelpOffers {
        let offers = (0..cores).map(|_| Offer(AtomicU32::new(0)));
        HelpOffers(Arc::new(Shared {
            requests: Offer(AtomicU32::new(0)),
            offers: offers.collect(),
        }))
    }

    #[inline]
    fn of(&self, core: usize) -> &AtomicU32 {
        &self.0.offers[core].0
    }

    /// Counts a core that is behind.
    pub fn request(&self) {
        self.0.requests.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts out a core that was behind, and has released all others.
    pub fn end_request(&self) {
        self.0.requests.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns `true` if some core is behind.
    #[inline(always)]
    pub fn is_requested(&self) -> bool {
        self.0.requests.0.load(Ordering::Relaxed) != 0
    }

    /// Offers help of `core`, which calls this itself.
    pub fn offer(&self, core: usize) {
        self.of(core).fetch_or(OFFERED, Ordering::Relaxed);
    }

    /// Withdraws the offer of `core`, which calls this itself. Returns `true` if no other core has activated it, and so
    /// none will until the next offer.
    pub fn withdraw(&self, core: usize) -> bool {
        self.of(core).fetch_and(!OFFERED, Ordering::Relaxed) <= OFFERED
    }

    /// Returns the core that has activated `core`.
    #[inline]
    pub fn activated_by(&self, core: usize) -> Option<usize> {
        let by = self.of(core).load(Ordering::Relaxed) >> ACTIVATED_BY;
        by.checked_sub(1).map(|by| by as usize)
    }

    /// Returns the state of `core`'s offer for core `of`.
    #[inline]
    pub fn state(&self, core: usize, of: usize) -> OfferState {
        let word = self.of(core).load(Ordering::Relaxed);
        let by = word >> ACTIVATED_BY;
        if by != 0 && by != of as u32 + 1 {
            OfferState::Taken
        } else if word & OFFERED != 0 {
            OfferState::Offered
        } else {
            OfferState::Withdrawn
        }
    }

    /// Activates `core` for core `by`, if it offers help and no other has. Returns `true` on success.
    pub fn activate(&self, core: usize, by: usize) -> bool {
        let activated = (by as u32 + 1) << ACTIVATED_BY | OFFERED;
        let exchanged = self
            .of(core)
            .compare_exchange(OFFERED, activated, Ordering::Relaxed, Ordering::Relaxed);
        exchanged.is_ok()
    }

    /// Releases `core`, which the caller has activated, and from which all packets have returned.
    pub fn release(&self, core: usize) {
        self.of(core).fetch_and(OFFERED, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_used_by_one_core_at_a_time() {
        let offers = HelpOffers::new(3);
        assert_eq!(offers.state(1, 0), OfferState::Withdrawn);
        assert!(!offers.activate(1, 0), "without an offer");
        offers.offer(1);
        assert_eq!(offers.state(1, 0), OfferState::Offered);
        assert!(offers.activate(1, 0) && !offers.activate(1, 2));
        assert_eq!(
            (offers.state(1, 0), offers.state(1, 2)),
            (OfferState::Offered, OfferState::Taken)
        );
        assert_eq!(offers.activated_by(1), Some(0));
        assert!(!offers.withdraw(1), "it has packets of core 0");
        assert_eq!(
            (offers.state(1, 0), offers.state(1, 2)),
            (OfferState::Withdrawn, OfferState::Taken)
        );
        offers.release(1);
        assert_eq!(offers.activated_by(1), None);
        assert!(!offers.activate(1, 2), "the offer stays withdrawn");
        offers.offer(1);
        assert!(offers.activate(1, 2));
        offers.release(1);
        assert_eq!(offers.state(1, 0), OfferState::Offered, "the offer lasts");
        assert!(offers.withdraw(1));
    }

    #[test]
    fn requests_are_counted() {
        let offers = HelpOffers::new(2);
        assert!(!offers.is_requested());
        let other = offers.clone();
        offers.request();
        other.request();
        offers.end_request();
        assert!(offers.is_requested());
        other.end_request();
        assert!(!other.is_requested());
    }
}
