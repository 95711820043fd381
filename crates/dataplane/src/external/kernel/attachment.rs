//! Ports of an external function: kernel interfaces.

use crate::external::attachment::{Attachment, Direction};
use crate::packet_socket::monitor::{InterfaceMonitor, PortCounters};
use crate::packet_socket::renewal::RingExchange;
use crate::packet_socket::ring::RxRing;
use crate::packet_socket::sending::SendList;
use crate::packet_socket::socket::PacketSocket;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_chain::batch::{Batch, Incoming};
use tailwater_chain::buffer::{BufferPool, HEADROOM, MAX_FRAME};
use tailwater_net::Nanos;

/// Bytes of a sent frame beyond the MTU: Ethernet header, one VLAN tag.
const HEADERS: usize = 14 + 4;

/// One interface.
#[derive(Debug)]
pub(super) struct End {
    // Before the socket, whose memory it is.
    ring: RxRing,
    /// Passes the ring of an interface that was made again.
    renewed: Arc<RingExchange>,
    socket: Arc<PacketSocket>,
    counters: Arc<PortCounters>,
}

impl End {
    /// A worker's side of the interface, the monitor's, and the exchange by which the worker gets a new ring.
    pub(super) fn new(socket: Arc<PacketSocket>, ring: RxRing) -> (End, InterfaceMonitor, Arc<RingExchange>) {
        let counters = Arc::new(PortCounters::default());
        let receives = vec![(Arc::clone(&socket), Arc::clone(&counters))];
        let is_owner = Arc::new(AtomicBool::new(true));
        let monitor = InterfaceMonitor::new(receives, Vec::new(), ring.slots(), is_owner);
        let renewed = Arc::<RingExchange>::default();
        let end = End {
            ring,
            renewed: Arc::clone(&renewed),
            socket,
            counters,
        };
        (end, monitor, renewed)
    }
}

/// One or two interfaces of a function.
#[derive(Debug)]
pub(super) struct Ends {
    ends: Vec<End>,
    list: SendList,
}

impl Ends {
    pub(super) fn new(ends: Vec<End>) -> Ends {
        Ends {
            ends,
            list: SendList::new(),
        }
    }
}

impl Attachment for Ends {
    fn has_two_ports(&self) -> bool {
        self.ends.len() > 1
    }

    fn longest(&self) -> usize {
        let longest = self.ends.iter().map(|end| end.socket.mtu() + HEADERS).min();
        longest.unwrap_or(0)
    }

    fn ring(&self) -> usize {
        let rings = self.ends.iter().map(|end| end.ring.slots());
        rings.max().unwrap_or(0)
    }

    fn send(&mut self, way: Direction, batch: &mut Batch) -> usize {
        let end = match (way, &mut *self.ends) {
            (Direction::Forward, [first, ..]) => first,
            (Direction::Backward, [.., last]) => last,
            (_, []) => unreachable!("a function has a port"),
        };
        let unsent = self.list.send(&end.socket, batch);
        end.counters.note_sent(batch.len());
        unsent
    }

    fn receive(&mut self, way: Direction, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize {
        let end = match (way, &mut *self.ends) {
            (Direction::Forward, [.., last]) => last,
            (Direction::Backward, [first, ..]) => first,
            (_, []) => unreachable!("a function has a port"),
        };
        let most = batch.room().min(pool.available());
        let longest = (batch.buffer_bytes() - HEADROOM).min(MAX_FRAME);
        let (mut count, mut refused) = (0, 0);
        while count < most {
            let Some(slot) = end.ring.next() else {
                // The old ring is read to its end first.
                if end.renewed.is_new() {
                    end.renewed.exchange(&mut end.ring);
                }
                break;
            };
            match slot.frame().filter(|frame| frame.length() <= longest) {
                Some(frame) => {
                    let length = frame.length();
                    count += batch.fill(pool, 1, |room| {
                        frame.copy_to(room);
                        Incoming {
                            length,
                            arrival: now,
                            rss_hash: 0,
                            rest: 0,
                        }
                    });
                }
                None => refused += 1,
            }
        }
        if count + refused > 0 {
            end.counters.note_received(count, refused);
        }
        count
    }
}
