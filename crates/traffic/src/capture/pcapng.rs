//! The pcapng container: sections, interfaces, packet blocks (draft-ietf-opsawg-pcapng).
//!
//! This module reads the framing of blocks. A block without a packet then needs no memory, and its content, however
//! damaged, does no harm.

use pcap_parser::{
    Block, InterfaceDescriptionBlock, OptionCode, parse_block_be, parse_block_le, parse_sectionheaderblock,
};
use tailwater_net::Nanos;

use super::bytes::{Bytes, Stop};
use super::link::LinkType;
use super::record::{MAX_CAPTURED, Record, Step, u16_at, u32_at};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Byte-order magic of a section header, as read in the section's own order.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Maximum size in bytes of a block that is read as a whole: a packet and generous options.
const MAX_BLOCK: u32 = 1 << 20;

/// Maximum number of interfaces of a section.
const MAX_INTERFACES: usize = 1 << 16;

/// Interface of a section.
struct Interface {
    link: LinkType,
    /// Snap length in bytes; 0 is no limit.
    snap_length: u32,
    resolution: u8,
    offset_seconds: i64,
}

/// State of the reader.
#[derive(Default)]
pub(super) struct PcapNg {
    big_endian: bool,
    interfaces: Vec<Interface>,
    /// Time of the latest packet, used for simple packet blocks, which have none.
    latest: Nanos,
}

impl PcapNg {
    /// Reads up to and including the next packet block, which is appended to `buffer`.
    pub(super) fn next(&mut self, bytes: &mut Bytes, buffer: &mut Vec<u8>) -> Result<Step, Stop> {
        let start = buffer.len();
        loop {
            buffer.truncate(start);
            match bytes.read_onto(buffer, 8) {
                Err(Stop::End(0)) => return Ok(Step::End),
                other => other?,
            }
            // The type of a section header is the same in both byte orders.
            let is_section = u32_at(buffer, start, false) == SECTION_HEADER;
            if is_section {
                bytes.read_onto(buffer, 4)?;
                if let Err(reason) = self.start_section(buffer, start) {
                    return Ok(Step::Damage(reason));
                }
            }
            let kind = u32_at(buffer, start, self.big_endian);
            let length = u32_at(buffer, start + 4, self.big_endian);
            let read = (buffer.len() - start) as u32;
            if length < read.max(12) {
                return Ok(Step::Damage(format!("a block has an invalid length of {length} bytes")));
            }
            let wanted = matches!(
                kind,
                SECTION_HEADER | INTERFACE_DESCRIPTION | OBSOLETE_PACKET | SIMPLE_PACKET | ENHANCED_PACKET
            );
            if wanted && length > MAX_BLOCK {
                return Ok(Step::Damage(format!(
                    "a block of type {kind} has an invalid length of {length} bytes"
                )));
            }
            if wanted {
                bytes.read_onto(buffer, (length - read) as usize)?;
            } else {
                bytes.skip(u64::from(length - read) - 4)?;
                bytes.read_onto(buffer, 4)?;
            }
            let trailer = u32_at(buffer, buffer.len() - 4, self.big_endian);
            if trailer != length {
                return Ok(Step::Damage(format!(
                    "a block starts with length {length} but ends with length {trailer}"
                )));
            }
            if !wanted {
                continue;
            }
            let step = match kind {
                SECTION_HEADER => parse_sectionheaderblock(&buffer[start..])
                    .map(|_| None)
                    .map_err(|_| "a section header block is malformed".to_owned()),
                OBSOLETE_PACKET => self.obsolete_packet(buffer, start).map(Some),
                _ => self.block(buffer, start),
            };
            match step {
                Ok(None) => {}
                Ok(Some(record)) => {
                    self.latest = record.timestamp;
                    return Ok(Step::Record(record));
                }
                Err(reason) => return Ok(Step::Damage(reason)),
            }
        }
    }

    /// Reads the byte order from the first 12 bytes of a section header block.
    fn start_section(&mut self, buffer: &[u8], start: usize) -> Result<(), String> {
        self.big_endian = match u32_at(buffer, start + 8, false) {
            BYTE_ORDER_MAGIC => false,
            magic if magic.swap_bytes() == BYTE_ORDER_MAGIC => true,
            magic => return Err(format!("a section's byte-order magic is {magic:#010x}")),
        };
        self.interfaces.clear();
        Ok(())
    }

    /// Reads interface descriptions, enhanced and simple packets.
    fn block(&mut self, buffer: &[u8], start: usize) -> Result<Option<Record>, String> {
        let parse = if self.big_endian {
            parse_block_be
        } else {
            parse_block_le
        };
        let (_, block) = parse(&buffer[start..]).map_err(|_| "a block's fields do not fit its length".to_owned())?;
        match block {
            Block::InterfaceDescription(description) => {
                if self.interfaces.len() >= MAX_INTERFACES {
                    return Err(format!("a section has more than {MAX_INTERFACES} interfaces"));
                }
                let interface = self.interface(&description);
                self.interfaces.push(interface);
                Ok(None)
            }
            Block::EnhancedPacket(packet) => {
                let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let data = start + 28..start + 28 + packet.caplen as usize;
                self.record(packet.if_id, Some(time), data, packet.origlen).map(Some)
            }
            Block::SimplePacket(packet) => {
                // The captured length is not stored: it is the wire length, limited by the snap length (draft §4.4) and
                // the block.
                let snap = match self.interfaces.first() {
                    Some(Interface {
                        snap_length: limit @ 1..,
                        ..
                    }) => *limit,
                    _ => u32::MAX,
                };
                let captured = packet
                    .origlen
                    .min(snap)
                    .min(packet.data.len().try_into().unwrap_or(u32::MAX));
                let data = start + 12..start + 12 + captured as usize;
                self.record(0, None, data, packet.origlen).map(Some)
            }
            // No other type is passed in.
            _ => Ok(None),
        }
    }

    /// Reads the packet block of early drafts (appendix A), which the parser does not support.
    fn obsolete_packet(&self, buffer: &[u8], start: usize) -> Result<Record, String> {
        let block = &buffer[start..];
        if block.len() < 32 {
            return Err("a packet block is shorter than its fields".to_owned());
        }
        let field = |offset| u32_at(block, offset, self.big_endian);
        let interface = u16_at(block, 8, self.big_endian);
        let time = u64::from(field(12)) << 32 | u64::from(field(16));
        let (captured, wire) = (field(20), field(24));
        if captured as usize > block.len() - 32 {
            return Err(format!(
                "a packet block has an invalid captured length of {captured} bytes"
            ));
        }
        let data = start + 28..start + 28 + captured as usize;
        self.record(u32::from(interface), Some(time), data, wire)
    }

    fn record(
        &self,
        interface: u32,
        time: Option<u64>,
        data: std::ops::Range<usize>,
        wire_length: u32,
    ) -> Result<Record, String> {
        let Some(found) = self.interfaces.get(interface as usize) else {
            return Err(format!(
                "a packet of interface {interface} in a section with {} interfaces",
                self.interfaces.len()
            ));
        };
        if data.len() > MAX_CAPTURED as usize {
            return Err(format!(
                "a packet has an invalid captured length of {} bytes",
                data.len()
            ));
        }
        Ok(Record {
            timestamp: time.map_or(self.latest, |time| found.nanos(time)),
            link: found.link,
            data,
            wire_length,
        })
    }

    /// Reads an interface description. Time options are decoded here, because the parser always reads `if_tsoffset` as
    /// little-endian and rejects binary resolutions.
    fn interface(&self, description: &InterfaceDescriptionBlock) -> Interface {
        let mut interface = Interface {
            link: LinkType::from_number(description.linktype.0 as u32),
            snap_length: description.snaplen,
            resolution: 6,
            offset_seconds: 0,
        };
        for option in &description.options {
            match option.code {
                OptionCode::EndOfOpt => break,
                OptionCode::IfTsresol => {
                    if let Some(resolution) = option.value.first() {
                        interface.resolution = *resolution;
                    }
                }
                OptionCode::IfTsoffset => {
                    if let Some(offset) = option.value.first_chunk() {
                        interface.offset_seconds = if self.big_endian {
                            i64::from_be_bytes(*offset)
                        } else {
                            i64::from_le_bytes(*offset)
                        };
                    }
                }
                _ => {}
            }
        }
        interface
    }
}

impl Interface {
    /// Converts `ticks` since the epoch to a time, rounded down and limited to zero to [`Nanos::MAX`].
    fn nanos(&self, ticks: u64) -> Nanos {
        let ticks = u128::from(ticks);
        let exponent = u32::from(self.resolution & 0x7f);
        let nanos = if self.resolution & 0x80 != 0 {
            // Below 2^94 before the shift; the exponent is at most 127.
            (ticks * 1_000_000_000) >> exponent
        } else if exponent <= 9 {
            ticks * 10u128.pow(9 - exponent)
        } else {
            10u128.checked_pow(exponent - 9).map_or(0, |unit| ticks / unit)
        };
        // Below 2^94 and 2^93: the sum cannot overflow.
        let total = nanos as i128 + i128::from(self.offset_seconds) * 1_000_000_000;
        Nanos(total.clamp(0, i128::from(u64::MAX)) as u64)
    }
}
