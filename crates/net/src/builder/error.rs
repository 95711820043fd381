//! Errors of building a frame.

use crate::vlan::MAX_VLAN_TAGS;
use std::error::Error;
use std::fmt;

/// Errors of building a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The buffer is too small.
    BufferTooSmall {
        /// Length of the frame in bytes.
        needed: usize,
        /// Length of the buffer in bytes.
        present: usize,
    },
    /// The frame would be longer than 65,535 bytes.
    TooLong(usize),
    /// The frame is longer than the requested [`frame_length`](super::FrameBuilder::frame_length).
    FrameLength {
        /// Requested length in bytes.
        wanted: usize,
        /// Length of headers and payload in bytes.
        needed: usize,
    },
    /// IPv4 or TCP options that are not a multiple of 4 bytes or are longer than 40.
    Options(usize),
    /// An IPv6 extension header that is not a multiple of 8 bytes or is longer than 2048.
    Extension(usize),
    /// More VLAN tags than [`MAX_VLAN_TAGS`].
    VlanTags(usize),
    /// The key has no addresses: it is the default key.
    NotIp,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::BufferTooSmall { needed, present } => {
                write!(f, "the frame needs {needed} bytes, but the buffer has {present}")
            }
            BuildError::TooLong(bytes) => {
                write!(f, "the frame would be {bytes} bytes long, more than 65,535")
            }
            BuildError::FrameLength { wanted, needed } => write!(
                f,
                "headers and payload take {needed} bytes, more than the frame length of {wanted}"
            ),
            BuildError::Options(bytes) => write!(f, "options of {bytes} bytes: expected a multiple of 4, at most 40"),
            BuildError::Extension(bytes) => write!(
                f,
                "an extension header of {bytes} bytes: expected a multiple of 8, at most 2048"
            ),
            BuildError::VlanTags(tags) => {
                write!(f, "expected at most {MAX_VLAN_TAGS} VLAN tags, found {tags}")
            }
            BuildError::NotIp => f.write_str("the flow key is neither IPv4 nor IPv6"),
        }
    }
}

impl Error for BuildError {}
