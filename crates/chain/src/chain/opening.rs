//! Opening of flows that a segment's functions have not seen under their current versions.

use super::Chain;
use super::flow_callbacks::report_flow_ends;
use super::stage::Stage;
use crate::batch::{Batch, Verdict};
use crate::function::{NewFlow, SHOWN_BEFORE, StateSlot, UNSEEN};
use crate::region::write_in_order;
use tailwater_net::Nanos;

impl Chain {
    /// Combines the versions of all functions of a segment with state into one number. A flow that all of them have
    /// seen under their current versions stores it. For nearly every packet, one comparison then shows that there is
    /// nothing to open. The number is never 0, and every instance of a chain computes the same.
    ///
    /// Packets that took branches in front of the segment have [numbers of their own](settled_on): a flow on another
    /// path has not been seen there.
    #[inline]
    pub(super) fn settled_version(&self, segment: usize) -> u32 {
        let stages = &self.stages[self.segments[segment].stages.clone()];
        let stages = stages.iter().filter(|stage| stage.slot.is_some());
        let mixed = stages.fold(0u32, |mixed, stage| {
            // Odd factor, so that no change of one version is lost.
            (mixed ^ stage.function.version()).wrapping_mul(0x9e37_79b1)
        });
        mixed.max(1)
    }

    /// Marks the packets whose flows all functions of a segment have seen. Returns `true` if there are others.
    #[inline]
    pub(super) fn mark_settled(&mut self, segment: usize, batch: &mut Batch) -> bool {
        if !self.segments[segment].has_state() {
            return false;
        }
        if (segment > 0 || self.isolated) && batch.iter().any(|packet| packet.is_rekeyed()) {
            self.invalidate_rekeyed(segment, batch);
        }
        let version = self.settled_version(segment);
        let segment = &self.segments[segment];
        let Some(table) = self.table.as_mut() else {
            return false;
        };
        let mut unsettled = false;
        for packet in batch.iter_mut() {
            let at = segment.settled_at(packet.is_reversed());
            let version = settled_on(version, segment.path_class(packet.path));
            let settled = *table.word(packet.flow, at) == version;
            packet.set_settled(settled);
            unsettled |= !settled;
        }
        unsettled
    }

    /// Makes the functions of a segment see flows again that a previous segment rekeyed.
    #[cold]
    fn invalidate_rekeyed(&mut self, segment: usize, batch: &mut Batch) {
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

    /// Marks the flows that all functions of a segment on their path have now seen: those of the packets that none
    /// dropped. The packets carry notifications for later segments.
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
            // A version may have changed after the flow was opened under the previous one.
            let path = packet.path;
            let passed = stages.iter().filter(|stage| stage.is_on(path));
            let seen = with_state(passed)
                .all(|(stage, slot)| *table.word(packet.flow, slot.version_at(reversed)) == stage.function.version());
            if seen {
                let version = settled_on(version, segment.path_class(path));
                *table.word(packet.flow, segment.settled_at(reversed)) = version;
            }
        }
    }

    /// Calls `new_flow` of function `i`, which belongs to this segment, for flows it has not seen under its current
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
            let (restored, taken_candidates) = match (&self.external_state, &mut self.snapshotter) {
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
                taken_candidates,
            };
            if restored
                && let Some(durable) = function.durable()
                && !durable.resume(packet, &mut flow)
            {
                flow.table.state(packet.flow, &slot.state).fill(0);
            }
            let verdict = function.new_flow(packet, frame, &mut flow);
            // No later function has seen a flow that is new here, so no function needs to see it again.
            if flow.rekeyed && seen != UNSEEN {
                let flow = (packet.flow, packet.is_reversed());
                segment.show_again(with_state(&*later), table, flow);
            }
            match verdict {
                Verdict::Drop(reason) => {
                    if let Some(keep) = &self.external_state {
                        keep.refused(table, packet.flow);
                    }
                    if let Some(imaging) = &self.snapshotter {
                        imaging.refused(table, packet.flow);
                    }
                    packet.verdict = Verdict::Drop(reason);
                    refused = true;
                }
                Verdict::Forward | Verdict::Bypass => {
                    if let Some(imaging) = &mut self.snapshotter {
                        imaging.opened(table, packet.flow, (&mut **function, slot));
                    }
                    // If the process is killed before the next write, the flow counts as not seen.
                    write_in_order();
                    *table.word(packet.flow, at_version) = version;
                }
            }
        }
        if refused {
            self.trace_refused(i, batch, now);
            self.lost += self.stages[i].compact(batch);
            if let Some(watch) = &mut self.stopwatch {
                watch.note_keys(batch);
            }
        }
        report_flow_ends(&mut self.stages, &mut self.ends);
    }
}

/// Settled version for packets that reached the segment on path `class`. Never 0.
#[inline]
fn settled_on(version: u32, class: u8) -> u32 {
    (version ^ u32::from(class).wrapping_mul(0x85eb_ca6b)).max(1)
}

/// Iterates over the stages whose functions have state, with its location.
fn with_state<'s>(stages: impl IntoIterator<Item = &'s Stage>) -> impl Iterator<Item = (&'s Stage, &'s StateSlot)> {
    let stages = stages.into_iter();
    stages.filter_map(|stage| Some((stage, stage.slot.as_ref()?)))
}
