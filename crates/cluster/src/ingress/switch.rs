//! A switch as the steering loop sees it: commands and events. The OpenFlow connection that implements it is in
//! [`connection`](super::connection).

use super::openflow::{ErrorMessage, FlowMod, FlowStatistics, PacketIn, PortDescription};
use super::rule::{Action, PortNumber};
use std::future::Future;

/// Request to a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchCommand {
    /// Change of rules. Each list is applied whole or not at all, one after the other, where the switch has bundles.
    Write {
        /// Number that the answer has.
        id: u64,
        /// Changes.
        bundles: Vec<Vec<FlowMod>>,
    },
    /// Packet that the switch is to process by an action.
    PacketOut {
        /// Action on it.
        action: Action,
        /// The packet.
        frame: Vec<u8>,
    },
    /// Request for all rules, answered by [`SwitchEvent::Rules`].
    Read,
}

/// Event of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchEvent {
    /// It is connected, or connected again. Its rules may have changed.
    Connected(SwitchState),
    /// The connection was lost, or could not be made. It is tried again without end.
    Disconnected {
        /// Cause, for people.
        reason: String,
    },
    /// All rules of its first table, those of other owners, too.
    Rules(Vec<FlowStatistics>),
    /// A write is complete.
    Written {
        /// Number of the write.
        id: u64,
    },
    /// A list of changes was refused; lists behind it were not tried.
    WriteFailed {
        /// Number of the write.
        id: u64,
        /// First error.
        error: ErrorMessage,
    },
    /// Packet that a rule sent here.
    PacketIn(PacketIn),
    /// A port was added or changed.
    Port(PortDescription),
    /// A port was removed.
    PortRemoved(PortNumber),
}

/// State of a switch when it is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchState {
    /// Identity of the switch.
    pub datapath: u64,
    /// Its ports.
    pub ports: Vec<PortDescription>,
    /// All rules of its first table, those of other owners, too.
    pub rules: Vec<FlowStatistics>,
    /// Rules that its first table has room for.
    pub max_rules: u32,
}

/// Failure to pass a command on: the switch is not connected, or does not keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the switch does not keep up")]
pub struct Busy;

/// Switch, or the connection to one.
pub trait Switch: Send {
    /// Passes a command on, without waiting. Commands while the switch is not connected have no effect.
    ///
    /// # Errors
    /// If too many commands wait already.
    fn command(&mut self, command: SwitchCommand) -> Result<(), Busy>;

    /// Waits for the next event. Returns `None` if there will be none. No event is lost if the future is dropped.
    fn event(&mut self) -> impl Future<Output = Option<SwitchEvent>> + Send;
}
