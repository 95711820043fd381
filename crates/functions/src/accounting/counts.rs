//! Packet and byte counters of one flow.

use bytemuck::{Pod, Zeroable};
use std::hint::select_unpredictable;
use tailwater_chain::batch::Packet;
use tailwater_chain::region::write_in_order;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{Nanos, protocol};

/// Counters of a flow. They are small, so that they share a cache line with the flow state of the chain's other
/// functions. When a counter overflows, the flow continues in a new record, as flow exporters do on their active
/// timeout (RFC 7011 §5.1.1: long-lasting flow).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Counts {
    /// Three fields, from the lowest bit: the union of TCP flags (8 bits), bytes (48 bits), and the lower 8 bits of the
    /// packet count. 48 bits are enough for `u32::MAX` packets of maximum length. The write of this word counts the
    /// packet: if the process is killed before `packets` is written, [`packets`](Counts::packets) corrects for it.
    sums: u64,
    /// Arrival of the first packet, in nanoseconds. It is negative, in two's complement, if another instance received
    /// the first packet before this run began.
    first: u64,
    packets: u32,
    /// Time from the first packet to the last, in microseconds: at most 71 minutes.
    lasted: u32,
}

/// Bit offsets of the byte sum and of the packet count in `Counts::sums`.
const BYTES: u32 = 8;
const NUMBER: u32 = 56;
/// Mask of the flags and bytes.
const SUMS: u64 = u64::MAX >> (64 - NUMBER);

impl Counts {
    /// Returns zero counters for a flow whose first packet arrived at `first`.
    pub(crate) fn from(first: Nanos) -> Counts {
        Counts {
            first: first.0,
            ..Counts::zeroed()
        }
    }

    /// Returns the number of counted packets. It includes a packet during which the process was killed if its bytes
    /// were added.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        let behind = ((self.sums >> NUMBER) as u8).wrapping_sub(self.packets as u8);
        self.packets.wrapping_add(behind.into())
    }

    /// Counts a packet of `bytes` bytes. Returns `false` and changes nothing if a counter would overflow.
    #[inline]
    #[must_use]
    pub(crate) fn add(&mut self, arrival: Nanos, bytes: usize, flags: TcpFlags) -> bool {
        let lasted = (arrival.0.wrapping_sub(self.first) as i64).max(0) as u64 / 1000;
        let Ok(lasted) = u32::try_from(lasted) else {
            return false;
        };
        let Some(packets) = self.packets().checked_add(1) else {
            return false;
        };
        self.lasted = self.lasted.max(lasted);
        let bytes = (bytes as u64) << BYTES;
        let sums = ((self.sums & SUMS) + bytes) | u64::from(flags.0);
        write_in_order();
        self.sums = sums | u64::from(packets) << NUMBER;
        write_in_order();
        self.packets = packets;
        true
    }

    /// Returns the bytes of the counted packets.
    pub(crate) fn bytes(&self) -> u64 {
        (self.sums & SUMS) >> BYTES
    }

    /// Returns the union of the packets' TCP flags.
    pub(crate) fn flags(&self) -> TcpFlags {
        TcpFlags(self.sums as u8)
    }

    /// Returns the first packet's arrival. It is negative, in two's complement, if another instance received that
    /// packet before this run.
    pub(crate) fn first(&self) -> Nanos {
        Nanos(self.first)
    }

    /// Returns the last packet's arrival, rounded down to whole microseconds after the first.
    pub(crate) fn last(&self) -> Nanos {
        Nanos(self.first.wrapping_add(u64::from(self.lasted) * 1000))
    }

    /// Converts to the form stored externally: times relative to the other clock's origin, and no trace of an
    /// interrupted update.
    pub(crate) fn to_durable(self, origin: Nanos) -> Counts {
        Counts {
            first: self.first.wrapping_add(origin.0),
            packets: self.packets(),
            sums: self.sums & SUMS,
            ..self
        }
    }

    /// Inverse of [`to_durable`](Counts::to_durable).
    pub(crate) fn of_durable(self, origin: Nanos) -> Counts {
        Counts {
            first: self.first.wrapping_sub(origin.0),
            sums: self.sums & SUMS | u64::from(self.packets) << NUMBER,
            ..self
        }
    }
}

/// Returns the flags of a TCP segment, or no flags for other packets.
#[inline]
pub(crate) fn flags(packet: &Packet, frame: &[u8]) -> TcpFlags {
    /// Offset of the flags in a TCP header.
    const AT: usize = 13;
    let headers = &packet.headers;
    let at = usize::from(headers.transport_offset) + AT;
    let byte = frame.get(at).copied().unwrap_or_default();
    // Read in any case: in mixed traffic, no branch on the protocol can be predicted.
    let is_segment = headers.key.protocol() == protocol::TCP && !headers.key.is_fragment();
    TcpFlags(select_unpredictable(is_segment, byte, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte is read of other packets, too, and not used.
    #[test]
    fn only_segments_have_flags() {
        use std::net::Ipv4Addr;
        use tailwater_chain::batch::Batch;
        use tailwater_chain::buffer::BufferPool;
        use tailwater_net::FlowKey;
        use tailwater_net::builder::FrameBuilder;
        use tailwater_net::parse::parse;

        let flags_of = |number: u8, length: usize, fragment: bool| {
            let ends = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
            let key = FlowKey::v4(ends.0, ends.1, number, 1, 2);
            let mut frame = FrameBuilder::new(&key).frame_length(60).to_vec().unwrap();
            frame[34 + 13] = 0x12;
            let mut pool = BufferPool::new(1, 64).unwrap();
            let mut batch = Batch::new(&pool, 1);
            assert!(batch.push(&mut pool, &frame, Nanos::ZERO, 0));
            let (packet, frame) = batch.packet_mut(0);
            packet.headers = parse(frame).unwrap();
            if fragment {
                packet.headers.key = packet.headers.key.of_fragment();
            }
            flags(packet, &frame[..length]).0
        };
        assert_eq!(flags_of(protocol::TCP, 60, false), 0x12);
        assert_eq!(flags_of(protocol::TCP, 60, true), 0);
        assert_eq!(flags_of(protocol::UDP, 60, false), 0);
        // The shortest datagram of UDP ends before that byte.
        assert_eq!(flags_of(protocol::UDP, 42, false), 0);
    }

    /// At whatever store the process is killed, the packet is counted completely or not at all, and counting resumes
    /// from there.
    #[test]
    fn a_packet_is_counted_whole_or_not_at_all() {
        let arrival = Nanos(5_000);
        let mut counts = Counts::from(Nanos(0));
        for before in 0..600u64 {
            let mut after = counts;
            assert!(after.add(arrival, 100, TcpFlags::ACK));
            let first = Counts {
                lasted: after.lasted,
                ..counts
            };
            let second = Counts {
                sums: after.sums,
                ..first
            };
            for (written, packets) in [(first, before), (second, before + 1), (after, before + 1)] {
                assert_eq!(
                    (u64::from(written.packets()), written.bytes()),
                    (packets, packets * 100)
                );
                let mut next = written;
                assert!(next.add(arrival, 100, TcpFlags::ACK));
                assert_eq!(
                    (u64::from(next.packets()), next.bytes()),
                    (packets + 1, (packets + 1) * 100)
                );
            }
            counts = after;
        }
    }

    #[test]
    fn what_is_kept_outside_is_taken_back_as_it_was() {
        let killed = Counts {
            sums: 300 << BYTES | 0x12 | 3 << NUMBER,
            first: 7,
            packets: 2,
            lasted: 5,
        };
        let outside = killed.to_durable(Nanos(1000));
        assert_eq!(
            [outside.sums, outside.first, outside.packets.into()],
            [300 << BYTES | 0x12, 1007, 3]
        );
        let taken = outside.of_durable(Nanos(1000));
        let all = |counts: &Counts| (counts.bytes(), counts.flags(), counts.first(), counts.last());
        assert_eq!(all(&taken), all(&killed));
        assert_eq!(taken.packets(), 3);
    }
}
