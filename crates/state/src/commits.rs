//! Output commit: the order in which packets wait for the store and leave. Decisions only, without I/O.
//!
//! Packets wait in two queues. Before the functions, in the queue of [`Stage::Read`], for the state of their flow.
//! After the functions, in the queue of [`Stage::Update`], for the acknowledgement of a change made by their flow so
//! far (Quadrant's output commit). Packets join and leave a queue in groups, first in, first out. Requests to the store
//! have increasing numbers and are answered in that order, so one number says which are answered. A flow's *gate* is
//! the last request that one of its packets waits for. A packet may bypass a queue only if its flow's gate is open. So
//! packets of a flow never overtake each other.

use std::collections::VecDeque;
use tailwater_api::WhenUnavailable;
use tailwater_net::Nanos;

/// Point in the chain where packets wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the functions, for their flow's state.
    Read,
    /// After the functions, for the acknowledgement of an update.
    Update,
}

/// Limits on waiting packets, and the action beyond them.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of packets in both queues together.
    pub packets: usize,
    /// Maximum time in a queue.
    pub wait: Nanos,
    /// Action for packets that exceed a limit.
    pub then: WhenUnavailable,
}

/// Reason why packets leave a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveReason {
    /// Their request was answered.
    Go,
    /// Their request was not answered. They continue with local state.
    Pass,
    /// Their request was not answered. They are dropped.
    Drop,
}

/// Packets that leave a queue together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Number of packets, from the front of the queue.
    pub packets: usize,
    /// Reason.
    pub reason: LeaveReason,
    /// Time they spent in the queue.
    pub waited: Nanos,
}

/// Packets that joined a queue together.
#[derive(Clone, Copy, Debug)]
struct Group {
    packets: usize,
    request: u64,
    since: Nanos,
}

/// Queues of one worker.
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
    /// Two empty queues, with an available store that has answered requests up to `answered`.
    pub fn new(bounds: Bounds, answered: u64) -> Commits {
        // A group has at least one packet.
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

    /// Packets in both queues.
    pub fn waiting(&self) -> usize {
        self.packets
    }

    /// Maximum number of packets that were in both queues at a time.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Marks requests up to this one as answered.
    pub fn answer(&mut self, request: u64) {
        self.answered = self.answered.max(request);
    }

    /// Sets the availability of the store.
    pub fn set_available(&mut self, available: bool) {
        self.available = available;
    }

    /// Another instance has replaced this one: drops all packets that wait now or would have to.
    pub fn fence(&mut self) {
        self.bounds.then = WhenUnavailable::Drop;
        self.available = false;
    }

    /// Returns `true` if the store is available.
    pub fn is_available(&self) -> bool {
        self.available
    }

    /// Returns `true` if the request has been answered, so packets behind this gate may pass.
    #[inline]
    pub fn is_open(&self, gate: u64) -> bool {
        gate <= self.answered
    }

    /// Action for packets that would have to wait, or `None` if they may. With [`WhenUnavailable::Pass`] they always
    /// may: the packets in front leave [early](Commits::next), which preserves the order.
    pub fn refuses(&self, packets: usize) -> Option<LeaveReason> {
        let full = self.packets + packets > self.bounds.packets;
        let away = !self.available;
        match self.bounds.then {
            WhenUnavailable::Hold if full => Some(LeaveReason::Drop),
            WhenUnavailable::Drop if full || away => Some(LeaveReason::Drop),
            _ => None,
        }
    }

    /// Adds packets, at least one, to a queue until a request is answered. Returns the number of the request they wait
    /// for: not an earlier one than the packets in front wait for. It becomes the gate of all their flows.
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

    /// Next packets that leave a queue now, or `None`.
    #[inline]
    pub fn next(&mut self, stage: Stage, now: Nanos) -> Option<Leaving> {
        let line = &mut self.lines[stage as usize];
        let group = *line.front()?;
        let waited = now.saturating_sub(group.since);
        let fate = if group.request <= self.answered {
            LeaveReason::Go
        } else {
            let late = waited >= self.bounds.wait;
            let full = self.packets > self.bounds.packets;
            match self.bounds.then {
                WhenUnavailable::Hold if late => LeaveReason::Drop,
                WhenUnavailable::Drop if late || !self.available => LeaveReason::Drop,
                WhenUnavailable::Pass if late || full || !self.available => LeaveReason::Pass,
                _ => return None,
            }
        };
        line.pop_front();
        self.packets -= group.packets;
        Some(Leaving {
            packets: group.packets,
            reason: fate,
            waited,
        })
    }
}
