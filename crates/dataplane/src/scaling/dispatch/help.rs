//! Help of other dedicated cores: requests of this one, and whether it has time for others.

use super::Dispatch;
use tailwater_net::Nanos;

/// Time for which a request lasts after the need for it. Bursts often follow each other, and the next one then finds
/// offers that were made before.
const LASTS: Nanos = Nanos::from_millis(1);

impl Dispatch {
    /// Notes that about `waiting` packets wait in the port, and if that is a long queue.
    #[inline]
    pub(crate) fn note_port(&mut self, is_long: bool, waiting: usize) {
        (self.is_long, self.waiting) = (is_long, waiting);
    }

    /// Returns `true` if an activated auxiliary core is to be given back to a pool.
    #[inline]
    pub(crate) fn is_withdrawn(&mut self, now: Nanos) -> bool {
        if self.borrower.is_none() || !self.has_auxiliary_cores() {
            return false;
        }
        self.update_available(now);
        let mut auxiliaries = self.machine.backlog.auxiliaries().iter();
        auxiliaries.any(|auxiliary| auxiliary.active && auxiliary.taken)
    }

    /// Publishes the backlog to the broker, which may lend auxiliary cores for it.
    pub(super) fn publish(&self, now: Nanos) {
        let Some(borrower) = &self.borrower else {
            return;
        };
        let auxiliaries = self.machine.backlog.auxiliaries().iter();
        let helpers = auxiliaries.filter(|auxiliary| auxiliary.active).count() as u32;
        let here = self.machine.backlog.here().packets;
        let packets = self.waiting + (here + self.offloaded()) as usize;
        if packets == 0 && helpers == 0 {
            borrower.publish_none();
            return;
        }
        let oldest = self.lists.first().map(|parcel| self.store.arrival(parcel));
        borrower.publish(packets, oldest, helpers, now);
    }

    /// Requests help of other dedicated cores, if that is of use. They offer it some time later, if they have time.
    #[inline]
    pub(super) fn request_help(&mut self, now: Nanos) {
        let Some(offers) = &self.offers else {
            return;
        };
        self.needed_at = now;
        if !self.requests && self.machine.may_be_helped(false) {
            self.requests = true;
            offers.request();
        }
    }

    /// Ends the request if this core has needed no help for some time. No packet is in the system, so no other
    /// dedicated core works for this one.
    #[inline]
    pub(crate) fn keep_request(&mut self, now: Nanos) {
        if self.requests && now.saturating_sub(self.needed_at) >= LASTS {
            self.end_request();
        }
    }

    /// Requests no help any more.
    pub(super) fn end_request(&mut self) {
        if std::mem::take(&mut self.requests)
            && let Some(offers) = &self.offers
        {
            offers.end_request();
        }
    }

    /// Returns `true` if this core has time for packets of other dedicated cores: it has none in the system, and few,
    /// `packets`, wait in the port.
    #[inline]
    pub(crate) fn can_help(&self, packets: usize) -> bool {
        self.machine.can_help(packets)
    }

    /// Updates which auxiliary cores can be used: those that other dispatchers have cannot, and other dedicated cores
    /// only while they offer help and this one needs it.
    pub(super) fn update_available(&mut self, now: Nanos) {
        let (links, number) = (&self.links, self.number);
        let may_be_helped = self.requests && self.machine.may_be_helped(self.is_long);
        let availability = |auxiliary: usize| links[auxiliary].helper.availability(number, may_be_helped);
        self.machine.update_available(now, availability);
    }
}
