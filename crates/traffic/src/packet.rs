//! Packet with its time, and the trait of packet sources.

use tailwater_net::Nanos;

use crate::{Notice, TrafficError};

/// Maximum length of a frame in bytes, without the frame check sequence.
///
/// Every length and offset inside a frame fits into 16 bits. Captures of hosts with segmentation offload (GSO, TSO)
/// contain frames of nearly this size.
pub const MAX_FRAME: usize = tailwater_net::parse::MAX_FRAME;

/// Packet yielded by a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Time of the packet since the Unix epoch (since zero in synthetic traffic).
    pub timestamp: Nanos,
    /// Ethernet frame without preamble and frame check sequence: 1 to [`MAX_FRAME`] bytes.
    pub data: &'a [u8],
    /// Length of the frame on the wire in bytes, at least `data.len()`.
    pub wire_length: u32,
}

/// Source that yields packets in order, such as a capture file or a generator.
///
/// It is a lending iterator: each packet borrows the source's buffer until the next call.
pub trait PacketSource {
    /// Returns the next packet, or `None` at the end (and on every later call).
    ///
    /// # Errors
    /// An error that prevents the source from continuing. A source that has failed must not be used further.
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError>;

    /// Returns warnings about the packets yielded so far, such as where a damaged file ends and what was skipped or
    /// padded. Complete after the end.
    fn notices(&self) -> Vec<Notice>;

    /// Returns a short name for messages: the file's path, the preset.
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
