//! Sorted, disjoint ranges of stream bytes that wait for a gap before them to be filled.
//!
//! Positions are sequence numbers, or offsets in a window. They wrap; all positions of a list lie within 2³¹ of each
//! other.

use crate::sequence::distance;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// Range of stream bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ByteRange {
    /// Position of the first byte.
    pub start: u32,
    /// Position after the last byte.
    pub end: u32,
}

impl ByteRange {
    /// Returns the range of `length` bytes from a position.
    #[inline]
    pub fn from(start: u32, length: usize) -> ByteRange {
        ByteRange {
            start,
            end: start.wrapping_add(length as u32),
        }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn length(self) -> usize {
        self.end.wrapping_sub(self.start) as usize
    }
}

/// Adds a range to a list: ranges that touch or overlap it are merged with it. Returns the new list and its length, or
/// `None` if it would have more than `N` ranges.
pub fn merged<const N: usize>(ranges: &[ByteRange], new: ByteRange) -> Option<([ByteRange; N], usize)> {
    let mut list = [ByteRange::default(); N];
    let (mut count, mut union) = (0, new);
    for &range in ranges {
        if distance(range.end, new.start) < 0 || distance(range.start, new.end) > 0 {
            *list.get_mut(count)? = range;
            count += 1;
            continue;
        }
        if distance(range.start, union.start) < 0 {
            union.start = range.start;
        }
        if distance(range.end, union.end) > 0 {
            union.end = range.end;
        }
    }
    if count == N {
        return None;
    }
    let before = list[..count].partition_point(|range| distance(range.start, union.start) < 0);
    list.copy_within(before..count, before + 1);
    list[before] = union;
    Some((list, count + 1))
}

/// Part of a new range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the part, counted from the new range's start.
    pub bytes: Range<usize>,
    /// `true` if they are in the list already, `false` if they fill a gap.
    pub present: bool,
}

/// Splits a new range into parts that are in a list and parts that are not, in order. Parts may be empty.
pub fn pieces(ranges: &[ByteRange], new: ByteRange) -> impl Iterator<Item = Piece> + '_ {
    let length = new.length() as i32;
    let offset = move |position: u32| distance(position, new.start).clamp(0, length) as usize;
    let behind = ByteRange {
        start: new.end,
        end: new.end,
    };
    let mut at = 0;
    ranges.iter().copied().chain([behind]).flat_map(move |range| {
        let start = offset(range.start).max(at);
        let end = offset(range.end).max(start);
        let gap = std::mem::replace(&mut at, end)..start;
        [(gap, false), (start..end, true)].map(|(bytes, present)| Piece { bytes, present })
    })
}

/// Removes positions before `start` from a list, and returns its new length.
pub fn discard_before(ranges: &mut [ByteRange], start: u32) -> usize {
    let gone = ranges.partition_point(|range| distance(range.end, start) <= 0);
    ranges.copy_within(gone.., 0);
    let left = ranges.len() - gone;
    if let Some(first) = ranges[..left].first_mut()
        && distance(start, first.start) > 0
    {
        first.start = start;
    }
    left
}
