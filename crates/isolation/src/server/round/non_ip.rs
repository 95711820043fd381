//! Frames that are not IP, for functions that inspect them. Each takes a round of its own: they are rare.

use super::{Round, Violation};
use crate::layout::{CompanionRefusal, NON_IP, PacketMetadata, PacketResponse};
use tailwater_chain::batch::{Packet, Verdict};

impl Round {
    /// Passes a frame that is not IP to the functions, and returns function `k`'s verdict. Other functions that inspect
    /// such frames see it, too, and respond in rounds of their own.
    #[cold]
    pub(in crate::server) fn inspect_non_ip(&mut self, k: usize, packet: &Packet, frame: &[u8]) -> Verdict {
        let lost = Verdict::Drop(self.peers[k].reasons);
        if self.get_past_outages(1).is_some() {
            return lost;
        }
        let (start, buffer_bytes) = (packet.start(), self.area.buffer_bytes);
        if start + frame.len() > buffer_bytes {
            return lost;
        }
        self.order.restore_for_packets();
        self.area.packets.write(start, frame);
        self.area.request_area.set_metadata(
            0,
            &PacketMetadata {
                frame_range: [start as u16, frame.len() as u16],
                arrival: packet.arrival.0,
                rss_hash: packet.rss_hash,
                entry: packet.entry,
                flow: u32::MAX,
                generation: 0,
            },
            &packet.headers,
        );
        let flags = self.flags;
        self.flags |= NON_IP;
        let failed = self.go(0, packet.arrival.0, |_, _, _| Err(CompanionRefusal::TableFull));
        self.flags = flags;
        let response = &self.area.response_areas[k];
        let is_of_round = failed.is_none() && response.masks_round() == self.round;
        let word = PacketResponse::decode(response.response_word(0), self.round);
        let verdict = match (response.masks(0).left & 1, word) {
            (1, _) if is_of_round => Verdict::Forward,
            (0, Some(PacketResponse::Dropped(reason))) if is_of_round && reason < self.peers[k].reasons => {
                Verdict::Drop(reason)
            }
            _ => {
                if failed.is_none() && !self.order.has_slept() {
                    self.report(k, Violation::InvalidResponse);
                }
                lost
            }
        };
        self.status.end();
        // A function may have written anywhere.
        self.area.packets.wipe(0, buffer_bytes);
        verdict
    }
}
