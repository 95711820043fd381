//! Bytes of a stream behind a gap, in a ring. A byte's place is its sequence number modulo the ring's size, a power of
//! two, so no byte ever moves.

use crate::ranges::{ByteRange, discard_before, merged, pieces};
use crate::sequence::distance;
use bytemuck::{Pod, Zeroable};

/// Largest number of ranges that wait for a gap before them to be filled.
pub const MAX_RANGES: usize = 16;

/// Bytes present in a ring. All zeros is an empty ring.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RingState {
    /// Sequence numbers, sorted and disjoint.
    ranges: [ByteRange; MAX_RANGES],
    count: u32,
}

/// There is no room for bytes that must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl RingState {
    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Returns the ranges present.
    #[inline]
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges[..self.count as usize]
    }

    /// Returns the first bytes present, as far as they are contiguous in the ring.
    pub fn first<'a>(&self, ring: &'a [u8]) -> Option<&'a [u8]> {
        let range = *self.ranges().first()?;
        let start = range.start as usize % ring.len();
        let end = ring.len().min(start + range.length());
        Some(&ring[start..end])
    }

    /// Discards bytes before sequence number `next`.
    pub fn discard_before(&mut self, next: u32) {
        let count = self.count as usize;
        self.count = discard_before(&mut self.ranges[..count], next) as u32;
    }

    /// Returns `true` if bytes of a segment differ from those present at the same positions.
    pub fn conflicts(&self, ring: &[u8], sequence: u32, data: &[u8]) -> bool {
        pieces(self.ranges(), ByteRange::from(sequence, data.len()))
            .filter(|piece| piece.present)
            .any(|piece| {
                let mut bytes = piece.bytes;
                bytes.any(|i| ring[sequence.wrapping_add(i as u32) as usize % ring.len()] != data[i])
            })
    }

    /// Copies a segment behind the stream's next byte `next` to the ring; bytes present are not overwritten.
    ///
    /// # Errors
    /// The segment ends more than the ring's size after `next`, or there would be too many ranges.
    pub fn insert(&mut self, ring: &mut [u8], next: u32, sequence: u32, data: &[u8]) -> Result<(), NoRoom> {
        let size = ring.len();
        let end = i64::from(distance(sequence, next)) + data.len() as i64;
        if end > size as i64 {
            return Err(NoRoom);
        }
        let new = ByteRange::from(sequence, data.len());
        let (list, count) = merged(self.ranges(), new).ok_or(NoRoom)?;
        for piece in pieces(self.ranges(), new).filter(|piece| !piece.present) {
            for i in piece.bytes {
                ring[sequence.wrapping_add(i as u32) as usize % size] = data[i];
            }
        }
        (self.ranges, self.count) = (list, count as u32);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
