//! Structures within messages: ports, rules, tables, bundles.

use super::flow::{PORT_ANY, put_instructions, put_match, read_instructions, read_match};
use super::message::{BundleStep, FlowCommand, FlowMod, FlowStatistics, Message, Multipart, PacketIn, PortDescription};
use super::numbers::{
    BUNDLE_ADD, BUNDLE_CONTROL, LINK_DOWN, NO_BUFFER, ONF, PORT_DESCRIPTION, PORT_DOWN, PORT_NAME, TABLE, VERSION,
    VERSION_BITMAP, kind, multipart,
};
use super::wire::{OpenFlowError, Reader, set_length};
use crate::ingress::rule::{FlowMatch, FlowRule};

/// Returns `true` if the sender of a hello speaks OpenFlow 1.3: by its bitmap of versions, or without one by the
/// version in its header.
pub(super) fn read_hello(version: u8, reader: &mut Reader<'_>) -> Result<bool, OpenFlowError> {
    while !reader.is_empty() {
        let (kind, mut body) = reader.element(true, "hello.element")?;
        if kind == VERSION_BITMAP {
            return Ok(body.u32("hello.bitmap")? >> VERSION & 1 == 1);
        }
    }
    Ok(version >= VERSION)
}

pub(super) fn read_packet_in(reader: &mut Reader<'_>) -> Result<PacketIn, OpenFlowError> {
    reader.skip(8, "packet_in.buffer_id")?;
    let cookie = reader.u64("packet_in.cookie")?;
    let in_port = read_match(reader)?.in_port;
    reader.skip(2, "packet_in.pad")?;
    let frame = reader.rest().to_vec();
    Ok(PacketIn { cookie, in_port, frame })
}

pub(super) fn put_packet_in(out: &mut Vec<u8>, packet: &PacketIn) {
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

pub(super) fn read_port(reader: &mut Reader<'_>) -> Result<PortDescription, OpenFlowError> {
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

pub(super) fn put_port(out: &mut Vec<u8>, port: &PortDescription) {
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

pub(super) fn read_flow_mod(reader: &mut Reader<'_>) -> Result<FlowMod, OpenFlowError> {
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

pub(super) fn put_flow_mod(out: &mut Vec<u8>, change: &FlowMod) {
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

pub(super) fn put_multipart(out: &mut Vec<u8>, kind: u16, more: bool) {
    out.extend(kind.to_be_bytes());
    out.extend(u16::from(more).to_be_bytes());
    out.extend([0; 4]);
}

pub(super) fn read_multipart(reader: &mut Reader<'_>) -> Result<Message, OpenFlowError> {
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

pub(super) fn put_flow(out: &mut Vec<u8>, flow: &FlowStatistics) {
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

pub(super) fn put_bundle(out: &mut Vec<u8>, kind: u32, bundle: u32) {
    out.extend(ONF.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(bundle.to_be_bytes());
}

pub(super) fn read_bundle(reader: &mut Reader<'_>) -> Result<Message, OpenFlowError> {
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
