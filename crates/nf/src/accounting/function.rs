//! The `Accounting` network function.

use super::export::{AccountingTable, FlowRecord, Totals};
use crate::batch::{Batch, Packet, Verdict};
use crate::chunks::ChunkSender;
use crate::function::{FlowStates, NetworkFunction, NewFlow};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

/// A flow's counts. Small, so that they share a cache line with the state of the chain's other
/// functions: what would not fit is reported in a record of its own, as flow exporters do with
/// their active timeout (RFC 7011 §5.1.1 calls it a long-lasting flow).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Counts {
    /// Bytes, and in the lowest eight bits the union of TCP flags. Packets and their lengths bound the
    /// bytes to 48 bits.
    bytes_and_flags: u64,
    /// Arrival of the first packet, nanoseconds; a flow that another instance saw first may have begun before the
    /// run, at a negative time in two's complement.
    first: u64,
    packets: u32,
    /// From the first packet to the last, microseconds: up to 71 minutes.
    lasted: u32,
}

const FLAGS: u32 = 8;

impl Counts {
    fn from(first: Nanos) -> Counts {
        Counts {
            first: first.0,
            ..Counts::zeroed()
        }
    }

    /// Counts a packet; `false`, with nothing changed, if there is no room.
    #[inline]
    #[must_use]
    fn add(&mut self, packet: &Packet, flags: TcpFlags) -> bool {
        let lasted = (packet.arrival.0.wrapping_sub(self.first) as i64).max(0) as u64 / 1000;
        let Ok(lasted) = u32::try_from(lasted) else {
            return false;
        };
        let Some(packets) = self.packets.checked_add(1) else {
            return false;
        };
        self.packets = packets;
        self.lasted = self.lasted.max(lasted);
        let bytes = (packet.length() as u64) << FLAGS;
        self.bytes_and_flags = (self.bytes_and_flags + bytes) | u64::from(flags.0);
        true
    }

    fn record(&self, key: &FlowKey) -> FlowRecord {
        FlowRecord {
            key: *key,
            packets: self.packets.into(),
            bytes: self.bytes_and_flags >> FLAGS,
            flags: TcpFlags(self.bytes_and_flags as u8),
            first: Nanos(self.first),
            last: Nanos(self.first.wrapping_add(u64::from(self.lasted) * 1000)),
        }
    }
}

/// Counts each flow's packets and bytes.
#[derive(Debug)]
pub struct Accounting {
    table: Arc<AccountingTable>,
    /// `None` without a file.
    sender: Option<ChunkSender<FlowRecord>>,
    totals: Totals,
    /// Whether the last packet has passed, so that there is nothing to hold up any more.
    finishing: bool,
}

impl Accounting {
    /// A worker's instance.
    pub fn new(table: Arc<AccountingTable>) -> Accounting {
        Accounting {
            sender: table.sender(),
            table,
            totals: Totals::default(),
            finishing: false,
        }
    }

    #[cold]
    fn export(&mut self, record: FlowRecord) {
        self.totals.records += 1;
        self.totals.packets += record.packets;
        self.totals.bytes += record.bytes;
        let Some(sender) = &mut self.sender else {
            return;
        };
        if self.finishing {
            sender.wait_for_room(1);
        } else if !sender.has_room(1) {
            self.totals.lost_records += 1;
            return;
        }
        sender.extend(&[record]);
    }
}

impl NetworkFunction for Accounting {
    fn kind(&self) -> &'static str {
        "Accounting"
    }

    fn state_bytes(&self) -> usize {
        size_of::<Counts>()
    }

    fn new_flow(&mut self, packet: &Packet, _frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        // Shown again, a flow goes on counting.
        let counts = flow.state::<Counts>();
        if counts.packets == 0 {
            *counts = Counts::from(packet.arrival);
        }
        Verdict::Forward
    }

    fn durable(&self) -> Option<u32> {
        Some(1)
    }

    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        shift_first(state, origin.0);
    }

    fn take_durable(&mut self, state: &mut [u8], origin: Nanos) {
        shift_first(state, origin.0.wrapping_neg());
    }

    fn wants_flow_ends(&self) -> bool {
        true
    }

    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let counts: Counts = bytemuck::pod_read_unaligned(state);
        if counts.packets > 0 {
            self.export(counts.record(key));
        }
    }

    fn finish(&mut self) {
        self.finishing = true;
    }

    fn needs_payload(&self) -> bool {
        false
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        batch.for_each(|packet, frame| {
            let flags = flags(packet, frame);
            if !flows.state::<Counts>(packet).add(packet, flags) {
                let key = flows.key(packet);
                let counts = flows.state::<Counts>(packet);
                let full = std::mem::replace(counts, Counts::from(packet.arrival));
                // A fresh one has room.
                let _ = counts.add(packet, flags);
                self.export(full.record(&key));
            }
        });
    }
}

/// Moves the first packet's arrival to another clock, on which it is so much later.
fn shift_first(state: &mut [u8], by: u64) {
    let mut counts: Counts = bytemuck::pod_read_unaligned(state);
    counts.first = counts.first.wrapping_add(by);
    state.copy_from_slice(bytemuck::bytes_of(&counts));
}

impl Drop for Accounting {
    fn drop(&mut self) {
        self.table.add(&self.totals);
    }
}

/// The flags of a TCP segment; none of other packets.
#[inline]
fn flags(packet: &Packet, frame: &[u8]) -> TcpFlags {
    /// Where in a TCP header the flags are.
    const AT: usize = 13;
    let headers = &packet.headers;
    if headers.key.protocol() != protocol::TCP || headers.key.is_fragment() {
        return TcpFlags::default();
    }
    let at = usize::from(headers.transport_offset) + AT;
    TcpFlags(frame.get(at).copied().unwrap_or_default())
}
