//! Packet records, in the form common to both containers.

use std::ops::Range;

use tailwater_net::Nanos;

use super::link::LinkType;

/// Maximum captured bytes of a record: the largest snap length of capture tools (libpcap's `MAXIMUM_SNAPLEN`). A record
/// with a greater length is treated as damage.
pub(super) const MAX_CAPTURED: u32 = 262_144;

/// Packet record of a container.
pub(super) struct Record {
    pub(super) timestamp: Nanos,
    pub(super) link: LinkType,
    /// Range of its bytes in the buffer.
    pub(super) data: Range<usize>,
    pub(super) wire_length: u32,
}

/// Next item in a container.
pub(super) enum Step {
    Record(Record),
    End,
    /// Damage: the rest of the container is unusable.
    Damage(String),
}

/// Returns four bytes at `offset` as an integer. The caller has read them; missing ones give 0.
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

/// Returns two bytes at `offset` as an integer. The caller has read them; missing ones give 0.
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
