//! Monitoring of interfaces: link state, removal, and counters.

use super::renewal::{Attempts, MOST_PATIENCE, Renewal};
use super::socket::PacketSocket;
use crate::link_state::LinkState;
use crate::report::{ArrivalTimes, LinkReport, PortReport, QueueReport};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tailwater_net::ethernet::MacAddress;

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
    /// Use of an interface that was made again; `None` if one that disappears is gone for good.
    renewal: Option<Renewal>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    gone: bool,
    /// Attempts to use the interface again, while it is gone.
    attempts: Option<Attempts>,
    mac: Option<MacAddress>,
    /// MTU in bytes.
    mtu: usize,
    is_long_told: bool,
    link: LinkState,
}

/// Result of a check of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceCheck {
    /// Packets that found a ring full since the last check.
    pub(crate) missed: u64,
    /// The interface exists, or may soon exist again.
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
            renewal: None,
            known: Mutex::default(),
        }
    }

    /// Uses an interface again that was deleted and made again.
    pub(crate) fn renewed_by(self, renewal: Renewal) -> InterfaceMonitor {
        let (mac, mtu) = (self.socket().mac(), self.socket().mtu());
        let known = Known {
            mac,
            mtu,
            ..Known::default()
        };
        InterfaceMonitor {
            renewal: Some(renewal),
            known: Mutex::new(known),
            ..self
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
        if let Some(renewal) = &self.renewal {
            renewal.clear();
        }
        if known.gone {
            return check(self.try_again(&mut known, tell));
        }
        let Some(running) = self.socket().is_running() else {
            known.gone = true;
            tell(format!("port interface={name} disappeared during the run"));
            if self.renewal.is_some() {
                // Counted as a change of the link, and so is its return.
                known.link.news(Some(false));
            }
            return check(self.try_again(&mut known, tell));
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

    /// Tries to use an interface again that is gone, if an attempt is due. Returns `false` once the interface counts as
    /// gone for good.
    fn try_again(&self, known: &mut Known, tell: &mut dyn FnMut(String)) -> bool {
        let (Some(renewal), true) = (&self.renewal, self.is_owner.load(Ordering::Acquire)) else {
            return false;
        };
        let (now, name) = (Instant::now(), self.socket().name());
        let attempts = known.attempts.get_or_insert_with(|| Attempts::new(now));
        let is_expected = attempts.elapsed(now) < renewal.patience.min(MOST_PATIENCE);
        if !attempts.is_due(now) {
            return is_expected;
        }
        let old: Vec<&PacketSocket> = self.sockets().collect();
        let mtu = match renewal.renew(&old) {
            Ok(mtu) => mtu,
            Err(error) => {
                attempts.news(&error).into_iter().for_each(tell);
                return is_expected;
            }
        };
        let mut line = format!("port interface={name} was made again and is used");
        let mac = self.socket().mac();
        if let (Some(before), Some(mac)) = (known.mac, mac)
            && before != mac
        {
            line += &format!(", with MAC address {mac} instead of {before}");
        }
        if mtu != known.mtu {
            line += &format!(", with MTU {mtu} instead of {}", known.mtu);
        }
        tell(line);
        (known.gone, known.attempts, known.mac, known.mtu) = (false, None, mac, mtu);
        true
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
