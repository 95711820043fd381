//! Growing and shrinking of frames at either end, with their header offsets.

use super::{Batch, Packet};
use crate::buffer::MAX_FRAME;
use tailwater_net::parse::Headers;

impl Batch {
    /// Moves the start of packet `i`'s frame forward by `bytes` into the headroom, so that a function can prepend a
    /// header. The new bytes are undefined, and header offsets are relative to the new start. Returns `None` and
    /// changes nothing if there is no room.
    #[inline]
    pub fn grow_front(&mut self, i: usize, bytes: usize) -> Option<(&mut Packet, &mut [u8])> {
        let packet = &mut self.packets[i].packet;
        let start = usize::from(packet.start).checked_sub(bytes)?;
        if packet.length() + bytes > MAX_FRAME {
            return None;
        }
        packet.start = start as u16;
        packet.length += bytes as u16;
        let headers = &mut packet.headers;
        for offset in header_offsets(headers) {
            *offset = offset.saturating_add(bytes as u16);
        }
        Some(self.packet_mut(i))
    }

    /// Makes the IP datagram in the frame of packet `i` `bytes` longer at its end; Ethernet padding stays behind it.
    /// The new bytes are undefined. Uses the room behind the frame, or else moves the frame into the headroom. Returns
    /// `None` and changes nothing if there is no room.
    #[inline]
    pub fn grow_back(&mut self, i: usize, bytes: usize) -> Option<(&mut Packet, &mut [u8])> {
        let packet = &self.packets[i].packet;
        let (start, length) = (usize::from(packet.start), packet.length());
        if length + bytes > MAX_FRAME {
            return None;
        }
        if start + length + bytes > self.memory.buffer_bytes() {
            let (packet, frame) = self.grow_front(i, bytes)?;
            for offset in header_offsets(&mut packet.headers) {
                *offset -= bytes as u16;
            }
            frame.copy_within(bytes.., 0);
        } else {
            self.packets[i].packet.length += bytes as u16;
        }
        let (packet, frame) = self.packets[i].split(self.memory.view());
        let end = usize::from(packet.headers.end);
        frame.copy_within(end..length, end + bytes);
        packet.headers.end += bytes as u16;
        Some((packet, frame))
    }

    /// Removes the last `bytes` of the IP datagram from the frame of packet `i`. Returns `None` and changes nothing if
    /// its payload is shorter.
    #[inline]
    pub fn shrink_back(&mut self, i: usize, bytes: usize) -> Option<(&mut Packet, &mut [u8])> {
        let (packet, frame) = self.packets[i].split(self.memory.view());
        let end = usize::from(packet.headers.end);
        if end > frame.len() || end < usize::from(packet.headers.payload_offset) + bytes {
            return None;
        }
        frame.copy_within(end.., end - bytes);
        packet.headers.end -= bytes as u16;
        packet.length -= bytes as u16;
        Some(self.packet_mut(i))
    }

    /// Removes `bytes` from the start of packet `i`'s frame; header offsets are relative to the new start. Returns
    /// `None` and changes nothing if that would cut into the network header.
    #[inline]
    pub fn shrink_front(&mut self, i: usize, bytes: usize) -> Option<(&mut Packet, &mut [u8])> {
        let packet = &mut self.packets[i].packet;
        if bytes > usize::from(packet.headers.network_offset) {
            return None;
        }
        packet.start += bytes as u16;
        packet.length -= bytes as u16;
        for offset in header_offsets(&mut packet.headers) {
            *offset -= bytes as u16;
        }
        Some(self.packet_mut(i))
    }
}

/// All header offsets that are relative to the frame's start.
fn header_offsets(headers: &mut Headers) -> [&mut u16; 4] {
    [
        &mut headers.network_offset,
        &mut headers.transport_offset,
        &mut headers.payload_offset,
        &mut headers.end,
    ]
}
