//! Capabilities that a function may have in addition to processing packets. Each is a trait of its own, which
//! [`NetworkFunction`](super::NetworkFunction) returns if the function has it.

use super::candidates::CompanionCandidates;
use super::flow_state::NewFlow;
use crate::batch::packet::Packet;
use std::sync::Arc;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Notification of flows' ends, for functions that report flows or hold resources for them.
pub trait FlowEnds {
    /// Called after a flow that [`new_flow`](super::NetworkFunction::new_flow) accepted has left the table, with its
    /// last state.
    fn flow_ended(&mut self, key: &FlowKey, state: &[u8]);

    /// Called before flows move to another instance, which then owns their indices in the flow table. The function
    /// completes pending work for flows that have ended there.
    fn before_flows_move(&mut self) {}
}

/// Notification of the run's end, for functions that hand over or finish something then.
pub trait RunEnd {
    /// Called after the last packet. The ends of all remaining flows follow, off the data path, so the function may
    /// block from now on.
    fn drain(&mut self);

    /// Called after the flows remaining at the end of the run have ended.
    fn after_flow_ends(&mut self) {}
}

/// Timer on each flow's state, which also runs while the flow has no packets.
pub trait FlowTimer {
    /// Approximate interval of the timer, which does not change. It is not shorter than the chain's expiry of idle
    /// flows. A function in a process of its own has no timer.
    fn interval(&self) -> Nanos;

    /// Timer callback on a flow's state, between batches. The function has accepted the flow, and no packet of it that
    /// was looked up is in the system.
    fn on_timer(&mut self, key: &FlowKey, state: &mut [u8], now: Nanos);
}

/// Flow state that is meaningful outside this process: it can be stored externally (`spec.state`), or pass to a process
/// that takes over. Without this capability, another instance decides about the flow anew.
///
/// Stored bytes may come from another instance or an untrusted writer: whatever they hold, they must not endanger
/// memory other than the function's own.
pub trait DurableState {
    /// Version of the state's format.
    fn format_version(&self) -> u32;

    /// Converts a copy of a flow's state to its portable form. `origin` is the wall-clock time of the run's start, from
    /// which times in the state count.
    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        let _ = (state, origin);
    }

    /// Converts a flow's state from its portable form, the reverse of [`to_durable`](DurableState::to_durable), for
    /// this instance.
    fn restore_durable(&mut self, state: &mut [u8], origin: Nanos) {
        let _ = (state, origin);
    }

    /// Resumes a flow whose state was loaded from external storage, and opens what belongs to it. With `false`, it
    /// cannot, and the flow counts as new. In either case [`new_flow`](super::NetworkFunction::new_flow) follows.
    fn resume(&mut self, packet: &Packet, flow: &mut NewFlow<'_>) -> bool {
        let _ = (packet, flow);
        true
    }

    /// Opens what belongs to a flow of another process, whose state is restored: entries of the function's tables, for
    /// example. If the flow table has no slot, the flow ends at once.
    fn open_imported(&mut self, key: &FlowKey, state: &mut [u8]) {
        let (_, _) = (key, state);
    }

    /// Returns `true` if flows may have bytes outside their state, such as buffered data, which pass with it to another
    /// process. They are not stored externally.
    fn has_attachments(&self) -> bool {
        false
    }

    /// Appends the bytes of a flow outside this state of it, which stays as it is.
    fn detach(&mut self, state: &[u8], now: Nanos, out: &mut Vec<u8>) {
        let (_, _, _) = (state, now, out);
    }

    /// Takes the [detached](DurableState::detach) bytes of a flow of another process over, after its state was
    /// restored. They are empty if it had none.
    fn attach(&mut self, state: &mut [u8], bytes: &[u8], now: Nanos) {
        let (_, _, _) = (state, bytes, now);
    }

    /// Adds the keys of candidate companions, one of which `new_flow` will open if this flow is new. Redis is queried
    /// whether another instance has them. There are at most [`MAX_CANDIDATES`](super::MAX_CANDIDATES) keys, best first,
    /// each with a number below that for [`NewFlow::is_taken`]. The search starts at `turn`; the turn that was used is
    /// returned.
    fn companion_candidates(&self, packet: &Packet, turn: u8, candidates: &mut CompanionCandidates<'_>) -> u8 {
        let _ = (packet, candidates);
        turn
    }
}

/// Durable state of this format version that is stored as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortableState {
    /// Version of the state's format.
    pub format_version: u32,
}

impl DurableState for PortableState {
    fn format_version(&self) -> u32 {
        self.format_version
    }
}

/// Isolated function in another process, for which this one is the proxy.
pub trait RemoteFunction {
    /// Returns `true` if the isolated function has flow state. The first proxy of several isolated functions declares
    /// the state of all of them; this result tells them apart, so that errors name the right function.
    fn has_state(&self) -> bool;

    /// Returns `true` if the isolated function opens companions. The properties of the first proxy say so of several.
    fn opens_companions(&self) -> bool;

    /// Maximum size of the next batch, if the process requires one. It may change with every batch.
    fn wanted_batch(&self) -> Option<usize>;

    /// Returns `true` while packets have to wait for a successor of the process, and may: a later call allows them in
    /// any case.
    fn awaits_process(&self) -> bool;

    /// Called before the thread of an auxiliary core sleeps, between two batches: ordinary programs get the core.
    fn before_sleep(&self);

    /// Size in bytes of the part of its state that can be stored externally.
    fn piece_bytes(&self) -> usize;

    /// Snapshots that the function writes of its state, if it is stored externally.
    fn snapshots(&self) -> Option<Arc<FlowSnapshots>>;

    /// Its flow state, if that can pass to another process.
    fn transfer(&self) -> Option<&dyn RemoteTransfer> {
        None
    }

    /// Returns the generation of the flow in slot `slot`, which `state` begins with: that of the first function of the
    /// chain with state there. A flow without a generation is given one; it is never 0.
    fn generation(&self, state: &mut [u8], slot: u32) -> u64;
}

/// Flow state of an isolated function that can pass to another process. It is read and written in the memory that the
/// function's processes share, while none of them has a turn; the processes take no part in it.
pub trait RemoteTransfer: Send + Sync {
    /// Version of the state's portable form.
    fn format_version(&self) -> u32;

    /// Size of that form in bytes, for each flow, and direction if these have a state of each.
    fn bytes(&self) -> usize;

    /// Returns `true` if each direction of a connection has its own state.
    fn is_directed(&self) -> bool;

    /// Copies the portable form of the state of a flow, or of one of its directions, to `to`. Returns `false` if the
    /// function has not accepted it. `origin` is the wall-clock time at which the run's clock was 0.
    fn export(&self, flow: RemoteFlow, origin: Nanos, to: &mut [u8]) -> bool;

    /// Writes the state of a flow, which is new here, from its portable form. The function is presented the flow with
    /// its next packet, and is notified of its end as if it had accepted it.
    fn import(&self, flow: RemoteFlow, key: &FlowKey, origin: Nanos, from: &[u8]);
}

/// Flow of an isolated function, or one direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteFlow {
    /// Slot in the flow table.
    pub slot: u32,
    /// Generation of the flow.
    pub generation: u64,
    /// `true` for packets against the direction of a connection's key. No effect unless the state [is
    /// directed](RemoteTransfer::is_directed).
    pub is_reversed: bool,
}
