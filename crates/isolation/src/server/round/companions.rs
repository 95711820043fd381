//! Companion flows that functions request, and their candidates.

use super::{Opened, Round};
use crate::layout::{
    COMPANION_QUERY, CompanionRefusal, CompanionRequest, CompanionRequestKind, CompanionResponse, FlowSlot,
    PacketMetadata,
};
use crate::program::refusal_of;
use crate::server::status::Violation;
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Packet};
use tailwater_chain::flow_table::NoCompanion;
use tailwater_chain::function::{CompanionCandidates, FlowStates, MAX_CANDIDATES};
use tailwater_net::toeplitz::bucket_of;
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

impl Round {
    /// Opens a companion flow that function `k` requests.
    pub(super) fn grant(
        &mut self,
        k: usize,
        wish: CompanionRequest,
        batch: &Batch,
        flows: &mut FlowStates<'_>,
    ) -> CompanionResponse {
        if !self.peers[k].opens_companions {
            self.report(k, Violation::InvalidResponse);
            return Err(CompanionRefusal::TableFull);
        }
        // Only for a packet of this batch, and in its flow's bucket.
        let at = usize::from(wish.at);
        if at >= batch.len() {
            return Err(CompanionRefusal::TableFull);
        }
        let packet = batch.packet(at);
        let opened = match wish.kind {
            CompanionRequestKind::Open => flows.open_companion::<Opened>(packet, &wish.key, wish.rss_hash),
            CompanionRequestKind::Rejoin => {
                let images = self.area.snapshots(k);
                let is_new = |place, opened: &mut Opened| {
                    images.is_some_and(|images: &Arc<FlowSnapshots>| !images.is_of(place, opened[0]))
                };
                flows.rejoin_companion(packet, &wish.key, wish.rss_hash, is_new)
            }
            CompanionRequestKind::Free => Err(NoCompanion::TableFull),
        };
        let (place, state) = opened.map_err(refusal_of)?;
        if state[0] == 0 {
            *state = [self.next_generation(), place.into()];
        }
        Ok(FlowSlot {
            flow: place,
            generation: state[0],
        })
    }

    /// Returns function `k`'s companion candidates for a packet's flow through `wish`, from attempt `turn` on. Returns
    /// the attempt they belong to, or `None` if no response is available.
    pub(in crate::server) fn companion_candidates(
        &mut self,
        k: usize,
        packet: &Packet,
        turn: u8,
        wish: &mut CompanionCandidates<'_>,
    ) -> Option<u8> {
        if self.meet().is_some() {
            return None;
        }
        self.order.restore();
        self.area.request_area.set_metadata(
            0,
            &PacketMetadata {
                frame_range: [0; 2],
                arrival: turn.into(),
                rss_hash: packet.rss_hash,
                entry: 0,
                flow: u32::MAX,
                generation: 0,
            },
            &packet.headers,
        );
        let flags = self.flags;
        self.flags |= COMPANION_QUERY;
        let failed = self.go(0, 0, |_, _, asked| {
            let bucket = bucket_of(asked.rss_hash);
            match asked.kind {
                CompanionRequestKind::Free if wish.is_free(&asked.key, bucket) => {
                    Ok(FlowSlot { flow: 0, generation: 0 })
                }
                CompanionRequestKind::Free => Err(CompanionRefusal::Taken),
                CompanionRequestKind::Open | CompanionRequestKind::Rejoin => Err(CompanionRefusal::TableFull),
            }
        });
        self.flags = flags;
        let slate = &self.area.response_areas[k];
        let told = failed.is_none().then(|| {
            for (number, key) in slate.candidates() {
                if usize::from(number) < MAX_CANDIDATES {
                    wish.add(number, key);
                }
            }
            slate.candidates_attempt()
        });
        self.status.end();
        told
    }
}
