//! Help of other dedicated cores: requests of this one, and whether it has time for others.

use super::Dispatch;
use tailwater_net::Nanos;

/// Time for which a request lasts after the need for it. Bursts often follow each other, and the next one then finds
/// offers that were made before.
const LASTS: Nanos = Nanos::from_millis(1);

impl Dispatch {
    /// Notes if a long queue waits in the port.
    #[inline]
    pub(crate) fn note_port(&mut self, is_long: bool) {
        self.is_long = is_long;
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
