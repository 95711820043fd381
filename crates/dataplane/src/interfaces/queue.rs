//! Queues of kernel interfaces: a receive ring, and sending by one or two sockets.

use super::buffers::QueueBuffers;
use crate::device::{Receiver, Sender};
use crate::packet_socket::monitor::PortCounters;
use crate::packet_socket::renewal::RingExchange;
use crate::packet_socket::ring::RxRing;
use crate::packet_socket::sending::SendList;
use crate::packet_socket::socket::PacketSocket;
use crate::port::Refused;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_chain::batch::{Arrived, Batch, MAX_BATCH};
use tailwater_chain::buffer::{BufferPool, HEADROOM, MAX_FRAME};
use tailwater_net::Nanos;

/// Socket with its counters.
#[derive(Clone, Debug)]
pub(super) struct CountedSocket {
    pub(super) socket: Arc<PacketSocket>,
    pub(super) counters: Arc<PortCounters>,
}

/// Receive ring of one socket.
#[derive(Debug)]
pub(super) struct SocketRing {
    pub(super) ring: RxRing,
    /// Passes the ring of an interface that was made again.
    pub(super) renewed: Arc<RingExchange>,
    pub(super) from: CountedSocket,
}

/// Receive rings of an interface's sockets that one core reads: one, unless another process had another number of
/// cores.
#[derive(Debug)]
pub(super) struct RingReceiver {
    rings: Vec<SocketRing>,
    /// Ring that is read first.
    first: usize,
    /// Index of the chain's port (0: entry, 1: exit), set on each packet.
    entry: u8,
    buffers: QueueBuffers,
    arrived: Vec<Arrived>,
    refused: u64,
    /// Set while the rings are this process's.
    is_owner: Arc<AtomicBool>,
}

impl RingReceiver {
    pub(super) fn new(
        rings: Vec<SocketRing>,
        (entry, buffers): (u8, QueueBuffers),
        is_owner: Arc<AtomicBool>,
    ) -> RingReceiver {
        RingReceiver {
            rings,
            first: 0,
            entry,
            buffers,
            arrived: Vec::with_capacity(MAX_BATCH),
            refused: 0,
            is_owner,
        }
    }

    /// Reads a ring, until this number of packets is there. Returns the number read, with those refused.
    #[inline]
    fn read(&mut self, at: usize, pool: &mut BufferPool, most: usize) -> usize {
        let SocketRing { ring, renewed, from } = &mut self.rings[at];
        let longest = (pool.memory().buffer_bytes() - HEADROOM).min(MAX_FRAME);
        let (mut count, mut refused) = (0, 0);
        while count < most {
            // Not before the buffer is there: a slot that is dropped goes to the kernel.
            let Some(slot) = ring.next() else {
                // The old ring is read to its end first.
                if renewed.is_new() {
                    renewed.exchange(ring);
                }
                break;
            };
            count += 1;
            let frame = slot.frame().filter(|frame| frame.length() <= longest);
            let Some((frame, mut buffer)) = frame.and_then(|frame| Some((frame, self.buffers.take(pool)?))) else {
                refused += 1;
                continue;
            };
            let length = frame.length();
            frame.copy_to(&mut pool.memory().bytes_mut(&mut buffer)[HEADROOM..]);
            self.arrived.push(Arrived {
                buffer,
                start: HEADROOM as u16,
                length: length as u16,
                hash: None,
                entry: self.entry,
            });
        }
        if count > 0 {
            from.counters.note_received(count - refused, refused);
            self.refused += refused as u64;
        }
        count
    }
}

impl Receiver for RingReceiver {
    #[inline]
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        debug_assert!(self.arrived.is_empty(), "packets that nobody took");
        let most = most.min(MAX_BATCH).min(self.buffers.settle(pool));
        let (rings, mut count) = (self.rings.len(), 0);
        for i in 0..rings {
            count += self.read((self.first + i) % rings, pool, most - count);
            if count == most {
                break;
            }
        }
        if rings > 1 {
            // Each ring is read to its end in its turn.
            self.first = (self.first + 1) % rings;
        }
        count
    }

    #[inline]
    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        self.arrived.drain(..).map(|packet| (packet, None))
    }

    #[inline]
    fn refused(&mut self) -> Refused {
        Refused {
            in_pieces: std::mem::take(&mut self.refused),
            damaged: 0,
        }
    }

    fn ring(&self) -> usize {
        self.rings.iter().map(|own| own.ring.slots()).sum()
    }

    fn take_missed(&mut self) -> u64 {
        let missed = |own: &SocketRing| own.from.counters.take_missed(&own.from.socket);
        match self.is_owner.load(Ordering::Relaxed) {
            true => self.rings.iter().map(missed).sum(),
            false => 0,
        }
    }

    fn positions(&self) -> Option<Vec<u64>> {
        // A new ring that nobody has read yet is read from its start.
        let position = |own: &SocketRing| if own.renewed.is_new() { 0 } else { own.ring.position() } as u64;
        Some(self.rings.iter().map(position).collect())
    }

    fn continue_at(&mut self, positions: &[u64]) -> bool {
        let mut each = self.rings.iter_mut().zip(positions);
        each.all(|(own, position)| usize::try_from(*position).is_ok_and(|position| own.ring.continue_at(position)))
    }

    fn set_owner(&mut self, is_owner: bool) {
        self.is_owner.store(is_owner, Ordering::Release);
    }
}

/// Sender by the socket of one interface, or by those of both.
#[derive(Debug)]
pub(super) struct SocketSender {
    list: SendList,
    /// Entry and exit, if packets leave by both.
    to: Vec<CountedSocket>,
}

impl SocketSender {
    /// # Panics
    /// If there is no socket.
    pub(super) fn new(to: Vec<CountedSocket>) -> SocketSender {
        assert!((1..=2).contains(&to.len()), "a port has one or two interfaces");
        SocketSender {
            list: SendList::new(),
            to,
        }
    }
}

fn send_all(list: &mut SendList, to: &CountedSocket, batch: &mut Batch) -> usize {
    let unsent = list.send(&to.socket, batch);
    to.counters.note_sent(batch.len());
    unsent
}

impl Sender for SocketSender {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        if batch.is_empty() {
            return 0;
        }
        let list = &mut self.list;
        match &*self.to {
            [entry, exit] => {
                let sockets = [&*entry.socket, &exit.socket];
                let by_exit = |packet: &tailwater_chain::batch::Packet| (packet.entry == 0) != packet.turns_back();
                let counts = list.send_divided(sockets, batch, by_exit);
                let [[by_entry, unsent], [by_exit, rest]] = counts;
                entry.counters.note_sent(by_entry);
                exit.counters.note_sent(by_exit);
                unsent + rest
            }
            [only, ..] => send_all(list, only, batch),
            [] => unreachable!("a port has an interface"),
        }
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        match batch.is_empty() {
            true => 0,
            false => send_all(&mut self.list, &self.to[0], batch),
        }
    }
}
