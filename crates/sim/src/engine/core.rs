//! State of a core: packets on their way to it, its current work, and its load counters.

use super::brokered::Brokered;
use super::dispatch::Dispatch;
use super::fifo::Fifo;
use super::machine::Pausing;
use super::tree::NEVER;
use super::waiting::Waiting;
use std::collections::VecDeque;
use tailwater_dispatch::Freshness;
use tailwater_measure::attribution::Attribution;
use tailwater_measure::durations::{self, QUARTERS};
use tailwater_net::Nanos;
use tailwater_policy::server::ServerCounters;

/// Load counters of a core since the last query.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    pub busy: u64,
    pub received: u64,
    pub lost: u64,
    pub processed: u64,
    /// Packets that were late for a cause that more cores can remedy.
    pub late: u64,
    pub longest_queue: u32,
    pub worst_delay: u64,
    durations: Box<[u32; QUARTERS]>,
    /// Sums before the last query.
    before: ServerCounters,
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            busy: 0,
            received: 0,
            lost: 0,
            processed: 0,
            late: 0,
            longest_queue: 0,
            worst_delay: 0,
            durations: Box::new([0; QUARTERS]),
            before: ServerCounters::default(),
        }
    }
}

impl Stats {
    /// Counts a batch.
    #[inline]
    pub fn batch(&mut self, packets: usize, took: u64) {
        self.busy += took;
        self.processed += packets as u64;
        self.durations[durations::quarter(Nanos(took))] += 1;
    }

    /// Returns the 99th percentile of the batches' durations, to a quarter of an octave, or zero without any batch.
    pub fn batch_p99(&self) -> Nanos {
        durations::p99(self.durations.iter().map(|count| u64::from(*count)))
    }

    /// Returns the sums since the start of the run.
    pub fn totals(&self) -> ServerCounters {
        ServerCounters {
            offered: 0,
            processed: self.before.processed + self.processed,
            busy: self.before.busy + Nanos(self.busy),
            late: self.before.late + self.late + self.lost,
        }
    }

    pub fn clear(&mut self) {
        let before = self.totals();
        let mut durations = std::mem::take(self).durations;
        durations.fill(0);
        (self.durations, self.before) = (durations, before);
    }
}

/// Activation of an auxiliary core by a dispatcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activation {
    pub dispatcher: u16,
    pub auxiliary: u16,
    /// Time since which it counts as an auxiliary core. It does not while it has a queue of its own.
    pub since: u64,
    /// `true` if the two cores are on different NUMA nodes.
    pub other_node: bool,
}

/// Migrations of buckets or flows from and to a core.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    /// Number of buckets or flows yet to leave, and yet to arrive.
    pub leaving: u32,
    pub awaited: u32,
    /// Arrival time and number of each that has been sent.
    pub inbox: Vec<(u64, u32)>,
    /// Packets of those that have not arrived.
    pub buffered: Vec<Waiting>,
    /// Packets of those that have arrived. They are processed first.
    pub next: VecDeque<Waiting>,
}

impl Transit {
    /// Returns `true` if no migration is in progress and no packet is buffered.
    #[inline]
    pub fn is_still(&self) -> bool {
        self.leaving | self.awaited == 0 && self.next.is_empty()
    }
}

/// State of a core.
#[derive(Debug)]
pub(crate) struct Core {
    pub server: u16,
    pub node: u16,
    /// Capacity of its ring, and of its packet buffers.
    pub ring: usize,
    pub buffers: usize,
    pub fifo: Fifo,
    /// Time until which it is busy.
    pub ready: u64,
    /// Picoseconds spent beyond whole elapsed nanoseconds.
    pub carry: u64,
    /// Number of batches so far. It indexes the core's random numbers.
    pub batches: u64,
    /// Interruptions by the machine, if the model has any.
    pub pausing: Pausing,
    /// Tenant and steering domain of its queue, if it has one.
    pub dedicated: Option<(u16, u16)>,
    /// Start of that dedication.
    pub since: u64,
    /// Number of buckets, or flows, mapped to it.
    pub owned: u32,
    /// Tenant whose mapper uses it, though it has stopped.
    pub stopped_for: Option<u16>,
    /// `true` if it gives its queue back once it is empty.
    pub reclaim: bool,
    pub dispatch: Option<Box<Dispatch>>,
    /// Activation by a dispatcher, if it serves as an auxiliary core.
    pub activation: Option<Activation>,
    /// State that the server's broker sees, if it has one.
    pub brokered: Brokered,
    /// Arrival of the first packet offloaded to it.
    pub offloaded_at: u64,
    /// `true` if its last batch was an offloaded one.
    pub last_was_offloaded: bool,
    pub transit: Transit,
    pub attribution: Attribution,
    /// Which packets are too late, if the chain's model allows to discard them.
    pub freshness: Option<Freshness>,
    pub stats: Stats,
    /// Last time at which it had no backlog.
    pub through: u64,
    /// Time of its next poll if no packet arrives.
    pub watch: u64,
}

impl Core {
    pub fn new(server: u16, node: u16, ring: usize, buffers: usize, slo: Nanos) -> Core {
        Core {
            server,
            node,
            ring,
            buffers,
            fifo: Fifo::default(),
            ready: 0,
            carry: 0,
            batches: 0,
            pausing: Pausing::default(),
            dedicated: None,
            since: 0,
            owned: 0,
            stopped_for: None,
            reclaim: false,
            dispatch: None,
            activation: None,
            brokered: Brokered::default(),
            offloaded_at: NEVER,
            last_was_offloaded: false,
            transit: Transit::default(),
            attribution: Attribution::new(slo),
            freshness: None,
            stats: Stats::default(),
            through: 0,
            watch: NEVER,
        }
    }

    /// Returns `true` if it is dedicated to a tenant as far as the tenant's mapper knows.
    pub fn is_dedicated(&self) -> bool {
        self.dedicated.is_some() || self.stopped_for.is_some()
    }

    /// Returns the number of packets that it can still receive, with `used` buffers in use.
    #[inline]
    pub fn room(&self, used: usize) -> usize {
        let buffered = self.transit.buffered.len() + self.transit.next.len();
        self.buffers.saturating_sub(used + buffered)
    }

    /// Returns `true` if it is a dedicated core that may process buckets of others that are behind.
    pub fn can_help(&self, now: u64) -> bool {
        let waiting = self.fifo.waiting(now).min(self.ring);
        let dispatch = self.dispatch.as_deref();
        self.transit.is_still() && dispatch.is_some_and(|dispatch| dispatch.machine.can_help(waiting))
    }

    /// Returns the time of its next work. `poll` is the delay until it notices a packet.
    #[inline]
    pub fn next(&self, poll: u64) -> u64 {
        let mut next = self.watch.min(self.offloaded_at);
        if self.dedicated.is_some() {
            let dispatch = self.dispatch.as_deref();
            let receives = dispatch.is_none_or(|dispatch| dispatch.machine.backlog.receives());
            if let Some(first) = self.fifo.first()
                && self.room(dispatch.map_or(0, Dispatch::used)) > 0
                && receives
            {
                next = next.min(first.at + poll);
            }
            if receives && !self.transit.next.is_empty() || dispatch.is_some_and(Dispatch::has_work) {
                next = 0;
            }
        }
        if self.transit.awaited > 0 {
            let inbox = self.transit.inbox.iter().map(|(at, _)| *at);
            next = inbox.fold(next, u64::min);
        }
        if next == NEVER {
            return NEVER;
        }
        next.max(self.ready)
    }

    /// Returns `true` if it has a packet of a flow that `leaves`: in its ring, its own queue, on its auxiliary cores,
    /// or buffered. If the dispatcher distinguishes flows, it must have their receipts, too.
    pub fn has_any(&self, leaves: impl Fn(u32) -> bool) -> bool {
        let ring = self.fifo.iter().map(|arrived| &arrived.packet);
        let waiting = self.transit.buffered.iter().chain(&self.transit.next);
        let mut own = ring.chain(waiting.map(|waiting| &waiting.packet));
        let dispatched = |dispatch: &Dispatch| match dispatch.slots.is_empty() {
            true => dispatch.inside().any(|(_, flow, _)| leaves(flow)),
            false => dispatch.packets().any(|packet| leaves(packet.flow)),
        };
        own.any(|packet| leaves(packet.flow)) || self.dispatch.as_deref().is_some_and(dispatched)
    }

    /// Returns the arrival time of the oldest packet at the core, including packets in transfer or on auxiliary cores.
    pub fn oldest(&self) -> u64 {
        let ring = self.fifo.iter().map(|arrived| arrived.packet.arrival);
        let waiting = self.transit.buffered.iter().chain(&self.transit.next);
        let waiting = waiting.map(|waiting| waiting.packet.arrival);
        let own = self.dispatch.as_ref().map_or(NEVER, |d| d.oldest_active());
        ring.chain(waiting).min().unwrap_or(NEVER).min(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_99th_percentile() {
        let mut stats = Stats::default();
        assert_eq!(stats.batch_p99(), Nanos::ZERO);
        (0..985).for_each(|_| stats.batch(1, 1000));
        (0..15).for_each(|_| stats.batch(1, 50_000));
        let p99 = stats.batch_p99().0;
        assert!((50_000..60_000).contains(&p99), "{p99}");
        assert_eq!(stats.processed, 1000);
        stats.clear();
        assert_eq!((stats.batch_p99(), stats.busy), (Nanos::ZERO, 0));
        stats.batch(1, u64::MAX);
        assert_eq!(stats.batch_p99().0, u64::MAX - 1);
    }
}
