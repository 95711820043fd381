//! Loop iteration of a core: that of the live worker, in virtual time.

use super::Engine;
use super::chain_state::{CacheResidency, ChainState};
use super::check::FUNCTIONS;
use super::core::Core;
use super::dispatch::Dispatch;
use super::fifo::Arrived;
use super::late::discard_late;
use super::meter::{Sent, flow_hash};
use super::tree::NEVER;
use super::waiting::Waiting;
use crate::chain::{Costs, Work, random, spend};
use crate::report::Loss;
use crate::traffic::Packet;
use tailwater_net::Nanos;

/// Sums up the packets that core `core` is about to process.
#[inline]
pub(super) fn work<'a>(
    core: usize,
    packets: impl Iterator<Item = &'a Packet>,
    warmth: &mut Option<CacheResidency>,
) -> Work {
    let mut work = Work::default();
    for packet in packets {
        work.packets += 1;
        work.bytes += u64::from(packet.bytes);
        work.new += u64::from(packet.is_first());
        if let Some(warmth) = warmth {
            work.cold += u64::from(warmth.is_cold(core, packet));
        }
    }
    work
}

/// Returns the cost that packets of split flows do not incur on a core with one part of the chain.
pub(super) fn left_out(costs: &Costs, batch: &[Waiting], on_auxiliary: bool) -> u64 {
    let parts = batch.iter().filter(|waiting| waiting.last_functions > 0);
    let picos = parts.map(|waiting| {
        let work = Work {
            packets: 1,
            bytes: waiting.packet.bytes.into(),
            ..Work::default()
        };
        let behind = on_auxiliary.then_some(waiting.left.into());
        costs.left_out(work, waiting.last_functions.into(), behind)
    });
    picos.sum()
}

/// Lets a core work from `now` on for a cost of `picos`, and returns the end.
#[inline]
pub(super) fn spend_at(chain: &ChainState, core: &mut Core, number: usize, picos: u64, now: u64) -> u64 {
    core.batches += 1;
    let picos = match &chain.costs.jitter {
        None => picos,
        Some(jitter) => {
            let seed = chain.seed ^ (number as u64) << 40;
            jitter.apply(picos, random(seed, core.batches))
        }
    };
    let picos = match &chain.speed {
        None => picos,
        Some(speed) => speed.apply(picos, now),
    };
    let end = now + spend(&mut core.carry, picos);
    // A separate random series: the numbers of batches stay far below it.
    let seed = !chain.seed ^ (number as u64) << 40;
    core.pausing.delay(chain.costs.pauses.as_ref(), seed, now, end)
}

/// Samples the length of a core's ring.
#[inline]
pub(super) fn record_queue(core: &mut Core, now: u64) {
    if core.batches.is_multiple_of(16) {
        let waiting = core.fifo.waiting(now).min(core.ring) as u32;
        core.stats.longest_queue = core.stats.longest_queue.max(waiting);
    }
}

/// Processes a batch straight from the ring through the chain, on a core without auxiliary cores and migrations.
/// Returns its work, if there was a batch, and `true` if packets wait behind it.
#[inline]
pub(super) fn direct(core: &mut Core, chain: &mut ChainState, number: usize, now: u64) -> Option<(Work, bool)> {
    let (meter, stats) = (&mut chain.meter, &mut core.stats);
    core.fifo.overflow(now, core.ring, |_| {
        meter.lost(Loss::RingFull);
        stats.lost += 1;
    });
    let batch = core.fifo.arrived(now, chain.costs.most);
    let mut count = batch.len();
    if count == 0 {
        return None;
    }
    let more = core.fifo.has_more(now, count);
    let began = now;
    let late = discard_late(
        (&mut core.freshness, &core.attribution, stats),
        meter,
        batch.iter().map(Sent::from),
        (now, more),
    );
    let now = now + spend(&mut core.carry, chain.costs.discard(late));
    if late > 0 {
        core.fifo.take(late);
        core.stats.received += late as u64;
        count -= late;
        if count == 0 {
            chain.worked += now - began;
            core.stats.busy += now - began;
            core.ready = now;
            return Some((Work::default(), more));
        }
    }
    let batch = core.fifo.arrived(now, count);
    let packets = batch.iter().map(|arrived| &arrived.packet);
    let work = work(number, packets, &mut chain.warmth);
    let picos = chain.costs.whole(work, more);
    let first = batch[0].packet.arrival;
    if more {
        for arrived in batch {
            let hash = flow_hash(arrived.packet.flow);
            core.attribution.served(hash, Nanos(now));
        }
        record_queue(core, now);
    }
    // The borrow of the batch ends here and is renewed below: the core's clock is part of the core.
    let end = spend_at(chain, core, number, picos, now);
    let batch = core.fifo.arrived(now, count);
    let sent = |arrived: &'_ Arrived| (arrived.packet, arrived.at);
    if let Some(check) = &mut chain.check {
        for (packet, _) in batch.iter().map(sent) {
            let holds = chain.steering.holds(number, &packet);
            assert!(holds, "core {number} processes what is not its own");
            let flow = (packet.flow, packet.arrival);
            check.processed(flow, [FUNCTIONS, 0], number, (now, end));
        }
    }
    let packets = batch.iter().map(Sent::from);
    core.stats.late += chain.meter.sent(&core.attribution, packets, now, end);
    if let Some(freshness) = core.freshness.as_mut().filter(|_| more) {
        freshness.processed(count, Nanos(end - now));
    }
    chain.worked += end - began;
    core.stats.batch(count, end - began);
    core.stats.received += count as u64;
    core.stats.worst_delay = core.stats.worst_delay.max(end - first);
    core.fifo.take(count);
    core.ready = end;
    if !more {
        core.through = end;
    }
    Some((work, more))
}

impl Engine<'_> {
    /// Processes a batch straight from the ring, on a core whose auxiliary cores are idle, if no migration is in
    /// progress and all that waits is done in time by this core alone. It is if only a batch waits and the core is
    /// `alone`, without an active auxiliary core. Returns `true` if that was the case.
    #[inline]
    pub(super) fn straight(
        &mut self,
        number: usize,
        chain: usize,
        dispatch: &mut Dispatch,
        (now, alone): (u64, bool),
    ) -> bool {
        let core = &mut self.cores[number];
        let most = self.chains[chain].costs.most.min(core.buffers);
        let more = core.fifo.has_more(now, most);
        let in_time = || dispatch.machine.is_in_time(core.fifo.waiting(now).min(core.ring));
        if !core.transit.is_still() || (more || !alone) && !in_time() {
            return false;
        }
        let done = direct(core, &mut self.chains[chain], number, now);
        dispatch.learn(done, core.ready.saturating_sub(now));
        dispatch.machine.went_straight();
        if !more {
            core.through = now;
        }
        true
    }

    /// Runs a core's next step.
    pub(super) fn step(&mut self, number: usize, now: u64) {
        self.cores[number].watch = NEVER;
        if !self.cores[number].transit.inbox.is_empty() {
            self.adopt(number, now);
        }
        let core = &mut self.cores[number];
        if core.offloaded_at <= now && (core.dedicated.is_none() || !core.last_was_offloaded) {
            core.last_was_offloaded = true;
            self.process_offloaded(number, now);
        } else if let Some((chain, _)) = core.dedicated {
            core.last_was_offloaded = false;
            match core.dispatch.take() {
                Some(mut dispatch) => {
                    self.turn(number, usize::from(chain), &mut dispatch, now);
                    self.cores[number].dispatch = Some(dispatch);
                }
                None => {
                    self.plain(number, usize::from(chain), now);
                }
            }
        }
        if !self.retiring.is_empty() {
            self.retire_all();
        }
        self.schedule(number);
    }

    /// Runs an iteration without auxiliary cores. Returns the same as [`direct`], if it went straight.
    pub(super) fn plain(&mut self, number: usize, chain: usize, now: u64) -> Option<(Work, bool)> {
        let core = &mut self.cores[number];
        if core.transit.is_still() {
            let done = direct(core, &mut self.chains[chain], number, now);
            if done.is_none() {
                core.through = now;
            }
            return done;
        }
        let more = self.gather(number, chain, now, 0);
        self.whole(number, chain, now, more);
        None
    }

    /// Gathers arrived packets into the batch, starting with buffered ones that can continue. Buffers packets whose
    /// bucket or flow is not here. The core has `used` buffers in use. Returns `true` if more packets wait.
    pub(super) fn gather(&mut self, number: usize, chain: usize, now: u64, used: usize) -> bool {
        self.overflow(number, chain, now);
        self.batch.clear();
        let chain = &mut self.chains[chain];
        let core = &mut self.cores[number];
        let most = chain.costs.most;
        while self.batch.len() < most
            && let Some(waiting) = core.transit.next.pop_front()
        {
            self.batch.push(waiting);
            self.resumed -= 1;
        }
        let room = core.room(used).min(most).saturating_sub(self.batch.len());
        let arrived = core.fifo.arrived(now, room);
        let count = arrived.len();
        if core.transit.awaited == 0 {
            self.batch.extend(arrived.iter().map(Waiting::new));
        } else {
            for arrived in arrived {
                if chain.steering.holds(number, &arrived.packet) {
                    self.batch.push(Waiting::new(arrived));
                } else {
                    core.transit.buffered.push(Waiting::new(arrived));
                    chain.decisions.kept_back += 1;
                }
            }
        }
        core.fifo.take(count);
        core.stats.received += count as u64;
        let more = core.fifo.has_more(now, 0);
        if more {
            record_queue(core, now);
        }
        more || !core.transit.next.is_empty()
    }

    /// Drops packets that found the ring full.
    #[inline]
    pub(super) fn overflow(&mut self, number: usize, chain: usize, now: u64) {
        let core = &self.cores[number];
        if core.fifo.has_more(now, core.ring) {
            self.lose(number, chain, now);
        }
    }

    #[cold]
    fn lose(&mut self, number: usize, chain: usize, now: u64) {
        let core = &mut self.cores[number];
        let mut lost = std::mem::take(&mut self.lost);
        let ring = core.ring;
        core.fifo.overflow(now, ring, |arrived| lost.push(arrived.packet));
        core.stats.lost += lost.len() as u64;
        // The core's current work may belong to the same bucket.
        let ended = now.max(core.ready);
        for packet in lost.drain(..) {
            self.chains[chain].meter.lost(Loss::RingFull);
            self.left(number, &packet, ended);
        }
        self.lost = lost;
    }

    /// Processes the batch straight through the chain.
    pub(super) fn whole(&mut self, number: usize, chain: usize, now: u64, more: bool) {
        if self.batch.is_empty() {
            self.cores[number].through = now;
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        let late = self.discard_late(number, chain, now, &batch, more);
        let now = self.cores[number].ready.max(now);
        for waiting in batch.drain(..late) {
            self.left(number, &waiting.packet, now);
        }
        if !batch.is_empty() {
            let work = self.work_here(number, chain, &batch);
            let picos = self.chains[chain].costs.whole(work, more);
            self.process(number, chain, (now, picos), &batch, more);
        }
        for waiting in &batch {
            self.left(number, &waiting.packet, self.cores[number].ready);
        }
        self.batch = batch;
    }

    /// Returns the work of a batch, including flows that migrated from other cores.
    pub(super) fn work_here(&mut self, number: usize, chain: usize, batch: &[Waiting]) -> Work {
        let packets = batch.iter().map(|waiting| &waiting.packet);
        let mut work = work(number, packets, &mut self.chains[chain].warmth);
        for waiting in batch.iter().filter(|waiting| waiting.buffered) {
            work.migrated += u64::from(self.chains[chain].steering.is_first_after_migration(&waiting.packet));
        }
        work
    }

    /// Lets a core process whole packets of its own for a cost of `picos`, and sends them.
    pub(super) fn process(
        &mut self,
        number: usize,
        chain: usize,
        (now, picos): (u64, u64),
        batch: &[Waiting],
        more: bool,
    ) {
        let (core, chain) = (&mut self.cores[number], &mut self.chains[chain]);
        if more {
            for waiting in batch {
                let hash = flow_hash(waiting.packet.flow);
                core.attribution.served(hash, Nanos(now));
            }
        } else {
            core.through = now;
        }
        let end = spend_at(chain, core, number, picos, now);
        if let Some(check) = &mut chain.check {
            for waiting in batch {
                let holds = chain.steering.holds(number, &waiting.packet);
                assert!(holds, "core {number} processes what is not its own");
                let flow = (waiting.packet.flow, waiting.packet.arrival);
                let part = [FUNCTIONS, waiting.last_functions];
                check.processed(flow, part, number, (now, end));
            }
        }
        let whole = batch.iter().filter(|waiting| waiting.last_functions == 0);
        core.stats.late += chain.meter.sent(&core.attribution, whole.map(Sent::from), now, end);
        if let Some(freshness) = core.freshness.as_mut().filter(|_| more) {
            freshness.processed(batch.len(), Nanos(end - now));
        }
        chain.worked += end - now;
        core.stats.batch(batch.len(), end - now);
        let first = batch.first().map_or(end, |first| first.packet.arrival);
        core.stats.worst_delay = core.stats.worst_delay.max(end - first);
        core.ready = end;
    }
}
