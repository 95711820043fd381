//! Warnings about a trace that is usable nevertheless.

use std::fmt;

use serde::Serialize;
use tailwater_net::Nanos;

/// Warning about a source of packets. [`fmt::Display`] formats it as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The file is truncated or damaged; packets before the damage are used.
    Cut {
        /// Name of the file.
        file: String,
        /// Number of packet records read before the damage.
        packets: u64,
        /// Offset of the damaged record, in bytes from the start of the (decompressed) file.
        byte: u64,
        /// Description of the damage.
        reason: String,
    },
    /// Packets that cannot be replayed were skipped, as requested.
    Skipped {
        /// Name of the file.
        file: String,
        /// Records without a single byte.
        empty: u64,
        /// Frames longer than [`MAX_FRAME`](crate::MAX_FRAME) bytes.
        too_long: u64,
        /// Records that end within their link-layer header.
        link_header_cut: u64,
        /// Records of a link type that is not supported.
        link_type: u64,
    },
    /// Packets truncated by the capture's snap length were padded with zeros to their wire length.
    Padded {
        /// Name of the file.
        file: String,
        /// Number of packets.
        packets: u64,
    },
    /// Packets truncated by the capture's snap length have a wire length above [`MAX_FRAME`](crate::MAX_FRAME), and
    /// keep their captured length.
    LeftShort {
        /// Name of the file.
        file: String,
        /// Number of packets.
        packets: u64,
    },
    /// Packets were not in order of their timestamps, and have been sorted.
    Sorted {
        /// Name of the source.
        file: String,
        /// Number of packets with a time before the latest one so far.
        packets: u64,
        /// Largest step back in time.
        by_at_most: Nanos,
    },
    /// Flows were not started because the maximum number of flows was active.
    FlowsRefused {
        /// Number of flows.
        flows: u64,
        /// Maximum number of active flows.
        limit: u32,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Cut {
                file,
                packets,
                byte,
                reason,
            } => write!(
                f,
                "{file}: cut or damaged after {packets} packets, at byte {byte}: {reason}; \
                 the packets before it are used"
            ),
            Notice::Skipped {
                file,
                empty,
                too_long,
                link_header_cut,
                link_type,
            } => {
                let total = empty + too_long + link_header_cut + link_type;
                write!(f, "{file}: skipped {total} packets (")?;
                let mut separator = "";
                for (count, what) in [
                    (empty, "empty"),
                    (too_long, "longer than 65,535 bytes"),
                    (link_header_cut, "cut within the link-layer header"),
                    (link_type, "of an unsupported link type"),
                ] {
                    if *count > 0 {
                        write!(f, "{separator}{count} {what}")?;
                        separator = ", ";
                    }
                }
                write!(f, ")")
            }
            Notice::Padded { file, packets } => write!(
                f,
                "{file}: {packets} packets were cut by the snap length and are filled with \
                 zeros to their wire length"
            ),
            Notice::LeftShort { file, packets } => write!(
                f,
                "{file}: {packets} packets were longer than 65,535 bytes on the wire and are used as captured, \
                 without padding"
            ),
            Notice::Sorted {
                file,
                packets,
                by_at_most,
            } => write!(
                f,
                "{file}: {packets} packets were out of time order by up to {by_at_most}; \
                 the trace has been sorted"
            ),
            Notice::FlowsRefused { flows, limit } => write!(
                f,
                "{flows} flows were not started because {limit} flows were active; \
                 raise max_active_flows or lower the rate"
            ),
        }
    }
}

/// Serialises the notice as its sentence, for JSON output.
impl Serialize for Notice {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
