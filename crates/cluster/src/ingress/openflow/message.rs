//! Messages of OpenFlow 1.3 that the ingress exchanges with a switch.

use super::super::rule::{Action, FlowMatch, FlowRule, PortNumber};
use super::flow::{PORT_ANY, put_actions, put_instructions, put_match, read_actions, read_instructions, read_match};
use super::wire::{HEADER, OpenFlowError, Reader, set_length};

/// Version on the wire of OpenFlow 1.3.
pub const VERSION: u8 = 4;
/// Number that says that a switch has not buffered a packet.
const NO_BUFFER: u32 = u32::MAX;
/// The table that Tailwater's rules are in.
const TABLE: u8 = 0;
/// Experimenter of ONF's extensions to OpenFlow 1.3, among them bundles (extension 230).
const ONF: u32 = 0x4f4e_4600;
/// Experimenter types of bundles.
const BUNDLE_CONTROL: u32 = 2300;
const BUNDLE_ADD: u32 = 2301;
/// Flags of a bundle: all of it or nothing, and in order.
const ATOMIC_ORDERED: u16 = 3;
/// Bytes of an error's data that are kept: the header of the message it is about.
const ERROR_DATA: usize = HEADER;
/// Longest name of a port.
const PORT_NAME: usize = 16;
/// Bits of a port's configuration and state that say that it is down.
const PORT_DOWN: u32 = 1;
const LINK_DOWN: u32 = 1;
/// Length of a port description.
const PORT_DESCRIPTION: usize = 64;
/// Element of a hello that has the bitmap of versions.
const VERSION_BITMAP: u16 = 1;

/// Types of messages.
mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
}

/// Types of multipart messages.
mod multipart {
    pub const FLOW: u16 = 1;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESCRIPTIONS: u16 = 13;
}

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
    const ALL: [BundleStep; 8] = [
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

/// Returns the length of the message at the start of `bytes`, or `None` if its header is not complete.
///
/// # Errors
/// If it is of another version, or shorter than a header.
pub fn length_of(bytes: &[u8]) -> Result<Option<usize>, OpenFlowError> {
    let Some(&[version, kind, high, low]) = bytes.first_chunk::<4>() else {
        return Ok(None);
    };
    // A hello is of the highest version that its sender speaks.
    if version != VERSION && (kind != kind::HELLO || version == 0) {
        return Err(OpenFlowError::Value {
            field: "header.version",
            expected: "4 (OpenFlow 1.3)",
            found: version.into(),
        });
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length < HEADER {
        return Err(OpenFlowError::Value {
            field: "header.length",
            expected: "8 or more",
            found: length as u64,
        });
    }
    Ok(Some(length))
}

impl Message {
    /// Returns the transaction number and the message; `bytes` is one message of the length in its header.
    ///
    /// # Errors
    /// If a field has an impossible value, or the message ends too early. The error has the field.
    pub fn decode(bytes: &[u8]) -> Result<(u32, Message), OpenFlowError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u8("header.version")?;
        let kind = reader.u8("header.type")?;
        reader.skip(2, "header.length")?;
        let transaction = reader.u32("header.xid")?;
        let message = match kind {
            kind::HELLO => Message::Hello(read_hello(version, &mut reader)?),
            kind::ERROR => Message::Error(ErrorMessage {
                kind: reader.u16("error.type")?,
                code: reader.u16("error.code")?,
            }),
            kind::ECHO_REQUEST => Message::EchoRequest(reader.rest().to_vec()),
            kind::ECHO_REPLY => Message::EchoReply(reader.rest().to_vec()),
            kind::FEATURES_REQUEST => Message::FeaturesRequest,
            kind::FEATURES_REPLY => {
                let datapath = reader.u64("features.datapath_id")?;
                reader.skip(4, "features.n_buffers")?;
                let tables = reader.u8("features.n_tables")?;
                Message::FeaturesReply(Features { datapath, tables })
            }
            kind::SET_CONFIG => Message::SetConfig,
            kind::PACKET_IN => Message::PacketIn(read_packet_in(&mut reader)?),
            kind::PACKET_OUT => {
                reader.skip(8, "packet_out.in_port")?;
                let length = usize::from(reader.u16("packet_out.actions_len")?);
                reader.skip(6, "packet_out.pad")?;
                let action = read_actions(&mut reader.part(length, "packet_out.actions")?)?;
                let frame = reader.rest().to_vec();
                Message::PacketOut { action, frame }
            }
            kind::PORT_STATUS => {
                let reason = reader.u8("port_status.reason")?;
                reader.skip(7, "port_status.pad")?;
                let port = read_port(&mut reader)?;
                let is_removed = reason == 1;
                Message::PortStatus { is_removed, port }
            }
            kind::FLOW_MOD => Message::FlowMod(read_flow_mod(&mut reader)?),
            kind::MULTIPART_REQUEST => match reader.u16("multipart.type")? {
                multipart::FLOW => Message::FlowsRequest,
                multipart::TABLE_FEATURES => Message::TablesRequest,
                multipart::PORT_DESCRIPTIONS => Message::PortsRequest,
                _ => Message::Unused(kind),
            },
            kind::MULTIPART_REPLY => read_multipart(&mut reader)?,
            kind::BARRIER_REQUEST => Message::BarrierRequest,
            kind::BARRIER_REPLY => Message::BarrierReply,
            kind::EXPERIMENTER => read_bundle(&mut reader)?,
            _ => Message::Unused(kind),
        };
        Ok((transaction, message))
    }

    /// Appends the message.
    pub fn encode(&self, transaction: u32, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend([VERSION, self.kind(), 0, 0]);
        out.extend(transaction.to_be_bytes());
        match self {
            Message::Hello(speaks) => {
                out.extend(VERSION_BITMAP.to_be_bytes());
                out.extend(8_u16.to_be_bytes());
                out.extend((u32::from(*speaks) << VERSION).to_be_bytes());
            }
            Message::Error(error) => {
                out.extend(error.kind.to_be_bytes());
                out.extend(error.code.to_be_bytes());
                out.extend([0; ERROR_DATA]);
            }
            Message::EchoRequest(bytes) | Message::EchoReply(bytes) => out.extend(bytes),
            Message::FeaturesRequest | Message::BarrierRequest | Message::BarrierReply | Message::Unused(_) => {}
            Message::FeaturesReply(features) => {
                out.extend(features.datapath.to_be_bytes());
                out.extend([0; 4]);
                out.extend([features.tables, 0, 0, 0]);
                out.extend([0; 8]);
            }
            // Fragments as they are, and whole packets to the controller.
            Message::SetConfig => out.extend([0, 0, 0xff, 0xff]),
            Message::PacketIn(packet) => put_packet_in(out, packet),
            Message::PacketOut { action, frame } => {
                out.extend(NO_BUFFER.to_be_bytes());
                out.extend(super::flow::PORT_CONTROLLER.to_be_bytes());
                let at = out.len();
                out.extend([0; 8]);
                put_actions(out, action);
                let length = (out.len() - at - 8) as u16;
                out[at..at + 2].copy_from_slice(&length.to_be_bytes());
                out.extend(frame);
            }
            Message::PortStatus { is_removed, port } => {
                out.extend([if *is_removed { 1 } else { 2 }, 0, 0, 0, 0, 0, 0, 0]);
                put_port(out, port);
            }
            Message::FlowMod(change) => put_flow_mod(out, change),
            Message::PortsRequest => put_multipart(out, multipart::PORT_DESCRIPTIONS, false),
            Message::TablesRequest => put_multipart(out, multipart::TABLE_FEATURES, false),
            Message::FlowsRequest => {
                put_multipart(out, multipart::FLOW, false);
                out.extend([TABLE, 0, 0, 0]);
                out.extend(PORT_ANY.to_be_bytes());
                out.extend(PORT_ANY.to_be_bytes());
                // No cookie: foreign rules count in a table's room.
                out.extend([0; 20]);
                put_match(out, &FlowMatch::default());
            }
            Message::Ports(ports) => {
                put_multipart(out, multipart::PORT_DESCRIPTIONS, ports.more);
                ports.items.iter().for_each(|port| put_port(out, port));
            }
            Message::Tables(tables) => {
                put_multipart(out, multipart::TABLE_FEATURES, tables.more);
                for (table, rules) in &tables.items {
                    out.extend(64_u16.to_be_bytes());
                    out.extend([*table, 0, 0, 0, 0, 0]);
                    out.extend([0; 52]);
                    out.extend(rules.to_be_bytes());
                }
            }
            Message::Flows(flows) => {
                put_multipart(out, multipart::FLOW, flows.more);
                flows.items.iter().for_each(|flow| put_flow(out, flow));
            }
            Message::BundleControl { bundle, step } => {
                put_bundle(out, BUNDLE_CONTROL, *bundle);
                out.extend((*step as u16).to_be_bytes());
                out.extend(ATOMIC_ORDERED.to_be_bytes());
            }
            Message::BundleAdd { bundle, change } => {
                put_bundle(out, BUNDLE_ADD, *bundle);
                out.extend([0; 2]);
                out.extend(ATOMIC_ORDERED.to_be_bytes());
                // The transaction number of the inner message is the outer one's.
                Message::FlowMod(change.clone()).encode(transaction, out);
            }
        }
        set_length(out, begin, begin + 2);
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => kind::HELLO,
            Message::Error(_) => kind::ERROR,
            Message::EchoRequest(_) => kind::ECHO_REQUEST,
            Message::EchoReply(_) => kind::ECHO_REPLY,
            Message::FeaturesRequest => kind::FEATURES_REQUEST,
            Message::FeaturesReply(_) => kind::FEATURES_REPLY,
            Message::SetConfig => kind::SET_CONFIG,
            Message::PacketIn(_) => kind::PACKET_IN,
            Message::PacketOut { .. } => kind::PACKET_OUT,
            Message::PortStatus { .. } => kind::PORT_STATUS,
            Message::FlowMod(_) => kind::FLOW_MOD,
            Message::PortsRequest | Message::TablesRequest | Message::FlowsRequest => kind::MULTIPART_REQUEST,
            Message::Ports(_) | Message::Tables(_) | Message::Flows(_) => kind::MULTIPART_REPLY,
            Message::BarrierRequest => kind::BARRIER_REQUEST,
            Message::BarrierReply => kind::BARRIER_REPLY,
            Message::BundleControl { .. } | Message::BundleAdd { .. } => kind::EXPERIMENTER,
            Message::Unused(kind) => *kind,
        }
    }
}

/// Returns `true` if the sender of a hello speaks OpenFlow 1.3: by its bitmap of versions, or without one by the version
/// in its header.
fn read_hello(version: u8, reader: &mut Reader<'_>) -> Result<bool, OpenFlowError> {
    while !reader.is_empty() {
        let (kind, mut body) = reader.element(true, "hello.element")?;
        if kind == VERSION_BITMAP {
            return Ok(body.u32("hello.bitmap")? >> VERSION & 1 == 1);
        }
    }
    Ok(version >= VERSION)
}

fn read_packet_in(reader: &mut Reader<'_>) -> Result<PacketIn, OpenFlowError> {
    reader.skip(8, "packet_in.buffer_id")?;
    let cookie = reader.u64("packet_in.cookie")?;
    let in_port = read_match(reader)?.in_port;
    reader.skip(2, "packet_in.pad")?;
    let frame = reader.rest().to_vec();
    Ok(PacketIn { cookie, in_port, frame })
}

fn put_packet_in(out: &mut Vec<u8>, packet: &PacketIn) {
    out.extend(NO_BUFFER.to_be_bytes());
    out.extend((packet.frame.len() as u16).to_be_bytes());
    // Sent by an action, from the first table.
    out.extend([1, TABLE]);
    out.extend(packet.cookie.to_be_bytes());
    let matching = FlowMatch {
        in_port: packet.in_port,
        ..FlowMatch::default()
    };
    put_match(out, &matching);
    out.extend([0; 2]);
    out.extend(&packet.frame);
}

fn read_port(reader: &mut Reader<'_>) -> Result<PortDescription, OpenFlowError> {
    let mut port = reader.part(PORT_DESCRIPTION, "port")?;
    let number = port.u32("port.port_no")?;
    port.skip(12, "port.hw_addr")?;
    let name = port.take(PORT_NAME, "port.name")?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    let config = port.u32("port.config")?;
    let state = port.u32("port.state")?;
    let is_up = config & PORT_DOWN == 0 && state & LINK_DOWN == 0;
    Ok(PortDescription { number, name, is_up })
}

fn put_port(out: &mut Vec<u8>, port: &PortDescription) {
    let begin = out.len();
    out.extend(port.number.to_be_bytes());
    out.extend([0; 12]);
    let name = port.name.as_bytes();
    let length = name.len().min(PORT_NAME - 1);
    out.extend(&name[..length]);
    out.resize(begin + 16 + PORT_NAME, 0);
    out.extend([0; 4]);
    out.extend(if port.is_up { 0 } else { LINK_DOWN }.to_be_bytes());
    out.resize(begin + PORT_DESCRIPTION, 0);
}

fn read_flow_mod(reader: &mut Reader<'_>) -> Result<FlowMod, OpenFlowError> {
    let cookie = reader.u64("flow_mod.cookie")?;
    reader.skip(9, "flow_mod.cookie_mask")?;
    let command = match reader.u8("flow_mod.command")? {
        0 => FlowCommand::Add,
        4 => FlowCommand::Delete,
        other => {
            return Err(OpenFlowError::Value {
                field: "flow_mod.command",
                expected: "0 (add) or 4 (delete strictly)",
                found: other.into(),
            });
        }
    };
    reader.skip(4, "flow_mod.idle_timeout")?;
    let priority = reader.u16("flow_mod.priority")?;
    reader.skip(16, "flow_mod.out_port")?;
    let matching = read_match(reader)?;
    let action = read_instructions(reader)?;
    let rule = FlowRule {
        cookie,
        priority,
        matching,
        action,
    };
    Ok(FlowMod { command, rule })
}

fn put_flow_mod(out: &mut Vec<u8>, change: &FlowMod) {
    let rule = &change.rule;
    let (command, mask) = match change.command {
        FlowCommand::Add => (0, 0),
        // A rule of somebody else, who has replaced ours, is not deleted.
        FlowCommand::Delete => (4, u64::MAX),
    };
    out.extend(rule.cookie.to_be_bytes());
    out.extend(mask.to_be_bytes());
    out.extend([TABLE, command, 0, 0, 0, 0]);
    out.extend(rule.priority.to_be_bytes());
    out.extend(NO_BUFFER.to_be_bytes());
    out.extend(PORT_ANY.to_be_bytes());
    out.extend(PORT_ANY.to_be_bytes());
    out.extend([0; 4]);
    put_match(out, &rule.matching);
    if change.command == FlowCommand::Add {
        put_instructions(out, &rule.action);
    }
}

fn put_multipart(out: &mut Vec<u8>, kind: u16, more: bool) {
    out.extend(kind.to_be_bytes());
    out.extend(u16::from(more).to_be_bytes());
    out.extend([0; 4]);
}

fn read_multipart(reader: &mut Reader<'_>) -> Result<Message, OpenFlowError> {
    let kind = reader.u16("multipart.type")?;
    let more = reader.u16("multipart.flags")? & 1 == 1;
    reader.skip(4, "multipart.pad")?;
    Ok(match kind {
        multipart::FLOW => {
            let mut items = Vec::new();
            while !reader.is_empty() {
                items.push(read_flow(reader)?);
            }
            Message::Flows(Multipart { items, more })
        }
        multipart::TABLE_FEATURES => {
            let mut items = Vec::new();
            while !reader.is_empty() {
                items.push(read_table(reader)?);
            }
            Message::Tables(Multipart { items, more })
        }
        multipart::PORT_DESCRIPTIONS => {
            let mut items = Vec::new();
            while !reader.is_empty() {
                items.push(read_port(reader)?);
            }
            Message::Ports(Multipart { items, more })
        }
        _ => Message::Unused(kind::MULTIPART_REPLY),
    })
}

/// Returns the rest of a list's entry that begins with its own length in two bytes.
fn entry<'a>(reader: &mut Reader<'a>, field: &'static str) -> Result<Reader<'a>, OpenFlowError> {
    let length = reader.u16(field)?;
    match usize::from(length).checked_sub(2) {
        Some(rest) => reader.part(rest, field),
        None => Err(OpenFlowError::Value {
            field,
            expected: "2 or more",
            found: length.into(),
        }),
    }
}

fn read_table(reader: &mut Reader<'_>) -> Result<(u8, u32), OpenFlowError> {
    let mut entry = entry(reader, "table_features.length")?;
    let table = entry.u8("table_features.table_id")?;
    entry.skip(5 + 32 + 16 + 4, "table_features.name")?;
    Ok((table, entry.u32("table_features.max_entries")?))
}

fn read_flow(reader: &mut Reader<'_>) -> Result<FlowStatistics, OpenFlowError> {
    let mut entry = entry(reader, "flow_stats.length")?;
    entry.skip(2 + 8, "flow_stats.duration")?;
    let priority = entry.u16("flow_stats.priority")?;
    entry.skip(10, "flow_stats.idle_timeout")?;
    let cookie = entry.u64("flow_stats.cookie")?;
    let packets = entry.u64("flow_stats.packet_count")?;
    let bytes = entry.u64("flow_stats.byte_count")?;
    let matching = read_match(&mut entry)?;
    let action = read_instructions(&mut entry)?;
    let rule = FlowRule {
        cookie,
        priority,
        matching,
        action,
    };
    Ok(FlowStatistics { rule, packets, bytes })
}

fn put_flow(out: &mut Vec<u8>, flow: &FlowStatistics) {
    let begin = out.len();
    out.extend([0, 0, TABLE, 0]);
    out.extend([0; 8]);
    out.extend(flow.rule.priority.to_be_bytes());
    out.extend([0; 10]);
    out.extend(flow.rule.cookie.to_be_bytes());
    out.extend(flow.packets.to_be_bytes());
    out.extend(flow.bytes.to_be_bytes());
    put_match(out, &flow.rule.matching);
    put_instructions(out, &flow.rule.action);
    set_length(out, begin, begin);
}

fn put_bundle(out: &mut Vec<u8>, kind: u32, bundle: u32) {
    out.extend(ONF.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(bundle.to_be_bytes());
}

fn read_bundle(reader: &mut Reader<'_>) -> Result<Message, OpenFlowError> {
    let experimenter = reader.u32("experimenter.id")?;
    let exp_type = reader.u32("experimenter.type")?;
    if experimenter != ONF || exp_type != BUNDLE_CONTROL && exp_type != BUNDLE_ADD {
        return Ok(Message::Unused(kind::EXPERIMENTER));
    }
    let bundle = reader.u32("bundle.id")?;
    let step = reader.u16("bundle.type")?;
    reader.skip(2, "bundle.flags")?;
    if exp_type == BUNDLE_ADD {
        reader.skip(1, "bundle_add.version")?;
        let inner = reader.u8("bundle_add.type")?;
        reader.skip(6, "bundle_add.header")?;
        // Bundles in bundles would nest without bound.
        if inner != kind::FLOW_MOD {
            return Err(OpenFlowError::Value {
                field: "bundle_add.type",
                expected: "14 (a flow mod)",
                found: inner.into(),
            });
        }
        let change = read_flow_mod(reader)?;
        return Ok(Message::BundleAdd { bundle, change });
    }
    let Some(&step) = BundleStep::ALL.get(usize::from(step)) else {
        return Err(OpenFlowError::Value {
            field: "bundle.type",
            expected: "0 to 7",
            found: step.into(),
        });
    };
    Ok(Message::BundleControl { bundle, step })
}
