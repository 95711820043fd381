//! Segments: the parts of a chain that different cores may run on one flow.

use super::NetworkFunction;
use super::forks::Forks;
use crate::branches::{ByWay, START};
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{SHOWN_BEFORE, StateSlot, UNSEEN};
use crate::region::CACHE_LINE;
use std::ops::Range;

/// In front of which functions a chain may be cut, so that another core runs what is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts(u64);

impl Cuts {
    /// Nowhere.
    pub const NONE: Cuts = Cuts(0);
    /// In front of every function.
    pub const EVERYWHERE: Cuts = Cuts(u64::MAX);

    /// With bit `i` set, in front of the last `i` functions. Bits that cut nothing off mean nothing.
    pub const fn before_last(bits: u64) -> Cuts {
        Cuts(bits)
    }

    /// Whether function `i` of so many begins a segment.
    fn begins(self, i: usize, functions: usize) -> bool {
        let last = functions - i;
        i == 0 || last < 64 && self.0 >> last & 1 != 0
    }
}

/// Functions that one core runs on a flow's packets, all of them.
///
/// The segment's state starts a cache line, which it shares with no other segment: first the
/// [settled version](super::Chain::settled_version), then, unless the segment is the last, whether a
/// change of the flow is [pending](Segment::pending), then the functions' versions, then their own
/// bytes, each aligned to 8. Where flows are connections, each of these is there twice, once for each
/// direction, but for functions that [track connections](NetworkFunction::tracks_connections).
#[derive(Debug)]
pub(super) struct Segment {
    /// Which functions.
    pub(super) stages: Range<usize>,
    /// Its bytes of a flow's state; none if no function has any.
    pub(super) bytes: Range<usize>,
    /// Whether another segment follows.
    followed: bool,
    /// How much further on the numbers in front are for packets against the direction of a connection's key: 0
    /// where flows are no connections.
    apart: usize,
    /// Whether one of the functions opens companions.
    pub(super) opens_companions: bool,
    /// The settled version at the last look-up, if so.
    pub(super) settled: u32,
    /// In a chain with branches: for each way, the first that does not differ from it in what is decided in front of the
    /// segment about its functions with state.
    pub(super) came: Option<ByWay<u8>>,
    /// How packets pass it, if branches of the chain are here.
    pub(super) forks: Option<Box<Forks>>,
}

/// Bytes of a number in front of a segment's state.
const WORD: usize = size_of::<u32>();

impl Segment {
    pub(super) fn has_state(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The way that a packet had come when it came here, as far as functions with state are concerned.
    #[inline]
    pub(super) fn came(&self, way: u8) -> u8 {
        let came = self.came.as_ref();
        came.map_or(START, |came| came[usize::from(way)])
    }

    /// Where in a flow's state the version is under which all functions have seen it, or this direction of
    /// a connection.
    #[inline]
    pub(super) fn settled_at(&self, reversed: bool) -> usize {
        match self.apart {
            0 => self.bytes.start,
            apart => self.bytes.start + apart * usize::from(reversed),
        }
    }

    /// Where in a flow's state it is noted that the segments behind have yet to be told of a flow that a
    /// function rekeyed. They may run on another core, so the next packet that leaves this segment tells
    /// them. Until then the flow is not settled here. `None` in the last segment.
    #[inline]
    pub(super) fn pending(&self, reversed: bool) -> Option<usize> {
        self.followed.then_some(self.settled_at(reversed) + WORD)
    }

    /// Has functions be shown a flow again, since one in front rekeyed it, now or, if something drops
    /// the packet before, with a later one; and those of later segments.
    #[cold]
    pub(super) fn show_again<'a>(
        &self,
        functions: impl Iterator<Item = (&'a dyn NetworkFunction, &'a StateSlot)>,
        table: &mut FlowTable,
        (flow, reversed): (FlowIndex, bool),
    ) {
        // Until then the flow is unsettled, whatever versions come.
        *table.word(flow, self.settled_at(reversed)) = UNSEEN;
        if let Some(pending) = self.pending(reversed) {
            *table.word(flow, pending) = 1;
        }
        for (function, slot) in functions {
            let seen = table.word(flow, slot.version_at(reversed));
            if !function.opens_companions() && *seen != UNSEEN {
                *seen = SHOWN_BEFORE;
            }
        }
    }
}

/// How a chain is cut into segments, and where each function's piece of a flow's state lies.
pub(super) struct Layout {
    pub(super) segments: Vec<Segment>,
    pub(super) slots: Vec<Option<StateSlot>>,
    /// Bytes of a flow's state.
    pub(super) bytes: usize,
    /// Whether flows are connections.
    pub(super) connections: bool,
}

impl Layout {
    pub(super) fn new(functions: &[(String, Box<dyn NetworkFunction>)], cuts: Cuts) -> Layout {
        let mut layout = Layout {
            segments: Vec::new(),
            slots: Vec::new(),
            bytes: 0,
            connections: functions.iter().any(|(_, function)| function.tracks_connections()),
        };
        let mut first = 0;
        while first < functions.len() {
            let begins = |i: &usize| cuts.begins(*i, functions.len());
            let end = (first + 1..functions.len()).find(begins);
            let stages = first..end.unwrap_or(functions.len());
            let followed = stages.end < functions.len();
            layout.add(stages.clone(), functions, followed);
            first = stages.end;
        }
        layout
    }

    /// One segment in the middle of a chain whose others are elsewhere.
    pub(super) fn between_others(functions: &[(String, Box<dyn NetworkFunction>)]) -> Layout {
        let mut layout = Layout {
            segments: Vec::new(),
            slots: Vec::new(),
            bytes: 0,
            connections: false,
        };
        layout.add(0..functions.len(), functions, true);
        layout
    }

    fn add(&mut self, stages: Range<usize>, functions: &[(String, Box<dyn NetworkFunction>)], followed: bool) {
        let functions = &functions[stages.clone()];
        let connections = self.connections;
        // How often a function's state is there.
        let copies = |function: &dyn NetworkFunction| match function.state_bytes() {
            0 => 0,
            _ if connections && !function.tracks_connections() => 2,
            _ => 1,
        };
        let stateful: usize = functions.iter().map(|(_, f)| copies(&**f)).sum();
        let start = self.bytes.next_multiple_of(CACHE_LINE);
        let in_front = if followed { 2 * WORD } else { WORD };
        let apart = if connections { in_front } else { 0 };
        let mut versions = start + in_front + apart;
        let mut end = versions + WORD * stateful;
        self.slots.extend(functions.iter().map(|(_, function)| {
            let copies = copies(&**function);
            let bytes = function.state_bytes();
            (copies > 0).then(|| {
                let start = end.next_multiple_of(8);
                let (version, state) = (versions, start..start + bytes);
                let directed = copies - 1;
                let state_apart = directed * bytes.next_multiple_of(8);
                end = state.end + state_apart;
                versions += WORD * copies;
                StateSlot {
                    version,
                    state,
                    version_apart: directed * WORD,
                    state_apart,
                }
            })
        }));
        let bytes = match stateful {
            0 => self.bytes..self.bytes,
            _ => start..end,
        };
        self.bytes = bytes.end;
        self.segments.push(Segment {
            stages,
            bytes,
            followed,
            apart,
            opens_companions: stateful > 0 && functions.iter().any(|(_, function)| function.opens_companions()),
            settled: UNSEEN,
            came: None,
            forks: None,
        });
    }
}
