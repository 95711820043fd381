//! `NetworkFunction` trait, the capabilities that a function may have, and the functions' view of the flow table.

mod candidates;
mod capabilities;
mod explanation;
mod flow_state;
pub(crate) mod lifetimes;
mod properties;

use crate::batch::packet::{Packet, Verdict};
pub use candidates::{CompanionCandidates, MAX_CANDIDATES};
pub use capabilities::{
    DurableState, FlowEnds, FlowTimer, PortableState, RemoteFlow, RemoteFunction, RemoteTransfer, RunEnd,
};
pub use explanation::{Explanation, MAX_EXPLANATION, TracedPacket};
pub use flow_state::{FlowStates, NewFlow};
pub(crate) use flow_state::{SHOWN_BEFORE, StateSlot, UNSEEN};
pub use lifetimes::Lifetimes;
pub use properties::FunctionProperties;

use crate::batch::Batch;
use std::sync::Arc;

/// Network function: takes a batch of packets and sets a verdict on each.
///
/// A function with per-flow state declares the number of bytes. The chain looks the flow up once for all its functions
/// and gives each of them its own part of the state. Decisions that depend on the flow key alone are made in
/// [`new_flow`](NetworkFunction::new_flow) and stored in the state, so that [`process`](NetworkFunction::process) only
/// applies them.
///
/// Each worker has its own instance. Data that workers share (rules, tables) is read-only behind an `Arc`.
///
/// # Capabilities
///
/// A function implements more than this trait only if it has more to do. It then returns itself, or a part of itself,
/// as the trait of that capability:
///
/// | method | trait | capability |
/// |---|---|---|
/// | [`flow_ends`](NetworkFunction::flow_ends) | [`FlowEnds`] | reports flows that have ended, or releases resources |
/// | [`run_end`](NetworkFunction::run_end) | [`RunEnd`] | completes its work after the last packet |
/// | [`timer`](NetworkFunction::timer) | [`FlowTimer`] | handles flows while they have no packets |
/// | [`lifetimes`](NetworkFunction::lifetimes) | [`Lifetimes`] | decides on idle timeouts |
/// | [`durable`](NetworkFunction::durable) | [`DurableState`] | has flow state that can be stored externally |
/// | [`portable`](NetworkFunction::portable) | [`DurableState`] | has flow state that can pass to another process |
/// | [`remote`](NetworkFunction::remote) | [`RemoteFunction`] | is the proxy of a function in another process |
///
/// A function has a capability always or never, since its chain is built accordingly.
///
/// # Example
///
/// A function that lets each flow have ten packets:
///
/// ```
/// use tailwater_chain::batch::{Batch, Verdict};
/// use tailwater_chain::function::{FlowStates, NetworkFunction};
///
/// struct TenPackets;
///
/// impl NetworkFunction for TenPackets {
///     fn kind(&self) -> &'static str {
///         "TenPackets"
///     }
///     fn drop_reasons(&self) -> &'static [&'static str] {
///         &["more-than-ten"]
///     }
///     fn state_bytes(&self) -> usize {
///         size_of::<u64>()
///     }
///     fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
///         for packet in batch.iter_mut() {
///             let seen = flows.state::<u64>(packet);
///             *seen += 1;
///             if *seen > 10 {
///                 packet.verdict = Verdict::Drop(0);
///             }
///         }
///     }
/// }
/// ```
pub trait NetworkFunction: Send {
    /// Name of the function's type in specs, documentation and reports.
    fn kind(&self) -> &'static str;

    /// Stable names of the function's drop reasons, at most [`MAX_DROP_REASONS`]. [`Verdict::Drop`] holds an index into
    /// this list.
    fn drop_reasons(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns `true` if packets dropped for this reason are *lost* for lack of resources, not dropped by a decision of
    /// the function.
    fn is_loss(&self, reason: u8) -> bool {
        let _ = reason;
        false
    }

    /// Stable names of the function's counters of packets that pass. Reports list them next to the drops.
    fn counters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of the [counters](NetworkFunction::counters), in their order.
    fn counter_values(&self) -> &[u64] {
        &[]
    }

    /// Size of the per-flow state in bytes. If it is 0 here and in the chain's other functions, the chain does not look
    /// flows up at all.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Fixed properties of the function.
    fn properties(&self) -> FunctionProperties {
        FunctionProperties::default()
    }

    /// Returns `true` if nothing is lost when a new instance continues in another process: the function keeps nothing
    /// between packets but decisions by flow, which [`new_flow`](NetworkFunction::new_flow) makes again from the rules.
    fn can_restart(&self) -> bool {
        false
    }

    /// Version of the rules that [`new_flow`](NetworkFunction::new_flow) decides by. When it changes, every flow is
    /// passed to `new_flow` again with its next packet. It is neither 0 nor [`u32::MAX`], which mark flows that are
    /// passed to `new_flow` under any version.
    fn version(&self) -> u32 {
        1
    }

    /// Called before [`new_flow`](NetworkFunction::new_flow) with the [batch indices](NewFlow::batch_index) of the
    /// packets it will be called for. Of several packets of one flow, only the first is then decided about. For
    /// functions that decide about many flows at once faster than one by one.
    fn prepare(&mut self, batch: &Batch, new: &[u16]) {
        let _ = (batch, new);
    }

    /// Decides about a flow on its first packet since the function's version changed, or since a preceding function
    /// [rekeyed](NewFlow::rekeyed) the flow. The flow's state is zero the first time, and later holds the function's
    /// last value. [`Verdict::Drop`] drops the packet, and the next packet calls `new_flow` again. A lasting refusal is
    /// stored in the state and applied in `process`.
    fn new_flow(&mut self, packet: &Packet, frame: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        let _ = (packet, frame, flow);
        Verdict::Forward
    }

    /// Inspects a packet that is not IP, such as a frame of MPLS or PPPoE, which [`process`](NetworkFunction::process)
    /// does not see: it passes around all functions, if the chain lets such packets pass. Its headers hold the network
    /// offset, and it has no flow. [`Verdict::Drop`] drops it.
    fn inspect_non_ip(&mut self, packet: &Packet, frame: &[u8]) -> Verdict {
        let _ = (packet, frame);
        Verdict::Forward
    }

    /// Processes a batch. Every packet in it is well-formed IP and, if the function has state, belongs to a flow that
    /// `new_flow` has seen. The function drops a packet by setting its verdict.
    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>);

    /// Explains the decision that [`process`](NetworkFunction::process) has just made on a packet: the rule, binding,
    /// backend, route or state behind it. Called for traced packets only, after `process` and before dropped packets
    /// leave the batch. A function that adds no text is shown by what it changed.
    ///
    /// The core that processes packets calls it: it may format, but must not allocate or lock.
    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let _ = (traced, flows, text);
    }

    /// Capability to be notified of flows' ends.
    fn flow_ends(&mut self) -> Option<&mut dyn FlowEnds> {
        None
    }

    /// Capability to be notified of the run's end.
    fn run_end(&mut self) -> Option<&mut dyn RunEnd> {
        None
    }

    /// Capability to run a timer on each flow's state.
    fn timer(&mut self) -> Option<&mut dyn FlowTimer> {
        None
    }

    /// Source of idle timeouts for the chain's flows, if the function decides on them.
    fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        None
    }

    /// Capability to store flow state externally.
    fn durable(&mut self) -> Option<&mut dyn DurableState> {
        None
    }

    /// Capability to pass flow state to a process that takes over from this one. State that can be stored externally
    /// can.
    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        self.durable()
    }

    /// Isolated function for which this one is the proxy.
    fn remote(&self) -> Option<&dyn RemoteFunction> {
        None
    }
}

/// Maximum number of drop reasons of one function.
pub const MAX_DROP_REASONS: usize = 18;
