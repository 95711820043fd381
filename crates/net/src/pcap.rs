//! Headers of pcap files as written here: nanosecond timestamps, little-endian, Ethernet.

use crate::Nanos;

/// Maximum frame length that readers accept, in bytes.
pub const MAX_FRAME: u32 = 65_535;

/// Returns the file header.
pub fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&0xa1b2_3c4d_u32.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&MAX_FRAME.to_le_bytes());
    header[20..].copy_from_slice(&1u32.to_le_bytes());
    header
}

/// Returns the header of a packet record: `time` since 1970, the number of bytes that follow, and the length on the
/// wire. `None` for a time after 2106, which the format cannot represent.
pub fn record_header(time: Nanos, captured: u32, wire: u32) -> Option<[u8; 16]> {
    let seconds = u32::try_from(time.0 / 1_000_000_000).ok()?;
    let mut header = [0; 16];
    header[..4].copy_from_slice(&seconds.to_le_bytes());
    header[4..8].copy_from_slice(&((time.0 % 1_000_000_000) as u32).to_le_bytes());
    header[8..12].copy_from_slice(&captured.to_le_bytes());
    header[12..].copy_from_slice(&wire.max(captured).to_le_bytes());
    Some(header)
}
