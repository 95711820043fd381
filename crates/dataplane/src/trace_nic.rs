//! Trace NIC: a trace in memory behind the interface of a NIC.
//!
//! It needs no core of its own. When a queue's worker polls, it receives the packets that have arrived by now. The
//! trace is read up to the present, and each packet is sorted to a queue by RSS and the bucket table. Packets that find
//! the queue's descriptor ring full are lost, as if they had arrived while the worker was busy. A packet is copied into
//! a fresh buffer only when a worker takes it from the ring.

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::{
    OpenError, Port, PortQueue, PortRequirements, PortSender, QueuePosition, Received, Reta, RetaError, TrafficIdentity,
};
use crate::reta::{RetaHistory, RetaView};
use image::{Descriptor, Image, Lap};
pub use renumber::Renumber;
use ring::{Arrived, Ring};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, Incoming};
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_traffic::Trace;

mod image;
mod position;
mod renumber;
mod ring;

/// Maximum number of trace packets that one poll processes. So even a worker that cannot catch up, or without packets
/// of its own, returns from the poll and checks if it must stop.
const MOST_ARRIVALS: usize = 1 << 18;

/// Arrival process of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Arrivals at the trace's times.
    Arrivals,
    /// Arrivals whenever a worker polls: the chain runs at full speed, and a packet's arrival is its reception.
    Saturate,
}

/// Configuration of a trace NIC.
#[derive(Clone, Debug)]
pub struct TraceNicConfig {
    /// Arrival process.
    pub pacing: Pacing,
    /// Descriptor ring size per queue, in packets.
    pub ring: usize,
    /// Time until a new bucket table takes effect. NICs need up to a few milliseconds.
    pub reta_delay: Nanos,
    /// Duration of the arrivals. A shorter trace is repeated. `None` plays the trace once.
    pub duration: Option<Nanos>,
    /// Flows that are renumbered when the trace is repeated.
    pub renumber: Renumber,
    /// Low bits of their addresses that change: at most 16, so that prefixes up to /16 (IPv6: /112) are kept. As many
    /// repetitions as these bits have values have different flows.
    pub renumber_bits: u8,
    /// Let the receiving worker copy only a packet's first two cache lines, and the core that processes it the rest. A
    /// NIC's DMA takes no core's time; here each core pays for the packets it processes.
    pub in_parts: bool,
}

impl Default for TraceNicConfig {
    fn default() -> Self {
        TraceNicConfig {
            pacing: Pacing::Arrivals,
            ring: 1024,
            reta_delay: Nanos::from_millis(2),
            duration: None,
            renumber: Renumber::All,
            renumber_bits: 16,
            in_parts: false,
        }
    }
}

/// NIC whose traffic is a trace.
#[derive(Debug)]
pub struct TraceNic {
    image: Arc<Image>,
    history: Arc<RetaHistory>,
    queues: u16,
    config: TraceNicConfig,
    clock: Clock,
}

impl TraceNic {
    /// Creates a NIC with `queues` queues that receives `trace` under the bucket table `reta`.
    ///
    /// # Errors
    /// If the table names a queue that does not exist.
    pub fn new(
        trace: Trace,
        rss: RssHasher,
        queues: u16,
        reta: &Reta,
        config: TraceNicConfig,
        clock: Clock,
    ) -> Result<TraceNic, RetaError> {
        check(reta, queues)?;
        Ok(TraceNic {
            image: Arc::new(Image::new(trace, rss, (config.renumber, config.renumber_bits))),
            history: Arc::new(RetaHistory::new(*reta, config.reta_delay)),
            queues,
            config,
            clock,
        })
    }

    /// Length of the longest frame in bytes, which buffers must hold.
    pub fn longest_frame(&self) -> usize {
        let trace = &self.image.trace;
        (0..trace.len()).map(|i| trace.length(i)).max().unwrap_or(0)
    }

    /// Queues in order. The first packet arrives at `start` on the clock.
    pub fn queues(&self, start: Nanos) -> Vec<TraceQueue> {
        let end = self
            .config
            .duration
            .map_or(Nanos::MAX, |duration| Nanos(start.0.saturating_add(duration.0)));
        (0..self.queues)
            .map(|queue| TraceQueue {
                image: Arc::clone(&self.image),
                reta: RetaView::new(Arc::clone(&self.history)),
                queue: (self.queues > 1).then_some(queue),
                saturate: self.config.pacing == Pacing::Saturate,
                looped: self.config.duration.is_some(),
                end,
                next: 0,
                lap: Lap::new(&self.image, 0, start),
                exhausted: false,
                ring: Ring::new(self.config.ring),
                taking: Lap::new(&self.image, 0, start),
                sender: self.sender(),
                start,
                catch_up: None,
            })
            .collect()
    }

    /// Transmit queue for a worker that does not receive.
    pub fn sender(&self) -> TraceSender {
        TraceSender {
            image: self.config.in_parts.then(|| Arc::clone(&self.image)),
            capture: None,
            clock: self.clock.clone(),
        }
    }

    /// Installs a bucket table. It applies to packets that arrive from the returned time on, some milliseconds ahead.
    /// The old table applies to earlier ones.
    ///
    /// # Errors
    /// If the table names a queue that does not exist, or the trace is not paced.
    pub fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        check(reta, self.queues)?;
        if self.config.pacing == Pacing::Saturate {
            return Err(RetaError::NotPaced);
        }
        self.history.update(*reta, &self.clock)
    }
}

impl Port for TraceNic {
    fn traffic(&self) -> &str {
        self.image.trace.name()
    }

    fn duration(&self) -> Option<Nanos> {
        Some(self.config.duration.unwrap_or(self.image.trace.duration()))
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        let frame_bytes = self.longest_frame();
        let pools = (0..need.workers).map(|_| Ok(BufferPool::new(need.buffers, frame_bytes)?));
        pools.collect()
    }

    fn open_shared(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        let (pools, all) = (u32::from(need.workers), need.buffers * u32::from(need.workers));
        Ok(BufferPool::sharing(pools, all, self.longest_frame())?)
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        let queues = TraceNic::queues(self, start).into_iter();
        queues.map(|queue| Box::new(queue) as Box<dyn PortQueue>).collect()
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        Box::new(TraceNic::sender(self))
    }

    fn reta_delay(&self) -> Option<Nanos> {
        (self.config.pacing != Pacing::Saturate).then_some(self.config.reta_delay)
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        TraceNic::set_reta(self, reta)
    }

    fn identity(&self) -> Option<TrafficIdentity> {
        let paced = self.config.pacing != Pacing::Saturate;
        paced.then(|| position::identity(&self.image, self.queues))
    }

    fn divide(&self, positions: Vec<QueuePosition>) -> Option<Vec<QueuePosition>> {
        match positions.len() == usize::from(self.queues) {
            true => Some(positions),
            false => position::divide(&self.image, &positions, self.queues, self.config.duration),
        }
    }
}

pub(crate) fn check(reta: &Reta, queues: u16) -> Result<(), RetaError> {
    match reta.iter().position(|&queue| queue >= queues) {
        None => Ok(()),
        Some(bucket) => Err(RetaError::NoQueue {
            bucket,
            queue: reta[bucket],
            queues,
        }),
    }
}

/// Queue of a [`TraceNic`].
#[derive(Debug)]
pub struct TraceQueue {
    image: Arc<Image>,
    reta: RetaView,
    /// Index of the queue, or `None` if it is the only one and receives everything.
    queue: Option<u16>,
    saturate: bool,
    looped: bool,
    /// Arrivals from this time on are suppressed.
    end: Nanos,
    /// Index of the next packet of the trace, and its lap.
    next: usize,
    lap: Lap,
    exhausted: bool,
    ring: Ring,
    /// Lap of the packet taken last.
    taking: Lap,
    sender: TraceSender,
    start: Nanos,
    /// Until this time at most, arrivals that find the ring full wait: the queue was not polled for a while.
    catch_up: Option<Nanos>,
}

/// Transmit queue of a [`TraceNic`]: packets that reach it count as sent.
#[derive(Debug)]
pub struct TraceSender {
    /// Source of the packets' payload, if they are delivered in parts.
    image: Option<Arc<Image>>,
    capture: Option<CaptureTap>,
    clock: Clock,
}

impl PortSender for TraceSender {
    #[inline]
    fn complete(&mut self, batch: &mut Batch) {
        if let Some(image) = &self.image {
            batch.complete(|rest, frame| image.write_rest(rest, frame));
        }
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Batch) -> usize {
        if let Some(capture) = &mut self.capture {
            let now = self.clock.now();
            (0..batch.len()).for_each(|i| capture.record(now, batch.frame(i)));
        }
        0
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.capture = Some(tap);
    }
}

/// Fills the batch with the packets that `due` describes, by `write`. Returns their number.
#[inline]
fn fill(
    batch: &mut Batch,
    pool: &mut BufferPool,
    due: &[Descriptor],
    mut write: impl FnMut(&Descriptor, &mut [u8]) -> Incoming,
) -> usize {
    let mut packets = due.iter();
    batch.fill(pool, due.len(), move |room| {
        let Some(packet) = packets.next() else {
            unreachable!("the batch fills no more than it was told");
        };
        write(packet, room)
    })
}

impl TraceQueue {
    /// Receives arrived packets straight into the batch, bypassing the ring: equivalent if the ring is empty and the
    /// worker waits. Returns their number.
    ///
    /// Only for a queue that receives everything: there every packet is known to be its own.
    #[inline]
    fn take_directly(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize {
        if self.queue.is_some() || self.ring.len() > 0 || self.exhausted || now < self.start {
            return 0;
        }
        let (image, lap) = (&*self.image, self.lap);
        let due = &image.descriptors[self.next..];
        let most = batch.room().min(pool.available()).min(self.ring.size);
        let due = &due[..due.len().min(most)];
        let due = match self.saturate {
            true if now < self.end => due,
            true => &[],
            false => {
                let arrived = |packet: &&Descriptor| {
                    let arrival = lap.start + packet.arrival;
                    arrival <= now && arrival < self.end
                };
                &due[..due.iter().take_while(arrived).count()]
            }
        };
        let in_parts = self.sender.image.is_some();
        if in_parts {
            due.iter().for_each(|packet| image.prefetch(packet));
        }
        let (saturate, whole) = (self.saturate, !in_parts && !lap.is_renumbered());
        // Loops of their own for packets written as they are: what is decided here takes no instruction there.
        let lines = image.trace.lines();
        let taken = match (whole, saturate) {
            (true, true) => fill(batch, pool, due, move |packet, room| {
                packet.write_whole(lines, now, room)
            }),
            (true, false) => fill(batch, pool, due, move |packet, room| {
                packet.write_whole(lines, lap.start + packet.arrival, room)
            }),
            (false, _) => fill(batch, pool, due, |packet, room| {
                let arrival = match saturate {
                    false => lap.start + packet.arrival,
                    true => now,
                };
                image.write(packet, &lap, arrival, room, in_parts)
            }),
        };
        self.next += taken;
        self.wrap();
        taken
    }

    /// Moves packets that have arrived by `now` into the ring, up to `room` packets. The rest is lost. Returns the
    /// number of arrivals, the number of lost ones, and the time of the first loss.
    fn admit(&mut self, now: Nanos, room: usize) -> (u64, u64, Nanos) {
        let (mut offered, mut lost, mut lost_since) = (0, 0, now);
        if now < self.start {
            return (0, 0, now);
        }
        for _ in 0..MOST_ARRIVALS {
            // Without pacing no packet arrives without room for it.
            let waits = self.saturate || self.catch_up.is_some_and(|until| now < until);
            if self.exhausted || (waits && self.ring.len() >= room) {
                return (offered, lost, lost_since);
            }
            let descriptor = self.image.descriptors[self.next];
            let arrival = match self.saturate {
                false => self.lap.start + descriptor.arrival,
                true => now,
            };
            if arrival >= self.end {
                self.exhausted = true;
                break;
            }
            if arrival > now {
                break;
            }
            if self.is_mine(&descriptor, arrival) {
                offered += 1;
                if self.ring.len() < room {
                    self.ring.push(Arrived {
                        arrival,
                        index: self.next as u32,
                        lap: self.lap.number,
                    });
                } else {
                    lost += 1;
                    lost_since = lost_since.min(arrival);
                }
            }
            self.next += 1;
            self.wrap();
        }
        // All that have arrived are in the ring.
        self.catch_up = None;
        (offered, lost, lost_since)
    }

    #[inline]
    fn is_mine(&mut self, descriptor: &Descriptor, arrival: Nanos) -> bool {
        let Some(queue) = self.queue else { return true };
        let hash = self.lap.rss_hash(descriptor);
        self.reta.queue_of(bucket_of(hash), arrival) == queue
    }

    /// Starts the next lap if this one is over.
    #[inline]
    fn wrap(&mut self) {
        if self.next == self.image.descriptors.len() {
            self.next = 0;
            self.exhausted = !self.looped;
            self.lap = self.lap.next(&self.image);
        }
    }
}

impl PortSender for TraceQueue {
    fn complete(&mut self, batch: &mut Batch) {
        self.sender.complete(batch);
    }

    fn transmit(&mut self, batch: &mut Batch) -> usize {
        self.sender.transmit(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.sender.capture(tap);
    }
}

impl PortQueue for TraceQueue {
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received {
        self.reta.refresh(now);
        let direct = self.take_directly(now, pool, batch);
        // Packets received directly passed through the ring at this moment, and used its room.
        let mut room = self.ring.size - direct;
        if self.saturate {
            // Without pacing only as many packets arrive as the batch has room for.
            room = room.min(batch.room());
        }
        let (admitted, lost_ring_full, lost_since) = self.admit(now, room);
        let TraceQueue {
            image,
            ring,
            taking,
            sender,
            ..
        } = self;
        let in_parts = sender.image.is_some();
        if in_parts {
            let next = ring.next().take(batch.room());
            next.for_each(|arrived| image.prefetch(&image.descriptors[arrived.index as usize]));
        }
        // A packet is copied into a fresh buffer, as a NIC does by DMA.
        batch.fill(pool, ring.len(), |room| {
            let Arrived { arrival, index, lap } = ring.pop();
            if lap != taking.number {
                *taking = Lap::new(image, lap, Nanos::ZERO);
            }
            let descriptor = &image.descriptors[index as usize];
            image.write(descriptor, taking, arrival, room, in_parts)
        });
        Received {
            offered: direct as u64 + admitted,
            lost_ring_full,
            lost_since,
            waiting: self.ring.len(),
            counts_waiting: true,
            ended: self.exhausted,
            ..Received::default()
        }
    }

    fn discard_before(&mut self, before: Nanos, leave: usize, lost: &mut dyn FnMut(Nanos, u32)) {
        while self.ring.len() > leave && self.ring.first().is_some_and(|first| first.arrival < before) {
            let Arrived { arrival, index, .. } = self.ring.pop();
            lost(arrival, self.image.descriptors[index as usize].rss_hash);
        }
    }

    fn received_before(&self) -> Nanos {
        if let Some(first) = self.ring.first() {
            return first.arrival;
        }
        // The trace is read in order of arrival, including other queues' packets.
        match self.image.descriptors.get(self.next) {
            Some(next) if !self.exhausted => self.lap.start + next.arrival,
            _ => Nanos::MAX,
        }
    }

    fn stop(&mut self) {
        self.exhausted = true;
    }

    fn position(&self) -> Option<QueuePosition> {
        let waiting = self.ring.next();
        let waiting = waiting.map(|packet| (packet.arrival.0, packet.index, packet.lap));
        Some(QueuePosition {
            start: self.start.0,
            next: self.next as u64,
            lap: self.lap.number,
            lap_start: self.lap.start.0,
            ended: self.exhausted,
            waiting: waiting.collect(),
            ..QueuePosition::default()
        })
    }

    fn continue_at(&mut self, position: &QueuePosition) -> bool {
        if !position::is_known(position, self.image.descriptors.len()) {
            return false;
        }
        let duration = self.end.saturating_sub(self.start);
        self.start = Nanos(position.start);
        if self.end != Nanos::MAX {
            self.end = Nanos(position.start.saturating_add(duration.0));
        }
        self.next = position.next as usize;
        self.lap = Lap::new(&self.image, position.lap, Nanos(position.lap_start));
        self.exhausted = position.ended;
        // One that continues several others gets what waits in all of their rings.
        self.ring = Ring::new(self.ring.size.max(position.waiting.len()));
        for &(arrival, index, lap) in &position.waiting {
            let arrival = Nanos(arrival);
            self.ring.push(Arrived { arrival, index, lap });
        }
        self.taking = Lap::new(&self.image, position.lap, Nanos::ZERO);
        true
    }

    fn catch_up(&mut self, until: Nanos) {
        self.catch_up = Some(until);
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64 {
        while self.ring.len() > 0 {
            let Arrived { arrival, index, .. } = self.ring.pop();
            lost(arrival, self.image.descriptors[index as usize].rss_hash);
        }
        self.exhausted = true;
        0
    }
}

#[cfg(test)]
mod tests;
