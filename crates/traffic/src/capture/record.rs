//! Records as both containers give them.

use std::ops::Range;

use tailwater_net::Nanos;

use super::link::LinkType;

/// The most captured bytes of one record: the largest snap length of capture tools (libpcap's
/// `MAXIMUM_SNAPLEN`). A record that claims more is damage, not a packet.
pub(super) const MAX_CAPTURED: u32 = 262_144;

/// A packet record as its container gives it.
pub(super) struct Record {
    pub(super) timestamp: Nanos,
    pub(super) link: LinkType,
    /// Where its bytes lie in the buffer.
    pub(super) data: Range<usize>,
    pub(super) wire_length: u32,
}

/// What a container found next.
pub(super) enum Step {
    Record(Record),
    End,
    /// Nothing after this can be trusted.
    Damage(String),
}

/// Four bytes at `offset`, which the caller has read.
pub(super) fn u32_at(bytes: &[u8], offset: usize, big_endian: bool) -> u32 {
    let word = bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<4>())
        .copied()
        .unwrap_or_default();
    if big_endian {
        u32::from_be_bytes(word)
    } else {
        u32::from_le_bytes(word)
    }
}

/// Two bytes at `offset`, which the caller has read.
pub(super) fn u16_at(bytes: &[u8], offset: usize, big_endian: bool) -> u16 {
    let word = bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<2>())
        .copied()
        .unwrap_or_default();
    if big_endian {
        u16::from_be_bytes(word)
    } else {
        u16::from_le_bytes(word)
    }
}
