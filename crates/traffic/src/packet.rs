//! A packet with its time, and what yields packets one by one.

use tailwater_net::Nanos;

use crate::{Notice, TrafficError};

/// The longest frame Tailwater handles, in bytes, without the frame check sequence.
///
/// Every length and offset inside a frame fits 16 bits. Captures of hosts with segmentation
/// offload (GSO, TSO) hold frames of nearly this size.
pub const MAX_FRAME: usize = tailwater_net::parse::MAX_FRAME;

/// One packet as it is handed from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// When the packet was seen, counted from the Unix epoch (from zero in synthetic traffic).
    pub timestamp: Nanos,
    /// An Ethernet frame without preamble and frame check sequence: 1 to [`MAX_FRAME`] bytes.
    pub data: &'a [u8],
    /// The frame's length on the wire in bytes, at least `data.len()`.
    pub wire_length: u32,
}

/// Yields packets in order: a capture file, a generator.
///
/// A lending iterator: each packet borrows the source's buffer until the next call.
pub trait PacketSource {
    /// The next packet, or `None` at the end (and on every call after it).
    ///
    /// # Errors
    /// Why the source cannot go on. A source that has failed yields nothing sensible after.
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError>;

    /// What a person should know about the packets yielded so far although it is no error:
    /// where a damaged file was cut, what was skipped or padded. Complete after the end.
    fn notices(&self) -> Vec<Notice>;

    /// A short name for messages: the file's path, the preset.
    fn name(&self) -> &str;
}

impl<S: PacketSource + ?Sized> PacketSource for Box<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        (**self).next_packet()
    }

    fn notices(&self) -> Vec<Notice> {
        (**self).notices()
    }

    fn name(&self) -> &str {
        (**self).name()
    }
}
