//! Flows whose packets other cores process.

use super::Chain;
use super::flow_callbacks::{EXPIRE_BUDGET, before_flows_move};
use crate::batch::{Batch, Packet};
use crate::flow_table::FlowIndex;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;

/// Flow with packets in the system, as returned by [`Chain::activate`].
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlow(FlowIndex);

impl ActiveFlow {
    /// No flow.
    pub const NONE: ActiveFlow = ActiveFlow(FlowIndex::NONE);
}

impl Chain {
    /// Returns the active number of the packet's flow, if it has packets in the system.
    ///
    /// # Panics
    /// If the packet was not looked up in this instance.
    #[inline]
    pub fn active(&self, packet: &Packet) -> Option<u16> {
        self.table.as_ref()?.active(packet.flow)
    }

    /// Assigns an active number below 65,535 to the packet's flow. Until it is [removed](Chain::deactivate), the flow
    /// stays in the table.
    ///
    /// # Panics
    /// If the packet was not looked up in this instance.
    #[inline]
    pub fn activate(&mut self, packet: &Packet, number: u16) -> ActiveFlow {
        if let Some(table) = &mut self.table {
            table.set_active(packet.flow, Some(number));
        }
        ActiveFlow(packet.flow)
    }

    /// Removes the active number: the flow has no packets in the system any more.
    #[inline]
    pub fn deactivate(&mut self, flow: ActiveFlow) {
        if let Some(table) = &mut self.table {
            table.set_active(flow.0, None);
        }
    }

    /// Lends an RSS bucket with its flows to another core, on which this instance's packets of the bucket are from now
    /// on. Until it is [taken back](Chain::take_back), this instance does not use it.
    ///
    /// With external state, all requests about the bucket have been answered: the other core has a client of its own.
    #[inline]
    pub fn lend(&mut self, bucket: u16) {
        self.claim_bucket(bucket);
        if self.external_state.is_some() && self.holds_bucket(bucket) {
            self.forget_requests(bucket);
        }
        if let Some(table) = &mut self.table {
            table.lend(bucket);
        }
    }

    /// Returns `true` if this instance may look up flows of an RSS bucket: it holds the bucket and has not lent it, or
    /// looks no flow up.
    #[inline]
    pub fn holds_bucket(&self, bucket: u16) -> bool {
        self.table.as_ref().is_none_or(|table| table.is_usable(bucket))
    }

    /// Completes pending work for flows that have ended, before another core may use their indices in the flow table:
    /// this instance is about to send it packets, or the packets that it had from it back.
    #[inline]
    pub fn before_flows_move(&mut self) {
        before_flows_move(&mut self.stages);
    }

    /// Takes a lent bucket back: none of its packets is on another core any more, and with external state, all requests
    /// of that core about the bucket have been answered.
    #[inline]
    pub fn take_back(&mut self, bucket: u16) {
        let Some(table) = &mut self.table else {
            return;
        };
        let was_lent = !table.is_usable(bucket);
        table.take_back(bucket);
        if was_lent && self.external_state.is_some() && self.holds_bucket(bucket) {
            self.forget_requests(bucket);
        }
    }

    /// Lends a bucket that another core has returned to a third one. Same as [`take_back`](Chain::take_back) and
    /// [`lend`](Chain::lend).
    #[inline]
    pub fn lend_on(&mut self, bucket: u16) {
        if self.external_state.is_some() {
            self.take_back(bucket);
        }
        self.lend(bucket);
    }

    /// Lets this instance, which may hold buckets of its own, [borrow](Chain::borrow) those of others.
    ///
    /// # Safety
    /// While this instance borrows a bucket, every instance that holds it has [lent](Chain::lend) it, to this one only.
    /// Earlier uses of the bucket happened before.
    pub unsafe fn enable_borrowing(&mut self) {
        if let Some(table) = &mut self.table {
            // SAFETY: guaranteed by the caller.
            unsafe { table.enable_borrowing() };
        }
    }

    /// Borrows the RSS buckets of the packets of a batch, which other instances have lent, until they are
    /// [returned](Chain::return_borrowed). No effect unless borrowing is [enabled](Chain::enable_borrowing).
    #[inline]
    pub fn borrow(&mut self, batch: &Batch) {
        if let Some(table) = &mut self.table {
            table.borrow_buckets(batch.iter().map(|packet| bucket_of(packet.rss_hash)));
        }
    }

    /// Returns all borrowed buckets: this instance has no packet of them any more.
    #[inline]
    pub fn return_borrowed(&mut self) {
        if let Some(table) = &mut self.table {
            table.return_borrowed();
        }
    }

    /// Takes all lent buckets back, after all other instances have ended.
    pub fn take_all_back(&mut self) {
        if let Some(table) = &mut self.table {
            table.take_all_back();
        }
    }

    /// Sets whether the flows of a bucket stay in the table, because packets that were looked up here are on another
    /// core.
    #[inline]
    pub fn keep_flows(&mut self, bucket: u16, keeps: bool) {
        if let Some(table) = &mut self.table {
            table.keep_flows(bucket, keeps);
        }
    }

    /// Expires idle flows of a bucket that was lent to this instance or that it has [borrowed](Chain::borrow), up to a
    /// fixed budget for each call. A packet of the bucket is in hand.
    #[inline]
    pub fn expire_lent(&mut self, bucket: u16, now: Nanos) {
        if let Some(table) = &mut self.table {
            table.expire_bucket(bucket, now, EXPIRE_BUDGET, &mut self.ends);
            self.end_expired(now);
        }
    }

    /// Returns `true` if a function in this segment or behind it opens companions, which requires the flow table.
    pub fn opens_companions_from(&self, segment: usize) -> bool {
        self.segments[segment..].iter().any(|segment| segment.opens_companions)
    }

    /// Returns `true` if the core that looked the packet up must process it: a function opens a companion for each
    /// flow, and has not opened one for this flow. This includes flows that branches keep away from such a function's
    /// segment, because their branch is not known yet.
    #[inline]
    pub fn is_bound(&mut self, packet: &Packet) -> bool {
        let Some(table) = &mut self.table else {
            return false;
        };
        let mut opening = self.segments.iter().filter(|s| s.opens_companions);
        opening.any(|segment| *table.word(packet.flow, segment.settled_at(packet.is_reversed())) != segment.settled)
    }
}
