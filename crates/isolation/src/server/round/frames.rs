//! Frames and metadata of a batch: into the shared memory before a round, and out of it afterwards.

use super::{Opened, Round};
use crate::layout::{PacketMetadata, slots};
use crate::server::area::Area;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::FlowStates;
use tailwater_sdk::host::find_headers;

impl Round {
    /// Writes the packets' metadata to the request area, and their frames to packet memory.
    pub(super) fn describe(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let (board, packets) = (&self.area.request_area, &self.area.packets);
        let (buffer_bytes, connections) = (self.area.buffer_bytes, self.area.connections);
        let mut i = 0;
        batch.for_each(|packet, frame| {
            let start = packet.start();
            let (birth, flow) = match has_state {
                true => {
                    let [birth, place] = *flows.state::<Opened>(packet);
                    let place = place as u32;
                    // Functions that keep state per direction have one slot per direction.
                    let of_direction = place << 1 | u32::from(packet.is_reversed());
                    (birth, if connections { of_direction } else { place })
                }
                false => (0, packet.flow().unwrap_or(u32::MAX)),
            };
            board.set_metadata(
                i,
                &PacketMetadata {
                    frame_range: [start as u16, frame.len() as u16],
                    arrival: packet.arrival.0,
                    rss_hash: packet.rss_hash,
                    entry: packet.entry,
                    flow,
                    generation: birth,
                },
                &packet.headers,
            );
            packets.write(i * buffer_bytes + start, frame);
            i += 1;
        });
    }

    /// Copies out the frames of forwarded packets. If functions follow in this process, parses their headers again. The
    /// last function of the group loses packets whose headers have become invalid.
    pub(super) fn copy_out(&mut self, count: usize, batch: &mut Batch) {
        let Area {
            packets,
            request_area: board,
            buffer_bytes,
            ..
        } = &*self.area;
        let (left, last) = (self.through[self.peers.len()], self.peers.last());
        let lost = last.map_or(u8::MAX, |last| last.reasons);
        for (word, left) in left.into_iter().enumerate().take(count.div_ceil(64)) {
            for i in slots(word, left) {
                let [start, length] = match self.moved[word] >> (i % 64) & 1 {
                    0 => board.frame_range(i),
                    _ => self.frames[i],
                };
                let place = [start.into(), length.into()];
                batch.replace_frame(i, place, |frame| {
                    packets.read(i * buffer_bytes + place[0], frame);
                });
                if self.followed {
                    let (packet, frame) = batch.packet_mut(i);
                    if !find_headers(frame, &mut packet.headers) {
                        self.reasons[i] = lost;
                        self.through[self.peers.len()][word] &= !(1 << (i % 64));
                    }
                }
            }
        }
    }
}
