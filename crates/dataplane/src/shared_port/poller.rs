//! Poller: receives from a queue of a shared port, and passes each packet to the chain it belongs to.

use super::flow_samples::FlowSampler;
use super::inbox::{Outlet, Progress};
use super::rules::{ChainRules, Choices, MAX_CHAINS, after_tags};
use crate::port::{PortQueue, QueuePosition, Received};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::{Batch, DEFAULT_BATCH, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;
use tailwater_net::protocol::ethertype;

/// Maximum number of packets received in one turn, so that chains get their turns under overload, too.
const MOST_PACKETS: usize = 4 * MAX_BATCH;

/// Time after a pause within which the poller catches up. A port that is overloaded for longer loses packets as usual.
const CATCH_UP: Nanos = Nanos::from_secs(2);

/// State of a poller with regard to a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pause {
    /// It polls.
    #[default]
    None,
    /// Packets wait.
    Paused,
    /// It has polled again since this time, and has not caught up.
    CatchingUp(Nanos),
}

/// Treatment of packets that no chain matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmatched {
    /// They are dropped.
    #[default]
    Drop,
    /// They are sent as received.
    Forward,
}

/// Packet counters of a shared port, apart from those of its chains. Written by one poller, read by others.
#[derive(Debug, Default)]
pub(crate) struct PollerCounters {
    pub(crate) received: AtomicU64,
    /// Packets that belonged to a chain, also those that found its ring full.
    pub(crate) delivered: AtomicU64,
    pub(crate) unmatched: AtomicU64,
    /// Of the unmatched ones, those while no chain got packets or chains changed; of the others, those of IPv6 and
    /// those without IP.
    pub(crate) unmatched_between: AtomicU64,
    pub(crate) unmatched_ipv6: AtomicU64,
    pub(crate) unmatched_non_ip: AtomicU64,
    /// Packets lost before their chain was known: the port's ring was full, or they were in several buffers.
    pub(crate) lost: AtomicU64,
    /// Of the lost packets, those that the port itself lost on reception.
    pub(crate) unreceived: AtomicU64,
    /// Of these, those that are in no chain's books, and those lost on a queue that the device does not report.
    pub(crate) unattributed: AtomicU64,
    pub(crate) on_any_queue: AtomicU64,
    pub(crate) damaged: AtomicU64,
    /// Packets that waited while the poller was paused.
    pub(crate) waited: AtomicU64,
}

/// Adds to a counter with a single writer.
#[inline]
fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }
}

/// Queues to one chain.
#[derive(Debug)]
pub(crate) struct ChainOutlets {
    /// Queue to the worker that gets this poller's packets, and passes on those of other workers.
    pub(crate) home: Outlet,
    /// Queues to the others, from which only buffers come back.
    pub(crate) others: Vec<Outlet>,
}

impl ChainOutlets {
    /// Takes back buffers and lists, and counts packets that nobody else counts.
    #[inline]
    fn settle(&mut self, pool: &mut BufferPool, counters: &PollerCounters) {
        let others = self.others.iter_mut().map(|outlet| outlet.settle(pool));
        let rest = others.sum::<u64>() + self.home.settle(pool);
        if rest > 0 {
            add(&counters.lost, rest);
        }
    }

    /// Returns `true` once all workers have ended. What is settled after that is the last.
    fn is_over(&self) -> bool {
        self.home.is_over() && self.others.iter().all(Outlet::is_over)
    }
}

/// Poller of one queue.
pub(crate) struct Poller {
    queue: Box<dyn PortQueue>,
    pool: BufferPool,
    /// Of the default size for an only chain, whose worker takes such batches as they are.
    batch: Batch,
    rules: Arc<ChainRules>,
    /// Queues to the chains, by slot.
    outlets: Vec<Option<ChainOutlets>>,
    /// Slots with an outlet.
    connected: u64,
    /// Chains to which packets were delivered in this round.
    fed: u64,
    /// Queues of chains that are gone, whose buffers have not all come back.
    leaving: Vec<ChainOutlets>,
    unmatched: Unmatched,
    counters: Arc<PollerCounters>,
    progress: Arc<Progress>,
    sampler: FlowSampler,
    /// Whether packets wait in the port.
    pause: Pause,
    /// Turns until all chains' buffers are taken back.
    settle_in: u32,
    ended: bool,
}

/// Turns between visits of chains that get no packets.
const SETTLE_INTERVAL: u32 = 64;

impl Poller {
    pub(crate) fn new(
        queue: Box<dyn PortQueue>,
        pool: BufferPool,
        unmatched: Unmatched,
        counters: Arc<PollerCounters>,
        (progress, sampler): (Arc<Progress>, FlowSampler),
    ) -> Poller {
        Poller {
            batch: Batch::new(&pool, MAX_BATCH),
            queue,
            pool,
            rules: Arc::new(ChainRules::new([])),
            outlets: (0..MAX_CHAINS).map(|_| None).collect(),
            connected: 0,
            fed: 0,
            leaving: Vec::with_capacity(MAX_CHAINS),
            unmatched,
            counters,
            progress,
            sampler,
            pause: Pause::default(),
            settle_in: SETTLE_INTERVAL,
            ended: false,
        }
    }

    /// Begins a round of the core's workers: no chain has got packets in it.
    #[inline]
    pub(crate) fn begin_round(&mut self) {
        self.settle();
        self.fed = 0;
    }

    /// Receives packets that have arrived by `now`, and delivers them. Returns `true` if there were any.
    pub(crate) fn poll(&mut self, now: Nanos) -> bool {
        let mut any = false;
        let size = self.size();
        let batches = match self.pause {
            Pause::None => MOST_PACKETS / size,
            _ => self.batches_after_pause(now),
        };
        let most = match self.pause {
            Pause::CatchingUp(_) => self.least_room().min(size),
            _ => size,
        };
        self.batch.limit(most);
        for _ in 0..batches {
            let received = self.queue.receive(now, &mut self.pool, &mut self.batch);
            let count = self.batch.len();
            any |= count > 0;
            self.count(received);
            if self.pause != Pause::None {
                self.count_waited(most);
            }
            self.deliver();
            if received.ended && received.waiting == 0 {
                self.ended = true;
            }
            if count < most {
                break;
            }
        }
        // In this order: whoever reads the time sees the packets.
        self.progress.publish(match self.ended {
            true => Nanos::MAX,
            false => self.queue.received_before(),
        });
        any
    }

    /// Smallest room in the rings to the chains.
    fn least_room(&mut self) -> usize {
        let outlets = self.outlets.iter_mut().flatten();
        outlets
            .map(|outlets| outlets.home.room(MAX_BATCH))
            .min()
            .unwrap_or(MAX_BATCH)
    }

    /// Set of chains, by slot, to which packets were delivered in this round.
    pub(crate) fn fed(&self) -> u64 {
        self.fed
    }

    #[inline]
    fn count(&mut self, received: Received) {
        let counters = &self.counters;
        add(&counters.received, received.offered);
        add(&counters.damaged, received.refused.damaged);
        let lost = received.lost_ring_full + received.refused.in_pieces;
        if lost > 0 {
            self.count_unreceived(lost, received.lost_on_any_queue);
        }
    }

    /// Counts packets that the port lost on reception. They are a chain's own only if it gets all packets of the port.
    #[cold]
    fn count_unreceived(&mut self, lost: u64, on_any_queue: u64) {
        let counters = &self.counters;
        add(&counters.lost, lost);
        add(&counters.unreceived, lost);
        add(&counters.on_any_queue, on_any_queue);
        let only = self
            .rules
            .only_of_all()
            .and_then(|slot| self.outlets.get_mut(slot)?.as_mut());
        let is_attributed = only.is_some_and(|outlets| outlets.home.lose_unreceived(lost));
        add(&counters.unattributed, if is_attributed { 0 } else { lost });
    }

    /// Passes the batch on.
    #[inline]
    fn deliver(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let Poller {
            pool,
            rules,
            outlets,
            fed,
            counters,
            sampler,
            ..
        } = self;
        // First the choices, then the packets of one chain after the other.
        let count = self.batch.len();
        let mut choices = Choices::new();
        rules.choose(&mut self.batch, &mut choices);
        let ended = rules.ended();
        if ended == 0 {
            sampler.note(&self.batch, &choices.chosen);
        }
        if let Some(only) = choices.only(count)
            && let Some(Some(outlet)) = outlets.get_mut(usize::from(only))
            && ended >> only & 1 == 0
            && outlet.home.deliver_all(&mut self.batch, pool)
        {
            *fed |= 1 << only;
            add(&counters.delivered, count as u64);
            return;
        }
        let (mut delivered, mut lost, mut unmatched) = (0, 0, 0);
        let order = choices.sort(count);
        order.for_each(|slot, places| {
            if ended >> slot & 1 == 1 {
                places
                    .iter()
                    .for_each(|place| pool.give(self.batch.move_out(*place).0.buffer));
                unmatched += places.len();
                return;
            }
            let Some(Some(outlet)) = outlets.get_mut(slot) else {
                debug_assert!(false, "rules name only connected chains");
                return;
            };
            *fed |= 1 << slot;
            match outlet.home.deliver(&mut self.batch, places, pool) {
                true => delivered += places.len(),
                false => lost += places.len(),
            }
        });
        add(&counters.delivered, delivered as u64);
        add(&counters.lost, lost as u64);
        add(&counters.unmatched, unmatched as u64);
        // Their chain has ended.
        add(&counters.unmatched_between, unmatched as u64);
        self.batch.remove_moved(delivered + lost + unmatched);
        if !self.batch.is_empty() {
            self.pass_unmatched();
            self.batch.release(&mut self.pool);
        }
    }

    /// Treats packets that no chain matches.
    #[cold]
    fn pass_unmatched(&mut self) {
        add(&self.counters.unmatched, self.batch.len() as u64);
        self.note_unmatched();
        if self.unmatched == Unmatched::Forward && !self.rules.drops_unmatched() {
            let unsent = self.queue.transmit(&mut self.batch);
            add(&self.counters.lost, unsent as u64);
        }
    }

    /// Counts why no chain matches the packets of the batch.
    fn note_unmatched(&mut self) {
        if self.rules.is_between_chains() {
            add(&self.counters.unmatched_between, self.batch.len() as u64);
            return;
        }
        let (mut ipv6, mut non_ip) = (0, 0);
        self.batch.for_each(|_, frame| match after_tags(frame) {
            Some((ethertype::IPV4, _)) => {}
            Some((ethertype::IPV6, _)) => ipv6 += 1,
            _ => non_ip += 1,
        });
        add(&self.counters.unmatched_ipv6, ipv6);
        add(&self.counters.unmatched_non_ip, non_ip);
    }

    /// Takes back buffers from the chains: at once from those that just got packets, now and then from all.
    #[inline]
    fn settle(&mut self) {
        self.settle_in -= 1;
        let mut slots = self.fed;
        if self.settle_in == 0 || self.pool.available() < MOST_PACKETS {
            self.settle_in = SETTLE_INTERVAL;
            slots = self.connected;
            self.settle_leaving();
        }
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            if let Some(outlet) = &mut self.outlets[slot] {
                outlet.settle(&mut self.pool, &self.counters);
            }
        }
    }

    /// Takes back buffers from chains that are gone.
    fn settle_leaving(&mut self) {
        let (pool, counters) = (&mut self.pool, &self.counters);
        self.leaving.retain_mut(|outlets| {
            let over = outlets.is_over();
            outlets.settle(pool, counters);
            !over
        });
    }

    /// Counts what chains that have ended left, and what still waits in the port, as lost.
    pub(crate) fn finish(&mut self) {
        let mut lost = 0;
        let unreceived = self.queue.discard(&mut |_, _| lost += 1);
        add(&self.counters.received, unreceived);
        add(&self.counters.lost, lost);
        self.settle_leaving();
        for outlets in self.outlets.iter_mut().flatten() {
            outlets.settle(&mut self.pool, &self.counters);
        }
    }

    /// Connects a chain. It gets packets once the rules name it.
    pub(crate) fn connect(&mut self, slot: usize, outlets: ChainOutlets) {
        self.outlets[slot] = Some(outlets);
        self.connected |= 1 << slot;
    }

    /// Disconnects a chain that the rules no longer name. Its buffers are still taken back.
    pub(crate) fn disconnect(&mut self, slot: usize) {
        self.connected &= !(1 << slot);
        self.leaving.extend(self.outlets[slot].take());
    }

    /// Replaces the rules. Packets received from now on are decided by them. Chains learn of their losses before.
    pub(crate) fn set_rules(&mut self, rules: Arc<ChainRules>) {
        for outlets in self.outlets.iter_mut().flatten() {
            outlets.settle(&mut self.pool, &self.counters);
        }
        let before = self.size();
        self.rules = rules;
        if self.size() != before {
            self.batch = Batch::new(&self.pool, self.size());
        }
    }

    /// Size of the poller's batches.
    #[inline]
    fn size(&self) -> usize {
        if self.rules.is_one() { DEFAULT_BATCH } else { MAX_BATCH }
    }

    /// Ends reception.
    pub(crate) fn stop(&mut self) {
        self.queue.stop();
    }
}

/// A pause: packets wait in the port, and none is lost by it. Afterwards no more are received than the chains' rings
/// have room for, until all that waited have been: they are late.
impl Poller {
    /// Lets packets wait from now on.
    pub(crate) fn pause(&mut self) {
        self.pause = Pause::Paused;
    }

    /// Returns `true` if packets wait.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause == Pause::Paused
    }

    /// Polls again.
    pub(crate) fn unpause(&mut self, now: Nanos) {
        self.pause = Pause::CatchingUp(now);
        self.queue.catch_up(now + CATCH_UP);
    }

    /// Position of the queue, for another process.
    pub(crate) fn position(&self) -> Option<QueuePosition> {
        self.queue.position()
    }

    /// Continues at the position of another process's queue. Returns `false` if it is none of this traffic.
    pub(crate) fn continue_at(&mut self, position: &QueuePosition) -> bool {
        let is_known = self.queue.continue_at(position);
        if is_known {
            // That process has left them out of its count.
            add(&self.counters.received, position.waiting.len() as u64);
        }
        is_known
    }

    /// Leaves what waits to another process, and receives nothing any more.
    pub(crate) fn leave(&mut self) {
        let mut waiting = 0;
        let uncounted = self.queue.discard(&mut |_, _| waiting += 1);
        let received = &self.counters.received;
        let counted = waiting - uncounted.min(waiting);
        received.store(
            received.load(Ordering::Relaxed).saturating_sub(counted),
            Ordering::Relaxed,
        );
    }

    /// Number of batches to receive now, during a pause or until the poller has caught up.
    #[cold]
    fn batches_after_pause(&mut self, now: Nanos) -> usize {
        match self.pause {
            Pause::None => 1,
            Pause::Paused => 0,
            Pause::CatchingUp(since) if now >= since + CATCH_UP => {
                self.pause = Pause::None;
                1
            }
            // A ring may be smaller than a batch.
            Pause::CatchingUp(_) => usize::from(self.least_room() > 0),
        }
    }

    /// Counts packets of the batch that waited. A batch of fewer than `most` is the last of them.
    #[cold]
    fn count_waited(&mut self, most: usize) {
        let Pause::CatchingUp(since) = self.pause else {
            return;
        };
        let waited = (0..self.batch.len()).filter(|at| self.batch.packet(*at).arrival < since);
        add(&self.counters.waited, waited.count() as u64);
        if self.batch.len() < most {
            self.pause = Pause::None;
        }
    }
}
