//! A core's state: what is on its way to it, what it is doing, and what is known of its load.

use super::dispatch::Dispatch;
use super::fifo::Fifo;
use super::machine::Pausing;
use super::tree::NEVER;
use super::waiting::Waiting;
use std::collections::VecDeque;
use tailwater_measure::attribution::Attribution;
use tailwater_measure::durations::{self, QUARTERS};
use tailwater_net::Nanos;

/// What a core did since somebody last asked.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    pub busy: u64,
    pub received: u64,
    pub lost: u64,
    pub processed: u64,
    pub longest_queue: u32,
    pub worst_delay: u64,
    durations: Box<[u32; QUARTERS]>,
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            busy: 0,
            received: 0,
            lost: 0,
            processed: 0,
            longest_queue: 0,
            worst_delay: 0,
            durations: Box::new([0; QUARTERS]),
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

    /// The 99th percentile of the batches' durations, to a quarter of an octave; zero without any.
    pub fn batch_p99(&self) -> Nanos {
        durations::p99(self.durations.iter().map(|count| u64::from(*count)))
    }

    pub fn clear(&mut self) {
        let mut durations = std::mem::take(self).durations;
        durations.fill(0);
        self.durations = durations;
    }
}

/// Who has recruited a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub dispatcher: u16,
    pub helper: u16,
    /// Since when it counts as a helper: not while it has a queue of its own.
    pub since: u64,
    /// The two are on different NUMA nodes.
    pub other_node: bool,
}

/// Buckets or flows on their way from and to a core.
#[derive(Debug, Default)]
pub(crate) struct Transit {
    /// How many are to leave, and how many to come.
    pub leaving: u32,
    pub awaited: u32,
    /// When each that has been sent is here, and its number.
    pub inbox: Vec<(u64, u32)>,
    /// Packets of those that are not here.
    pub kept: Vec<Waiting>,
    /// Packets of those that have come: processed first.
    pub next: VecDeque<Waiting>,
}

impl Transit {
    /// Whether nothing is on its way, nor kept back.
    #[inline]
    pub fn is_still(&self) -> bool {
        self.leaving | self.awaited == 0 && self.next.is_empty()
    }
}

/// A core.
#[derive(Debug)]
pub(crate) struct Core {
    pub server: u16,
    pub node: u16,
    /// Packets that its ring holds, and that may be in its hands.
    pub ring: usize,
    pub buffers: usize,
    pub fifo: Fifo,
    /// Until when it is busy.
    pub ready: u64,
    /// Picoseconds that have been spent and have not passed.
    pub carry: u64,
    /// Batches so far: numbers its random numbers.
    pub batches: u64,
    /// What takes it away for moments, if anything is known of that.
    pub pausing: Pausing,
    /// It has a queue, and whose: tenant and section.
    pub dedicated: Option<(u16, u16)>,
    /// Since when.
    pub since: u64,
    /// Buckets, or flows, that are mapped to it.
    pub owned: u32,
    /// It is to give its queue back once nothing is left.
    pub reclaim: bool,
    pub dispatch: Option<Box<Dispatch>>,
    /// Which core has recruited it, whose helper of which number it is, and since when.
    pub claim: Option<Claim>,
    /// When the first packet is here, or was, of those that it was handed as a helper.
    pub guest_at: u64,
    /// Whose turn was last.
    pub guest_last: bool,
    pub transit: Transit,
    pub attribution: Attribution,
    pub stats: Stats,
    /// When it last was through with its packets.
    pub through: u64,
    /// When it looks up if nothing comes.
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
            reclaim: false,
            dispatch: None,
            claim: None,
            guest_at: NEVER,
            guest_last: false,
            transit: Transit::default(),
            attribution: Attribution::new(slo),
            stats: Stats::default(),
            through: 0,
            watch: NEVER,
        }
    }

    /// Packets that it may still take, having `used` buffers in its hands.
    #[inline]
    pub fn room(&self, used: usize) -> usize {
        let kept = self.transit.kept.len() + self.transit.next.len();
        self.buffers.saturating_sub(used + kept)
    }

    /// When it next has something to do; `poll` is what noticing a packet takes.
    #[inline]
    pub fn next(&self, poll: u64) -> u64 {
        let mut next = self.watch.min(self.guest_at);
        if self.dedicated.is_some() {
            let dispatch = self.dispatch.as_deref();
            if let Some(first) = self.fifo.first()
                && self.room(dispatch.map_or(0, Dispatch::used)) > 0
            {
                next = next.min(first.at + poll);
            }
            if !self.transit.next.is_empty() || dispatch.is_some_and(Dispatch::has_work) {
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

    /// When the packet that has been here longest arrived, of all that are here, on their way or with
    /// helpers.
    pub fn oldest(&self) -> u64 {
        let ring = self.fifo.iter().map(|arrived| arrived.packet.arrival);
        let waiting = self.transit.kept.iter().chain(&self.transit.next);
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
