//! Layout of `tailwater_nf.h` in a module's memory, where pointers have 32 bits, and of the area for packets.
//!
//! Sizes and offsets in bytes. The templates assert them when a module is compiled.

use tailwater_chain::batch::Packet;
use tailwater_net::FlowKey;
use tailwater_net::parse::{Fragment, Network};
use tailwater_sdk::abi;

/// `struct tw_function` up to the fields that were appended to it.
pub(super) const FUNCTION_BYTES: usize = 68;
/// `explain` of `struct tw_function`.
pub(super) const EXPLAIN: usize = 68;
/// `struct tw_drop_reason`.
pub(super) const DROP_REASON_BYTES: usize = 8;
/// `struct tw_packet`.
pub(super) const PACKET_BYTES: usize = 56;
/// `struct tw_batch`.
const BATCH_BYTES: usize = 16;
/// `struct tw_flow_key`.
const KEY_BYTES: usize = 40;
/// `message` of `struct tw_error`.
pub(super) const MESSAGE_BYTES: usize = 512;
/// `field` of `struct tw_error`.
pub(super) const FIELD_BYTES: usize = 128;

/// `verdict` of `struct tw_packet`.
pub(super) const VERDICT: usize = 51;

/// Maximum number of packets of one call.
pub(super) const CHUNK: usize = 64;
/// Room for the frames of one call, in bytes: at least the largest frame with its [`ROOM`].
pub(super) const FRAMES_BYTES: usize = 128 << 10;
/// Maximum room before and after a frame.
pub(super) const ROOM: usize = 128;

/// Offsets in the area that the host adds to a module's memory.
pub(super) mod area {
    use super::{BATCH_BYTES, CHUNK, KEY_BYTES, PACKET_BYTES, abi};

    /// The batch; the result of `configure`; an ended flow.
    pub(in crate::wasm) const BATCH: usize = 0;
    /// Counters; an explanation.
    pub(in crate::wasm) const COUNTERS: usize = 64;
    /// Packets; the error of `configure`.
    pub(in crate::wasm) const PACKETS: usize = COUNTERS + 8 * abi::MAX_COUNTERS;
    /// Flow keys.
    pub(in crate::wasm) const KEYS: usize = PACKETS + CHUNK * PACKET_BYTES;
    /// Flow states, each aligned to 8.
    pub(in crate::wasm) const STATES: usize = KEYS + CHUNK * KEY_BYTES;

    const _: () = assert!(PACKETS - COUNTERS >= abi::MAX_EXPLANATION);
    const _: () = assert!(COUNTERS >= BATCH + BATCH_BYTES && STATES.is_multiple_of(64));
}

/// Size of a flow state in the area.
pub(super) fn state_stride(state_bytes: usize) -> usize {
    state_bytes.next_multiple_of(8)
}

/// Offset of the frames in the area; the configuration is there before the first packet.
pub(super) fn frames(state_bytes: usize) -> usize {
    (area::STATES + CHUNK * state_stride(state_bytes)).next_multiple_of(64)
}

/// Size of the area.
pub(super) fn area_bytes(state_bytes: usize) -> usize {
    frames(state_bytes) + FRAMES_BYTES
}

/// Reads 32 bits at an offset.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Writes the parts at increasing offsets.
macro_rules! write_fields {
    ($to:expr, $($at:literal: $value:expr),+ $(,)?) => {
        $({
            let bytes = $value.to_le_bytes();
            $to[$at..$at + bytes.len()].copy_from_slice(&bytes);
        })+
    };
}

/// Addresses that a packet points to in the module's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) frame: u32,
    pub(super) state: u32,
    pub(super) key: u32,
}

/// Writes a `struct tw_packet`.
#[inline]
pub(super) fn write_packet(
    to: &mut [u8; PACKET_BYTES],
    packet: &Packet,
    addresses: Addresses,
    [headroom, tailroom]: [u16; 2],
    is_new: bool,
) {
    let headers = &packet.headers;
    let ip_version: u8 = match headers.network {
        Network::V4 => 4,
        Network::V6 => 6,
        Network::NotIp => 0,
    };
    let fragment: u8 = match headers.fragment {
        Fragment::Whole => 0,
        Fragment::First => 1,
        Fragment::Later => 2,
    };
    let flags = if is_new { abi::NEW_FLOW } else { 0 };
    write_fields!(to,
        0: addresses.frame,
        4: addresses.state,
        8: addresses.key,
        12: 0u32,
        16: packet.arrival.0,
        24: packet.length() as u32,
        28: packet.flow().unwrap_or(abi::NO_FLOW),
        32: packet.rss_hash,
        36: headers.network_offset,
        38: headers.transport_offset,
        40: headers.payload_offset,
        42: headers.end,
        44: headroom,
        46: tailroom,
        48: ip_version,
        49: fragment,
        50: flags,
        51: abi::FORWARD,
        52: 0u32,
    );
}

/// Fields of a packet that the function may have changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    pub(super) frame: u32,
    pub(super) length: u32,
    pub(super) flags: u8,
    pub(super) verdict: u8,
}

/// Reads a `struct tw_packet` after the call.
#[inline]
pub(super) fn read_packet(from: &[u8; PACKET_BYTES]) -> Changed {
    let word = |at: usize| u32::from_le_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
    Changed {
        frame: word(0),
        length: word(24),
        flags: from[50],
        verdict: from[51],
    }
}

/// Writes a flow key at an offset of the area.
#[inline]
pub(super) fn write_key(area: &mut [u8], at: usize, key: &FlowKey) {
    let words = key.words().map(u64::to_le_bytes);
    area[at..at + KEY_BYTES].copy_from_slice(words.as_flattened());
}

/// Writes the `struct tw_batch` of so many packets in the area at `base`.
pub(super) fn batch_bytes(base: u32, count: u32) -> [u8; BATCH_BYTES] {
    let mut bytes = [0; BATCH_BYTES];
    write_fields!(&mut bytes,
        0: (base + area::PACKETS as u32),
        4: (base + area::COUNTERS as u32),
        8: count,
    );
    bytes
}

/// Offset of a packet's key in the area.
pub(super) fn key_offset(at: usize) -> usize {
    area::KEYS + at * KEY_BYTES
}
