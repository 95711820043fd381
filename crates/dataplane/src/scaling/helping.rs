//! Help that a dedicated core gives others: it processes packets of buckets that they lend, while it has few of its
//! own.
//!
//! The decisions are the dispatchers': that of the core which is behind places buckets here, and that of this core
//! determines whether it [can help](super::dispatch::Dispatch::can_help). Between the two cores there are the same
//! rings as to an auxiliary core. After each of its own batches this core processes one of another's. It needs no
//! buffer of its own for that, so it does so even if it waits for other cores itself.
//!
//! While nobody requests help, a loop iteration takes one load.

use super::link::FromDispatcher;
use super::source::{Batching, Source};
use crate::port::PortSender;
use crate::worker::context::{CountedChain, WorkerContext};
use tailwater_chain::buffer::BufferMemory;
use tailwater_chain::chain::Chain;
use tailwater_handover::helping::HelpOffers;
use tailwater_net::Nanos;
use tailwater_policy::core::Unit;

/// Dedicated core's ends of the links from others.
pub(crate) struct HelpingEnds {
    /// Number of this core.
    pub(crate) number: usize,
    pub(crate) offers: HelpOffers,
    /// Links, with the numbers of the cores that they come from.
    pub(crate) links: Vec<(usize, (FromDispatcher, BufferMemory))>,
}

/// Helping side of a dedicated core.
pub(crate) struct Helping {
    number: usize,
    offers: HelpOffers,
    /// This core offers help.
    is_offered: bool,
    /// Links by the number of the core that they come from. None from this core, and from those that never request its
    /// help.
    sources: Vec<Option<Source>>,
}

impl Helping {
    /// For `chain`, in batches of at most `batch` packets unless isolated functions determine their size.
    pub(crate) fn new(ends: HelpingEnds, chain: &Chain, batch: usize) -> Helping {
        let HelpingEnds { number, offers, links } = ends;
        let mut sources = Vec::new();
        for (from, link) in links {
            sources.resize_with(sources.len().max(from + 1), || None);
            sources[from] = Some(Source::new(link, Unit::Bucket, Batching::new(chain, batch)));
        }
        Helping {
            number,
            offers,
            is_offered: false,
            sources,
        }
    }

    /// Returns `true` if a core is behind, or was and this core still offers its help.
    #[inline(always)]
    pub(crate) fn is_requested(&self) -> bool {
        self.is_offered || self.offers.is_requested()
    }

    /// Updates the offer: this core has time for others, if it `can_help`.
    #[inline]
    pub(crate) fn update(&mut self, can_help: bool) {
        let offers = can_help && self.offers.is_requested();
        if offers != self.is_offered {
            self.is_offered = offers;
            match offers {
                true => self.offers.offer(self.number),
                false => {
                    self.offers.withdraw(self.number);
                }
            }
        }
    }

    /// Withdraws the offer.
    pub(crate) fn withdraw(&mut self) {
        self.is_offered = false;
        self.offers.withdraw(self.number);
    }

    /// Returns `true` if this core may sleep: it offers no help, and no other core's packets come to it before it does.
    pub(crate) fn may_sleep(&mut self) -> bool {
        !self.is_offered && self.offers.withdraw(self.number)
    }

    /// Processes a batch of the core that this one works for. Returns the times at which this began and ended, or
    /// `None` if there is none.
    #[inline]
    pub(crate) fn serve<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) -> Option<[Nanos; 2]> {
        let by = self.offers.activated_by(self.number)?;
        let source = self.sources.get_mut(by)?.as_mut()?;
        source.serve(context, chain)
    }

    /// Processes, or discards, a batch of every other core, at this core's end. Returns `true` once all others have
    /// closed their rings, and nothing is left in them.
    pub(crate) fn serve_rest<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) -> bool {
        let sources = self.sources.iter_mut().flatten();
        // All of them, whatever the first returns.
        sources.fold(true, |is_over, source| {
            // In this order: items pushed before a ring was closed are popped.
            let is_closed = source.link.parcels.is_closed();
            let times = source.serve(context, chain);
            if let Some([_, end]) = times {
                context.meter.roll(end, chain);
            }
            is_over && is_closed && times.is_none()
        })
    }

    /// Counts packets of others that this panicked core was processing as lost. It processes no more.
    pub(crate) fn give_back<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) {
        self.withdraw();
        for source in self.sources.iter_mut().flatten() {
            source.give_back(context, chain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_api::PacketAction;
    use tailwater_chain::chain::InputPolicy;
    use tailwater_handover::helping::OfferState;

    #[test]
    fn help_is_offered_while_it_is_requested_and_there_is_time() {
        let offers = HelpOffers::new(2);
        let ends = HelpingEnds {
            number: 1,
            offers: offers.clone(),
            links: Vec::new(),
        };
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        let mut helping = Helping::new(ends, &Chain::new(Vec::new(), None, input), 32);
        let state = || offers.state(1, 0);
        helping.update(true);
        assert!(!helping.is_requested() && state() == OfferState::Withdrawn && helping.may_sleep());
        offers.request();
        assert!(helping.is_requested());
        helping.update(true);
        assert!(state() == OfferState::Offered && !helping.may_sleep());
        helping.update(false);
        assert!(state() == OfferState::Withdrawn && helping.may_sleep());
        // Activated a moment before it withdrew its offer.
        helping.update(true);
        assert!(offers.activate(1, 0));
        helping.update(false);
        assert!(state() == OfferState::Withdrawn && !helping.may_sleep());
        offers.release(1);
        assert!(helping.may_sleep());
        helping.update(true);
        offers.end_request();
        assert!(helping.is_requested(), "its offer is still there");
        helping.update(true);
        assert!(!helping.is_requested() && state() == OfferState::Withdrawn);
    }
}
