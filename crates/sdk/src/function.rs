//! Trait of a network function, and its types.

use crate::abi;
use crate::{Batch, Config, ConfigError, Explanation, FlowKey, Packet, State};
use std::ffi::CStr;
use std::os::raw::c_char;
use std::sync::Arc;

/// Network function: takes a batch of packets, and sets a verdict on each.
///
/// One value serves one thread. [`configure`](Function::configure) creates the data that all of them share. A panic in
/// [`process`](Function::process) ends the run with a report.
pub trait Function: Sized + Send + 'static {
    /// Name in reports: lower-case letters, digits and dashes.
    const NAME: &'static CStr;
    /// Drop reasons, at most [`MAX_DROP_REASONS`](abi::MAX_DROP_REASONS).
    const DROP_REASONS: &'static [DropReason] = &[];
    /// Additional counters, at most [`MAX_COUNTERS`](abi::MAX_COUNTERS).
    const COUNTERS: &'static [Name] = &[];
    /// `true`: the function neither reads nor writes bytes behind the headers.
    const HEADERS_ONLY: bool = false;
    /// `true`: the function changes addresses or ports, so that later functions decide again.
    const REWRITES_FLOWS: bool = false;
    /// `true`: [`flow_ended`](Function::flow_ended) is called. For functions with state.
    const WANTS_FLOW_ENDS: bool = false;

    /// Version of the state's format, if the bytes of [`State`](Function::State) mean the same to all instances on all
    /// servers; 0 otherwise. With a version, a chain's `state` also stores them in Redis
    /// ([`Packet::read`](crate::Packet::read)). Such state must not contain times, which count from a run's start.
    const STATE_VERSION: u32 = 0;

    /// State of each flow, zero in a new flow; `()` for none.
    type State: State;
    /// Data that all instances share, such as rules and tables.
    type Shared: Send + Sync + 'static;

    /// Reads the configuration, without side effects: a child process calls it first.
    ///
    /// # Errors
    /// The configuration is invalid.
    fn configure(config: &Config) -> Result<Self::Shared, ConfigError>;

    /// Creates an instance for one thread.
    fn start(shared: Arc<Self::Shared>) -> Self;

    /// Processes a batch, without allocation, locks, system calls or output.
    fn process(&mut self, batch: &mut Batch<'_, Self::State>);

    /// Called when a flow that `process` has seen leaves the flow table; `state` is its last state.
    fn flow_ended(&mut self, key: &FlowKey, state: &Self::State, counters: &mut [u64]) {
        let _ = (key, state, counters);
    }

    /// Explains in a line what [`process`](Function::process) has just decided on a packet: the rule or state behind
    /// it. Called only for packets that somebody traces. The packet is as the function left it, and its flow's state is
    /// that after the batch; [`Packet::key`] is the 5-tuple in front of the function.
    fn explain(&self, packet: &Packet<'_, Self::State>, text: &mut Explanation<'_>) {
        let _ = (packet, text);
    }
}

/// Name of lower-case letters, digits and dashes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Name(*const c_char);

// SAFETY: created from a `&'static CStr` only, which is `Sync` and `Send`.
unsafe impl Sync for Name {}
// SAFETY: as above.
unsafe impl Send for Name {}

impl Name {
    /// Creates a name.
    pub const fn new(name: &'static CStr) -> Name {
        Name(name.as_ptr())
    }
}

/// Drop reason.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct DropReason(abi::DropReason);

impl DropReason {
    /// Packets are dropped by the function's decision.
    pub const fn dropped(name: &'static CStr) -> DropReason {
        DropReason(abi::DropReason {
            name: name.as_ptr(),
            is_loss: 0,
        })
    }

    /// Packets are lost for lack of resources.
    pub const fn lost(name: &'static CStr) -> DropReason {
        DropReason(abi::DropReason {
            name: name.as_ptr(),
            is_loss: 1,
        })
    }
}
