//! What a person should know about a trace that is usable all the same.

use std::fmt;

use serde::Serialize;
use tailwater_net::Nanos;

/// A warning about a source of packets. [`fmt::Display`] gives one sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The file is cut or damaged; what comes before was used.
    Cut {
        /// The file.
        file: String,
        /// Packet records read before the damage.
        packets: u64,
        /// Where the damaged record starts, in bytes from the start of the (decompressed) file.
        byte: u64,
        /// What is wrong there.
        reason: String,
    },
    /// Packets that cannot be replayed were left out, as asked for.
    Skipped {
        /// The file.
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
    /// Packets cut by the capture's snap length were filled with zeros to their wire length.
    Padded {
        /// The file.
        file: String,
        /// How many packets.
        packets: u64,
    },
    /// Packets cut by the capture's snap length whose wire length is beyond
    /// [`MAX_FRAME`](crate::MAX_FRAME): they stay as short as they were captured.
    LeftShort {
        /// The file.
        file: String,
        /// How many packets.
        packets: u64,
    },
    /// Packets were not in order of their timestamps and have been sorted.
    Sorted {
        /// The source.
        file: String,
        /// How many packets had a time before the latest one seen.
        packets: u64,
        /// The largest step back in time.
        by_at_most: Nanos,
    },
    /// Flows were not started because as many as allowed were active.
    FlowsRefused {
        /// How many flows.
        flows: u64,
        /// The limit they ran into.
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
                "{file}: {packets} packets were longer than 65,535 bytes on the wire and are \
                 used as short as they were captured"
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

/// As its sentence, for JSON output.
impl Serialize for Notice {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
