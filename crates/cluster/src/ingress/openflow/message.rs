//! Messages of OpenFlow 1.3 that the ingress exchanges with a switch.

use crate::ingress::rule::{Action, FlowRule, PortNumber};

/// Message of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// First message: `true` if the sender speaks OpenFlow 1.3.
    Hello(bool),
    /// A request failed.
    Error(ErrorMessage),
    /// Request for the same bytes.
    EchoRequest(Vec<u8>),
    /// The same bytes.
    EchoReply(Vec<u8>),
    /// Request for [`Features`].
    FeaturesRequest,
    /// Facts about the switch.
    FeaturesReply(Features),
    /// Setting: whole packets are sent to the controller.
    SetConfig,
    /// Packet that a rule sent to the controller.
    PacketIn(PacketIn),
    /// Packet that the switch is to process by an action.
    PacketOut {
        /// Action on it.
        action: Action,
        /// The packet.
        frame: Vec<u8>,
    },
    /// A port was added, changed or removed.
    PortStatus {
        /// `true` if there is no such port any more.
        is_removed: bool,
        /// The port.
        port: PortDescription,
    },
    /// Change of a rule.
    FlowMod(FlowMod),
    /// Request for all ports.
    PortsRequest,
    /// Ports.
    Ports(Multipart<PortDescription>),
    /// Request for the features of all tables.
    TablesRequest,
    /// Most rules of tables, with the tables' numbers.
    Tables(Multipart<(u8, u32)>),
    /// Request for all rules of the first table.
    FlowsRequest,
    /// Rules.
    Flows(Multipart<FlowStatistics>),
    /// Request for an answer once everything before is done.
    BarrierRequest,
    /// Its answer.
    BarrierReply,
    /// Request or reply about a bundle.
    BundleControl {
        /// Number of the bundle.
        bundle: u32,
        /// Step of its life.
        step: BundleStep,
    },
    /// Change of a rule as a part of a bundle.
    BundleAdd {
        /// Number of the bundle.
        bundle: u32,
        /// The change.
        change: FlowMod,
    },
    /// A message that the ingress does not use, with its type.
    Unused(u8),
}

/// Answer in several messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipart<T> {
    /// Items in this message.
    pub items: Vec<T>,
    /// `true` if another message follows.
    pub more: bool,
}

/// Failure of a request, which has the same transaction number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorMessage {
    /// `OFPET_*`.
    pub kind: u16,
    /// Code, by type.
    pub code: u16,
}

impl ErrorMessage {
    /// The table has no room for a rule.
    pub const TABLE_FULL: ErrorMessage = ErrorMessage { kind: 5, code: 1 };

    /// Returns `true` if the switch does not have an extension.
    pub fn is_unknown_extension(self) -> bool {
        // Bad request: unknown experimenter or experimenter type.
        self.kind == 1 && (self.code == 3 || self.code == 4 || self.code == 1)
    }
}

/// Facts about a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Identity of the switch.
    pub datapath: u64,
    /// Number of its tables.
    pub tables: u8,
}

/// Packet that a rule sent to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// Cookie of the rule.
    pub cookie: u64,
    /// Port that the packet arrived on.
    pub in_port: Option<PortNumber>,
    /// The packet.
    pub frame: Vec<u8>,
}

/// Port of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDescription {
    /// Its number.
    pub number: PortNumber,
    /// Its name; invalid UTF-8 is replaced.
    pub name: String,
    /// `true` unless it is switched off or has no link.
    pub is_up: bool,
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    /// Adds a rule, in place of one with the same match and priority.
    Add,
    /// Deletes the rule with this match, priority and cookie.
    Delete,
}

/// Change of a rule in the first table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// Kind of change.
    pub command: FlowCommand,
    /// The rule.
    pub rule: FlowRule,
}

/// Rule with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatistics {
    /// The rule.
    pub rule: FlowRule,
    /// Packets that matched it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Step of a bundle's life: requests have even numbers, and each one's reply the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum BundleStep {
    /// Request to open.
    Open = 0,
    /// It is open.
    Opened = 1,
    /// Request to close.
    Close = 2,
    /// It takes no more changes.
    Closed = 3,
    /// Request to apply it.
    Commit = 4,
    /// It is applied.
    Committed = 5,
    /// Request to discard it.
    Discard = 6,
    /// It is discarded.
    Discarded = 7,
}

impl BundleStep {
    /// All steps, by number.
    pub const ALL: [BundleStep; 8] = [
        BundleStep::Open,
        BundleStep::Opened,
        BundleStep::Close,
        BundleStep::Closed,
        BundleStep::Commit,
        BundleStep::Committed,
        BundleStep::Discard,
        BundleStep::Discarded,
    ];
}
