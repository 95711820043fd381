//! A packet: what is known of it, and where its bytes are.

use crate::branches::START;
use crate::buffer::{Buffer, BufferMemory, BufferView};
use crate::flow_table::FlowIndex;
use std::net::IpAddr;
use tailwater_net::parse::{Fragment, Headers, Network};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::program::TurnPacket;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    #[default]
    Forward,
    /// It is dropped; the number is the place of the reason in the
    /// [list of the function](crate::function::NetworkFunction::drop_reasons) that drops it.
    Drop(u8),
    /// It skips the chain's functions and is sent as it came (non-IP and malformed packets, where
    /// the spec says so). Set before the first function only.
    Bypass,
}

/// A packet's metadata. The bytes are reached through the [`Batch`](super::Batch).
#[derive(Debug)]
pub struct Packet {
    /// When the packet arrived at the port, since the run's start.
    pub arrival: Nanos,
    /// The RSS hash that the port computed.
    pub rss_hash: u32,
    /// What becomes of the packet.
    pub verdict: Verdict,
    /// Which of the chain's two ports it came in by: 0 the entry port, 1 the exit port.
    pub entry: u8,
    /// Where its headers lie, and its 5-tuple **as it stands now**: a function that rewrites the
    /// packet keeps this true.
    pub headers: Headers,
    pub(crate) flow: FlowIndex,
    /// The way through the chain's branches that it has come: see [`Ways`](crate::branches::Ways).
    pub way: u8,
    /// The segment of the chain that processes it next, if it is on its way to one.
    pub(crate) segment: u8,
    pub(super) marks: Marks,
    /// The number that the flow's dispatcher gave it, if the packet went through a queue.
    pub(crate) number: u16,
    /// Where the port finds the rest of the frame, which is not in the buffer yet; 0 if all is.
    pub(super) rest: u32,
    /// Where the frame starts in the buffer.
    pub(super) start: u16,
    pub(super) length: u16,
}

/// What is true of a packet and its flow, a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks(u8);

impl Marks {
    const OPENED: u8 = 1;
    const REVERSED: u8 = 2;
    const REKEYED: u8 = 4;
    const TURNED: u8 = 8;
    const SETTLED: u8 = 16;

    #[inline]
    fn has(self, mark: u8) -> bool {
        self.0 & mark != 0
    }

    #[inline]
    fn set(&mut self, mark: u8, on: bool) {
        self.0 = self.0 & !mark | if on { mark } else { 0 };
    }
}

/// A packet that a port has received.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// The frame's length in bytes.
    pub length: usize,
    /// When it arrived, since the run's start.
    pub arrival: Nanos,
    /// Its RSS hash.
    pub rss_hash: u32,
    /// 0, or a number by which the port finds the rest of the frame when it is to
    /// [complete](super::Batch::complete) it. All headers must be in the buffer by now.
    pub rest: u32,
}

/// A packet that a device has written into a buffer of its own.
#[derive(Debug)]
pub struct Arrived {
    /// The buffer.
    pub buffer: Buffer,
    /// Where in it the frame starts.
    pub start: u16,
    /// The frame's length in bytes.
    pub length: u16,
    /// The RSS hash, if the device computed one.
    pub hash: Option<u32>,
    /// Which of the chain's two ports it came in by, as in [`Packet::entry`].
    pub entry: u8,
}

impl Arrived {
    /// The frame. `memory` must be the buffer's.
    ///
    /// # Panics
    /// If it is not, or the frame is beyond the buffer.
    #[inline]
    pub fn frame<'a>(&'a self, memory: &'a BufferMemory) -> &'a [u8] {
        &memory.bytes(&self.buffer)[usize::from(self.start)..][..usize::from(self.length)]
    }
}

/// A packet with its buffer: apart, so that metadata and frame can be borrowed together.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) packet: Packet,
    pub(super) buffer: Buffer,
}

// A cache line and a half: what a batch takes of the nearest cache, every packet pays for.
const _: () = assert!(size_of::<Slot>() == 96);

impl Slot {
    /// The packet's buffer, by its number: no other packet of the pool has it.
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
    /// A packet of a flow, of which nothing else is known.
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

    /// One that starts there in its buffer, and of which nothing else is known.
    #[inline(always)]
    pub(super) fn new(incoming: &Incoming, start: u16) -> Packet {
        Packet {
            arrival: incoming.arrival,
            rss_hash: incoming.rss_hash,
            verdict: Verdict::Forward,
            entry: 0,
            headers: Headers::default(),
            flow: FlowIndex::NONE,
            way: START,
            segment: 0,
            marks: Marks::default(),
            number: 0,
            rest: incoming.rest,
            start,
            length: incoming.length as u16,
        }
    }

    /// One that another process described, with the flow that it has here, and whether it goes against the direction of the
    /// flow's key.
    #[inline(always)]
    pub(super) fn described(packet: &TurnPacket, (flow, reversed): (FlowIndex, bool)) -> Packet {
        let [start, length] = packet.place;
        let rekeyed = if packet.rekeyed { Marks::REKEYED } else { 0 };
        let reversed = if reversed { Marks::REVERSED } else { 0 };
        Packet {
            arrival: packet.arrival,
            rss_hash: packet.rss_hash,
            verdict: Verdict::Forward,
            entry: packet.entry,
            headers: Headers::default(),
            flow,
            way: START,
            segment: 0,
            marks: Marks(rekeyed | reversed),
            number: packet.at,
            rest: 0,
            start,
            length,
        }
    }

    /// The frame's length in bytes (without frame check sequence).
    #[inline]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// Where in its buffer the frame starts.
    #[inline]
    pub fn start(&self) -> usize {
        usize::from(self.start)
    }

    /// Says where in its buffer the frame is. Both numbers fit [`MAX_FRAME`](crate::buffer::MAX_FRAME), and their sum the buffer.
    pub fn set_place(&mut self, start: u16, length: u16) {
        (self.start, self.length) = (start, length);
    }

    /// Whether the packet's flow is new: it was opened for this packet.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.marks.has(Marks::OPENED)
    }

    /// Whether the flow is a connection and the packet goes against the direction of its key.
    #[inline]
    pub fn is_reversed(&self) -> bool {
        self.marks.has(Marks::REVERSED)
    }

    /// Whether a function of a segment in front rekeyed the flow, which those to come do not know.
    #[inline]
    pub(crate) fn is_rekeyed(&self) -> bool {
        self.marks.has(Marks::REKEYED)
    }

    /// Says whether the look-up opened the flow for this packet.
    #[inline]
    pub(crate) fn set_new(&mut self, opened: bool) {
        self.marks.set(Marks::OPENED, opened);
    }

    /// Says what [`is_reversed`](Packet::is_reversed) tells.
    #[inline]
    pub(crate) fn set_reversed(&mut self, reversed: bool) {
        self.marks.set(Marks::REVERSED, reversed);
    }

    /// Says what [`is_rekeyed`](Packet::is_rekeyed) tells.
    #[inline]
    pub(crate) fn set_rekeyed(&mut self, rekeyed: bool) {
        self.marks.set(Marks::REKEYED, rekeyed);
    }

    /// Whether every function of the chain's segment on the packet's way has seen the flow under its present version.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.marks.has(Marks::SETTLED)
    }

    /// Says what [`is_settled`](Packet::is_settled) tells.
    #[inline]
    pub(crate) fn set_settled(&mut self, settled: bool) {
        self.marks.set(Marks::SETTLED, settled);
    }

    /// Has the packet leave by the port that it came in by, where chains have two: it has become an answer.
    #[inline]
    pub fn turn_back(&mut self) {
        let turned = self.turns_back();
        self.marks.set(Marks::TURNED, !turned);
    }

    /// Whether it leaves by the port that it came in by.
    #[inline]
    pub fn turns_back(&self) -> bool {
        self.marks.has(Marks::TURNED)
    }

    /// The number that the flow's dispatcher gave it, if the packet went through a queue; or that it was
    /// [given](Packet::set_number) otherwise, or 0.
    #[inline]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Gives the packet a number, where there is no dispatcher who does.
    #[inline]
    pub fn set_number(&mut self, number: u16) {
        self.number = number;
    }

    /// The flow's place in the flow table; `None` in a chain without flow state.
    #[inline]
    pub fn flow(&self) -> Option<u32> {
        self.flow.get()
    }
}
