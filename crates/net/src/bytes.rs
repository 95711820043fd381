//! Accessors of big-endian fields in byte slices, without panics.
//!
//! Views check their length once, in the constructor. If the bytes are too short afterwards (a setter can enlarge a
//! header length), reads return zeros and writes do nothing.

/// Returns the `N` bytes at `offset`, or zeros.
#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

/// Returns the byte at `offset`, or zero.
#[inline]
pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> u8 {
    bytes.get(offset).copied().unwrap_or(0)
}

/// Returns the 16-bit field at `offset`, or zero.
#[inline]
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes(array(bytes, offset))
}

/// Returns the 32-bit field at `offset`, or zero.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(array(bytes, offset))
}

/// Writes `value` at `offset`.
#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], offset: usize, value: [u8; N]) {
    if let Some(field) = bytes.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        *field = value;
    }
}

/// Writes a byte at `offset`.
#[inline]
pub(crate) fn put_u8(bytes: &mut [u8], offset: usize, value: u8) {
    put(bytes, offset, [value]);
}

/// Writes a 16-bit field at `offset`.
#[inline]
pub(crate) fn put_u16(bytes: &mut [u8], offset: usize, value: u16) {
    put(bytes, offset, value.to_be_bytes());
}

/// Writes a 32-bit field at `offset`.
#[inline]
pub(crate) fn put_u32(bytes: &mut [u8], offset: usize, value: u32) {
    put(bytes, offset, value.to_be_bytes());
}

/// Replaces the bits of the byte at `offset` that are set in `mask`.
#[inline]
pub(crate) fn put_bits(bytes: &mut [u8], offset: usize, mask: u8, value: u8) {
    if let Some(byte) = bytes.get_mut(offset) {
        *byte = (*byte & !mask) | (value & mask);
    }
}

/// Returns the bytes from `offset` on, or an empty slice.
#[inline]
pub(crate) fn from(bytes: &[u8], offset: usize) -> &[u8] {
    bytes.get(offset..).unwrap_or_default()
}

/// Returns the bytes from `start` to `end`, or an empty slice.
#[inline]
pub(crate) fn range(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    bytes.get(start..end).unwrap_or_default()
}

/// Returns the big-endian word at `offset`, a constant that is in bounds.
#[inline]
pub(crate) fn be64<const N: usize>(bytes: &[u8; N], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_be_bytes(word)
}

/// Converts a big-endian number.
#[inline]
pub(crate) const fn be16(bytes: [u8; 2]) -> u16 {
    u16::from_be_bytes(bytes)
}

/// Converts a big-endian number.
#[inline]
pub(crate) const fn be32(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}
