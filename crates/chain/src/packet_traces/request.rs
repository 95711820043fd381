//! Request to trace packets, and the steps that it yields.

use super::filter::PacketFilter;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use tailwater_net::{FlowKey, Nanos};

/// Bytes of a packet that a step has.
pub const CAPTURED: usize = 256;

/// Request that a chain's instances carry out.
#[derive(Debug)]
pub(crate) struct TraceRequest {
    pub(super) filter: PacketFilter,
    /// Packets that may still begin.
    pub(super) left: AtomicU32,
    /// Nobody waits at its other end, so that sending is no system call.
    pub(super) steps: SyncSender<TraceStep>,
    pub(super) lost: AtomicU64,
}

impl TraceRequest {
    /// Returns `true` if a packet of this flow is to be traced, and counts it.
    pub(crate) fn takes(&self, key: &FlowKey) -> bool {
        if self.left.load(Ordering::Relaxed) == 0 || !self.filter.matches(key) {
            return false;
        }
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.is_ok()
    }

    pub(crate) fn send(&self, step: TraceStep) {
        if self.steps.try_send(step).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Packet in front of the chain, or behind one of its functions.
#[derive(Clone, Debug)]
pub struct TraceStep {
    /// Buffer of the packet, and its arrival: no other packet has both.
    pub packet: (u32, Nanos),
    /// Function that it has passed; `None` in front of the first one.
    pub function: Option<u16>,
    /// Core.
    pub core: u32,
    /// Times at which the function began with the packet's batch, and ended.
    pub times: [Nanos; 2],
    /// Packets of the batch.
    pub batch: u16,
    /// Number of the reason for which the function drops it.
    pub dropped: Option<u8>,
    /// Its flow, and whether this packet has opened it.
    pub flow: (FlowKey, bool),
    /// Length of the frame.
    pub length: u16,
    /// The first bytes of the frame: all of them, or [`CAPTURED`].
    pub frame: [u8; CAPTURED],
}

impl TraceStep {
    /// Step with the first bytes of a frame. `fill` sets everything else.
    pub(crate) fn new(frame: &[u8], fill: impl FnOnce(&mut TraceStep)) -> TraceStep {
        let mut step = TraceStep {
            packet: (0, Nanos::ZERO),
            function: None,
            core: 0,
            times: [Nanos::ZERO; 2],
            batch: 0,
            dropped: None,
            flow: (FlowKey::default(), false),
            length: frame.len() as u16,
            frame: [0; CAPTURED],
        };
        let captured = frame.len().min(CAPTURED);
        step.frame[..captured].copy_from_slice(&frame[..captured]);
        fill(&mut step);
        step
    }

    /// Bytes of the frame that were captured.
    pub fn captured(&self) -> &[u8] {
        &self.frame[..usize::from(self.length).min(CAPTURED)]
    }
}
