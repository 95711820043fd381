//! Matches and actions in OpenFlow's encoding (OXM fields; the instruction *apply actions*).

use super::super::rule::{Action, FlowMatch, MaskedAddress, PortNumber};
use super::wire::{OpenFlowError, Reader, pad, set_length};

/// Class of the fields that OpenFlow defines.
const BASIC: u16 = 0x8000;
/// Numbers of fields.
mod field {
    pub const IN_PORT: u8 = 0;
    pub const ETH_DST: u8 = 3;
    pub const ETH_TYPE: u8 = 5;
    pub const VLAN_VID: u8 = 6;
    pub const IP_PROTO: u8 = 10;
    pub const IPV4_SRC: u8 = 11;
    pub const IPV4_DST: u8 = 12;
    pub const IPV6_SRC: u8 = 26;
    pub const IPV6_DST: u8 = 27;
}
/// Bit of a VLAN match that says that there is a tag.
const VLAN_PRESENT: u16 = 0x1000;
/// Type of a match of OXM fields.
const MATCH_OXM: u16 = 1;
/// Instruction *apply actions*.
const APPLY_ACTIONS: u16 = 4;
/// Actions.
const OUTPUT: u16 = 0;
const SET_FIELD: u16 = 25;
/// Reserved ports.
pub const PORT_NORMAL: PortNumber = 0xffff_fffa;
pub const PORT_CONTROLLER: PortNumber = 0xffff_fffd;
pub const PORT_ANY: PortNumber = 0xffff_ffff;
/// Length with which whole packets go to the controller.
const WHOLE: u16 = 0xffff;

/// Appends a field.
fn put_field(out: &mut Vec<u8>, number: u8, value: &[u8], mask: Option<&[u8]>) {
    out.extend(BASIC.to_be_bytes());
    out.push(number << 1 | u8::from(mask.is_some()));
    out.push((value.len() + mask.map_or(0, <[u8]>::len)) as u8);
    out.extend(value);
    out.extend(mask.unwrap_or_default());
}

/// Appends an address; [`of_v6`] is added to the number for IPv6.
fn put_address(out: &mut Vec<u8>, address: MaskedAddress, v4: u8, v6: u8) {
    match address {
        MaskedAddress::V4 { value, mask } => {
            let bytes = mask.to_be_bytes();
            put_field(out, v4, &value.to_be_bytes(), (mask != u32::MAX).then_some(&bytes));
        }
        MaskedAddress::V6 { value, mask } => {
            let bytes = mask.to_be_bytes();
            put_field(out, v6, &value.to_be_bytes(), (mask != u128::MAX).then_some(&bytes));
        }
    }
}

/// Appends a match, with its padding.
pub fn put_match(out: &mut Vec<u8>, matching: &FlowMatch) {
    let begin = out.len();
    out.extend(MATCH_OXM.to_be_bytes());
    out.extend([0; 2]);
    if let Some(port) = matching.in_port {
        put_field(out, field::IN_PORT, &port.to_be_bytes(), None);
    }
    // A field stands behind those that it requires.
    if let Some(kind) = matching.eth_type {
        put_field(out, field::ETH_TYPE, &kind.to_be_bytes(), None);
    }
    if let Some(vlan) = matching.vlan {
        put_field(out, field::VLAN_VID, &(vlan | VLAN_PRESENT).to_be_bytes(), None);
    }
    if let Some(protocol) = matching.protocol {
        put_field(out, field::IP_PROTO, &[protocol], None);
    }
    if let Some(source) = matching.source {
        put_address(out, source, field::IPV4_SRC, field::IPV6_SRC);
    }
    if let Some(destination) = matching.destination {
        put_address(out, destination, field::IPV4_DST, field::IPV6_DST);
    }
    out.extend(&matching.other);
    set_length(out, begin, begin + 2);
    pad(out, begin);
}

/// Reads a match, with its padding.
pub fn read_match(reader: &mut Reader<'_>) -> Result<FlowMatch, OpenFlowError> {
    let (kind, mut fields) = reader.element(true, "match.length")?;
    if kind != MATCH_OXM {
        return Err(OpenFlowError::Value {
            field: "match.type",
            expected: "1",
            found: kind.into(),
        });
    }
    let mut matching = FlowMatch::default();
    while !fields.is_empty() {
        let head = fields.array::<4>("match.oxm_header")?;
        let class = u16::from_be_bytes([head[0], head[1]]);
        let body = fields.take(usize::from(head[3]), "match.oxm_length")?;
        let (number, has_mask) = (head[2] >> 1, head[2] & 1 == 1);
        let is_known = class == BASIC && read_field(&mut matching, number, has_mask, body);
        if !is_known {
            matching.other.extend(head);
            matching.other.extend(body);
        }
    }
    Ok(matching)
}

/// Reads a field. Returns `false` if it is none that Tailwater uses, or has a mask that it does not use.
fn read_field(matching: &mut FlowMatch, number: u8, has_mask: bool, body: &[u8]) -> bool {
    fn exact<const N: usize>(body: &[u8], has_mask: bool) -> Option<[u8; N]> {
        (!has_mask).then(|| body.try_into().ok()).flatten()
    }
    match number {
        field::IN_PORT if matching.in_port.is_none() => {
            matching.in_port = exact(body, has_mask).map(PortNumber::from_be_bytes);
            matching.in_port.is_some()
        }
        field::ETH_TYPE if matching.eth_type.is_none() => {
            matching.eth_type = exact(body, has_mask).map(u16::from_be_bytes);
            matching.eth_type.is_some()
        }
        field::VLAN_VID if matching.vlan.is_none() => {
            let vlan = exact(body, has_mask).map(u16::from_be_bytes);
            matching.vlan = vlan
                .filter(|vlan| vlan & !0x0fff == VLAN_PRESENT)
                .map(|vlan| vlan & 0x0fff);
            matching.vlan.is_some()
        }
        field::IP_PROTO if matching.protocol.is_none() => {
            matching.protocol = exact(body, has_mask).map(u8::from_be_bytes);
            matching.protocol.is_some()
        }
        field::IPV4_SRC | field::IPV6_SRC if matching.source.is_none() => {
            matching.source = masked(number == field::IPV6_SRC, has_mask, body);
            matching.source.is_some()
        }
        field::IPV4_DST | field::IPV6_DST if matching.destination.is_none() => {
            matching.destination = masked(number == field::IPV6_DST, has_mask, body);
            matching.destination.is_some()
        }
        _ => false,
    }
}

/// Reads an address. Bits outside the mask are ignored, and a mask without bits is no match.
fn masked(is_v6: bool, has_mask: bool, body: &[u8]) -> Option<MaskedAddress> {
    let (value, mask) = match has_mask {
        true => body.split_at(body.len() / 2),
        false => (body, &[][..]),
    };
    if is_v6 {
        let bits = |bytes: &[u8]| bytes.try_into().ok().map(u128::from_be_bytes);
        let mask = if has_mask { bits(mask)? } else { u128::MAX };
        let value = bits(value)? & mask;
        return (mask != 0).then_some(MaskedAddress::V6 { value, mask });
    }
    let bits = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
    let mask = if has_mask { bits(mask)? } else { u32::MAX };
    let value = bits(value)? & mask;
    (mask != 0).then_some(MaskedAddress::V4 { value, mask })
}

/// Appends the action *output*.
fn put_output(out: &mut Vec<u8>, port: PortNumber) {
    out.extend(OUTPUT.to_be_bytes());
    out.extend(16_u16.to_be_bytes());
    out.extend(port.to_be_bytes());
    out.extend(if port == PORT_CONTROLLER { WHOLE } else { 0 }.to_be_bytes());
    out.extend([0; 6]);
}

/// Appends a list of actions, as packet-outs have it.
pub fn put_actions(out: &mut Vec<u8>, action: &Action) {
    match action {
        Action::Drop | Action::Other => {}
        Action::Normal => put_output(out, PORT_NORMAL),
        Action::Controller => put_output(out, PORT_CONTROLLER),
        Action::Ports(ports) => ports.iter().for_each(|port| put_output(out, *port)),
        Action::Server { mac, port } => {
            let begin = out.len();
            out.extend(SET_FIELD.to_be_bytes());
            out.extend(16_u16.to_be_bytes());
            put_field(out, field::ETH_DST, mac, None);
            pad(out, begin);
            put_output(out, *port);
        }
    }
}

/// Appends the instructions that perform an action.
pub fn put_instructions(out: &mut Vec<u8>, action: &Action) {
    if matches!(action, Action::Drop | Action::Other) {
        return;
    }
    let begin = out.len();
    out.extend(APPLY_ACTIONS.to_be_bytes());
    out.extend([0; 6]);
    put_actions(out, action);
    set_length(out, begin, begin + 2);
}

/// Reads instructions, up to the end of the message or entry.
pub fn read_instructions(reader: &mut Reader<'_>) -> Result<Action, OpenFlowError> {
    let mut action = Action::Drop;
    let mut is_first = true;
    while !reader.is_empty() {
        let (kind, mut body) = reader.element(false, "instruction.length")?;
        let read = match kind {
            APPLY_ACTIONS => {
                body.skip(4, "instruction.pad")?;
                read_actions(&mut body)?
            }
            _ => Action::Other,
        };
        action = if is_first { read } else { Action::Other };
        is_first = false;
    }
    Ok(action)
}

/// Reads a list of actions, up to its end.
pub fn read_actions(reader: &mut Reader<'_>) -> Result<Action, OpenFlowError> {
    let mut mac = None;
    let mut ports = Vec::new();
    let mut is_known = true;
    while !reader.is_empty() {
        let (kind, mut body) = reader.element(false, "action.length")?;
        match kind {
            OUTPUT => ports.push(body.u32("action.port")?),
            SET_FIELD if mac.is_none() && ports.is_empty() => {
                let head = body.array::<4>("action.oxm_header")?;
                let is_eth_dst = head == [0x80, 0, field::ETH_DST << 1, 6];
                is_known &= is_eth_dst;
                if is_eth_dst {
                    mac = Some(body.array::<6>("action.oxm_value")?);
                }
            }
            _ => is_known = false,
        }
    }
    Ok(match (is_known, mac, ports.as_slice()) {
        (false, ..) => Action::Other,
        (true, Some(mac), [port]) => Action::Server { mac, port: *port },
        (true, Some(_), _) => Action::Other,
        (true, None, []) => Action::Drop,
        (true, None, [PORT_NORMAL]) => Action::Normal,
        (true, None, [PORT_CONTROLLER]) => Action::Controller,
        (true, None, _) => Action::Ports(ports),
    })
}
