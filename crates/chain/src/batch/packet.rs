//! Packet metadata and the location of a packet's bytes.

use crate::branches::START;
use crate::buffer::{Buffer, BufferMemory, BufferView};
use crate::flow_table::index::FlowIndex;
use std::net::IpAddr;
use tailwater_net::parse::{Fragment, Headers, Network};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::program::TurnPacket;

/// Decision on a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// The packet continues.
    #[default]
    Forward,
    /// The packet is dropped. The number is an index into the [drop
    /// reasons](crate::function::NetworkFunction::drop_reasons) of the function that drops it.
    Drop(u8),
    /// The packet skips the chain's functions and is sent as received (non-IP and malformed packets, where the spec
    /// says so). Set only before the first function.
    Bypass,
}

/// Metadata of a packet. The [`Batch`](super::Batch) gives access to the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Arrival time at the port, since the run's start.
    pub arrival: Nanos,
    /// RSS hash that the port computed.
    pub rss_hash: u32,
    /// Decision on the packet.
    pub verdict: Verdict,
    /// Ingress port of the chain's two: 0 for the entry port, 1 for the exit port.
    pub entry: u8,
    /// Header offsets and **current** 5-tuple: a function that rewrites the packet updates them.
    pub headers: Headers,
    pub(crate) flow: FlowIndex,
    /// Path that the packet has taken through the chain's branches: see [`PathTable`](crate::branches::PathTable).
    pub path: u8,
    /// Next segment of the chain for the packet, if it is in transit to one.
    pub(crate) segment: u8,
    pub(super) marks: Marks,
    /// Number that the dispatcher assigned to the flow, if the packet went through a queue.
    pub(crate) number: u16,
    /// Number by which the port finds the rest of the frame, which is not in the buffer yet; 0 if the frame is
    /// complete.
    pub(super) rest: u32,
    /// Offset of the frame in the buffer.
    pub(super) start: u16,
    pub(super) length: u16,
}

/// Flags of a packet and its flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks(u8);

impl Marks {
    const OPENED: u8 = 1;
    const REVERSED: u8 = 2;
    const REKEYED: u8 = 4;
    const TURNED: u8 = 8;
    const SETTLED: u8 = 16;
    const TRACED: u8 = 32;

    #[inline]
    fn has(self, mark: u8) -> bool {
        self.0 & mark != 0
    }

    #[inline]
    fn set(&mut self, mark: u8, on: bool) {
        self.0 = self.0 & !mark | if on { mark } else { 0 };
    }
}

/// Packet that a port has received.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Length of the frame in bytes.
    pub length: usize,
    /// Arrival time, since the run's start.
    pub arrival: Nanos,
    /// RSS hash of the packet.
    pub rss_hash: u32,
    /// Number by which the port finds the rest of the frame when it [completes](super::Batch::complete) it; 0 if the
    /// frame is complete. All headers must be in the buffer already.
    pub rest: u32,
}

/// Packet that a device has received into a buffer of its own.
#[derive(Debug)]
pub struct Arrived {
    /// Buffer that holds the frame.
    pub buffer: Buffer,
    /// Offset of the frame in the buffer.
    pub start: u16,
    /// Length of the frame in bytes.
    pub length: u16,
    /// RSS hash, if the device computed one.
    pub hash: Option<u32>,
    /// Ingress port of the chain's two, as in [`Packet::entry`].
    pub entry: u8,
}

impl Arrived {
    /// Frame of the packet. `memory` must be the buffer's.
    ///
    /// # Panics
    /// If the buffer belongs to other memory, or the frame exceeds the buffer.
    #[inline]
    pub fn frame<'a>(&'a self, memory: &'a BufferMemory) -> &'a [u8] {
        &memory.bytes(&self.buffer)[usize::from(self.start)..][..usize::from(self.length)]
    }
}

/// Packet with its buffer, in separate fields so that metadata and frame can be borrowed together.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) packet: Packet,
    pub(super) buffer: Buffer,
}

// A cache line and a half. The L1 cache space that a batch takes is a cost for every packet.
const _: () = assert!(size_of::<Slot>() == 96);

impl Slot {
    /// Index of the packet's buffer, which no other packet of the pool has.
    #[inline]
    pub(crate) fn buffer_index(&self) -> u32 {
        self.buffer.index()
    }

    #[inline]
    pub(super) fn split<'a>(&'a mut self, memory: BufferView<'a>) -> (&'a mut Packet, &'a mut [u8]) {
        let start = usize::from(self.packet.start);
        let frame = &mut memory.bytes_mut(&mut self.buffer)[start..start + self.packet.length()];
        (&mut self.packet, frame)
    }
}

impl Packet {
    /// Creates the metadata of a packet of which only the flow is known.
    pub(crate) fn of_flow(key: FlowKey, rss_hash: u32) -> Packet {
        let incoming = Incoming {
            length: 0,
            arrival: Nanos::ZERO,
            rss_hash,
            rest: 0,
        };
        let mut packet = Packet::new(&incoming, 0);
        packet.headers.key = key;
        packet.headers.network = match key.source() {
            IpAddr::V4(_) => Network::V4,
            IpAddr::V6(_) => Network::V6,
        };
        packet.headers.fragment = match key.is_fragment() {
            true => Fragment::Later,
            false => Fragment::Whole,
        };
        packet
    }

    /// Creates the metadata of a received packet whose frame starts at `start` in its buffer.
    #[inline(always)]
    pub(super) fn new(incoming: &Incoming, start: u16) -> Packet {
        Packet {
            arrival: incoming.arrival,
            rss_hash: incoming.rss_hash,
            verdict: Verdict::Forward,
            entry: 0,
            headers: Headers::default(),
            flow: FlowIndex::NONE,
            path: START,
            segment: 0,
            marks: Marks::default(),
            number: 0,
            rest: incoming.rest,
            start,
            length: incoming.length as u16,
        }
    }

    /// Creates the metadata of a packet that another process described. `flow` is its flow in this process; `reversed`
    /// is `true` if it goes against the direction of the flow's key.
    #[inline(always)]
    pub(super) fn described(packet: &TurnPacket, (flow, reversed): (FlowIndex, bool)) -> Packet {
        let [start, length] = packet.frame_range;
        let rekeyed = if packet.rekeyed { Marks::REKEYED } else { 0 };
        let reversed = if reversed { Marks::REVERSED } else { 0 };
        let turned = if packet.turned { Marks::TURNED } else { 0 };
        Packet {
            arrival: packet.arrival,
            rss_hash: packet.rss_hash,
            verdict: Verdict::Forward,
            entry: packet.entry,
            headers: Headers::default(),
            flow,
            path: START,
            segment: 0,
            marks: Marks(rekeyed | reversed | turned),
            number: packet.at,
            rest: 0,
            start,
            length,
        }
    }

    /// Length of the frame in bytes, without the frame check sequence.
    #[inline]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// Offset of the frame in its buffer.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(self.start)
    }

    /// Sets the frame's offset and length in its buffer. Both fit [`MAX_FRAME`](crate::buffer::MAX_FRAME), and their
    /// sum fits the buffer.
    pub fn set_location(&mut self, start: u16, length: u16) {
        (self.start, self.length) = (start, length);
    }

    /// Returns `true` if the packet's flow was opened for this packet.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.marks.has(Marks::OPENED)
    }

    /// Returns `true` if the flow is a connection and the packet goes against the direction of its key.
    #[inline]
    pub fn is_reversed(&self) -> bool {
        self.marks.has(Marks::REVERSED)
    }

    /// Returns `true` if a function of a previous segment rekeyed the flow and later segments have yet to process that.
    #[inline]
    pub(crate) fn is_rekeyed(&self) -> bool {
        self.marks.has(Marks::REKEYED)
    }

    /// Sets whether the look-up opened the flow for this packet.
    #[inline]
    pub(crate) fn set_new(&mut self, opened: bool) {
        self.marks.set(Marks::OPENED, opened);
    }

    /// Sets the value of [`is_reversed`](Packet::is_reversed).
    #[inline]
    pub(crate) fn set_reversed(&mut self, reversed: bool) {
        self.marks.set(Marks::REVERSED, reversed);
    }

    /// Sets the value of [`is_rekeyed`](Packet::is_rekeyed).
    #[inline]
    pub(crate) fn set_rekeyed(&mut self, rekeyed: bool) {
        self.marks.set(Marks::REKEYED, rekeyed);
    }

    /// Returns `true` if every function of the chain's segment on the packet's path has seen the flow under its current
    /// version.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.marks.has(Marks::SETTLED)
    }

    /// Sets the value of [`is_settled`](Packet::is_settled).
    #[inline]
    pub(crate) fn set_settled(&mut self, settled: bool) {
        self.marks.set(Marks::SETTLED, settled);
    }

    /// Toggles whether the packet leaves by its ingress port, where chains have two: it has become a response.
    #[inline]
    pub fn turn_back(&mut self) {
        let turned = self.turns_back();
        self.marks.set(Marks::TURNED, !turned);
    }

    /// Returns `true` if the packet leaves by its ingress port.
    #[inline]
    pub fn turns_back(&self) -> bool {
        self.marks.has(Marks::TURNED)
    }

    /// Returns `true` if somebody follows the packet through the chain. A function may then store what it needs to
    /// [explain](crate::function::NetworkFunction::explain) its decision.
    #[inline]
    pub fn is_traced(&self) -> bool {
        self.marks.has(Marks::TRACED)
    }

    /// Marks the packet as one that is followed.
    pub(crate) fn set_traced(&mut self) {
        self.marks.set(Marks::TRACED, true);
    }

    /// Number that the dispatcher assigned to the flow, if the packet went through a queue. Otherwise the number
    /// [set](Packet::set_number) for the packet, or 0.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Sets the packet's number, where no dispatcher does.
    #[inline]
    pub fn set_number(&mut self, number: u16) {
        self.number = number;
    }

    /// Index of the flow in the flow table; `None` in a chain without flow state.
    #[inline]
    pub fn flow(&self) -> Option<u32> {
        self.flow.get()
    }
}
