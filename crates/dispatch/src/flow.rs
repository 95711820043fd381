//! Flow with packets in the system.

use tailwater_handover::owner::{Owner, Placement};
use tailwater_policy::core::{Destination, MAX_AUXILIARY_CORES};

/// Index of the local queue's packet list. That of auxiliary core `i` is `i + 1`.
pub const OWN: usize = Destination::OWN_CORE.index();

/// Flag of a flow's list: its queued packets are behind those of other flows.
const BEHIND: u8 = 0x80;

/// Flag of a flow's list: a vote finds the hash that most of its packets have.
const VOTED: u8 = 0x40;

const _: () = assert!(MAX_AUXILIARY_CORES < VOTED as usize, "flags and lists are apart");

/// No index in the list of queued flows.
pub(crate) const UNLISTED: u16 = u16::MAX;

/// Restriction on the cores that can process a flow's queued packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Any core.
    Movable,
    /// Only the dispatcher: the flow must be opened there, or is split.
    Bound,
    /// The same, and the parts of a split flow are to be joined once none of its packets is queued or in flight.
    Joining,
    /// None of its packets is in the system. The number is free once the flow is not listed.
    Over,
}

/// Flow with packets in the system, and the caller's `key` of it. Half a cache line, if the key has up to 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Flow<F> {
    key: F,
    /// Core of its packets, and the number of those in flight.
    owner: Owner,
    /// Index in the list of queued flows, or [`UNLISTED`].
    pub(crate) at: u16,
    /// Packets in the local queue. There are fewer than 2^16 packets.
    pub(crate) queued: u16,
    /// Packets parked until none is in flight.
    pub(crate) parked: u16,
    /// List of its packets, with a flag if that is the list behind.
    list: u8,
    state: State,
}

const _: () = assert!(size_of::<Flow<[u64; 2]>>() == 32, "two flows share a cache line");

impl<F> Flow<F> {
    pub(crate) fn new(key: F, is_bound: bool) -> Flow<F> {
        Flow {
            key,
            owner: Owner::default(),
            at: UNLISTED,
            queued: 0,
            parked: 0,
            list: OWN as u8,
            state: if is_bound { State::Bound } else { State::Movable },
        }
    }

    /// Returns the caller's key.
    #[inline]
    pub fn key(&self) -> &F {
        &self.key
    }

    /// Returns the number of its packets in the system: in the local queue, in flight and parked.
    #[inline]
    pub fn packets(&self) -> u32 {
        u32::from(self.queued) + u32::from(self.parked) + self.owner.in_flight()
    }

    #[inline]
    pub(crate) fn placement(&self) -> Placement {
        self.owner.placement()
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.owner.in_flight()
    }

    /// Returns the list of its packets, given that of the queue behind.
    #[inline]
    pub(crate) fn list(&self, behind: usize) -> usize {
        match self.is_behind() {
            true => behind,
            false => (self.list & !VOTED).into(),
        }
    }

    /// Returns `true` if its queued packets are behind those of other flows.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.list & BEHIND != 0
    }

    #[inline]
    pub(crate) fn set_behind(&mut self, is_behind: bool) {
        self.list = self.list & !BEHIND | if is_behind { BEHIND } else { 0 };
    }

    /// Returns `true` if a [vote](crate::fairness::Vote) finds the hash that most of its packets have.
    #[inline]
    pub(crate) fn is_voted(&self) -> bool {
        self.list & VOTED != 0
    }

    #[inline]
    pub(crate) fn set_voted(&mut self, is_voted: bool) {
        self.list = self.list & !VOTED | if is_voted { VOTED } else { 0 };
    }

    #[inline]
    pub(crate) fn is_bound(&self) -> bool {
        matches!(self.state, State::Bound | State::Joining)
    }

    /// Returns `true` if the parts of the flow, which is split, are to be joined.
    #[inline]
    pub(crate) fn is_joining(&self) -> bool {
        self.state == State::Joining
    }

    pub(crate) fn set_joining(&mut self) {
        self.state = State::Joining;
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Changes the destination of the flow's packets, if none is in flight. Returns `true` if it is the wanted one now.
    #[inline]
    pub(crate) fn go_to(&mut self, wanted: Placement) -> bool {
        self.owner.settle(wanted);
        self.list = match self.owner.placement() {
            // Packets behind stay there.
            Placement::Home | Placement::Split { .. } => OWN as u8 | self.list & (BEHIND | VOTED),
            Placement::Auxiliary(auxiliary) => (auxiliary + 1) | (self.list & VOTED),
        };
        self.owner.placement() == wanted
    }

    /// Gives the last of this core's segments of a split flow to another core.
    pub(crate) fn divide(&mut self, from: u8, auxiliary: u8) {
        let has_them = self.owner.divide(from, auxiliary);
        assert!(has_them, "the flow is split behind them");
    }

    #[inline]
    pub(crate) fn sent(&mut self) {
        self.owner.sent();
    }

    #[inline]
    pub(crate) fn sent_many(&mut self, packets: u16) {
        self.owner.sent_many(packets.into());
    }

    #[inline]
    pub(crate) fn returned(&mut self) {
        self.owner.returned();
    }

    #[inline]
    pub(crate) fn bind(&mut self, is_bound: bool) {
        self.state = if is_bound { State::Bound } else { State::Movable };
    }

    #[inline]
    pub(crate) fn end(&mut self) {
        self.state = State::Over;
    }

    /// Returns the first segment on the auxiliary core, and that core's index, if the flow is split.
    #[inline]
    pub(crate) fn split(&self) -> Option<(usize, usize)> {
        match self.owner.placement() {
            Placement::Split { from, auxiliary } => Some((from.into(), auxiliary.into())),
            Placement::Home | Placement::Auxiliary(_) => None,
        }
    }

    /// Returns `true` if none of its packets is in the system.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.queued == 0 && self.parked == 0 && self.owner.in_flight() == 0
    }
}
