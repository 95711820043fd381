//! Batches: the packets that pass through a chain together, with what is known of each.

mod packet;
mod resize;

pub(crate) use packet::Slot;
pub use packet::{Arrived, Incoming, Packet, Verdict};

use crate::buffer::{Buffer, BufferMemory, BufferPool, HEADROOM, MAX_FRAME};
use crate::flow_table::FlowIndex;
use crate::parcel::{PacketStore, Parcel, Receipt};
use crate::region::{CACHE_LINE, prefetch};
use tailwater_net::Nanos;
use tailwater_net::parse::Headers;
use tailwater_sdk::program::{Made, TurnPacket};

/// The most packets a batch can hold.
pub const MAX_BATCH: usize = 256;

/// The batch size used where nothing else is said (as DPDK, NetBlaze and Quadrant do).
pub const DEFAULT_BATCH: usize = 32;

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
    pub fn receive_all(&mut self, packets: impl ExactSizeIterator<Item = (Arrived, u32)>, arrival: Nanos) {
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

    /// The packets' metadata, in order, each with the address of its buffer: for functions in foreign code. The
    /// buffers are [`buffer_bytes`](Batch::buffer_bytes) long, and the batch's alone.
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
    /// there. The packet's headers stay as they were: who has functions look at it again finds them.
    ///
    /// # Panics
    /// If the frame is beyond the buffer, or longer than [`MAX_FRAME`].
    #[inline]
    pub fn replace_frame(&mut self, i: usize, [start, length]: [usize; 2], write: impl FnOnce(&mut [u8])) {
        assert!(start.max(length) <= MAX_FRAME, "a frame of {length} bytes");
        let Slot { packet, buffer } = &mut self.packets[i];
        write(&mut self.memory.bytes_mut(buffer)[start..start + length]);
        packet.set_place(start as u16, length as u16);
    }

    /// Adds a packet that another process described, in a buffer of the batch's memory, if `headers` finds those of its
    /// frame; else nothing is added, and it returns `false`.
    ///
    /// # Panics
    /// If the buffer is of other memory, or the frame beyond it.
    #[inline(always)]
    pub(crate) fn put(
        &mut self,
        buffer: Buffer,
        described: &TurnPacket,
        flow: (FlowIndex, bool),
        headers: impl FnOnce(&[u8], &mut Headers) -> bool,
    ) -> bool {
        let [start, length] = described.place;
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

    /// Empties the batch of packets that another process described: tells what became of each.
    #[inline]
    pub(crate) fn take_all(&mut self, mut each: impl FnMut(u16, Made)) {
        for Slot { packet, buffer } in &self.packets {
            let made = Made::Forward {
                place: [packet.start, packet.length],
                rekeyed: packet.is_rekeyed(),
            };
            each(buffer.index() as u16, made);
        }
        self.packets.clear();
        for gone in &self.dropped {
            each(gone.buffer.index() as u16, Made::Drop(gone.reason));
        }
        self.dropped.clear();
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

#[cfg(test)]
mod tests;
