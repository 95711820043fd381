//! The memory that packets read and write, and the order in which they do.

use super::mix;
use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;
use std::io;

/// Bytes of a line: what is read or written at once.
pub const LINE: u64 = 64;
/// The most bytes of a working set.
pub const MAX_BYTES: u64 = 1 << 30;
/// Sets of at least this many bytes ask for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// In which order lines are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Each so many lines behind the one before, fewer than there are, and round again: 1 is one after the other.
    Stride(u64),
    /// Any line, known before the one in front has come: several can be on their way.
    Random,
    /// Each where the one before says, in one round through all: one at a time.
    Chase,
}

/// What is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes for each core: a multiple of [`LINE`] up to [`MAX_BYTES`], and not 0.
    pub bytes: u64,
    /// The order.
    pub pattern: Pattern,
    /// Whether a flow's packets visit the same lines again, and not those that follow.
    pub of_flows: bool,
}

/// A cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line {
    /// Which line follows in a [chase](Pattern::Chase).
    next: u64,
    /// What is read and written.
    value: u64,
    rest: [u64; 6],
}

/// What a packet's visits came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visited {
    /// Where the visits after these begin.
    pub(super) next: u64,
    /// The sum of what was read, which is not known before all has come.
    pub(super) sum: u64,
}

/// Memory of one core, all of it present from the start: no packet pays for a page fault.
#[derive(Debug)]
pub struct WorkingSet {
    map: MmapMut,
    pattern: Pattern,
}

impl WorkingSet {
    /// Memory for `memory.bytes`; in huge pages where the kernel has them.
    ///
    /// # Errors
    /// What the kernel says when it cannot give that much.
    pub fn new(memory: &Memory) -> io::Result<WorkingSet> {
        let lines = memory.bytes / LINE;
        let map = MmapMut::map_anon(memory.bytes as usize)?;
        if map.len() >= HUGE_PAGE {
            // Only advice: without huge pages everything works, with more misses of the TLB.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let mut set = WorkingSet {
            map,
            pattern: memory.pattern,
        };
        // One round through all in random order (Sattolo): each number changes places with one in front.
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

    /// Where the visits of a flow begin.
    pub(super) fn place_of(&self, hash: u32) -> u64 {
        match self.pattern {
            Pattern::Random => mix(u64::from(hash)),
            Pattern::Stride(_) | Pattern::Chase => below(mix(u64::from(hash)), self.map.len() as u64 / LINE),
        }
    }

    /// Visits `reads` lines and reads them, then `writes` lines and writes `value` there.
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

/// Visits lines. `step` turns a state of the walk into the one that follows, and the line that is visited.
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

/// A number below `end`, which is below 2^32, by the upper half of `random`.
#[inline]
fn below(random: u64, end: u64) -> u64 {
    ((random >> 32) * end) >> 32
}
