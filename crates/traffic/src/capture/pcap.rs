//! Classic pcap container: a file header, then one record per packet.

use pcap_parser::parse_pcap_header;
use tailwater_net::Nanos;

use super::bytes::{Bytes, Stop};
use super::link::LinkType;
use super::record::{MAX_CAPTURED, Record, Step, u32_at};

/// Size of the file header in bytes.
const FILE_HEADER: usize = 24;

/// Contents of the file header.
pub(super) struct Pcap {
    big_endian: bool,
    nanoseconds: bool,
    /// Size of a record's header in bytes: 16, or 24 in files of the "modified" kind.
    record_header: usize,
    pub(super) link_type: u32,
    link: LinkType,
}

impl Pcap {
    /// Reads the file header. `buffer` is scratch space.
    pub(super) fn open(bytes: &mut Bytes, buffer: &mut Vec<u8>) -> Result<Self, Open> {
        buffer.clear();
        bytes.read_onto(buffer, FILE_HEADER).map_err(Open::Stopped)?;
        let (_, header) = parse_pcap_header(buffer).map_err(|_| Open::NotPcap)?;
        // The high bits describe the frame check sequence; libpcap masks them too.
        let link_type = header.network.0 as u32 & 0x03ff_ffff;
        Ok(Pcap {
            big_endian: header.is_bigendian(),
            nanoseconds: header.is_nanosecond_precision(),
            record_header: if header.is_modified_format() { 24 } else { 16 },
            link_type,
            link: LinkType::from_number(link_type),
        })
    }

    /// Reads the next record, and appends it to `buffer`.
    pub(super) fn next(&self, bytes: &mut Bytes, buffer: &mut Vec<u8>) -> Result<Step, Stop> {
        let start = buffer.len();
        match bytes.read_onto(buffer, self.record_header) {
            Err(Stop::End(0)) => return Ok(Step::End),
            other => other?,
        }
        let field = |offset| u32_at(buffer, start + offset, self.big_endian);
        let (seconds, fraction, captured, wire) = (field(0), field(4), field(8), field(12));
        if captured > MAX_CAPTURED {
            return Ok(Step::Damage(format!(
                "a record has an invalid captured length of {captured} bytes"
            )));
        }
        bytes.read_onto(buffer, captured as usize)?;
        let unit = if self.nanoseconds { 1 } else { 1_000 };
        Ok(Step::Record(Record {
            timestamp: Nanos(u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit),
            link: self.link,
            data: start + self.record_header..buffer.len(),
            wire_length: wire,
        }))
    }
}

/// Errors of opening a pcap file.
#[derive(Debug)]
pub(super) enum Open {
    Stopped(Stop),
    NotPcap,
}
