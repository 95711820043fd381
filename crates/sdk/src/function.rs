//! What a function is.

use crate::abi;
use crate::{Batch, Config, ConfigError, FlowKey, State};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// A network function: a batch of packets in, a verdict on each out.
///
/// One value serves one thread. What all of them share is made once, by
/// [`configure`](Function::configure). A panic in [`process`](Function::process) ends the run, with its
/// report.
pub trait Function: Sized + Send + 'static {
    /// The name in reports: lower-case letters, digits and dashes.
    const NAME: &'static CStr;
    /// Why it drops packets, at most [`MAX_DROP_REASONS`](abi::MAX_DROP_REASONS).
    const DROP_REASONS: &'static [DropReason] = &[];
    /// What else it counts, at most [`MAX_COUNTERS`](abi::MAX_COUNTERS).
    const COUNTERS: &'static [Name] = &[];
    /// Whether it leaves alone, and does not look at, what is behind the headers.
    const HEADERS_ONLY: bool = false;
    /// Whether it gives packets other addresses or ports, so that functions behind it decide anew.
    const REWRITES_FLOWS: bool = false;
    /// Whether [`flow_ended`](Function::flow_ended) is to be called. For functions with state.
    const WANTS_FLOW_ENDS: bool = false;

    /// Not 0: the bytes of [`State`](Function::State) mean the same to all instances, on whatever server, and this is the
    /// version of what they mean. Then a chain's `state` keeps them in Redis, too ([`Packet::read`](crate::Packet::read)).
    /// No times in it, which count from a run's start.
    const STATE_VERSION: u32 = 0;

    /// What is kept of each flow, zero when the flow is new; `()` for nothing.
    type State: State;
    /// What all instances share: rules, tables.
    type Shared: Send + Sync + 'static;

    /// Reads the configuration. Without side effects: it is called in a child process first.
    ///
    /// # Errors
    /// What is wrong with it.
    fn configure(config: &Config) -> Result<Self::Shared, ConfigError>;

    /// Makes an instance for one thread.
    fn start(shared: Arc<Self::Shared>) -> Self;

    /// Processes a batch. No allocation, lock, system call or output.
    fn process(&mut self, batch: &mut Batch<'_, Self::State>);

    /// A flow that `process` has seen has left the flow table; `state` is its last.
    fn flow_ended(&mut self, key: &FlowKey, state: &Self::State, counters: &mut [u64]) {
        let _ = (key, state, counters);
    }
}

/// A name of lower-case letters, digits and dashes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Name(*const c_char);

// SAFETY: made of a `&'static CStr` only, which is `Sync` and `Send`.
unsafe impl Sync for Name {}
// SAFETY: as above.
unsafe impl Send for Name {}

impl Name {
    /// A name.
    pub const fn new(name: &'static CStr) -> Name {
        Name(name.as_ptr())
    }
}

/// Why packets are dropped.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct DropReason(abi::DropReason);

impl DropReason {
    /// Dropped, because the function decided so.
    pub const fn dropped(name: &'static CStr) -> DropReason {
        DropReason(abi::DropReason {
            name: name.as_ptr(),
            is_loss: 0,
        })
    }

    /// Lost, for want of room.
    pub const fn lost(name: &'static CStr) -> DropReason {
        DropReason(abi::DropReason {
            name: name.as_ptr(),
            is_loss: 1,
        })
    }
}
