//! Devices as ports: what a driver gives in bursts goes to workers by the bucket table, without a copy.
//!
//! A trace NIC sorts packets to queues by itself. A device may do so, too, or in part, or not at all: virtual
//! devices and NICs in clouds have no table that could be set. So each worker looks at the bucket of
//! every packet that its device queue gives, and hands those of others over through rings, one from each worker to
//! each other one. A device that spreads packets by the same table leaves nothing to hand over but what came while
//! the table changed; one with a single queue leaves all to one worker's dealing out. The server mapper sees
//! no difference.
//!
//! **When a packet arrived** few devices tell. It was after the last time at which the device queue was seen empty, and
//! that is what counts as its arrival: latencies come out too long, if anything, by one turn of the worker's
//! loop; and by the time that a full device ring takes to pass, in a backlog. A device that stamps packets says it
//! better ([`ticks`]): its times are taken where they lie between then and now. Whose a packet is goes by the
//! former time in any case, which all workers can rely on.
//!
//! **Order.** A worker takes what others handed it only once it has emptied its own device queue *after* it was
//! handed over: what the device gave it before is older. (`Snapshot`). Hence packets of a flow keep their
//! order while a device's own table changes, if the change reaches the device before it is in force here.

mod among;
pub mod ticks;

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::{PortQueue, PortSender, Received, Refused, Reta, RetaError};
use crate::reta::RetaHistory;
use crate::trace_nic::check;
use among::{Among, Handed, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tailwater_chain::batch::{Arrived, Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{RssHasher, bucket_of};

/// A device's receive queue, with the thread that uses it.
pub trait Receiver: Send {
    /// Receives up to `most` packets in buffers of `pool`, which [`packets`](Receiver::packets) then gives. Returns
    /// how many there were, those that are refused among them: fewer only if no more had arrived.
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize;

    /// The packets received last, in order, once.
    fn packets(&mut self) -> impl ExactSizeIterator<Item = Arrived>;

    /// Writes when the packets arrived that [`packets`](Receiver::packets) is to give next, one by one, if the device tells:
    /// between the two times, the last of which is now. Returns whether it did.
    #[inline]
    fn arrivals(&mut self, between: [Nanos; 2], into: &mut Vec<Nanos>) -> bool {
        let (_, _) = (between, into);
        false
    }

    /// Packets among those returned that were not told, since this was last asked.
    fn refused(&mut self) -> Refused {
        Refused::default()
    }

    /// The most packets that wait in it.
    fn ring(&self) -> usize;
}

/// A device's transmit queue, with the thread that uses it.
pub trait Sender: Send {
    /// Sends the packets of the batch, as [`PortSender::transmit`] does.
    fn transmit(&mut self, batch: &mut Batch) -> usize;

    /// As [`PortSender::transmit_back`].
    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.transmit(batch)
    }
}

/// The most device queues of a worker: one of each port.
const MOST_RECEIVERS: usize = 2;

/// What all queues of a device, or of two of them, share.
#[derive(Debug)]
pub struct Steering {
    rss: Arc<RssHasher>,
    history: Arc<RetaHistory>,
    workers: u16,
    ring: usize,
    clock: Clock,
    /// Packets that the devices lost before anybody received them, and nobody has counted yet.
    missed: Arc<AtomicU64>,
    /// Nothing can arrive any more.
    over: Arc<AtomicBool>,
}

impl Steering {
    /// Under the table `reta` for so many workers, between which as many packets wait as `ring` says. A new
    /// table is in force after `delay`: as long as the devices' own tables take to follow.
    ///
    /// # Errors
    /// If the table names a worker that is not there.
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

    /// A queue for each worker, made of its device queues, up to two, and of where it sends. Packets arrive
    /// from `start` until `end`, if there is one.
    ///
    /// # Panics
    /// If there are more or fewer than the workers.
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
                rss: Arc::clone(&self.rss),
                among,
                missed: missed.take(),
                times: Vec::with_capacity(MAX_BATCH),
                start,
                end,
            })
            .collect()
    }

    /// A transmit queue for a helper.
    pub fn sender<S: Sender>(&self, sender: S) -> DeviceSender<S> {
        DeviceSender {
            sender,
            capture: None,
            clock: self.clock.clone(),
        }
    }

    /// Installs a bucket table, in force from the returned time on. A device's own table must have been
    /// told before.
    ///
    /// # Errors
    /// If the table names a worker that is not there.
    pub fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        check(reta, self.workers)?;
        self.history.update(*reta, &self.clock)
    }

    /// The devices have lost more packets that nobody has received: they count as offered.
    pub fn add_missed(&self, packets: u64) {
        self.missed.fetch_add(packets, Ordering::Relaxed);
    }

    /// Nothing will arrive any more.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What a worker saw at some time, before it asked its devices: once they have given everything that
/// they had by then, all of it has been received.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    /// Whether there is one.
    open: bool,
    time: Nanos,
    /// Packets received by then from each device.
    totals: [u64; MOST_RECEIVERS],
    /// Which devices have been emptied since.
    emptied: [bool; MOST_RECEIVERS],
}

/// What becomes of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// What had arrived by then is still received.
    Ends(Nanos),
    Ended,
}

/// A worker's queue on devices.
#[derive(Debug)]
pub struct DeviceQueue<R, S> {
    receivers: Vec<R>,
    /// Packets received from each.
    totals: [u64; MOST_RECEIVERS],
    /// Which one is asked first.
    first: usize,
    snapshot: Snapshot,
    /// All that arrived by then has been received.
    arrived_after: Nanos,
    state: State,
    over: Arc<AtomicBool>,
    sender: DeviceSender<S>,
    /// Whether packets of the second device are marked.
    tells_ways: bool,
    rss: Arc<RssHasher>,
    /// The other workers; nothing if there are none.
    among: Option<Box<Among>>,
    /// Of one queue: counts what the devices lost.
    missed: Option<Arc<AtomicU64>>,
    /// Of packets just received, if the device tells.
    times: Vec<Nanos>,
    start: Nanos,
    end: Nanos,
}

/// A worker's or helper's way out through devices.
#[derive(Debug)]
pub struct DeviceSender<S> {
    sender: S,
    capture: Option<CaptureTap>,
    clock: Clock,
}

impl<S: Sender> DeviceSender<S> {
    #[inline]
    fn record(&mut self, batch: &Batch) {
        if let Some(capture) = &mut self.capture {
            let now = self.clock.now();
            (0..batch.len()).for_each(|i| capture.record(now, batch.frame(i)));
        }
    }
}

impl<S: Sender> PortSender for DeviceSender<S> {
    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.record(batch);
        self.sender.transmit(batch)
    }

    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.record(batch);
        self.sender.transmit_back(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.capture = Some(tap);
    }
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

/// Finds the hashes of packets whose device told none.
fn hash(batch: &mut Batch, rss: &RssHasher) {
    batch.for_each(|packet, frame| {
        if packet.rss_hash == 0 {
            packet.rss_hash = rss.hash_frame(frame);
        }
    });
}

/// Takes packets that are the worker's own into the batch, each with the time at which it arrived, and hands the others
/// over. Whose they are goes by `since`.
#[inline(always)]
fn deal_out(
    packets: impl Iterator<Item = (Arrived, Nanos)>,
    since: Nanos,
    among: &mut Among,
    rss: &RssHasher,
    (pool, batch): (&mut BufferPool, &mut Batch),
    lost: &mut u64,
) {
    for (packet, time) in packets {
        let hash = packet.hash.unwrap_or_else(|| {
            let frame = packet.frame(pool.memory());
            rss.hash_frame(frame)
        });
        let handed = Handed::new(packet, since, time, hash);
        let own = among.sort(handed, bucket_of(hash), pool, lost);
        if let Some(packet) = own {
            batch.receive(packet, time, hash);
        }
    }
}

impl<R: Receiver, S: Sender> DeviceQueue<R, S> {
    /// Asks the devices, in turn first, for what the batch has room for. Counts what they gave.
    #[inline]
    fn ask(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch, received: &mut Received) {
        let receivers = self.receivers.len();
        for i in 0..receivers {
            let number = (self.first + i) % receivers;
            let most = batch.room().min(pool.available());
            if most == 0 {
                // What is left in the device, nobody knows.
                received.waiting += 1;
                continue;
            }
            let (rss, arrival) = (&*self.rss, self.arrived_after);
            let before = batch.len();
            let receiver = &mut self.receivers[number];
            let count = receiver.receive(pool, most);
            let timed = receiver.arrivals([arrival, now], &mut self.times);
            match &mut self.among {
                None => {
                    let mut missing = false;
                    let hashed = receiver.packets().map(|packet| {
                        missing |= packet.hash.is_none();
                        let hash = packet.hash.unwrap_or(0);
                        (packet, hash)
                    });
                    batch.receive_all(hashed, arrival);
                    if timed {
                        let times = batch.iter_mut().skip(before).zip(&self.times);
                        times.for_each(|(packet, time)| packet.arrival = *time);
                    }
                    if missing {
                        hash(batch, rss);
                    }
                }
                Some(among) => {
                    let lost = &mut received.lost_ring_full;
                    let packets = receiver.packets();
                    if timed {
                        let timed = packets.zip(self.times.iter().copied());
                        deal_out(timed, arrival, among, rss, (pool, batch), lost);
                    } else {
                        let timed = packets.map(|packet| (packet, arrival));
                        deal_out(timed, arrival, among, rss, (pool, batch), lost);
                    }
                }
            }
            let Refused { in_pieces, damaged } = receiver.refused();
            received.refused.in_pieces += in_pieces;
            received.refused.damaged += damaged;
            if self.tells_ways && number > 0 {
                let received = batch.iter_mut().skip(before);
                received.for_each(|packet| packet.set_number(1));
            }
            self.totals[number] += count as u64;
            received.offered += count as u64;
            if count < most {
                self.snapshot.emptied[number] = true;
            } else {
                received.waiting += 1;
            }
        }
        self.first = (self.first + 1) % receivers.max(1);
    }

    /// Once the devices have given all that they had at the snapshot's time, that is known.
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
            }
            if let Some(among) = &mut self.among {
                among.release();
                among.publish(if ended { Nanos::MAX } else { snapshot.time });
            }
        }
    }

    /// Opens a snapshot, unless one is open.
    #[inline]
    fn look(&mut self, now: Nanos) {
        if self.snapshot.open {
            return;
        }
        self.snapshot = Snapshot {
            open: true,
            time: now,
            totals: self.totals,
            emptied: [false; MOST_RECEIVERS],
        };
        if let Some(among) = &mut self.among {
            among.look();
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
        if let Some(among) = &mut self.among {
            among.refresh(now);
            received.waiting += among.take(pool, batch, self.receivers.is_empty());
        }
        if self.state != State::Ended {
            self.look(now);
            self.ask(now, pool, batch, &mut received);
            self.settle();
        }
        if let Some(missed) = &self.missed
            && missed.load(Ordering::Relaxed) > 0
        {
            let missed = missed.swap(0, Ordering::Relaxed);
            received.offered += missed;
            received.lost_ring_full += missed;
        }
        if let Some(among) = &mut self.among {
            among.peek();
        }
        if self.state == State::Ended {
            received.ended = true;
            if let Some(among) = &mut self.among {
                // In this order: what was handed over before the others ended is there.
                received.ended = among.all_ended();
                // Nothing is older any more than that.
                among.look();
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
        match &self.among {
            None => own,
            Some(among) => own.min(among.received_before()),
        }
    }

    fn tell_ways(&mut self) {
        self.tells_ways = true;
    }

    fn stop(&mut self) {
        self.end = Nanos::ZERO;
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) {
        self.state = State::Ended;
        if let Some(among) = &mut self.among {
            among.publish(Nanos::MAX);
            among.discard(lost);
        }
    }
}

#[cfg(test)]
mod tests;
