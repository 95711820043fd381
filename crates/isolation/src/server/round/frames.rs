//! Frames and metadata of a batch: into the shared memory before a round, and out of it afterwards.
//!
//! Before other processes run again, the buffers are wiped: a function must not read what those behind it wrote, such
//! as the plaintext of packets that they decrypted. Wiped is what any function stated as a packet's frame. If a
//! function behind the first dropped a packet or the round failed, nothing is known, and the whole buffer is wiped.

use super::{Opened, Round};
use crate::layout::PacketMetadata;
use crate::server::area::Area;
use tailwater_chain::batch::Batch;
use tailwater_chain::function::FlowStates;
use tailwater_net::parse::{Network, parse, parse_plain_v4};
use tailwater_sdk::host::find_headers;

impl Round {
    /// Writes the packets' metadata to the request area, and their frames to packet memory.
    pub(super) fn describe(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let (board, packets) = (&self.area.request_area, &self.area.packets);
        let (buffer_bytes, connections) = (self.area.buffer_bytes, self.area.connections);
        let written = &mut self.written;
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
            written[i] = [start as u32, (start + frame.len()) as u32];
            i += 1;
        });
    }

    /// Copies out the frames of forwarded packets, and wipes all buffers; entirely, if the round `failed`. The last
    /// function of the group loses packets that are no longer well-formed IP. If functions follow in this process, the
    /// headers are parsed again. Where no function can change a frame, the batch still has it, with the headers of its
    /// arrival.
    pub(super) fn copy_out(&mut self, count: usize, batch: &mut Batch, failed: bool) {
        let Area {
            packets,
            request_area: board,
            buffer_bytes,
            ..
        } = &*self.area;
        let read_only = self.area.is_read_only();
        let last = self.peers.len();
        let lost = self.peers.last().map_or(u8::MAX, |last| last.reasons);
        for i in 0..count {
            let (word, bit) = (i / 64, 1 << (i % 64));
            let is_changed = !read_only || self.moved[word] & bit != 0;
            if is_changed && self.through[last][word] & bit != 0 {
                let [start, length] = match self.moved[word] & bit {
                    0 => board.frame_range(i),
                    _ => self.frames[i],
                };
                let place = [start.into(), length.into()];
                batch.replace_frame(i, place, |frame| {
                    packets.read(i * buffer_bytes + place[0], frame);
                });
                let (packet, frame) = batch.packet_mut(i);
                if self.turned[word] & bit != 0 {
                    packet.turn_back();
                }
                let is_fit = match self.followed {
                    true => find_headers(frame, &mut packet.headers),
                    false => parse_plain_v4(frame).is_some() || is_ip(frame),
                };
                if !is_fit {
                    self.reasons[i] = lost;
                    self.through[last][word] &= !bit;
                }
            }
            let [from, to] = match (std::mem::take(&mut self.written[i]), failed) {
                // Not even written.
                ([0, 0], _) => continue,
                (_, true) => [0, *buffer_bytes],
                (written, false) => written.map(|at| at as usize),
            };
            packets.wipe(i * buffer_bytes + from, to - from);
        }
    }
}

/// Returns `true` for a frame that is well-formed IP, of any kind.
#[inline(never)]
fn is_ip(frame: &[u8]) -> bool {
    parse(frame).is_ok_and(|headers| headers.network != Network::NotIp)
}
