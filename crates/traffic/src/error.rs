//! Errors of reading, generating and writing traffic.

use std::io;

use thiserror::Error;

/// Error of reading, generating or writing traffic. Its text names the file, the packet (counted from 1, as in
/// Wireshark) and a remedy.
#[derive(Debug, Error)]
pub enum TrafficError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot read: {source}")]
    Read {
        /// Name of the file.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The file cannot be created or written.
    #[error("{file}: cannot write: {source}")]
    Write {
        /// Name of the file.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is neither pcap nor pcapng, plain or compressed.
    #[error("{file}: not a capture: {found}; expected pcap or pcapng, plain, gzip or zstd")]
    NotACapture {
        /// Name of the file.
        file: String,
        /// Description of the first bytes.
        found: String,
    },
    /// The link type is not supported.
    #[error(
        "{file}: link type {number}{name} is not supported; supported are {}",
        crate::capture::SUPPORTED_LINK_TYPES
    )]
    LinkType {
        /// Name of the file.
        file: String,
        /// Number in the tcpdump registry of link-layer header types.
        number: u32,
        /// Name in parentheses after a space; empty for an uncommon link type.
        name: &'static str,
    },
    /// The file has no usable packet.
    #[error("{file}: contains no packets: {reason}")]
    NoPackets {
        /// Name of the file.
        file: String,
        /// Reason.
        reason: String,
    },
    /// A frame exceeds the maximum length.
    #[error(
        "{file}: packet {number} is {length} bytes long as an Ethernet frame, but at most \
         {limit} are supported; skip such packets (skip_bad_packets), or capture \
         with segmentation offload switched off"
    )]
    PacketTooLong {
        /// Name of the file.
        file: String,
        /// Number of the packet in the file, from 1.
        number: u64,
        /// Length in bytes.
        length: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// A packet record has no bytes.
    #[error(
        "{file}: packet {number} is empty (0 bytes captured); skip such packets \
         (skip_bad_packets), or capture with a snap length above zero"
    )]
    EmptyPacket {
        /// Name of the file.
        file: String,
        /// Number of the packet in the file, from 1.
        number: u64,
    },
    /// A packet record ends within the link-layer header.
    #[error(
        "{file}: packet {number} ends within its link-layer header ({length} of {needed} bytes); \
         skip such packets (skip_bad_packets), or capture with a larger snap length"
    )]
    LinkHeaderCut {
        /// Name of the file.
        file: String,
        /// Number of the packet in the file, from 1.
        number: u64,
        /// Captured bytes.
        length: u64,
        /// Size of the header in bytes.
        needed: u64,
    },
    /// All packets have the same timestamp, so the trace has no rate.
    #[error(
        "{file}: all {packets} packets have the same timestamp, so the trace has no rate; \
         give one in packets per second with --rate"
    )]
    NoTimestamps {
        /// Name of the source.
        file: String,
        /// Number of packets.
        packets: u64,
    },
    /// The trace exceeds the memory limit.
    #[error(
        "{file}: exceeds the memory limit of {limit_bytes} bytes at packet {packets}; raise the limit, or split the \
         trace"
    )]
    MemoryLimit {
        /// Name of the source.
        file: String,
        /// Limit in bytes.
        limit_bytes: u64,
        /// Number of the first packet beyond the limit, from 1.
        packets: u64,
    },
    /// A setting is out of range.
    #[error("{field}: {value} is out of range: expected {expected}")]
    Setting {
        /// Name of the field.
        field: &'static str,
        /// Given value.
        value: String,
        /// Allowed values.
        expected: &'static str,
    },
    /// There is no preset of that name.
    #[error("unknown traffic preset \"{name}\"; the presets are: {known}{suggestion}")]
    UnknownPreset {
        /// Given name.
        name: String,
        /// `; did you mean "x"?`, or empty if no name is similar.
        suggestion: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The time of a packet is out of the pcap format's range, which ends in 2106.
    #[error("{file}: packet {number} has a timestamp after 2106, beyond the pcap format's range")]
    TimestampOutOfRange {
        /// Name of the file.
        file: String,
        /// Number of the packet in the file, from 1.
        number: u64,
    },
}

impl TrafficError {
    /// Creates a [`TrafficError::Setting`].
    pub(crate) fn setting(field: &'static str, value: impl ToString, expected: &'static str) -> Self {
        TrafficError::Setting {
            field,
            value: value.to_string(),
            expected,
        }
    }
}
