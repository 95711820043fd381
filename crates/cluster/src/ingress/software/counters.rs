//! Counters of the software data plane. Each core has its own, which only it writes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Most cores.
pub(super) const MOST_CORES: usize = 16;

/// Counter in a cache line that one core writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CoreCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// Packets and bytes that matched a rule.
#[derive(Debug)]
pub(super) struct RuleCounters(Box<[CoreCounters]>);

impl RuleCounters {
    /// Counters for this number of cores.
    pub fn new(cores: usize) -> RuleCounters {
        RuleCounters((0..cores).map(|_| CoreCounters::default()).collect())
    }

    /// Counts a packet.
    #[inline]
    pub fn note(&self, core: usize, bytes: usize) {
        if let Some(own) = self.0.get(core) {
            add(&own.packets, 1);
            add(&own.bytes, bytes as u64);
        }
    }

    /// Returns packets and bytes of all cores.
    pub fn sum(&self) -> (u64, u64) {
        self.0.iter().fold((0, 0), |(packets, bytes), own| {
            (
                packets + own.packets.load(Ordering::Relaxed),
                bytes + own.bytes.load(Ordering::Relaxed),
            )
        })
    }
}

impl Default for RuleCounters {
    fn default() -> Self {
        RuleCounters::new(1)
    }
}

/// Reasons for which packets are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// No rule matches.
    NoRule,
    /// A rule says so.
    Rule,
    /// The rule's port does not exist.
    NoPort,
    /// The rule's port is the one on which the packet arrived.
    SamePort,
    /// The port did not accept the packet.
    NotSent,
    /// No free buffer for a copy to several ports.
    NoBuffer,
    /// Too many packets wait for the ingress.
    IngressBusy,
    /// Frame longer than the port's MTU, or cut off.
    TooLong,
}

/// Names of the reasons, in their order.
pub(super) const REASONS: [&str; 8] = [
    "no-rule",
    "rule",
    "no-port",
    "same-port",
    "not-sent",
    "no-buffer",
    "ingress-busy",
    "too-long",
];

/// Dropped packets of a core.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct DropCounters([AtomicU64; REASONS.len()]);

impl DropCounters {
    /// Counts packets, by the one core that these are of.
    #[inline]
    pub fn note(&self, reason: Reason, packets: usize) {
        add(&self.0[reason as usize], packets as u64);
    }

    /// Returns the number of packets of a reason, by its index in [`REASONS`].
    pub fn get(&self, reason: usize) -> u64 {
        self.0[reason].load(Ordering::Relaxed)
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
