//! Packet copies cut into cells of one size, for a ring.

use tailwater_net::Nanos;

/// Bytes of a cell: one cache line.
pub(super) const CELL: usize = 64;
/// Header bytes in a copy's first cell.
const HEAD: usize = 16;
const FIRST: usize = CELL - HEAD;

/// Cell of a copy: the [header](Copied) and the frame's start, or a continuation.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Cell([u8; CELL]);

impl Cell {
    pub(super) const EMPTY: Cell = Cell([0; CELL]);
}

/// Copy of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied<'a> {
    /// Arrival time since the run's start.
    pub(super) arrival: Nanos,
    /// Original length in bytes.
    pub(super) length: u32,
    /// Captured bytes, a prefix of the packet.
    pub(super) frame: &'a [u8],
}

impl<'a> Copied<'a> {
    /// Returns the cells of the copy. The frame's length must fit in 32 bits.
    #[inline]
    pub(super) fn cells(self) -> Cells<'a> {
        Cells {
            rest: self.frame,
            left: 1 + self.frame.len().saturating_sub(FIRST).div_ceil(CELL),
            head: Some((self.arrival, self.length)),
        }
    }
}

/// Iterator over the cells of a copy, in order.
pub(super) struct Cells<'a> {
    head: Option<(Nanos, u32)>,
    rest: &'a [u8],
    left: usize,
}

impl Iterator for Cells<'_> {
    type Item = Cell;

    #[inline]
    fn next(&mut self) -> Option<Cell> {
        self.left = self.left.checked_sub(1)?;
        let mut cell = Cell::EMPTY;
        let into = match self.head.take() {
            Some((arrival, length)) => {
                let (head, into) = cell.0.split_at_mut(HEAD);
                head[..8].copy_from_slice(&arrival.0.to_ne_bytes());
                head[8..12].copy_from_slice(&(self.rest.len() as u32).to_ne_bytes());
                head[12..].copy_from_slice(&length.to_ne_bytes());
                into
            }
            None => &mut cell.0[..],
        };
        let (piece, rest) = self.rest.split_at(self.rest.len().min(into.len()));
        into[..piece.len()].copy_from_slice(piece);
        self.rest = rest;
        Some(cell)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Cells<'_> {}

/// Reassembles the copies of one worker.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    arrival: Nanos,
    length: u32,
    /// Bytes still missing, and bytes received.
    missing: usize,
    frame: Vec<u8>,
}

impl Assembler {
    /// Takes the next cell, and calls `each` with the copy if that completes one.
    #[inline]
    pub(super) fn take(&mut self, cell: &Cell, each: impl FnOnce(Copied<'_>)) {
        let bytes = match self.missing {
            0 => {
                let [low, high, captured, length] = [0, 4, 8, 12].map(|at| self::word(&cell.0, at));
                let mut arrival = [0; 8];
                arrival[..4].copy_from_slice(&low);
                arrival[4..].copy_from_slice(&high);
                self.arrival = Nanos(u64::from_ne_bytes(arrival));
                self.missing = u32::from_ne_bytes(captured) as usize;
                self.length = u32::from_ne_bytes(length);
                self.frame.clear();
                &cell.0[HEAD..]
            }
            _ => &cell.0[..],
        };
        let piece = &bytes[..bytes.len().min(self.missing)];
        self.frame.extend_from_slice(piece);
        self.missing -= piece.len();
        if self.missing == 0 {
            each(Copied {
                arrival: self.arrival,
                length: self.length,
                frame: &self.frame,
            });
        }
    }
}

fn word(bytes: &[u8; CELL], at: usize) -> [u8; 4] {
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}
