//! Monitoring of interfaces: link state, removal, and counters.

use super::socket::PacketSocket;
use crate::link_state::LinkState;
use crate::report::{ArrivalTimes, LinkReport, PortReport, QueueReport};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets of one socket of an interface. One thread receives, and one sends.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    sent: AtomicU64,
    received: AtomicU64,
    /// Frames that are longer than the MTU, and others that cannot be received.
    refused: AtomicU64,
    /// Packets that found the ring full.
    missed: AtomicU64,
}

impl PortCounters {
    #[inline]
    pub(crate) fn note_sent(&self, packets: usize) {
        add(&self.sent, packets);
    }

    #[inline]
    pub(crate) fn note_received(&self, packets: usize, refused: usize) {
        add(&self.received, packets);
        add(&self.refused, refused);
    }

    /// Returns the packets that found the ring of a socket full since the last call, which any thread may make.
    pub(crate) fn take_missed(&self, socket: &PacketSocket) -> u64 {
        // The kernel's counter starts anew at each reading.
        let missed = socket.take_missed();
        self.missed.fetch_add(missed, Ordering::Relaxed);
        missed
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, more: usize) {
    counter.store(counter.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}

/// Interface with its monitored state.
#[derive(Debug)]
pub(crate) struct InterfaceMonitor {
    /// Sockets that receive, each with its counters, or the one that sends.
    sockets: Vec<(Arc<PacketSocket>, Arc<PortCounters>)>,
    /// Counters of those that send.
    senders: Vec<Arc<PortCounters>>,
    /// Slots of a ring; 0 if the interface only sends.
    slots: usize,
    /// Set while the kernel's counters are this process's to read.
    is_owner: Arc<AtomicBool>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    gone: bool,
    is_long_told: bool,
    link: LinkState,
}

/// Result of a check of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceCheck {
    /// Packets that found a ring full since the last check.
    pub(crate) missed: u64,
    /// The interface exists.
    pub(crate) exists: bool,
}

impl InterfaceMonitor {
    /// Monitor of an interface. Each socket receives, with its counters, into a ring of `slots` slots, or there is one
    /// that only sends. `senders` are the counters of those that send.
    ///
    /// # Panics
    /// If there is no socket.
    pub(crate) fn new(
        sockets: Vec<(Arc<PacketSocket>, Arc<PortCounters>)>,
        senders: Vec<Arc<PortCounters>>,
        slots: usize,
        is_owner: Arc<AtomicBool>,
    ) -> InterfaceMonitor {
        assert!(!sockets.is_empty(), "an interface has a socket");
        InterfaceMonitor {
            sockets,
            senders,
            slots,
            is_owner,
            known: Mutex::default(),
        }
    }

    fn socket(&self) -> &PacketSocket {
        &self.sockets[0].0
    }

    /// Sockets that receive, or the one that sends.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &PacketSocket> {
        self.sockets.iter().map(|(socket, _)| &**socket)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the packets that found a ring full since the last call.
    pub(crate) fn take_missed(&self) -> u64 {
        if !self.is_owner.load(Ordering::Acquire) {
            return 0;
        }
        let sockets = self.sockets.iter();
        sockets.map(|(socket, counters)| counters.take_missed(socket)).sum()
    }

    /// Checks the interface, and reports news to `tell`.
    pub(crate) fn poll(&self, tell: &mut dyn FnMut(String)) -> InterfaceCheck {
        let (name, mut known) = (self.socket().name(), self.known());
        let missed = self.take_missed();
        let check = |exists| InterfaceCheck { missed, exists };
        if known.gone {
            return check(false);
        }
        let Some(running) = self.socket().is_running() else {
            known.gone = true;
            tell(format!("port interface={name} disappeared during the run"));
            return check(false);
        };
        if let Some(state) = known.link.news(Some(running)) {
            tell(format!("port interface={name}: link {state}"));
        }
        if !known.is_long_told && self.sum(|own| &own.refused) > 0 {
            known.is_long_told = true;
            tell(format!(
                "port interface={name}: received frames longer than the MTU, which are lost; the sender leaves their \
                 segmentation to a device: ethtool -K PEER tso off gso off, at the other end of a veth pair"
            ));
        }
        check(true)
    }

    /// Sum of a counter.
    fn sum(&self, counter: fn(&PortCounters) -> &AtomicU64) -> u64 {
        let all = self.sockets.iter().map(|(_, own)| own).chain(&self.senders);
        all.map(|own| counter(own).load(Ordering::Relaxed)).sum()
    }

    /// Counters of the interface.
    pub(crate) fn report(&self) -> PortReport {
        let known = self.known();
        let running = self.socket().is_running();
        let receives = self.slots > 0;
        let by_queue = self.sockets.iter().enumerate().map(|(queue, (_, own))| QueueReport {
            queue: queue as u64,
            received: Some(own.received.load(Ordering::Relaxed)),
            receive_errors: Some(own.refused.load(Ordering::Relaxed) + own.missed.load(Ordering::Relaxed)),
            sent: None,
        });
        PortReport {
            port: format!("interface={}", self.socket().name()),
            driver: "af_packet".to_owned(),
            queues: if receives { self.sockets.len() as u64 } else { 0 },
            send_queues: self.senders.len().max(1) as u64,
            descriptors: self.slots as u64,
            numa_node: None,
            checks_checksums: false,
            arrival_times: ArrivalTimes::Software,
            received: self.sum(|own| &own.received),
            sent: self.sum(|own| &own.sent),
            missed: self.sum(|own| &own.missed),
            receive_errors: self.sum(|own| &own.refused),
            no_buffer: 0,
            send_errors: 0,
            gone: known.gone || running.is_none(),
            link: LinkReport {
                up: running,
                mbps: None,
                changes: known.link.changes(),
            },
            by_queue: by_queue.filter(|_| self.sockets.len() > 1).collect(),
            reta: None,
        }
    }
}
