//! Flows that the functions of a segment have not seen, or not under their present versions.

use super::stage::Stage;
use super::{Chain, tell_ends};
use crate::batch::{Batch, Verdict};
use crate::function::{NetworkFunction, NewFlow, SHOWN_BEFORE, StateSlot, UNSEEN};
use crate::region::write_in_order;
use tailwater_net::Nanos;

impl Chain {
    /// One number for the versions of all functions of a segment with state. A flow that all of them
    /// have seen under their present versions bears it, so that for nearly every packet one look
    /// tells that there is nothing to open. Never 0. Every instance of a chain comes to the same number.
    ///
    /// Packets that took branches in front of the segment have [numbers of their own](settled_on): a flow that
    /// goes another way has not been seen there.
    #[inline]
    pub(super) fn settled_version(&self, segment: usize) -> u32 {
        let stages = &self.stages[self.segments[segment].stages.clone()];
        let stages = stages.iter().filter(|stage| stage.slot.is_some());
        let mixed = stages.fold(0u32, |mixed, stage| {
            // Odd, so that no change of one version is lost.
            (mixed ^ stage.function.version()).wrapping_mul(0x9e37_79b1)
        });
        mixed.max(1)
    }

    /// Notes which packets' flows all functions of a segment have seen. Whether there are others.
    #[inline]
    pub(super) fn mark_settled(&mut self, segment: usize, batch: &mut Batch) -> bool {
        if !self.segments[segment].has_state() {
            return false;
        }
        if (segment > 0 || self.alone) && batch.iter().any(|packet| packet.is_rekeyed()) {
            self.learn_of_rekeyed(segment, batch);
        }
        let version = self.settled_version(segment);
        let segment = &self.segments[segment];
        let Some(table) = self.table.as_mut() else {
            return false;
        };
        let mut unsettled = false;
        for packet in batch.iter_mut() {
            let at = segment.settled_at(packet.is_reversed());
            let version = settled_on(version, segment.came(packet.way));
            let settled = *table.word(packet.flow, at) == version;
            packet.set_settled(settled);
            unsettled |= !settled;
        }
        unsettled
    }

    /// Has the functions of a segment be shown again the flows that one in front of it rekeyed.
    #[cold]
    fn learn_of_rekeyed(&mut self, segment: usize, batch: &mut Batch) {
        let segment = &self.segments[segment];
        let stages = &self.stages[segment.stages.clone()];
        let Some(table) = &mut self.table else {
            return;
        };
        for packet in batch.iter_mut().filter(|packet| packet.is_rekeyed()) {
            packet.set_rekeyed(false);
            let flow = (packet.flow, packet.is_reversed());
            segment.show_again(with_state(stages), table, flow);
        }
    }

    /// Notes the flows that all functions of a segment on their way have seen by now: those of the packets that
    /// none dropped. The packets tell the segments behind what these have to know.
    pub(super) fn settle(&mut self, segment: usize, batch: &mut Batch) {
        let version = self.settled_version(segment);
        let segment = &self.segments[segment];
        let stages = &self.stages[segment.stages.clone()];
        let Some(table) = &mut self.table else {
            return;
        };
        for packet in batch.iter_mut().filter(|packet| !packet.is_settled()) {
            let reversed = packet.is_reversed();
            if let Some(pending) = segment.pending(reversed) {
                packet.set_rekeyed(std::mem::take(table.word(packet.flow, pending)) != 0);
            }
            // A version may have changed since the flow was opened under the last.
            let way = packet.way;
            let passed = stages.iter().filter(|stage| stage.is_on(way));
            let seen = with_state(passed)
                .all(|(function, slot)| *table.word(packet.flow, slot.version_at(reversed)) == function.version());
            if seen {
                let version = settled_on(version, segment.came(way));
                *table.word(packet.flow, segment.settled_at(reversed)) = version;
            }
        }
    }

    /// Shows function `i`, which is of this segment, the flows that it has not seen under its present
    /// version.
    pub(super) fn open_new_flows(&mut self, i: usize, segment: usize, batch: &mut Batch, now: Nanos) {
        let segment = &self.segments[segment];
        let stages = self.stages[i..segment.stages.end].split_first_mut();
        let Some((Stage { function, slot, .. }, later)) = stages else {
            return;
        };
        let (Some(slot), Some(table)) = (slot, &mut self.table) else {
            return;
        };
        let version = function.version();
        debug_assert!(![UNSEEN, SHOWN_BEFORE].contains(&version), "no version has that number");
        self.unseen.clear();
        for (at, packet) in batch.iter().enumerate() {
            let at_version = slot.version_at(packet.is_reversed());
            if !packet.is_settled() && *table.word(packet.flow, at_version) != version {
                self.unseen.push(at as u16);
            }
        }
        if self.unseen.is_empty() {
            return;
        }
        function.prepare(batch, &self.unseen);
        let mut refused = false;
        for &at in &self.unseen {
            let (packet, frame) = batch.packet_mut(usize::from(at));
            let at_version = slot.version_at(packet.is_reversed());
            let seen = *table.word(packet.flow, at_version);
            if seen == version {
                // An earlier packet of the batch has opened the flow.
                continue;
            }
            let (restored, wishes) = match (&self.keep, &mut self.imaging) {
                (Some(keep), _) => keep.show(i, table, packet.flow),
                (None, Some(imaging)) if seen == UNSEEN => imaging.show(table, packet.flow, (&mut **function, slot)),
                (None, _) => (false, None),
            };
            let mut flow = NewFlow {
                table,
                ends: &mut self.ends,
                slot,
                packet,
                now,
                version,
                at,
                rekeyed: false,
                wishes,
            };
            if restored && !function.resume(packet, &mut flow) {
                flow.table.state(packet.flow, &slot.state).fill(0);
            }
            let verdict = function.new_flow(packet, frame, &mut flow);
            // Nobody behind has seen a flow that is new here, so there is nothing to show again.
            if flow.rekeyed && seen != UNSEEN {
                let flow = (packet.flow, packet.is_reversed());
                segment.show_again(with_state(&*later), table, flow);
            }
            match verdict {
                Verdict::Drop(reason) => {
                    if let Some(keep) = &self.keep {
                        keep.refused(table, packet.flow);
                    }
                    if let Some(imaging) = &self.imaging {
                        imaging.refused(table, packet.flow);
                    }
                    packet.verdict = Verdict::Drop(reason);
                    refused = true;
                }
                Verdict::Forward | Verdict::Bypass => {
                    if let Some(imaging) = &mut self.imaging {
                        imaging.opened(table, packet.flow, (&**function, slot));
                    }
                    // In a process that is killed meanwhile, the flow is as good as not shown.
                    write_in_order();
                    *table.word(packet.flow, at_version) = version;
                }
            }
        }
        if refused {
            self.lost += self.stages[i].compact(batch);
        }
        tell_ends(&mut self.stages, &mut self.ends);
    }
}

/// The settled version for packets that have come to the segment this way. Never 0.
#[inline]
fn settled_on(version: u32, came: u8) -> u32 {
    (version ^ u32::from(came).wrapping_mul(0x85eb_ca6b)).max(1)
}

/// The functions that have state, with where it is.
fn with_state<'s>(
    stages: impl IntoIterator<Item = &'s Stage>,
) -> impl Iterator<Item = (&'s dyn NetworkFunction, &'s StateSlot)> {
    stages
        .into_iter()
        .filter_map(|stage| Some((&*stage.function as &dyn NetworkFunction, stage.slot.as_ref()?)))
}
