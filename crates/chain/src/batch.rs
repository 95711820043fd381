//! Batches: packets that pass through a chain together, with their metadata.

mod dropped;
pub(crate) mod packet;
mod packets;
mod resize;
pub(crate) mod size;

use crate::flow_table::index::FlowIndex;
use dropped::Dropped;
pub use dropped::{DroppedBy, DroppedPacket};
pub(crate) use packet::Slot;
pub use packet::{Arrived, Incoming, Packet, Verdict};
pub use packets::Packets;
pub use size::{DEFAULT_BATCH, MAX_BATCH};

use crate::buffer::{Buffer, BufferMemory, BufferPool, HEADROOM, MAX_FRAME};
use crate::parcel::{PacketStore, Parcel, Receipt};
use crate::region::{CACHE_LINE, prefetch};
use tailwater_net::parse::Headers;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::program::{TurnPacket, TurnVerdict};

/// Up to [`MAX_BATCH`] packets of one buffer pool, in order of arrival.
#[derive(Debug)]
pub struct Batch {
    memory: BufferMemory,
    capacity: usize,
    packets: Vec<Slot>,
    bypass: Vec<Slot>,
    /// Buffers of dropped packets, until they return to the pool.
    dropped: Vec<Dropped>,
    /// `true` if packets may be traced.
    has_traced: bool,
}

impl Batch {
    /// Creates an empty batch for up to `capacity` packets (at most [`MAX_BATCH`]) in buffers of `pool`.
    pub fn new(pool: &BufferPool, capacity: usize) -> Batch {
        Batch::of_memory(pool.memory().clone(), capacity)
    }

    /// Creates an empty batch for up to `capacity` packets (at most [`MAX_BATCH`]) in buffers of `memory`.
    pub fn of_memory(memory: BufferMemory, capacity: usize) -> Batch {
        let capacity = capacity.clamp(1, MAX_BATCH);
        Batch {
            memory,
            capacity,
            packets: Vec::with_capacity(capacity),
            bypass: Vec::with_capacity(capacity),
            dropped: Vec::with_capacity(capacity),
            has_traced: false,
        }
    }

    /// Returns `true` if packets of the batch may be [traced](Packet::is_traced).
    #[inline]
    pub fn has_traced(&self) -> bool {
        self.has_traced
    }

    /// Says whether packets of the batch are traced.
    pub(crate) fn set_has_traced(&mut self, has_traced: bool) {
        self.has_traced = has_traced;
    }

    /// Limits the batch to `packets` packets from now on, clamped to the capacity it was created with.
    #[inline]
    pub fn limit(&mut self, packets: usize) {
        // The lists are sized for the original capacity and never grow.
        self.capacity = packets.clamp(1, self.packets.capacity().min(MAX_BATCH));
    }

    /// Calls `receive` with a batch without any room, whatever its capacity.
    #[inline]
    pub fn without_room<T>(&mut self, receive: impl FnOnce(&mut Batch) -> T) -> T {
        let capacity = std::mem::take(&mut self.capacity);
        let received = receive(self);
        self.capacity = capacity;
        received
    }

    /// Memory that holds the packets' buffers.
    #[inline]
    pub fn memory(&self) -> &BufferMemory {
        &self.memory
    }

    /// Returns the number of packets in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns `true` if the batch holds no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.in_hand()
    }

    /// Returns the number of buffers the batch holds: packets in it, packets that bypass the chain, and dropped
    /// packets.
    #[inline]
    pub fn in_hand(&self) -> usize {
        self.packets.len() + self.bypass.len() + self.dropped.len()
    }

    /// Adds up to `count` packets in fresh buffers of `pool`. `write` puts a frame at the start of the slice it
    /// receives and returns its description. Returns the number of packets added, which is lower than `count` if the
    /// batch is full or the pool is empty.
    ///
    /// # Panics
    /// If `pool` is not the batch's pool, or a frame is longer than its slice.
    #[inline]
    pub fn fill(&mut self, pool: &mut BufferPool, count: usize, mut write: impl FnMut(&mut [u8]) -> Incoming) -> usize {
        let memory = self.memory.view();
        let before = self.packets.len();
        let room = self.capacity - before - self.bypass.len() - self.dropped.len();
        let buffers = pool.take_many(count.min(room));
        self.packets.extend(buffers.map(move |mut buffer| {
            let room = &mut memory.bytes_mut(&mut buffer)[HEADROOM..];
            let most = room.len().min(MAX_FRAME);
            let incoming = write(room);
            let length = incoming.length;
            assert!(length <= most, "a frame of {length} bytes in a buffer for {most}");
            let packet = Packet::new(&incoming, HEADROOM as u16);
            Slot { packet, buffer }
        }));
        self.packets.len() - before
    }

    /// Adds a packet that a device has received, with its arrival time and RSS hash.
    ///
    /// # Panics
    /// If the batch is full, the buffer belongs to another pool, or the packet is longer than the buffer.
    #[inline]
    pub fn receive(&mut self, packet: Arrived, arrival: Nanos, rss_hash: u32) {
        self.receive_all(std::iter::once((packet, rss_hash)), arrival);
    }

    /// Adds packets that a device has received at one time, each with its RSS hash.
    ///
    /// # Panics
    /// Same as [`receive`](Batch::receive).
    #[inline]
    pub fn receive_all(&mut self, packets: impl ExactSizeIterator<Item = (Arrived, u32)>, arrival: Nanos) {
        self.receive_timed(packets.map(move |(packet, rss_hash)| (packet, arrival, rss_hash)));
    }

    /// Adds packets that a device has received, each with its arrival time and RSS hash.
    ///
    /// # Panics
    /// Same as [`receive`](Batch::receive).
    #[inline]
    pub fn receive_timed(&mut self, packets: impl ExactSizeIterator<Item = (Arrived, Nanos, u32)>) {
        assert!(packets.len() <= self.room(), "the batch is full");
        // Kept in registers, as in `fill`.
        let (pool, bytes) = (self.memory.pool(), self.memory.buffer_bytes());
        self.packets.extend(packets.map(move |(packet, arrival, rss_hash)| {
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

    /// Moves every packet's buffer out, for a device to transmit. Yields, in order, the buffer, the offset of the frame
    /// in it and the frame's length in bytes. The packets' metadata stays, but their frames are no longer accessible.
    ///
    /// # Panics
    /// If the buffers have already been moved out.
    #[inline]
    pub fn take_buffers(&mut self) -> impl ExactSizeIterator<Item = (Buffer, u16, u16)> {
        let pool = self.memory.pool();
        self.packets.iter_mut().map(move |Slot { packet, buffer }| {
            assert!(buffer.is_of(pool), "a buffer of another pool");
            (buffer.lend(), packet.start, packet.length)
        })
    }

    /// Removes the packets at these ascending indices, which a device did not send.
    #[cold]
    pub fn remove_unsent(&mut self, places: &[u16]) {
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
        self.dropped
            .extend(gone.map(|slot| Dropped::new(slot, 0, DroppedBy::Port)));
    }

    /// Adds a packet with a copy of `frame`. Returns `false` if the batch is full or the pool is empty.
    ///
    /// # Panics
    /// Same as [`fill`](Batch::fill).
    pub fn push(&mut self, pool: &mut BufferPool, frame: &[u8], arrival: Nanos, rss_hash: u32) -> bool {
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

    /// Iterates over the packets' metadata, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().map(|slot| &slot.packet)
    }

    /// Returns `true` if `test` returns a bit for some packet's key. It is called for all of them without a branch, and
    /// in blocks, so that compilers test several at a time.
    #[inline]
    pub(crate) fn any_key(&self, test: impl Fn(&FlowKey) -> u64) -> bool {
        let key = |slot: &Slot| test(&slot.packet.headers.key);
        let mut found = [0; 8];
        let (blocks, rest) = self.packets.as_chunks::<8>();
        for block in blocks {
            for (found, slot) in found.iter_mut().zip(block) {
                *found |= key(slot);
            }
        }
        let rest = rest.iter().fold(0, |found, slot| found | key(slot));
        found.into_iter().fold(rest, |any, found| any | found) != 0
    }

    /// Metadata of packet `i`.
    #[inline]
    pub fn packet(&self, i: usize) -> &Packet {
        &self.packets[i].packet
    }

    /// Metadata of the first packet.
    #[inline]
    pub fn first(&self) -> Option<&Packet> {
        self.packets.first().map(|slot| &slot.packet)
    }

    /// Metadata of the last packet.
    #[inline]
    pub fn last(&self) -> Option<&Packet> {
        self.packets.last().map(|slot| &slot.packet)
    }

    /// Iterates over the packets' metadata, mutably and in order.
    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets.iter_mut().map(|slot| &mut slot.packet)
    }

    /// Packets with their buffers, for the flow look-up.
    #[inline]
    pub(crate) fn slots_mut(&mut self) -> &mut [Slot] {
        &mut self.packets
    }

    /// Same as [`slots_mut`](Batch::slots_mut), for code that adds and removes packets.
    #[inline]
    pub(crate) fn slots_mut_vec(&mut self) -> &mut Vec<Slot> {
        &mut self.packets
    }

    /// Frame of packet `i`.
    #[inline]
    pub fn frame(&self, i: usize) -> &[u8] {
        let Slot { packet, buffer } = &self.packets[i];
        let start = usize::from(packet.start);
        &self.memory.bytes(buffer)[start..start + packet.length()]
    }

    /// Index of the buffer of packet `i`, which no other packet of the pool has.
    pub(crate) fn buffer_index(&self, i: usize) -> u32 {
        self.packets[i].buffer_index()
    }

    /// Metadata and frame of packet `i`.
    #[inline]
    pub fn packet_mut(&mut self, i: usize) -> (&mut Packet, &mut [u8]) {
        self.packets[i].split(self.memory.view())
    }

    /// Iterates over the packets' metadata, in order, each with the address of its buffer, for functions in foreign
    /// code. Each buffer is [`buffer_bytes`](Batch::buffer_bytes) long and used by this batch only.
    #[inline]
    pub fn iter_with_buffers(&mut self) -> impl Iterator<Item = (&mut Packet, *mut u8)> {
        let memory = self.memory.view();
        self.packets
            .iter_mut()
            .map(move |slot| (&mut slot.packet, memory.start(&slot.buffer)))
    }

    /// Bytes in a buffer, headroom included.
    #[inline]
    pub fn buffer_bytes(&self) -> usize {
        self.memory.buffer_bytes()
    }

    /// Gives every parsed packet without an RSS hash a hash of its flow's key in its place. It tells flows apart, for
    /// fewer instructions than the Toeplitz hash, but says nothing about RSS buckets.
    #[inline]
    pub fn hash_flow_keys(&mut self) {
        for packet in self.iter_mut() {
            let hash = packet.headers.key.hash(0) as u32;
            packet.rss_hash = if packet.rss_hash == 0 { hash } else { packet.rss_hash };
        }
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

    /// Replaces the frame of packet `i` by one of `length` bytes at offset `start` of its buffer, which `write` fills
    /// in. The parsed headers stay as they were. Functions that run on the packet again still find them.
    ///
    /// # Panics
    /// If the frame exceeds the buffer or is longer than [`MAX_FRAME`].
    #[inline]
    pub fn replace_frame(&mut self, i: usize, [start, length]: [usize; 2], write: impl FnOnce(&mut [u8])) {
        assert!(start.max(length) <= MAX_FRAME, "a frame of {length} bytes");
        let Slot { packet, buffer } = &mut self.packets[i];
        write(&mut self.memory.bytes_mut(buffer)[start..start + length]);
        packet.set_location(start as u16, length as u16);
    }

    /// Adds a packet that another process described, in a buffer of the batch's memory. Returns `false` and adds
    /// nothing if `headers` cannot parse its frame.
    ///
    /// # Panics
    /// If the buffer belongs to other memory, or the frame exceeds it.
    #[inline(always)]
    pub(crate) fn put(
        &mut self,
        buffer: Buffer,
        described: &TurnPacket,
        flow: (FlowIndex, bool),
        headers: impl FnOnce(&[u8], &mut Headers) -> bool,
    ) -> bool {
        let [start, length] = described.frame_range;
        let end = usize::from(start) + usize::from(length);
        let inside = end <= self.memory.buffer_bytes() && self.memory.owns(&buffer);
        assert!(inside, "a frame beyond its buffer");
        let packet = Packet::described(described, flow);
        let at = self.packets.len();
        self.packets.push(Slot { packet, buffer });
        let (packet, frame) = self.packets[at].split(self.memory.view());
        let found = headers(frame, &mut packet.headers);
        if !found {
            self.packets.truncate(at);
        }
        found
    }

    /// Empties the batch of packets that another process described, and reports the result of each.
    #[inline]
    pub(crate) fn take_all(&mut self, mut each: impl FnMut(u16, TurnVerdict)) {
        for Slot { packet, buffer } in &self.packets {
            let made = TurnVerdict::Forward {
                place: [packet.start, packet.length],
                rekeyed: packet.is_rekeyed(),
                turned: packet.turns_back(),
            };
            each(buffer.index() as u16, made);
        }
        self.packets.clear();
        for gone in &self.dropped {
            each(gone.buffer.index() as u16, TurnVerdict::Drop(gone.reason));
        }
        self.dropped.clear();
    }

    /// Completes every frame that was copied only in part: `copy` receives the packet's number and writes the rest,
    /// before functions run.
    #[inline]
    pub fn complete(&mut self, mut copy: impl FnMut(u32, &mut [u8])) {
        self.for_each(|packet, frame| {
            let rest = std::mem::take(&mut packet.rest);
            if rest != 0 {
                copy(rest, frame);
            }
        });
    }

    /// Removes the packets that do not continue, in order, and reports the reason of each drop. The order of the
    /// remaining packets does not change.
    #[inline]
    pub fn compact(&mut self, on_drop: impl FnMut(&Packet, u8)) {
        self.compact_by(DroppedBy::Input, on_drop);
    }

    /// Same as [`compact`](Batch::compact), for packets that were dropped by this part.
    #[inline]
    pub fn compact_by(&mut self, by: DroppedBy, mut on_drop: impl FnMut(&Packet, u8)) {
        // Four at a time, without a branch for each.
        let (fours, rest) = self.packets.as_chunks::<4>();
        let leaves = |slot: &Slot| slot.packet.verdict != Verdict::Forward;
        let stay = |slots: &[Slot]| !slots.iter().fold(false, |any, slot| any | leaves(slot));
        if fours.iter().all(|four| stay(four)) && stay(rest) {
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
                    dropped.push(Dropped::new(slot, reason, by));
                }
                Verdict::Bypass | Verdict::Forward => bypass.push(slot),
            }
        }
    }

    /// Packets that were dropped, until their buffers are released.
    pub fn dropped(&self) -> impl Iterator<Item = DroppedPacket<'_>> {
        self.dropped.iter().map(|dropped| dropped.packet(&self.memory))
    }

    /// Moves the packets for which `aside` returns `true` to another batch, in order.
    ///
    /// # Panics
    /// If the other batch uses other memory or has too little room.
    #[inline]
    pub fn divide(&mut self, other: &mut Batch, mut aside: impl FnMut(&Packet) -> bool) {
        assert!(self.memory.is(&other.memory), "a batch of another pool");
        for slot in self.packets.extract_if(.., |slot| aside(&slot.packet)) {
            assert!(other.room() > 0, "the batch is full");
            other.packets.push(slot);
        }
    }

    /// Appends the packets that bypassed the chain.
    #[inline]
    pub fn rejoin_bypass(&mut self) {
        self.packets.append(&mut self.bypass);
    }

    /// Moves the packets that bypassed the chain to another batch, and returns their number.
    ///
    /// # Panics
    /// If the other batch uses other memory or has too little room.
    pub fn take_bypass(&mut self, other: &mut Batch) -> usize {
        let packets = self.bypass.len();
        assert!(self.memory.is(&other.memory), "a batch of another pool");
        assert!(other.room() >= packets, "the batch is full");
        other.packets.append(&mut self.bypass);
        packets
    }

    /// Removes, in order, the packets for whose flow `number` returns a number, and sends them as parcels. The others
    /// stay.
    #[inline]
    pub fn offload(
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
    /// If the batch is full, or if the parcel's pool differs from that of the batch or of the store.
    #[inline]
    pub fn add_parcel(&mut self, store: &PacketStore, parcel: Parcel) {
        assert!(self.room() > 0, "the batch is full");
        let (packet, buffer) = store.take(parcel);
        // The headers are in another core's cache or in none, and are needed soon.
        let frame = self.memory.bytes(&buffer)[usize::from(packet.start)..].as_ptr();
        prefetch(frame);
        prefetch(frame.wrapping_add(CACHE_LINE));
        self.packets.push(Slot { packet, buffer });
    }

    /// Removes the first `count` packets, and yields each's buffer with its flow's number.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn take_first(&mut self, count: usize) -> impl Iterator<Item = Receipt> {
        let first = self.packets.drain(..count);
        first.map(|slot| Receipt::new(slot.buffer, slot.packet.number))
    }

    /// Empties the batch: yields every buffer, including those of dropped packets, with its flow's number.
    #[inline]
    pub fn return_buffers(&mut self) -> impl Iterator<Item = Receipt> {
        let kept = self.packets.drain(..).chain(self.bypass.drain(..));
        let kept = kept.map(|slot| (slot.buffer, slot.packet.number));
        let dropped = self.dropped.drain(..);
        kept.chain(dropped.map(|packet| (packet.buffer, packet.number)))
            .map(|(buffer, number)| Receipt::new(buffer, number))
    }

    /// Empties the batch: returns every buffer, including those of dropped packets, to `pool`.
    ///
    /// # Panics
    /// If `pool` is not the batch's pool.
    #[inline]
    pub fn release(&mut self, pool: &mut BufferPool) {
        let sent = self.packets.iter().all(|slot| slot.buffer.is_lent());
        if sent {
            // The usual case when the buffers belong to a device.
            pool.forget_sent(self.packets.len());
            self.packets.clear();
        } else {
            pool.give_back(self.packets.iter_mut().map(|slot| &mut slot.buffer));
            self.packets.clear();
        }
        if !self.bypass.is_empty() || !self.dropped.is_empty() {
            pool.give_all(self.bypass.drain(..).map(|slot| slot.buffer));
            pool.give_all(self.dropped.drain(..).map(|packet| packet.buffer));
        }
    }
}

/// Panic path, out of line so that the checking loop keeps its values in registers.
#[cold]
fn beyond(start: u16, length: usize, bytes: usize) -> ! {
    panic!("a frame of {length} bytes from {start} on in a buffer of {bytes}")
}

#[cfg(test)]
mod tests;
