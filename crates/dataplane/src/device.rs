//! Device ports: packets that a driver receives in bursts go to workers by the bucket table, without a copy.
//!
//! A trace NIC sorts packets to queues itself. A device may do so fully, in part, or not at all: virtual devices and
//! NICs in clouds have no programmable RETA. So each worker checks the bucket of every packet from its device queue. It
//! forwards packets of other workers through rings, one per ordered pair of workers. If the device uses the same table,
//! only packets received during a table change are forwarded. If it has a single queue, one worker distributes all
//! packets. The server mapper sees no difference.
//!
//! **Arrival times.** Few devices report them. A packet arrived after the device queue was last seen empty, and that
//! time counts as its arrival. Latencies are thus overestimated by at most one turn of the worker's loop. In a backlog
//! the bound is the time a full device ring takes to drain. A device that timestamps packets is more precise
//! ([`ticks`]): its times are used where they lie between then and now. The owner of a packet is always determined by
//! the former time, which all workers agree on.
//!
//! **Order.** A worker takes forwarded packets only once it has emptied its own device queue *after* they were
//! forwarded: packets the device delivered before are older (`Snapshot`). Hence packets of a flow keep their order
//! while a device's own table changes, provided the change reaches the device before it takes effect here.

mod forwarding;
mod sending;
pub mod ticks;

pub use sending::{DeviceSender, Sender};

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::{PortQueue, PortSender, QueuePosition, Received, Refused, Reta, RetaError};
use crate::reta::RetaHistory;
use crate::trace_nic::check;
use forwarding::{ForwardedPacket, ForwardingRings, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tailwater_chain::batch::{Arrived, Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{RssHasher, bucket_of};

/// Receive queue of a device, owned by the thread that uses it.
pub trait Receiver: Send {
    /// Receives up to `most` packets into buffers of `pool`, which [`packets`](Receiver::packets) then yields. Returns
    /// their number, refused ones included. It is less than `most` only if no more had arrived.
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize;

    /// Puts packets that wait in lists, at most `most`, into `batch`, which is empty, in place of
    /// [`receive`](Receiver::receive) and [`packets`](Receiver::packets). Returns their number.
    #[inline]
    fn receive_whole(&mut self, pool: &mut BufferPool, most: usize, batch: &mut Batch) -> Option<usize> {
        let (_, _, _) = (pool, most, batch);
        None
    }

    /// Returns `true` if packets that had arrived may be left although fewer came than asked for.
    #[inline]
    fn has_more(&self) -> bool {
        false
    }

    /// Yields the packets received last, in order, once. Each comes with its arrival time if the receiver has it.
    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)>;

    /// Writes the arrival times of the packets that [`packets`](Receiver::packets) yields next, if the device
    /// timestamps packets. They lie between the two given times, the second of which is now. Returns `true` if they
    /// were written.
    #[inline]
    fn arrivals(&mut self, between: [Nanos; 2], into: &mut Vec<Nanos>) -> bool {
        let (_, _) = (between, into);
        false
    }

    /// Packets counted by [`receive`](Receiver::receive) but not yielded since the last call.
    fn refused(&mut self) -> Refused {
        Refused::default()
    }

    /// Capacity of the queue, in packets.
    fn ring(&self) -> usize;

    /// Time up to which all packets that have arrived are in the queue, at most `now`.
    #[inline]
    fn complete_until(&self, now: Nanos) -> Nanos {
        now
    }

    /// Empties the queue: reports each packet's arrival and RSS hash to `lost`, and returns their number. Packets that
    /// remain in a device's ring are not known here, and not reported.
    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64 {
        let _ = lost;
        0
    }

    /// Returns freed buffers of `pool` to the device, at the end.
    fn reclaim(&mut self, pool: &mut BufferPool) {
        let _ = pool;
    }

    /// Returns the packets that the device lost before reception since the last call, at the end. Those of other times
    /// are [added](Steering::add_missed).
    fn take_missed(&mut self) -> u64 {
        0
    }

    /// Positions in rings that another process can share, if it can.
    fn positions(&self) -> Option<Vec<u64>> {
        None
    }

    /// Continues at as many positions of another process. Returns `false` if there is no such position.
    fn continue_at(&mut self, positions: &[u64]) -> bool {
        let _ = positions;
        false
    }

    /// Uses the device from now on, or leaves it to another process.
    fn set_owner(&mut self, is_owner: bool) {
        let _ = is_owner;
    }
}

/// Maximum number of device queues per worker: one per port.
const MOST_RECEIVERS: usize = 2;

/// State shared by all queues of one or two devices.
#[derive(Debug)]
pub struct Steering {
    rss: Arc<RssHasher>,
    history: Arc<RetaHistory>,
    workers: u16,
    ring: usize,
    clock: Clock,
    /// Packets that the devices lost before reception and that are not counted yet.
    missed: Arc<AtomicU64>,
    /// Set once no packet can arrive any more.
    over: Arc<AtomicBool>,
}

impl Steering {
    /// Steers packets by the table `reta` to `workers` workers, with forwarding rings of `ring` packets. A new table
    /// takes effect after `delay`, the time the devices' own tables take to change.
    ///
    /// # Errors
    /// If the table names a worker that does not exist.
    pub fn new(
        rss: RssHasher,
        (workers, ring): (u16, usize),
        reta: &Reta,
        delay: Nanos,
        clock: Clock,
    ) -> Result<Steering, RetaError> {
        check(reta, workers)?;
        Ok(Steering {
            rss: Arc::new(rss),
            history: Arc::new(RetaHistory::new(*reta, delay)),
            workers,
            ring,
            clock,
            missed: Arc::default(),
            over: Arc::default(),
        })
    }

    /// Counts packets that never reached the devices' queues in `missed`, to which others add.
    pub(crate) fn counting(self, missed: Arc<AtomicU64>) -> Steering {
        Steering { missed, ..self }
    }

    /// Creates one queue per worker from its device receive queues, up to two, and its sender. Packets arrive from
    /// `start` until `end`, if there is one.
    ///
    /// # Panics
    /// If the number of entries differs from the number of workers.
    pub fn queues<R: Receiver, S: Sender>(
        &self,
        devices: Vec<(Vec<R>, S)>,
        start: Nanos,
        end: Nanos,
    ) -> Vec<DeviceQueue<R, S>> {
        assert_eq!(devices.len(), usize::from(self.workers), "a queue each");
        let among = connect(self.workers, self.ring, &self.history);
        let mut missed = Some(Arc::clone(&self.missed));
        let parts = devices.into_iter().zip(among);
        parts
            .map(|((receivers, sender), among)| DeviceQueue {
                totals: [0; MOST_RECEIVERS],
                snapshot: Snapshot::default(),
                arrived_after: start,
                first: 0,
                state: State::Runs,
                over: Arc::clone(&self.over),
                receivers,
                sender: self.sender(sender),
                tells_ways: false,
                completes_hashes: true,
                rss: Arc::clone(&self.rss),
                forwarding: among,
                missed: missed.take(),
                last_missed: 0,
                times: Vec::with_capacity(MAX_BATCH),
                start,
                end,
            })
            .collect()
    }

    /// Transmit queue for an auxiliary core.
    pub fn sender<S: Sender>(&self, sender: S) -> DeviceSender<S> {
        DeviceSender {
            sender,
            capture: None,
            clock: self.clock.clone(),
        }
    }

    /// Installs a bucket table, which takes effect at the returned time. A device's own table must be programmed
    /// before.
    ///
    /// # Errors
    /// If the table names a worker that does not exist.
    pub fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        check(reta, self.workers)?;
        self.history.update(*reta, &self.clock)
    }

    /// Adds packets that the devices lost before reception. They count as offered.
    pub fn add_missed(&self, packets: u64) {
        self.missed.fetch_add(packets, Ordering::Relaxed);
    }

    /// Ends reception: no more packets will arrive.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Worker's state at some time, before it polled its devices. Once every device has delivered all it had by then, all
/// earlier packets have been received.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    /// A snapshot is in progress.
    open: bool,
    time: Nanos,
    /// Packets received from each device by then.
    totals: [u64; MOST_RECEIVERS],
    /// Devices that have been emptied since.
    emptied: [bool; MOST_RECEIVERS],
}

/// Life cycle of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// Ending: packets that had arrived by this time are still received.
    Ends(Nanos),
    Ended,
}

/// Worker's queue on devices.
#[derive(Debug)]
pub struct DeviceQueue<R, S> {
    receivers: Vec<R>,
    /// Packets received from each device.
    totals: [u64; MOST_RECEIVERS],
    /// Device that is polled first.
    first: usize,
    snapshot: Snapshot,
    /// Lower bound of the next packets' arrival: all earlier ones have been received.
    arrived_after: Nanos,
    state: State,
    over: Arc<AtomicBool>,
    sender: DeviceSender<S>,
    /// Mark packets of the second device.
    tells_ways: bool,
    /// Computes hashes that the device does not report, if packets are not forwarded by them anyway.
    completes_hashes: bool,
    rss: Arc<RssHasher>,
    /// Rings to other workers, or `None` without other workers.
    forwarding: Option<Box<ForwardingRings>>,
    /// `Some` in one queue only, which counts the devices' losses.
    missed: Option<Arc<AtomicU64>>,
    /// Losses of this queue's devices at its end, not counted yet.
    last_missed: u64,
    /// Arrival times of the packets just received, if the device has timestamps.
    times: Vec<Nanos>,
    start: Nanos,
    end: Nanos,
}

impl<R: Receiver, S: Sender> PortSender for DeviceQueue<R, S> {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.sender.transmit(batch)
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.sender.transmit_back(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.sender.capture(tap);
    }
}

/// Computes the hashes that the device did not report.
fn hash(batch: &mut Batch, rss: &RssHasher) {
    batch.for_each(|packet, frame| {
        if packet.rss_hash == 0 {
            packet.rss_hash = rss.hash_frame(frame);
        }
    });
}

/// Receives the worker's own packets into the batch, each with its arrival time, and forwards the others. The owner is
/// determined at the time `since`.
#[inline(always)]
fn deal_out(
    packets: impl Iterator<Item = (Arrived, Nanos)>,
    since: Nanos,
    among: &mut ForwardingRings,
    rss: &RssHasher,
    (pool, batch): (&mut BufferPool, &mut Batch),
    lost: &mut u64,
) {
    for (packet, time) in packets {
        let hash = packet.hash.unwrap_or_else(|| {
            let frame = packet.frame(pool.memory());
            rss.hash_frame(frame)
        });
        let handed = ForwardedPacket::new(packet, since, time, hash);
        let own = among.sort(handed, bucket_of(hash), pool, lost);
        if let Some(packet) = own {
            batch.receive(packet, time, hash);
        }
    }
}

impl<R: Receiver, S: Sender> DeviceQueue<R, S> {
    /// Polls the devices in rotating order for as many packets as the batch has room for, and counts them.
    #[inline]
    fn ask(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch, received: &mut Received) {
        let receivers = self.receivers.len();
        for i in 0..receivers {
            let number = (self.first + i) % receivers;
            let most = batch.room().min(pool.available());
            if most == 0 {
                // The number of packets left in the device is unknown.
                received.waiting += 1;
                continue;
            }
            let (rss, arrival) = (&*self.rss, self.arrived_after);
            let before = batch.len();
            let receiver = &mut self.receivers[number];
            let whole = match &self.forwarding {
                None if batch.in_hand() == 0 => receiver.receive_whole(pool, most, batch),
                _ => None,
            };
            let count = whole.unwrap_or_else(|| receiver.receive(pool, most));
            let timed = whole.is_none() && receiver.arrivals([arrival, now], &mut self.times);
            match &mut self.forwarding {
                None if whole.is_some() => {}
                None => {
                    let mut missing = false;
                    let hashed = receiver.packets().map(|(packet, time)| {
                        missing |= packet.hash.is_none();
                        let hash = packet.hash.unwrap_or(0);
                        (packet, time.unwrap_or(arrival), hash)
                    });
                    batch.receive_timed(hashed);
                    if timed {
                        let times = batch.iter_mut().skip(before).zip(&self.times);
                        times.for_each(|(packet, time)| packet.arrival = *time);
                    }
                    if missing && self.completes_hashes {
                        hash(batch, rss);
                    }
                    received.unhashed |= missing && !self.completes_hashes;
                }
                Some(among) => {
                    let lost = &mut received.lost_ring_full;
                    let packets = receiver.packets();
                    if timed {
                        let timed = packets.map(|(packet, _)| packet).zip(self.times.iter().copied());
                        deal_out(timed, arrival, among, rss, (pool, batch), lost);
                    } else {
                        let timed = packets.map(|(packet, time)| (packet, time.unwrap_or(arrival)));
                        deal_out(timed, arrival, among, rss, (pool, batch), lost);
                    }
                }
            }
            let Refused { in_pieces, damaged } = receiver.refused();
            received.refused.in_pieces += in_pieces;
            received.refused.damaged += damaged;
            if self.tells_ways {
                // Of a shared port, there is one queue for both devices.
                let received = batch.iter_mut().skip(before);
                let from_exit = received.filter(|packet| number > 0 || packet.entry != 0);
                from_exit.for_each(|packet| packet.set_number(1));
            }
            self.totals[number] += count as u64;
            received.offered += count as u64;
            if count < most && !self.receivers[number].has_more() {
                self.snapshot.emptied[number] = true;
            } else {
                received.waiting += 1;
            }
        }
        self.first = (self.first + 1) % receivers.max(1);
    }

    /// Completes the snapshot once every device has delivered all it had at the snapshot's time.
    #[inline]
    fn settle(&mut self) {
        let snapshot = &mut self.snapshot;
        let emptied = self.receivers.iter().enumerate().all(|(i, receiver)| {
            let since = self.totals[i] - snapshot.totals[i];
            snapshot.emptied[i] || since >= receiver.ring() as u64
        });
        if emptied {
            snapshot.open = false;
            self.arrived_after = snapshot.time;
            let ended = matches!(self.state, State::Ends(at) if at <= snapshot.time);
            if ended {
                self.state = State::Ended;
                self.last_missed += self.receivers.iter_mut().map(Receiver::take_missed).sum::<u64>();
            }
            if let Some(among) = &mut self.forwarding {
                among.release();
                among.publish(if ended { Nanos::MAX } else { snapshot.time });
            }
        }
    }

    /// Begins a snapshot, unless one is in progress.
    #[inline]
    fn check_ring(&mut self, now: Nanos) {
        if self.snapshot.open {
            return;
        }
        let times = self.receivers.iter().map(|receiver| receiver.complete_until(now));
        self.snapshot = Snapshot {
            open: true,
            time: times.min().unwrap_or(now),
            totals: self.totals,
            emptied: [false; MOST_RECEIVERS],
        };
        if let Some(among) = &mut self.forwarding {
            among.snapshot();
        }
    }
}

impl<R: Receiver, S: Sender> PortQueue for DeviceQueue<R, S> {
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received {
        let mut received = Received {
            lost_since: self.arrived_after,
            ..Received::default()
        };
        if now < self.start {
            return received;
        }
        if self.state == State::Runs && (now >= self.end || self.over.load(Ordering::Relaxed)) {
            self.state = State::Ends(now);
        }
        if let Some(among) = &mut self.forwarding {
            among.refresh(now);
            received.waiting += among.take(pool, batch, self.receivers.is_empty());
        }
        if self.state != State::Ended {
            self.check_ring(now);
            self.ask(now, pool, batch, &mut received);
            self.settle();
        }
        if let Some(missed) = &self.missed
            && missed.load(Ordering::Relaxed) > 0
        {
            self.last_missed += missed.swap(0, Ordering::Relaxed);
        }
        if self.last_missed > 0 {
            let missed = std::mem::take(&mut self.last_missed);
            received.offered += missed;
            received.lost_ring_full += missed;
            received.lost_on_any_queue = missed;
        }
        if let Some(among) = &mut self.forwarding {
            among.peek();
        }
        if self.state == State::Ended {
            received.ended = true;
            if let Some(among) = &mut self.forwarding {
                // In this order: packets forwarded before the others ended are visible.
                received.ended = among.all_ended();
                // No packet can be older any more.
                among.snapshot();
                among.release();
                received.waiting += among.waiting();
            }
        }
        received
    }

    fn received_before(&self) -> Nanos {
        let own = match self.state {
            State::Ended => Nanos::MAX,
            _ => self.arrived_after,
        };
        match &self.forwarding {
            None => own,
            Some(among) => own.min(among.received_before()),
        }
    }

    fn mark_directions(&mut self) {
        self.tells_ways = true;
    }

    fn leave_out_hashes(&mut self) {
        self.completes_hashes = false;
    }

    fn reclaim(&mut self, pool: &mut BufferPool) {
        self.receivers.iter_mut().for_each(|receiver| receiver.reclaim(pool));
    }

    fn stop(&mut self) {
        self.end = Nanos::ZERO;
    }

    fn position(&self) -> Option<QueuePosition> {
        // Packets that wait in forwarding rings are only here.
        if self.forwarding.is_some() || self.receivers.is_empty() {
            return None;
        }
        let rings = self.receivers.iter().map(Receiver::positions);
        let missed = self.missed.as_ref().map_or(0, |missed| missed.load(Ordering::Relaxed));
        Some(QueuePosition {
            rings: rings.collect::<Option<Vec<_>>>()?.concat(),
            received_before: self.arrived_after.0,
            missed: missed + self.last_missed,
            ended: self.state != State::Runs,
            ..QueuePosition::default()
        })
    }

    fn continue_at(&mut self, position: &QueuePosition) -> bool {
        if self.forwarding.is_some() {
            return false;
        }
        let mut rest = &position.rings[..];
        let mut continues = |receiver: &mut R| {
            let (own, others) = rest.split_at_checked(receiver.positions()?.len())?;
            rest = others;
            receiver.continue_at(own).then_some(())
        };
        let is_known = self.receivers.iter_mut().all(|own| continues(own).is_some()) && rest.is_empty();
        // Packets that wait arrived later than this.
        self.arrived_after = Nanos(position.received_before).min(self.arrived_after);
        self.last_missed += position.missed;
        is_known
    }

    fn catch_up(&mut self, _: Nanos) {
        self.receivers.iter_mut().for_each(|receiver| receiver.set_owner(true));
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64 {
        self.state = State::Ended;
        self.receivers.iter_mut().for_each(|receiver| receiver.set_owner(false));
        let unreceived = self.receivers.iter_mut().map(|receiver| receiver.discard(lost)).sum();
        if let Some(among) = &mut self.forwarding {
            among.publish(Nanos::MAX);
            among.discard(lost);
        }
        unreceived
    }
}

#[cfg(test)]
mod tests;
