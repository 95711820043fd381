//! Batches: the packets that pass through a chain together, with what is known of each.

use crate::buffer::{Buffer, BufferMemory, BufferPool, BufferView, HEADROOM, MAX_FRAME};
use crate::flow_table::FlowIndex;
use crate::parcel::{PacketStore, Parcel, Receipt};
use crate::region::{CACHE_LINE, prefetch};
use tailwater_net::Nanos;
use tailwater_net::parse::Headers;

/// The most packets a batch can hold.
pub const MAX_BATCH: usize = 256;

/// The batch size used where nothing else is said (as DPDK, NetBlaze and Quadrant do).
pub const DEFAULT_BATCH: usize = 32;

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

/// A packet's metadata. The bytes are reached through the [`Batch`].
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
    /// Whether every function of the chain's segment has seen the flow under its present version.
    pub(crate) settled: bool,
    /// The segment of the chain that processes it next, if it is on its way to one.
    pub(crate) segment: u8,
    marks: Marks,
    /// The number that the flow's dispatcher gave it, if the packet went through a queue.
    pub(crate) number: u16,
    /// Where the port finds the rest of the frame, which is not in the buffer yet; 0 if all is.
    rest: u32,
    /// Where the frame starts in the buffer.
    start: u16,
    length: u16,
}

/// What is true of a packet and its flow, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Marks(u8);

impl Marks {
    const OPENED: u8 = 1;
    const REVERSED: u8 = 2;
    const REKEYED: u8 = 4;

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
    /// [complete](Batch::complete) it. All headers must be in the buffer by now.
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
    buffer: Buffer,
}

// A cache line and a half: what a batch takes of the nearest cache, every packet pays for.
const _: () = assert!(size_of::<Slot>() == 96);

impl Slot {
    #[inline]
    fn split<'a>(&'a mut self, memory: BufferView<'a>) -> (&'a mut Packet, &'a mut [u8]) {
        let start = usize::from(self.packet.start);
        let frame = &mut memory.bytes_mut(&mut self.buffer)[start..start + self.packet.length()];
        (&mut self.packet, frame)
    }
}

impl Packet {
    /// One that starts there in its buffer, and of which nothing else is known.
    #[inline(always)]
    fn new(incoming: &Incoming, start: u16) -> Packet {
        Packet {
            arrival: incoming.arrival,
            rss_hash: incoming.rss_hash,
            verdict: Verdict::Forward,
            entry: 0,
            headers: Headers::default(),
            flow: FlowIndex::NONE,
            settled: false,
            segment: 0,
            marks: Marks::default(),
            number: 0,
            rest: incoming.rest,
            start,
            length: incoming.length as u16,
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

    /// Says where in its buffer the frame is. Both numbers fit [`MAX_FRAME`], and their sum the buffer.
    pub(crate) fn set_place(&mut self, start: u16, length: u16) {
        (self.start, self.length) = (start, length);
    }

    /// Whether the packet's flow is new: it was opened for this packet.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.marks.has(Marks::OPENED)
    }

    /// Whether the flow is a connection and the packet goes against the direction of its key.
    #[inline]
    pub(crate) fn is_reversed(&self) -> bool {
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

/// What is left of a dropped packet.
#[derive(Debug)]
struct Dropped {
    buffer: Buffer,
    /// Its flow's number.
    number: u16,
    /// Why, as [`Verdict::Drop`] says; 0 if the device did not send it.
    reason: u8,
}

/// Up to [`MAX_BATCH`] packets of one buffer pool, in order of arrival.
#[derive(Debug)]
pub struct Batch {
    memory: BufferMemory,
    capacity: usize,
    packets: Vec<Slot>,
    bypass: Vec<Slot>,
    /// Buffers of dropped packets until the pool takes them back.
    dropped: Vec<Dropped>,
}

impl Batch {
    /// An empty batch for packets in buffers of `pool`, at most `capacity` (of [`MAX_BATCH`]).
    pub fn new(pool: &BufferPool, capacity: usize) -> Batch {
        Batch::of_memory(pool.memory().clone(), capacity)
    }

    /// An empty batch for packets in buffers of this memory, at most `capacity` (of [`MAX_BATCH`]).
    pub fn of_memory(memory: BufferMemory, capacity: usize) -> Batch {
        let capacity = capacity.clamp(1, MAX_BATCH);
        Batch {
            memory,
            capacity,
            packets: Vec::with_capacity(capacity),
            bypass: Vec::with_capacity(capacity),
            dropped: Vec::with_capacity(capacity),
        }
    }

    /// Has the batch take at most so many packets from now on, of those that it was made for.
    #[inline]
    pub fn limit(&mut self, packets: usize) {
        // The lists have room for what the batch was made for, and so never grow.
        self.capacity = packets.clamp(1, self.packets.capacity().min(MAX_BATCH));
    }

    /// Where the packets' buffers lie.
    #[inline]
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// How many packets are in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many more packets fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.in_hand()
    }

    /// How many packets the batch has the buffers of: those in it, those that skip the chain, and those
    /// that were dropped.
    #[inline]
    pub fn in_hand(&self) -> usize {
        self.packets.len() + self.bypass.len() + self.dropped.len()
    }

    /// Adds up to `count` packets in fresh buffers of `pool`: `write` puts a frame at the start of
    /// the room it is given, and says what it is. Returns how many were added: fewer if the batch is
    /// full or the pool empty.
    ///
    /// # Panics
    /// If `pool` is not the batch's, or a frame is longer than its room.
    #[inline]
    pub fn fill(
        &mut self,
        pool: &mut BufferPool,
        count: usize,
        mut write: impl FnMut(&mut [u8]) -> Incoming,
    ) -> usize {
        let memory = self.memory.view();
        let before = self.packets.len();
        let room = self.capacity - before - self.bypass.len() - self.dropped.len();
        let buffers = pool.take_many(count.min(room));
        self.packets.extend(buffers.map(move |mut buffer| {
            let room = &mut memory.bytes_mut(&mut buffer)[HEADROOM..];
            let most = room.len().min(MAX_FRAME);
            let incoming = write(room);
            let length = incoming.length;
            assert!(
                length <= most,
                "a frame of {length} bytes in a buffer for {most}"
            );
            let packet = Packet::new(&incoming, HEADROOM as u16);
            Slot { packet, buffer }
        }));
        self.packets.len() - before
    }

    /// Adds a packet that a device has written, with the time at which it came and its RSS hash.
    ///
    /// # Panics
    /// If the batch is full, the buffer of another pool, or the packet longer than it.
    #[inline]
    pub fn receive(&mut self, packet: Arrived, arrival: Nanos, rss_hash: u32) {
        self.receive_all(std::iter::once((packet, rss_hash)), arrival);
    }

    /// Adds packets that a device has written, each with its RSS hash, all of which came at one time.
    ///
    /// # Panics
    /// As [`receive`](Batch::receive).
    #[inline]
    pub fn receive_all(
        &mut self,
        packets: impl ExactSizeIterator<Item = (Arrived, u32)>,
        arrival: Nanos,
    ) {
        assert!(packets.len() <= self.room(), "the batch is full");
        // In registers, as in `fill`.
        let (pool, bytes) = (self.memory.pool(), self.memory.buffer_bytes());
        self.packets.extend(packets.map(move |(packet, rss_hash)| {
            let Arrived {
                buffer,
                start,
                length,
                entry,
                ..
            } = packet;
            assert!(buffer.is_of(pool), "a buffer of another pool");
            let length = usize::from(length);
            if usize::from(start) + length > bytes {
                beyond(start, length, bytes);
            }
            let incoming = Incoming {
                length,
                arrival,
                rss_hash,
                rest: 0,
            };
            let packet = Packet {
                entry,
                ..Packet::new(&incoming, start)
            };
            Slot { packet, buffer }
        }));
    }

    /// Takes every packet's buffer away, for a device that is to send it: tells, in order, each buffer, and where
    /// in it the frame starts and how long it is. What is known of the packets stays; frames are beyond
    /// reach.
    ///
    /// # Panics
    /// If it has been done before.
    #[inline]
    pub fn hand_over(&mut self) -> impl ExactSizeIterator<Item = (Buffer, u16, u16)> {
        let pool = self.memory.pool();
        self.packets.iter_mut().map(move |Slot { packet, buffer }| {
            assert!(buffer.is_of(pool), "a buffer of another pool");
            (buffer.take_away(), packet.start, packet.length)
        })
    }

    /// Takes the packets at these places, which rise, out of the batch: a device did not send them.
    #[cold]
    pub fn take_out(&mut self, places: &[u16]) {
        let (mut place, mut next) = (0, places.iter());
        let mut unsent = next.next();
        let gone = self.packets.extract_if(.., |_| {
            let out = unsent == Some(&place);
            if out {
                unsent = next.next();
            }
            place += 1;
            out
        });
        self.dropped.extend(gone.map(|slot| Dropped {
            buffer: slot.buffer,
            number: slot.packet.number,
            reason: 0,
        }));
    }

    /// Adds a packet with a copy of `frame`; `false` if the batch is full or the pool empty.
    ///
    /// # Panics
    /// As [`fill`](Batch::fill).
    pub fn push(
        &mut self,
        pool: &mut BufferPool,
        frame: &[u8],
        arrival: Nanos,
        rss_hash: u32,
    ) -> bool {
        let length = frame.len();
        let added = self.fill(pool, 1, |room| {
            if let Some(room) = room.get_mut(..length) {
                room.copy_from_slice(frame);
            }
            Incoming {
                length,
                arrival,
                rss_hash,
                rest: 0,
            }
        });
        added == 1
    }

    /// The packets' metadata, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().map(|slot| &slot.packet)
    }

    /// The metadata of packet `i`.
    #[inline]
    pub fn packet(&self, i: usize) -> &Packet {
        &self.packets[i].packet
    }

    /// The first packet's metadata.
    #[inline]
    pub fn first(&self) -> Option<&Packet> {
        self.packets.first().map(|slot| &slot.packet)
    }

    /// The last packet's metadata.
    #[inline]
    pub fn last(&self) -> Option<&Packet> {
        self.packets.last().map(|slot| &slot.packet)
    }

    /// The packets' metadata, in order, to change.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets.iter_mut().map(|slot| &mut slot.packet)
    }

    /// Packets with their buffers, for the flow look-up.
    #[inline]
    pub(crate) fn slots_mut(&mut self) -> &mut [Slot] {
        &mut self.packets
    }

    /// As [`slots_mut`](Batch::slots_mut), for packets that come and go.
    #[inline]
    pub(crate) fn slots_mut_vec(&mut self) -> &mut Vec<Slot> {
        &mut self.packets
    }

    /// The frame of packet `i`.
    #[inline]
    pub fn frame(&self, i: usize) -> &[u8] {
        let Slot { packet, buffer } = &self.packets[i];
        let start = usize::from(packet.start);
        &self.memory.bytes(buffer)[start..start + packet.length()]
    }

    /// Metadata and frame of packet `i`.
    #[inline]
    pub fn packet_mut(&mut self, i: usize) -> (&mut Packet, &mut [u8]) {
        self.packets[i].split(self.memory.view())
    }

    /// Lets the frame of packet `i` start `bytes` earlier, in the buffer's headroom, so that a
    /// function can put a header in front. The new bytes hold anything; the header offsets count
    /// from the new start. `None`, with nothing changed, if there is no room.
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

    /// Makes the IP datagram in the frame of packet `i` `bytes` longer at its end; Ethernet padding
    /// stays behind it. The new bytes hold anything. Uses the room behind the frame, or else moves
    /// the frame into the headroom. `None`, with nothing changed, if there is no room.
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

    /// Takes the last `bytes` of the IP datagram out of the frame of packet `i`. `None`, with nothing
    /// changed, if its payload is shorter.
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

    /// Takes `bytes` off the start of the frame of packet `i`; the header offsets count from the new
    /// start. `None`, with nothing changed, if that would cut into the network header.
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

    /// The packets' metadata, in order, each with the address of its buffer: for functions in foreign code. The
    /// buffers are [`buffer_bytes`](Batch::buffer_bytes) long, and the batch's alone.
    #[inline]
    pub(crate) fn iter_with_buffers(&mut self) -> impl Iterator<Item = (&mut Packet, *mut u8)> {
        let memory = self.memory.view();
        self.packets
            .iter_mut()
            .map(move |slot| (&mut slot.packet, memory.start(&slot.buffer)))
    }

    /// Bytes in a buffer, headroom included.
    #[inline]
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.memory.buffer_bytes()
    }

    /// Runs `each` on every packet and its frame, in order.
    #[inline]
    pub fn for_each(&mut self, mut each: impl FnMut(&mut Packet, &mut [u8])) {
        let memory = self.memory.view();
        for slot in &mut self.packets {
            let (packet, frame) = slot.split(memory);
            each(packet, frame);
        }
    }

    /// Has the frame of packet `i` be one of `length` bytes from `start` on in its buffer, which `write` puts
    /// there. The packet's headers stay as they were: for a packet that no function looks at any more.
    ///
    /// # Panics
    /// If the frame is beyond the buffer, or longer than [`MAX_FRAME`].
    #[inline]
    pub fn replace_frame(
        &mut self,
        i: usize,
        [start, length]: [usize; 2],
        write: impl FnOnce(&mut [u8]),
    ) {
        assert!(start.max(length) <= MAX_FRAME, "a frame of {length} bytes");
        let Slot { packet, buffer } = &mut self.packets[i];
        write(&mut self.memory.bytes_mut(buffer)[start..start + length]);
        packet.set_place(start as u16, length as u16);
    }

    /// Adds a packet that a function is to see, in a buffer of the batch's memory.
    ///
    /// # Panics
    /// If the buffer is of other memory, or the frame beyond it.
    #[inline]
    pub(crate) fn put(&mut self, buffer: Buffer, incoming: &Incoming, start: u16) -> &mut Packet {
        let end = usize::from(start) + incoming.length;
        assert!(
            end <= self.memory.bytes(&buffer).len(),
            "a frame beyond its buffer"
        );
        let packet = Packet::new(incoming, start);
        let at = self.packets.len();
        self.packets.push(Slot { packet, buffer });
        &mut self.packets[at].packet
    }

    /// Empties the batch: every buffer, with the packet if it was not dropped, or else its number and why.
    #[inline]
    pub(crate) fn take_all(&mut self, mut each: impl FnMut(Buffer, Result<Packet, (u16, u8)>)) {
        for slot in self.packets.drain(..).chain(self.bypass.drain(..)) {
            each(slot.buffer, Ok(slot.packet));
        }
        for gone in self.dropped.drain(..) {
            each(gone.buffer, Err((gone.number, gone.reason)));
        }
    }

    /// Has `copy` write the rest of every frame that is not whole yet, given its number, before
    /// functions see it.
    #[inline]
    pub fn complete(&mut self, mut copy: impl FnMut(u32, &mut [u8])) {
        self.for_each(|packet, frame| {
            let rest = std::mem::take(&mut packet.rest);
            if rest != 0 {
                copy(rest, frame);
            }
        });
    }

    /// Takes the packets that are not to go on out of the batch, in order, and reports each drop's
    /// reason. The order of the others stays.
    #[inline]
    pub fn compact(&mut self, mut on_drop: impl FnMut(&Packet, u8)) {
        if self.iter().all(|packet| packet.verdict == Verdict::Forward) {
            return;
        }
        let (bypass, dropped) = (&mut self.bypass, &mut self.dropped);
        for slot in self
            .packets
            .extract_if(.., |slot| slot.packet.verdict != Verdict::Forward)
        {
            match slot.packet.verdict {
                Verdict::Drop(reason) => {
                    on_drop(&slot.packet, reason);
                    dropped.push(Dropped {
                        buffer: slot.buffer,
                        number: slot.packet.number,
                        reason,
                    });
                }
                Verdict::Bypass | Verdict::Forward => bypass.push(slot),
            }
        }
    }

    /// Moves packets to another batch, in order: those for which `aside` says so.
    ///
    /// # Panics
    /// If the other batch is of other memory, or has too little room.
    #[inline]
    pub fn divide(&mut self, other: &mut Batch, mut aside: impl FnMut(&Packet) -> bool) {
        assert!(self.memory.is(&other.memory), "a batch of another pool");
        for slot in self.packets.extract_if(.., |slot| aside(&slot.packet)) {
            assert!(other.room() > 0, "the batch is full");
            other.packets.push(slot);
        }
    }

    /// Puts the packets that skipped the chain back, after the others.
    #[inline]
    pub fn rejoin_bypass(&mut self) {
        self.packets.append(&mut self.bypass);
    }

    /// Takes packets out of the batch, in order: those for which `number` gives their flow's number
    /// leave as parcels, the others stay.
    #[inline]
    pub fn send_away(
        &mut self,
        store: &PacketStore,
        mut number: impl FnMut(&Packet) -> Option<u16>,
        mut to: impl FnMut(Parcel),
    ) {
        let leaving = |slot: &mut Slot| match number(&slot.packet) {
            Some(number) => {
                slot.packet.number = number;
                true
            }
            None => false,
        };
        for Slot { packet, buffer } in self.packets.extract_if(.., leaving) {
            to(store.put(packet, buffer));
        }
    }

    /// Adds the packet of a parcel.
    ///
    /// # Panics
    /// If the batch is full, or the parcel of another pool than the batch or the store.
    #[inline]
    pub fn take_in(&mut self, store: &PacketStore, parcel: Parcel) {
        assert!(self.room() > 0, "the batch is full");
        let (packet, buffer) = store.take(parcel);
        // The headers are in another core's cache, or in none, and are needed soon.
        let frame = self.memory.bytes(&buffer)[usize::from(packet.start)..].as_ptr();
        prefetch(frame);
        prefetch(frame.wrapping_add(CACHE_LINE));
        self.packets.push(Slot { packet, buffer });
    }

    /// Empties the batch: every buffer, of dropped packets too, leaves with its flow's number.
    #[inline]
    pub fn send_back(&mut self) -> impl Iterator<Item = Receipt> {
        let kept = self.packets.drain(..).chain(self.bypass.drain(..));
        let kept = kept.map(|slot| (slot.buffer, slot.packet.number));
        let dropped = self.dropped.drain(..);
        kept.chain(dropped.map(|packet| (packet.buffer, packet.number)))
            .map(|(buffer, number)| Receipt::new(buffer, number))
    }

    /// Empties the batch: every buffer, of dropped packets too, goes back to `pool`.
    ///
    /// # Panics
    /// If `pool` is not the batch's.
    #[inline]
    pub fn release(&mut self, pool: &mut BufferPool) {
        let sent = self.packets.iter().all(|slot| slot.buffer.is_away());
        if sent {
            // The usual end where buffers are a device's.
            pool.let_go(self.packets.len());
            self.packets.clear();
        } else {
            pool.give_all(self.packets.drain(..).map(|slot| slot.buffer));
        }
        if !self.bypass.is_empty() || !self.dropped.is_empty() {
            pool.give_all(self.bypass.drain(..).map(|slot| slot.buffer));
            pool.give_all(self.dropped.drain(..).map(|packet| packet.buffer));
        }
    }
}

/// Apart, so that the loop that finds it out keeps its numbers in registers.
#[cold]
fn beyond(start: u16, length: usize, bytes: usize) -> ! {
    panic!("a frame of {length} bytes from {start} on in a buffer of {bytes}")
}

/// Everything in the headers that counts from the frame's start.
fn header_offsets(headers: &mut Headers) -> [&mut u16; 4] {
    [
        &mut headers.network_offset,
        &mut headers.transport_offset,
        &mut headers.payload_offset,
        &mut headers.end,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(frames: &[&[u8]]) -> (BufferPool, Batch) {
        let mut pool = BufferPool::new(8, 256).unwrap();
        let mut batch = Batch::new(&pool, 8);
        for (i, frame) in frames.iter().enumerate() {
            assert!(batch.push(&mut pool, frame, Nanos(i as u64), 0));
        }
        (pool, batch)
    }

    #[test]
    fn frames_come_back_as_they_went_in() {
        let (mut pool, mut batch) = batch(&[b"one", b"", b"three"]);
        assert_eq!(batch.frame(0), b"one");
        assert_eq!(batch.frame(1), b"");
        batch.packet_mut(2).1[0] = b'T';
        assert_eq!(batch.frame(2), b"Three");
        batch.release(&mut pool);
        assert_eq!((batch.len(), pool.available()), (0, 8));
    }

    #[test]
    fn a_device_takes_buffers_away_and_sends_some() {
        let (mut pool, mut batch) = batch(&[b"a", b"bb", b"ccc"]);
        let taken: Vec<_> = batch.hand_over().collect();
        assert_eq!(taken.iter().map(|t| t.2).collect::<Vec<_>>(), [1, 2, 3]);
        batch.take_out(&[0, 2]);
        assert_eq!((batch.len(), batch.packet(0).length()), (1, 2));
        assert_eq!(batch.in_hand(), 3);
        for (buffer, start, length) in taken {
            let packet = Arrived {
                buffer,
                start: start + 1,
                length: length - 1,
                hash: None,
                entry: 0,
            };
            let whole = usize::from(packet.length);
            assert_eq!(packet.frame(pool.memory()).len(), whole);
            let mut other = Batch::new(&pool, 1);
            other.receive(packet, Nanos(1), 2);
            assert_eq!(other.frame(0).len(), whole);
            other.release(&mut pool);
        }
        assert_eq!(pool.available(), 8);
    }

    #[test]
    #[should_panic(expected = "a frame of 10 bytes from")]
    fn a_packet_beyond_its_buffer_is_refused() {
        let mut pool = BufferPool::new(1, 64).unwrap();
        let (mut batch, bytes) = (Batch::new(&pool, 1), pool.memory().buffer_bytes());
        let packet = Arrived {
            buffer: pool.take().unwrap(),
            start: bytes as u16 - 9,
            length: 10,
            hash: None,
            entry: 0,
        };
        batch.receive(packet, Nanos::ZERO, 0);
    }

    #[test]
    fn compaction_keeps_order_and_loses_no_buffer() {
        let (mut pool, mut batch) = batch(&[b"a", b"b", b"c", b"d", b"e"]);
        batch.packet_mut(0).0.verdict = Verdict::Drop(3);
        batch.packet_mut(2).0.verdict = Verdict::Bypass;
        batch.packet_mut(4).0.verdict = Verdict::Drop(1);
        let mut reasons = vec![];
        batch.compact(|_, reason| reasons.push(reason));
        assert_eq!(reasons, [3, 1]);
        assert_eq!(
            (batch.frame(0), batch.frame(1), batch.len()),
            (&b"b"[..], &b"d"[..], 2)
        );
        batch.rejoin_bypass();
        assert_eq!(batch.frame(2), b"c");
        batch.release(&mut pool);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn a_batch_is_divided_in_order() {
        let (mut pool, mut batch) = batch(&[b"a", b"b", b"c", b"d"]);
        let mut other = Batch::new(&pool, 4);
        batch.packet_mut(1).0.set_number(1);
        batch.packet_mut(2).0.set_number(1);
        batch.divide(&mut other, |packet| packet.number() == 1);
        let frames = |batch: &Batch| -> Vec<Vec<u8>> {
            let frames = (0..batch.len()).map(|i| batch.frame(i).to_vec());
            frames.collect()
        };
        assert_eq!(frames(&batch), [b"a", b"d"]);
        assert_eq!(frames(&other), [b"b", b"c"]);
        batch.release(&mut pool);
        other.release(&mut pool);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn frames_grow_and_shrink_at_the_front() {
        let (mut pool, mut batch) = batch(&[b"0123456789"]);
        batch.packet_mut(0).0.headers = Headers {
            network_offset: 4,
            transport_offset: 6,
            payload_offset: 8,
            end: 10,
            ..Headers::default()
        };
        let (packet, frame) = batch.grow_front(0, 2).unwrap();
        frame[..2].copy_from_slice(b"ab");
        assert_eq!(
            (
                frame.len(),
                packet.headers.network_offset,
                packet.headers.end
            ),
            (12, 6, 12)
        );
        assert_eq!(batch.frame(0), b"ab0123456789");
        assert!(batch.grow_front(0, HEADROOM).is_none());
        assert!(batch.shrink_front(0, 7).is_none());
        let (packet, frame) = batch.shrink_front(0, 6).unwrap();
        assert_eq!(
            (&*frame, packet.headers.network_offset),
            (&b"456789"[..], 0)
        );
        assert_eq!(
            (packet.headers.transport_offset, packet.headers.end),
            (2, 6)
        );
        batch.release(&mut pool);
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn datagrams_grow_and_shrink_at_the_end() {
        // Once into the room behind, once into the headroom, for want of room behind.
        for length in [10, 64] {
            let mut pool = BufferPool::new(1, 64).unwrap();
            let mut batch = Batch::new(&pool, 1);
            let whole: Vec<u8> = (0..length).collect();
            assert!(batch.push(&mut pool, &whole, Nanos::ZERO, 0));
            let headers = Headers {
                network_offset: 1,
                transport_offset: 2,
                payload_offset: 4,
                end: 8,
                ..Headers::default()
            };
            batch.packet_mut(0).0.headers = headers;
            assert!(batch.grow_back(0, 1000).is_none());
            let (packet, frame) = batch.grow_back(0, 3).unwrap();
            assert_eq!((packet.headers.end, frame.len()), (11, whole.len() + 3));
            assert_eq!((&frame[..8], &frame[11..]), (&whole[..8], &whole[8..]));
            assert_eq!(packet.headers.payload_offset, 4);
            assert!(batch.shrink_back(0, 8).is_none());
            let (packet, frame) = batch.shrink_back(0, 3).unwrap();
            assert_eq!((packet.headers, &*frame), (headers, &whole[..]));
        }
    }

    #[test]
    fn a_full_batch_and_an_empty_pool_take_no_more() {
        let mut pool = BufferPool::new(2, 64).unwrap();
        let mut batch = Batch::new(&pool, 1);
        assert!(batch.push(&mut pool, &[1], Nanos::ZERO, 0));
        assert!(!batch.push(&mut pool, &[2], Nanos::ZERO, 0));
        let mut wide = Batch::new(&pool, 8);
        let incoming = Incoming {
            length: 3,
            arrival: Nanos::ZERO,
            rss_hash: 0,
            rest: 0,
        };
        assert_eq!(wide.fill(&mut pool, 8, |_| incoming), 1);
        batch.release(&mut pool);
        wide.release(&mut pool);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    #[should_panic(expected = "a frame of 4096 bytes in a buffer for")]
    fn a_frame_beyond_its_buffer_is_refused() {
        let mut pool = BufferPool::new(1, 64).unwrap();
        Batch::new(&pool, 1).push(&mut pool, &[0; 4096], Nanos::ZERO, 0);
    }
}
