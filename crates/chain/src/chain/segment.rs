//! Segments: parts of a chain that different cores can run on one flow.

use super::forks::Forks;
use super::stage::Stage;
use crate::branches::{ByPath, START};
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{NetworkFunction, SHOWN_BEFORE, StateSlot, UNSEEN};
use crate::region::CACHE_LINE;
use std::ops::Range;

/// Set of functions in front of which a chain can be cut, so that another core runs the functions from there on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts(u64);

impl Cuts {
    /// No cuts.
    pub const NONE: Cuts = Cuts(0);
    /// A cut in front of every function.
    pub const EVERYWHERE: Cuts = Cuts(u64::MAX);

    /// A cut in front of the last `i` functions for each set bit `i`. Bits that cut nothing off have no effect.
    pub const fn before_last(bits: u64) -> Cuts {
        Cuts(bits)
    }

    /// Returns `true` if function `i` of `functions` begins a segment.
    fn begins(self, i: usize, functions: usize) -> bool {
        let last = functions - i;
        i == 0 || last < 64 && self.0 >> last & 1 != 0
    }
}

/// Functions that one core runs on all of a flow's packets.
///
/// The segment's state starts at a cache line and shares none with other segments. It consists, in this order, of:
/// - the [settled version](super::Chain::settled_version),
/// - unless the segment is the last, a word that marks a [pending](Segment::pending) change of the flow,
/// - the functions' versions,
/// - the functions' own bytes, each aligned to 8.
///
/// If flows are connections, each of these exists once for each direction, except for functions that
/// [track connections](crate::function::FunctionProperties::tracks_connections).
#[derive(Debug)]
pub(super) struct Segment {
    /// Indices of the functions.
    pub(super) stages: Range<usize>,
    /// Segment's bytes of a flow's state; empty if no function has state.
    pub(super) bytes: Range<usize>,
    /// `true` if another segment follows.
    followed: bool,
    /// Distance to the leading words for packets against the direction of a connection's key; 0 where flows are no
    /// connections.
    apart: usize,
    /// `true` if one of the functions opens companions.
    pub(super) opens_companions: bool,
    /// Settled version at the last look-up, if a function opens companions.
    pub(super) settled: u32,
    /// In a chain with branches: maps each path to the first equivalent one. Paths are equivalent if the decisions in
    /// front of the segment about its functions with state are the same.
    pub(super) path_class: Option<ByPath<u8>>,
    /// Routes of packets through the segment, if it has branches of the chain.
    pub(super) forks: Option<Box<Forks>>,
}

/// Size in bytes of a word in front of a segment's state.
const WORD: usize = size_of::<u32>();

impl Segment {
    pub(super) fn has_state(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Returns the representative of a packet's path up to this segment, with regard to functions with state.
    #[inline]
    pub(super) fn path_class(&self, path: u8) -> u8 {
        let class = self.path_class.as_ref();
        class.map_or(START, |class| class[usize::from(path)])
    }

    /// Offset in a flow's state of the settled version, under which all functions have seen the flow, or this direction
    /// of a connection.
    #[inline]
    pub(super) fn settled_at(&self, reversed: bool) -> usize {
        match self.apart {
            0 => self.bytes.start,
            apart => self.bytes.start + apart * usize::from(reversed),
        }
    }

    /// Offset in a flow's state of the mark that a function rekeyed the flow and later segments have not been notified.
    /// They may run on another core, so the next packet that leaves this segment carries the notification. Until then
    /// the flow is not settled here. `None` in the last segment.
    #[inline]
    pub(super) fn pending(&self, reversed: bool) -> Option<usize> {
        self.followed.then_some(self.settled_at(reversed) + WORD)
    }

    /// Makes the functions of these stages see a rekeyed flow again, and marks the change as pending for later
    /// segments. They see it now or, if the packet is dropped before it reaches them, with a later packet.
    #[cold]
    pub(super) fn show_again<'a>(
        &self,
        stages: impl Iterator<Item = (&'a Stage, &'a StateSlot)>,
        table: &mut FlowTable,
        (flow, reversed): (FlowIndex, bool),
    ) {
        // Until then the flow is unsettled under any version.
        *table.word(flow, self.settled_at(reversed)) = UNSEEN;
        if let Some(pending) = self.pending(reversed) {
            *table.word(flow, pending) = 1;
        }
        for (stage, slot) in stages {
            let seen = table.word(flow, slot.version_at(reversed));
            if !stage.properties.opens_companions && *seen != UNSEEN {
                *seen = SHOWN_BEFORE;
            }
        }
    }
}

/// Segments of a chain, and the location of each function's part of a flow's state.
pub(super) struct Layout {
    pub(super) segments: Vec<Segment>,
    pub(super) slots: Vec<Option<StateSlot>>,
    /// Size of a flow's state in bytes.
    pub(super) bytes: usize,
    /// `true` if flows are connections.
    pub(super) connections: bool,
}

impl Layout {
    pub(super) fn new(functions: &[(String, Box<dyn NetworkFunction>)], cuts: Cuts) -> Layout {
        let mut layout = Layout {
            segments: Vec::new(),
            slots: Vec::new(),
            bytes: 0,
            connections: functions.iter().any(|(_, f)| f.properties().tracks_connections),
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

    /// Layout of one segment in the middle of a chain whose other segments run elsewhere.
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
        // Number of copies of a function's state.
        let copies = |function: &dyn NetworkFunction| match function.state_bytes() {
            0 => 0,
            _ if connections && !function.properties().tracks_connections => 2,
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
            opens_companions: stateful > 0 && functions.iter().any(|(_, f)| f.properties().opens_companions),
            settled: UNSEEN,
            path_class: None,
            forks: None,
        });
    }
}
