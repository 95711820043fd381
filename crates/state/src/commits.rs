//! What waits for the store, what may leave, and what becomes of packets that wait for too long: decisions only.
//!
//! Packets wait in two lines. Before the functions, in the line of [`Stage::Read`], for the state of their flow;
//! behind them, in the line of [`Stage::Update`], for the acknowledgement of what they, or packets of their flow in
//! front of them, changed (Quadrant calls it output commit). Packets join and leave a line in groups, first in, first
//! out. Requests to the store have rising numbers and are answered in that order, so that one number says which
//! of them are. A flow's *gate* is the last request that one of its packets waits for: a packet passes a line by
//! only if its flow's gate is open. Then packets of a flow never overtake each other.

use std::collections::VecDeque;
use tailwater_api::WhenUnavailable;
use tailwater_net::Nanos;

/// Where packets wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the functions, for their flow's state.
    Read,
    /// Behind them, for the acknowledgement of an update.
    Update,
}

/// How long packets may wait, how many of them, and what then.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most packets in both lines together.
    pub packets: usize,
    /// Longest time in a line.
    pub wait: Nanos,
    /// What becomes of packets that may not wait any longer.
    pub then: WhenUnavailable,
}

/// How packets leave a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// What they waited for has come.
    Go,
    /// It has not; they go on with what is known here.
    Pass,
    /// It has not; they are to be dropped.
    Drop,
}

/// Packets that left a line together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// How many, from the front of the line.
    pub packets: usize,
    /// Why.
    pub fate: Fate,
    /// How long they were in the line.
    pub waited: Nanos,
}

/// Packets that joined a line together.
#[derive(Clone, Copy, Debug)]
struct Group {
    packets: usize,
    request: u64,
    since: Nanos,
}

/// The lines of one worker.
#[derive(Debug)]
pub struct Commits {
    bounds: Bounds,
    lines: [VecDeque<Group>; 2],
    packets: usize,
    most: usize,
    answered: u64,
    available: bool,
}

impl Commits {
    /// Two empty lines, with a store that is there and has answered requests up to `answered`.
    pub fn new(bounds: Bounds, answered: u64) -> Commits {
        // A group has a packet at least.
        let line = || VecDeque::with_capacity(bounds.packets);
        Commits {
            bounds,
            lines: [line(), line()],
            packets: 0,
            most: 0,
            answered,
            available: true,
        }
    }

    /// Packets in both lines.
    pub fn waiting(&self) -> usize {
        self.packets
    }

    /// The most packets there have been in both lines.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Requests up to this one have been answered.
    pub fn answer(&mut self, request: u64) {
        self.answered = self.answered.max(request);
    }

    /// Whether the store is there, as far as that is known.
    pub fn set_available(&mut self, available: bool) {
        self.available = available;
    }

    /// Another instance has taken this one's place: packets that wait are dropped, and all that would.
    pub fn fence(&mut self) {
        self.bounds.then = WhenUnavailable::Drop;
        self.available = false;
    }

    /// Whether the store is there.
    pub fn is_available(&self) -> bool {
        self.available
    }

    /// Whether a request has been answered; so packets behind this gate pass.
    #[inline]
    pub fn is_open(&self, gate: u64) -> bool {
        gate <= self.answered
    }

    /// What to do with packets that would have to wait. `None`: they may. With [`WhenUnavailable::Pass`] they always
    /// may: those in front of them go before [their time](Commits::next), so that the order stays.
    pub fn refuses(&self, packets: usize) -> Option<Fate> {
        let full = self.packets + packets > self.bounds.packets;
        let away = !self.available;
        match self.bounds.then {
            WhenUnavailable::Hold if full => Some(Fate::Drop),
            WhenUnavailable::Drop if full || away => Some(Fate::Drop),
            _ => None,
        }
    }

    /// Packets, one at least, join a line until a request is answered. Returns which one that is: not an earlier one
    /// than those in front of them wait for. It is the gate of all their flows from now on.
    pub fn join(&mut self, stage: Stage, packets: usize, request: u64, now: Nanos) -> u64 {
        let line = &mut self.lines[stage as usize];
        let request = line.back().map_or(request, |last| last.request.max(request));
        line.push_back(Group {
            packets,
            request,
            since: now,
        });
        self.packets += packets;
        self.most = self.most.max(self.packets);
        request
    }

    /// The next packets that leave a line now, if any do.
    #[inline]
    pub fn next(&mut self, stage: Stage, now: Nanos) -> Option<Leaving> {
        let line = &mut self.lines[stage as usize];
        let group = *line.front()?;
        let waited = now.saturating_sub(group.since);
        let fate = if group.request <= self.answered {
            Fate::Go
        } else {
            let late = waited >= self.bounds.wait;
            let full = self.packets > self.bounds.packets;
            match self.bounds.then {
                WhenUnavailable::Hold if late => Fate::Drop,
                WhenUnavailable::Drop if late || !self.available => Fate::Drop,
                WhenUnavailable::Pass if late || full || !self.available => Fate::Pass,
                _ => return None,
            }
        };
        line.pop_front();
        self.packets -= group.packets;
        Some(Leaving {
            packets: group.packets,
            fate,
            waited,
        })
    }
}
