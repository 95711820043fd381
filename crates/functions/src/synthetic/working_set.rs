//! Memory that packets read and write, and the access order.

use super::mix;
use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use std::io;

/// Bytes of a line, the unit of access.
pub const LINE: u64 = 64;
/// Largest size of a working set, in bytes.
pub const MAX_BYTES: u64 = 1 << 30;
/// Smallest size in bytes for which huge pages are requested.
const HUGE_PAGE: usize = 2 << 20;

/// Order of visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Each visit is this many lines after the previous one, modulo the number of lines: 1 is sequential.
    Stride(u64),
    /// Random lines, known in advance: several loads can be in flight.
    Random,
    /// Pointer chase in one cycle through all lines: one load at a time.
    Chase,
}

/// Working set of a packet's visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes per core: a multiple of [`LINE`] up to [`MAX_BYTES`], not 0.
    pub bytes: u64,
    /// Order of visits.
    pub pattern: Pattern,
    /// If `true`, a flow's packets revisit the same lines; otherwise each packet continues after the last.
    pub of_flows: bool,
}

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line {
    /// Next line in a [chase](Pattern::Chase).
    next: u64,
    /// Value read and written.
    value: u64,
    rest: [u64; 6],
}

/// Result of a packet's visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visited {
    /// Start of the next visits.
    pub(super) next: u64,
    /// Sum of the values read, available only when all reads have completed.
    pub(super) sum: u64,
}

/// Memory of one core, fully populated at creation: no packet incurs a page fault.
#[derive(Debug)]
pub struct WorkingSet {
    map: MmapMut,
    pattern: Pattern,
}

impl WorkingSet {
    /// Allocates `memory.bytes`, in huge pages where the kernel has them.
    ///
    /// # Errors
    /// The kernel cannot provide the memory.
    pub fn new(memory: &Memory) -> io::Result<WorkingSet> {
        let lines = memory.bytes / LINE;
        let map = MmapMut::map_anon(memory.bytes as usize)?;
        if map.len() >= HUGE_PAGE {
            // A hint only: without huge pages there are more TLB misses.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let mut set = WorkingSet {
            map,
            pattern: memory.pattern,
        };
        // One cycle through all lines in random order (Sattolo): each element is swapped with an earlier one.
        let all = set.lines();
        for (at, line) in all.iter_mut().enumerate() {
            line.next = at as u64;
        }
        if memory.pattern == Pattern::Chase {
            for at in (1..lines).rev() {
                let with = below(mix(at), at);
                let (left, right) = (all[at as usize].next, all[with as usize].next);
                all[at as usize].next = right;
                all[with as usize].next = left;
            }
        }
        Ok(set)
    }

    pub(super) fn lines(&mut self) -> &mut [Line] {
        bytemuck::cast_slice_mut(&mut self.map)
    }

    /// Returns the start of a flow's visits.
    pub(super) fn place_of(&self, hash: u32) -> u64 {
        match self.pattern {
            Pattern::Random => mix(u64::from(hash)),
            Pattern::Stride(_) | Pattern::Chase => below(mix(u64::from(hash)), self.map.len() as u64 / LINE),
        }
    }

    /// Reads `reads` lines, then writes `value` to `writes` lines.
    #[inline]
    pub(super) fn visit(&mut self, from: u64, (reads, writes): (u32, u32), value: u64) -> Visited {
        let pattern = self.pattern;
        let lines = self.lines();
        let count = lines.len() as u64;
        match pattern {
            Pattern::Stride(stride) => walk(lines, from, (reads, writes), value, |at, _| {
                let next = at + stride;
                let next = if next >= count { next - count } else { next };
                (next, at)
            }),
            Pattern::Random => walk(lines, from, (reads, writes), value, |turn, _| {
                (turn.wrapping_add(1), below(mix(turn), count))
            }),
            Pattern::Chase => walk(lines, from, (reads, writes), value, |at, lines| {
                (lines[at as usize].next, at)
            }),
        }
    }
}

/// Visits lines. `step` maps the walk's state to the next state and the line to visit.
#[inline(always)]
fn walk(
    lines: &mut [Line],
    from: u64,
    (reads, writes): (u32, u32),
    value: u64,
    step: impl Fn(u64, &[Line]) -> (u64, u64),
) -> Visited {
    let (mut state, mut sum) = (from, 0u64);
    for _ in 0..reads {
        let (next, at) = step(state, lines);
        sum = sum.wrapping_add(lines[at as usize].value);
        state = next;
    }
    for _ in 0..writes {
        let (next, at) = step(state, lines);
        lines[at as usize].value = value;
        state = next;
    }
    Visited { next: state, sum }
}

/// Returns a number below `end`, which is below 2^32, from the upper half of `random`.
#[inline]
fn below(random: u64, end: u64) -> u64 {
    ((random >> 32) * end) >> 32
}
