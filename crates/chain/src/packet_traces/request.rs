//! Request to trace packets, and the steps that it yields.

use super::filter::PacketFilter;
use crate::batch::Batch;
use crate::function::Explanation;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use tailwater_net::{FlowKey, Nanos};

/// Bytes of a packet that a step has.
pub const CAPTURED: usize = 256;

/// Request that a chain's instances carry out.
#[derive(Debug)]
pub(crate) struct TraceRequest {
    pub(super) filter: PacketFilter,
    /// Other requests take its place.
    pub(super) is_sample: bool,
    /// Packets that may still begin.
    pub(super) left: AtomicU32,
    /// Nobody waits at its other end, so that sending is no system call.
    pub(super) steps: SyncSender<TraceStep>,
    pub(super) lost: AtomicU64,
}

impl TraceRequest {
    /// Returns `false` if no packet of this batch begins to be traced.
    #[inline]
    pub(crate) fn may_begin_in(&self, batch: &Batch) -> bool {
        self.left.load(Ordering::Relaxed) > 0 && self.filter.may_match_some(batch)
    }

    /// Returns `true` if a packet of this flow is to be traced. It is counted then.
    pub(crate) fn takes(&self, key: &FlowKey) -> bool {
        self.filter.matches(key) && self.take()
    }

    #[cold]
    fn take(&self) -> bool {
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

/// Part that a core has in a packet's processing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceRole {
    /// Dedicated core.
    #[default]
    Dedicated,
    /// Auxiliary core, on behalf of the dedicated core that owns the packet's RSS bucket.
    Auxiliary,
    /// Auxiliary core that holds a lease of the packet's RSS bucket, and looks its flows up.
    Leased,
}

/// Core and function from which an instance's traces count.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracePlace {
    /// Core.
    pub core: u32,
    /// Number of the instance's first function in the chain.
    pub first: u16,
    /// The core is an auxiliary one.
    pub is_auxiliary: bool,
}

/// Flow table entry of a traced packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracedFlow {
    /// Index in the flow table; `None` in a chain without flow state.
    pub index: Option<u32>,
    /// The packet has opened it.
    pub is_new: bool,
    /// The packet goes against the direction of the entry's key.
    pub is_reversed: bool,
    /// RSS bucket.
    pub bucket: u16,
}

/// Packet in front of the chain, or behind one of its functions.
#[derive(Clone, Debug)]
pub struct TraceStep {
    /// Pool and index of the packet's buffer, and its arrival. No other packet has all three until this one has left
    /// the chain; a step without a function begins another one.
    pub packet: (u16, u32, Nanos),
    /// Function that it has passed; `None` in front of the first one.
    pub function: Option<u16>,
    /// Core.
    pub core: u32,
    /// Role of the core.
    pub role: TraceRole,
    /// Times at which the function began with the packet's batch, and ended.
    pub times: [Nanos; 2],
    /// Packets of the batch.
    pub batch: u16,
    /// Number of the reason for which the function drops it.
    pub dropped: Option<u8>,
    /// Addresses, ports and protocol, as the packet has them now.
    pub key: FlowKey,
    /// Entry of its flow.
    pub flow: TracedFlow,
    /// Explanation of the function's decision.
    pub explanation: Explanation,
    /// Length of the frame.
    pub length: u16,
    /// The first bytes of the frame: all of them, or [`CAPTURED`].
    pub frame: [u8; CAPTURED],
}

impl TraceStep {
    /// Step with the first bytes of a frame. `fill` sets everything else.
    pub(crate) fn new(frame: &[u8], fill: impl FnOnce(&mut TraceStep)) -> TraceStep {
        let mut step = TraceStep {
            packet: (0, 0, Nanos::ZERO),
            function: None,
            core: 0,
            role: TraceRole::Dedicated,
            times: [Nanos::ZERO; 2],
            batch: 0,
            dropped: None,
            key: FlowKey::default(),
            flow: TracedFlow::default(),
            explanation: Explanation::EMPTY,
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
