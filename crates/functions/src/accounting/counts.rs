//! What is counted of a flow.

use bytemuck::{Pod, Zeroable};
use tailwater_chain::batch::Packet;
use tailwater_chain::region::write_in_order;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{Nanos, protocol};

/// A flow's counts. Small, so that they share a cache line with the state of the chain's other
/// functions: what would not fit is reported in a record of its own, as flow exporters do with
/// their active timeout (RFC 7011 §5.1.1 calls it a long-lasting flow).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Counts {
    /// From the lowest bit on: the union of TCP flags, in eight bits; bytes, in 48, which packets and their lengths
    /// bound; and the lowest eight bits of the number of packets that this sums up. Its write counts a packet: should
    /// the process be killed behind it, [`packets`](Counts::packets) knows of it nevertheless.
    sums: u64,
    /// Arrival of the first packet, nanoseconds; a flow that another instance saw first may have begun before the
    /// run, at a negative time in two's complement.
    first: u64,
    packets: u32,
    /// From the first packet to the last, microseconds: up to 71 minutes.
    lasted: u32,
}

/// Where in the sums the bytes are, and the number of packets.
const BYTES: u32 = 8;
const NUMBER: u32 = 56;
/// Flags and bytes.
const SUMS: u64 = u64::MAX >> (64 - NUMBER);

impl Counts {
    /// None yet, of a flow whose first packet came then.
    pub(crate) fn from(first: Nanos) -> Counts {
        Counts {
            first: first.0,
            ..Counts::zeroed()
        }
    }

    /// Packets that were counted: the one, too, in whose midst the process was killed, if its bytes were.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        let behind = ((self.sums >> NUMBER) as u8).wrapping_sub(self.packets as u8);
        self.packets.wrapping_add(behind.into())
    }

    /// Counts a packet of so many bytes; `false`, with nothing changed, if there is no room.
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

    /// Bytes of these packets.
    pub(crate) fn bytes(&self) -> u64 {
        (self.sums & SUMS) >> BYTES
    }

    /// The union of their TCP flags.
    pub(crate) fn flags(&self) -> TcpFlags {
        TcpFlags(self.sums as u8)
    }

    /// When the first came: a negative time, in two's complement, for what another instance saw before this run.
    pub(crate) fn first(&self) -> Nanos {
        Nanos(self.first)
    }

    /// When the last came, rounded down to whole microseconds after the first.
    pub(crate) fn last(&self) -> Nanos {
        Nanos(self.first.wrapping_add(u64::from(self.lasted) * 1000))
    }

    /// As they are kept outside: from another clock's start, and knowing of no process that may be killed.
    pub(crate) fn to_durable(self, origin: Nanos) -> Counts {
        Counts {
            first: self.first.wrapping_add(origin.0),
            packets: self.packets(),
            sums: self.sums & SUMS,
            ..self
        }
    }

    /// The reverse of [`to_durable`](Counts::to_durable).
    pub(crate) fn of_durable(self, origin: Nanos) -> Counts {
        Counts {
            first: self.first.wrapping_sub(origin.0),
            sums: self.sums & SUMS | u64::from(self.packets) << NUMBER,
            ..self
        }
    }
}

/// The flags of a TCP segment; none of other packets.
#[inline]
pub(crate) fn flags(packet: &Packet, frame: &[u8]) -> TcpFlags {
    /// Where in a TCP header the flags are.
    const AT: usize = 13;
    let headers = &packet.headers;
    if headers.key.protocol() != protocol::TCP || headers.key.is_fragment() {
        return TcpFlags::default();
    }
    let at = usize::from(headers.transport_offset) + AT;
    TcpFlags(frame.get(at).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever a process is killed in the midst of a packet, the packet is counted whole or not at all, and counting
    /// goes on from there.
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
