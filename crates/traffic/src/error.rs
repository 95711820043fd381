//! Why traffic cannot be read, made or written.

use std::io;

use thiserror::Error;

/// Why traffic cannot be read, made or written. The text names the file, the packet (counted
/// from 1, as Wireshark does) and what to do.
#[derive(Debug, Error)]
pub enum TrafficError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot read: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be created or written.
    #[error("{file}: cannot write: {source}")]
    Write {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// Neither pcap nor pcapng, plain or compressed.
    #[error("{file}: not a capture: {found}; expected pcap or pcapng, plain, gzip or zstd")]
    NotACapture {
        /// The file.
        file: String,
        /// What the first bytes look like.
        found: String,
    },
    /// The link type is not supported.
    #[error(
        "{file}: link type {number}{name} is not supported; supported are {}",
        crate::capture::SUPPORTED_LINK_TYPES
    )]
    LinkType {
        /// The file.
        file: String,
        /// The number in the tcpdump registry of link-layer header types.
        number: u32,
        /// Its name in parentheses after a space, or nothing if it is not a common one.
        name: &'static str,
    },
    /// The file holds no packet that can be used.
    #[error("{file}: holds no packets: {reason}")]
    NoPackets {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// A frame is longer than the longest supported.
    #[error(
        "{file}: packet {number} is {length} bytes long as an Ethernet frame, but at most \
         {limit} are supported; skip such packets (skip_bad_packets), or capture \
         with segmentation offload switched off"
    )]
    PacketTooLong {
        /// The file.
        file: String,
        /// The packet's number in the file, from 1.
        number: u64,
        /// Its length in bytes.
        length: u64,
        /// The longest supported.
        limit: u64,
    },
    /// A packet record has no bytes.
    #[error(
        "{file}: packet {number} is empty (0 bytes captured); skip such packets \
         (skip_bad_packets), or capture with a snap length above zero"
    )]
    EmptyPacket {
        /// The file.
        file: String,
        /// The packet's number in the file, from 1.
        number: u64,
    },
    /// A packet record ends within the link-layer header.
    #[error(
        "{file}: packet {number} ends within its link-layer header ({length} of {needed} bytes); \
         skip such packets (skip_bad_packets), or capture with a larger snap length"
    )]
    LinkHeaderCut {
        /// The file.
        file: String,
        /// The packet's number in the file, from 1.
        number: u64,
        /// Bytes captured.
        length: u64,
        /// Bytes of the header.
        needed: u64,
    },
    /// Every packet has the same timestamp, so there is no rate to replay at.
    #[error(
        "{file}: all {packets} packets have the same timestamp, so the trace has no rate; \
         give one in packets per second with --rate"
    )]
    NoTimestamps {
        /// The source.
        file: String,
        /// How many packets.
        packets: u64,
    },
    /// The trace does not fit the memory allowed.
    #[error(
        "{file}: does not fit the memory limit of {limit_bytes} bytes: packet {packets} is beyond \
         it; raise the limit, or cut the trace into shorter pieces"
    )]
    MemoryLimit {
        /// The source.
        file: String,
        /// The limit in bytes.
        limit_bytes: u64,
        /// The number of the packet that does not fit, from 1.
        packets: u64,
    },
    /// A setting is out of its range.
    #[error("{field}: {value} is out of range: expected {expected}")]
    Setting {
        /// The field's name.
        field: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// No preset of that name.
    #[error("no traffic preset is called \"{name}\"{suggestion}; the presets are: {known}")]
    UnknownPreset {
        /// What was given.
        name: String,
        /// `, did you mean "x"?`, or nothing if no name is near.
        suggestion: String,
        /// All names, separated by commas.
        known: String,
    },
    /// A packet's time does not fit a pcap file, which ends in 2106.
    #[error("{file}: packet {number} has a time after 2106, which a pcap file cannot hold")]
    TimestampOutOfRange {
        /// The file.
        file: String,
        /// The packet's number in the file, from 1.
        number: u64,
    },
}

impl TrafficError {
    /// A [`TrafficError::Setting`].
    pub(crate) fn setting(field: &'static str, value: impl ToString, expected: &'static str) -> Self {
        TrafficError::Setting {
            field,
            value: value.to_string(),
            expected,
        }
    }
}
