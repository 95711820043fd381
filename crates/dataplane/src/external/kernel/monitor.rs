//! Monitoring of interfaces: link state, removal, and counters.

use super::socket::PacketSocket;
use crate::link_state::LinkState;
use crate::report::{ArrivalTimes, LinkReport, PortReport};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Packets of an interface, counted by its worker.
#[derive(Debug, Default)]
pub(super) struct PortCounters {
    sent: AtomicU64,
    received: AtomicU64,
    /// Frames that are longer than the MTU, and others that cannot be received.
    refused: AtomicU64,
}

impl PortCounters {
    #[inline]
    pub(super) fn note_sent(&self, packets: usize) {
        add(&self.sent, packets);
    }

    #[inline]
    pub(super) fn note_received(&self, packets: usize, refused: usize) {
        add(&self.received, packets);
        add(&self.refused, refused);
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, more: usize) {
    counter.store(counter.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}

/// Interface with its monitored state.
#[derive(Debug)]
pub(super) struct InterfaceMonitor {
    socket: Arc<PacketSocket>,
    counters: Arc<PortCounters>,
    slots: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Packets that found the ring full.
    missed: u64,
    gone: bool,
    link: LinkState,
}

impl InterfaceMonitor {
    pub(super) fn new(socket: Arc<PacketSocket>, counters: Arc<PortCounters>, slots: usize) -> InterfaceMonitor {
        InterfaceMonitor {
            socket,
            counters,
            slots,
            known: Mutex::default(),
        }
    }

    /// State with the kernel's counters added.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel's counter starts anew at each reading.
        known.missed += self.socket.take_missed();
        known
    }

    /// Checks the interface, and reports news to `tell`.
    pub(super) fn poll(&self, tell: &mut dyn FnMut(String)) {
        let (name, mut known) = (self.socket.name(), self.known());
        if known.gone {
            return;
        }
        let Some(running) = self.socket.is_running() else {
            known.gone = true;
            tell(format!("port interface={name} disappeared during the run"));
            return;
        };
        if let Some(state) = known.link.news(Some(running)) {
            tell(format!("port interface={name}: link {state}"));
        }
    }

    /// Counters of the interface.
    pub(super) fn report(&self) -> PortReport {
        let known = self.known();
        let running = self.socket.is_running();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PortReport {
            port: format!("interface={}", self.socket.name()),
            driver: "af_packet".to_owned(),
            queues: 1,
            send_queues: 1,
            descriptors: self.slots as u64,
            numa_node: None,
            checks_checksums: false,
            arrival_times: ArrivalTimes::Software,
            received: count(&self.counters.received),
            sent: count(&self.counters.sent),
            missed: known.missed,
            receive_errors: count(&self.counters.refused),
            no_buffer: 0,
            send_errors: 0,
            gone: known.gone || running.is_none(),
            link: LinkReport {
                up: running,
                mbps: None,
                changes: known.link.changes(),
            },
            by_queue: Vec::new(),
            reta: None,
        }
    }
}
