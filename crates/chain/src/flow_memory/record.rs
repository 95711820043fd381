//! Layout of a flow's record.

use crate::region::CACHE_LINE;
use std::ops::Range;
use tailwater_net::FlowKey;

/// Layout of a record: the functions' state, the tick of the last packet, the key. The parts have separate rights. The
/// partition's holder writes the last two, but the key only while no packet of the flow is in the system. Code that
/// holds a packet of the flow may therefore read the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLayout {
    /// Size of the state, at the beginning.
    pub(crate) state_bytes: usize,
    /// Offset of the tick of the last packet.
    pub(crate) last_seen: usize,
    /// Offset of the key, the last part.
    pub(crate) key: usize,
    /// Distance between records.
    pub(crate) stride: usize,
}

impl RecordLayout {
    pub(crate) fn new(state_bytes: usize) -> RecordLayout {
        let state_bytes = state_bytes.next_multiple_of(size_of::<u32>());
        let key = (state_bytes + size_of::<u32>()).next_multiple_of(align_of::<FlowKey>());
        RecordLayout {
            state_bytes,
            last_seen: key - size_of::<u32>(),
            key,
            stride: stride(key + size_of::<FlowKey>()),
        }
    }

    /// Size of a record without padding behind it.
    pub(crate) fn bytes(&self) -> usize {
        self.key + size_of::<FlowKey>()
    }

    /// Cache lines to prefetch at a look-up: those of the key, and the first two of these bytes of the state.
    pub(crate) fn fetched(&self, state: &Range<usize>) -> FetchedLines {
        let last = self.bytes() - 1;
        if last < CACHE_LINE {
            return FetchedLines::new(&[0]);
        }
        let mut offsets = vec![last];
        let beginnings = state.clone().step_by(CACHE_LINE).take(2);
        // Records that do not begin with a line end in another line than they begin.
        offsets.extend(
            beginnings.filter(|at| !self.stride.is_multiple_of(CACHE_LINE) || at / CACHE_LINE != last / CACHE_LINE),
        );
        FetchedLines::new(&offsets)
    }
}

/// Returns the smallest distance between records of this size at which none touches more cache lines than it must.
fn stride(bytes: usize) -> usize {
    const GRAIN: usize = 16;
    let touches_no_more = |stride: &usize| {
        // Records begin at multiples of the largest power of two that divides their distance.
        let grain = 1 << stride.trailing_zeros().min(CACHE_LINE.ilog2());
        (CACHE_LINE - grain + bytes).div_ceil(CACHE_LINE) <= bytes.div_ceil(CACHE_LINE)
    };
    let mut strides = (bytes.next_multiple_of(GRAIN)..).step_by(GRAIN);
    strides.find(touches_no_more).unwrap_or(bytes)
}

/// Offsets in a record of the cache lines that a look-up prefetches: one to three.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchedLines {
    offsets: [usize; 3],
    count: usize,
}

impl FetchedLines {
    fn new(list: &[usize]) -> FetchedLines {
        let mut offsets = [0; 3];
        offsets[..list.len()].copy_from_slice(list);
        FetchedLines {
            offsets,
            count: list.len(),
        }
    }

    #[inline]
    pub(crate) fn each(&self, mut fetch: impl FnMut(usize)) {
        fetch(self.offsets[0]);
        if self.count > 1 {
            fetch(self.offsets[1]);
            if self.count > 2 {
                fetch(self.offsets[2]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_touch_as_few_lines_as_their_size_allows() {
        for state in 0..400 {
            let layout = RecordLayout::new(state);
            let bytes = layout.bytes();
            assert!(layout.stride >= bytes && layout.stride % 16 == 0, "{layout:?}");
            assert!(layout.last_seen >= state && layout.last_seen + 4 <= layout.key);
            for record in 0..64 {
                let start = record * layout.stride;
                let lines = (start + bytes - 1) / CACHE_LINE - start / CACHE_LINE + 1;
                assert!(lines <= bytes.div_ceil(CACHE_LINE), "{layout:?}: {lines} lines");
            }
        }
    }

    #[test]
    fn the_usual_records_are_dense() {
        let strides = [(0, 64), (20, 64), (21, 80), (36, 80), (52, 96), (84, 128)];
        for (state, stride) in strides {
            assert_eq!(RecordLayout::new(state).stride, stride, "{state} bytes of state");
        }
    }

    /// All lines of a record with two lines or fewer are prefetched, wherever it begins.
    #[test]
    fn small_records_are_prefetched_whole() {
        for state in 0..=84 {
            let layout = RecordLayout::new(state);
            for record in 0..16 {
                let start = record * layout.stride;
                let mut wanted = Vec::new();
                let fetched = layout.fetched(&(0..layout.state_bytes));
                fetched.each(|offset| wanted.push((start + offset) / CACHE_LINE));
                for line in start / CACHE_LINE..=(start + layout.bytes() - 1) / CACHE_LINE {
                    assert!(wanted.contains(&line), "{layout:?}");
                }
            }
        }
    }
}
