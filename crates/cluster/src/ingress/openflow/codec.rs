//! Messages as bytes.

use super::flow::{PORT_ANY, PORT_CONTROLLER, put_actions, put_match, read_actions};
use super::message::{ErrorMessage, Features, Message};
use super::numbers::{
    ATOMIC_ORDERED, BUNDLE_ADD, BUNDLE_CONTROL, ERROR_DATA, NO_BUFFER, TABLE, VERSION, VERSION_BITMAP, kind, multipart,
};
use super::structures::{
    put_bundle, put_flow, put_flow_mod, put_multipart, put_packet_in, put_port, read_bundle, read_flow_mod, read_hello,
    read_multipart, read_packet_in, read_port,
};
use super::wire::{HEADER, OpenFlowError, Reader, set_length};
use crate::ingress::rule::FlowMatch;

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
                out.extend(PORT_CONTROLLER.to_be_bytes());
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
