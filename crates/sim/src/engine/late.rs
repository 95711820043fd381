//! Packets that are too late, on cores of chains whose model allows to discard them. The rule is
//! [`Freshness`], as in the live data plane.

use super::Engine;
use super::core::Stats;
use super::dispatch::Dispatch;
use super::fifo::Arrived;
use super::meter::{Meter, Sent};
use super::waiting::{NONE, Waiting};
use crate::chain::spend;
use tailwater_dispatch::Freshness;
use tailwater_measure::attribution::Attribution;
use tailwater_net::Nanos;

impl<'a> Sent<'a> {
    /// Packet of an auxiliary core. The delay on the way there is not attributed to the network.
    pub fn offloaded(waiting: &'a Waiting) -> Sent<'a> {
        Sent {
            packet: &waiting.packet,
            at: waiting.packet.arrival,
            buffered: false,
        }
    }
}

/// Returns how many of the first packets of a batch are discarded since they are too late, and counts them as lost.
/// `more` is set if packets wait behind the batch.
#[inline]
pub(super) fn discard_late<'a>(
    (freshness, attribution, stats): (&mut Option<Freshness>, &Attribution, &mut Stats),
    meter: &mut Meter,
    packets: impl ExactSizeIterator<Item = Sent<'a>> + Clone,
    (now, more): (u64, bool),
) -> usize {
    let Some(freshness) = freshness else {
        return 0;
    };
    let arrivals = packets.clone().map(|entry| Nanos(entry.packet.arrival));
    let late = freshness.too_late(Nanos(now), more, arrivals);
    if late > 0 {
        stats.late += meter.too_late(attribution, packets.take(late), now);
    }
    late
}

impl<'a> From<&'a Arrived> for Sent<'a> {
    fn from(arrived: &'a Arrived) -> Sent<'a> {
        Sent {
            packet: &arrived.packet,
            at: arrived.at,
            buffered: false,
        }
    }
}

impl<'a> From<&'a Waiting> for Sent<'a> {
    fn from(waiting: &'a Waiting) -> Sent<'a> {
        Sent {
            packet: &waiting.packet,
            at: waiting.at,
            buffered: waiting.buffered,
        }
    }
}

impl Engine<'_> {
    /// Counts the first packets of a batch that are too late as lost, which takes until the core is ready. Returns
    /// their number.
    pub(super) fn discard_late(
        &mut self,
        number: usize,
        chain: usize,
        now: u64,
        batch: &[Waiting],
        more: bool,
    ) -> usize {
        let (core, chain) = (&mut self.cores[number], &mut self.chains[chain]);
        let late = discard_late(
            (&mut core.freshness, &core.attribution, &mut core.stats),
            &mut chain.meter,
            batch.iter().map(Sent::from),
            (now, more),
        );
        if late > 0 {
            let took = spend(&mut core.carry, chain.costs.discard(late));
            core.ready = now + took;
            core.stats.busy += took;
            chain.worked += took;
        }
        late
    }

    /// Same for a batch of a dispatcher's own queue, without the packets that are discarded. Returns the time at which
    /// it begins.
    pub(super) fn discard_queued(
        &mut self,
        number: usize,
        chain: usize,
        dispatch: &mut Dispatch,
        now: u64,
        batch: &mut Vec<Waiting>,
        more: bool,
    ) -> u64 {
        let late = self.discard_late(number, chain, now, batch, more);
        let now = self.cores[number].ready.max(now);
        for waiting in batch.drain(..late) {
            if let Some(known) = dispatch.machine.backlog.discarded_here(waiting.slot) {
                *self.slot_of(chain, &mut dispatch.slots, known) = NONE;
            }
            self.left(number, &waiting.packet, now);
        }
        now
    }

    /// Counts the first of the packets that a dispatcher receives, while others wait, as lost if they are too late for
    /// any core. Returns their number.
    pub(super) fn discard_received(&mut self, number: usize, chain: usize, now: u64, arrived: &[Arrived]) -> usize {
        let core = &mut self.cores[number];
        let Some(freshness) = &core.freshness else {
            return 0;
        };
        let arrivals = arrived.iter().map(|arrived| Nanos(arrived.packet.arrival));
        let late = freshness.too_late_to_queue(Nanos(now), arrivals);
        if late > 0 {
            let packets = arrived[..late].iter().map(Sent::from);
            core.stats.late += self.chains[chain].meter.too_late(&core.attribution, packets, now);
        }
        late
    }
}
