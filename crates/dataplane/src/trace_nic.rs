//! The trace NIC: a trace in memory behind the face of a NIC.
//!
//! It costs no core of its own. Each queue's worker, when it polls, is given what has arrived by
//! now: the trace is read up to the present, each packet is sorted to a queue by RSS and the bucket
//! table, and what finds the queue's descriptor ring full is lost, just as if it had happened
//! while the worker was busy. Only when a worker takes a packet from the ring is it copied into a
//! fresh buffer.

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::{Need, OpenError, Port, PortQueue, PortSender, Received, Reta, RetaError};
use crate::reta::{RetaHistory, RetaView};
use image::{Descriptor, Image, Lap};
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_traffic::Trace;

mod image;

/// The most packets of the trace that one poll looks at, so that even a worker that can never catch up,
/// or for whom there is none, looks up from it and sees that it is to stop.
const MOST_ARRIVALS: usize = 1 << 18;

/// When packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// At the trace's times.
    Arrivals,
    /// Whenever a worker asks: the chain runs as fast as it can, and a packet's arrival is the moment
    /// it is received.
    Saturate,
}

/// How a trace NIC is set up.
#[derive(Clone, Debug)]
pub struct TraceNicConfig {
    /// When packets arrive.
    pub pacing: Pacing,
    /// Packets that each queue's ring holds.
    pub ring: usize,
    /// How long a new bucket table takes to be in force; NICs need up to a few milliseconds.
    pub reta_delay: Nanos,
    /// For how long packets arrive. A trace that is shorter starts over; `None`: the trace once.
    pub duration: Option<Nanos>,
    /// Whether a trace that starts over has its flows renumbered, so that they are new ones.
    pub renumber: bool,
    /// Whether the worker that receives a packet copies only its first two cache lines, and the one
    /// that processes it the rest. A NIC's DMA takes no core's time; here each core pays for what
    /// it processes.
    pub in_parts: bool,
}

impl Default for TraceNicConfig {
    fn default() -> Self {
        TraceNicConfig {
            pacing: Pacing::Arrivals,
            ring: 1024,
            reta_delay: Nanos::from_millis(2),
            duration: None,
            renumber: true,
            in_parts: false,
        }
    }
}

/// A NIC whose traffic is a trace.
#[derive(Debug)]
pub struct TraceNic {
    image: Arc<Image>,
    history: Arc<RetaHistory>,
    queues: u16,
    config: TraceNicConfig,
    clock: Clock,
}

impl TraceNic {
    /// A NIC with `queues` queues that receives `trace` under the bucket table `reta`.
    ///
    /// # Errors
    /// If the table names a queue that is not there.
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
            image: Arc::new(Image::new(trace, rss, config.renumber)),
            history: Arc::new(RetaHistory::new(*reta, config.reta_delay)),
            queues,
            config,
            clock,
        })
    }

    /// The longest frame, in bytes: what the buffers must hold.
    pub fn longest_frame(&self) -> usize {
        let trace = &self.image.trace;
        (0..trace.len()).map(|i| trace.length(i)).max().unwrap_or(0)
    }

    /// The queues, in order. The first packet arrives at `start` on the clock.
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
            })
            .collect()
    }

    /// A transmit queue, for a worker that receives nothing.
    pub fn sender(&self) -> TraceSender {
        TraceSender {
            image: self.config.in_parts.then(|| Arc::clone(&self.image)),
            capture: None,
            clock: self.clock.clone(),
        }
    }

    /// Installs a bucket table. It holds for packets that arrive from the returned time on, some
    /// milliseconds ahead; earlier ones still go where they went.
    ///
    /// # Errors
    /// If the table names a queue that is not there, or the trace is not paced.
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

    fn open(&mut self, need: &Need) -> Result<Vec<BufferPool>, OpenError> {
        let frame_bytes = self.longest_frame();
        let pools = (0..need.workers).map(|_| Ok(BufferPool::new(need.buffers, frame_bytes)?));
        pools.collect()
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

/// A packet in the descriptor ring.
#[derive(Clone, Copy, Debug, Default)]
struct Arrived {
    arrival: Nanos,
    index: u32,
    lap: u32,
}

/// The descriptor ring: arrived packets in order, up to a fixed number.
#[derive(Debug)]
struct Ring {
    slots: Box<[Arrived]>,
    /// Counts of packets ever put and taken; their difference is what the ring holds.
    put: usize,
    taken: usize,
    size: usize,
}

impl Ring {
    fn new(size: usize) -> Ring {
        let size = size.clamp(1, 1 << 20);
        let slots = vec![Arrived::default(); size.next_power_of_two()].into();
        Ring {
            slots,
            put: 0,
            taken: 0,
            size,
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.put.wrapping_sub(self.taken)
    }

    /// Adds a packet. The ring must hold fewer than its size.
    #[inline]
    fn push(&mut self, packet: Arrived) {
        debug_assert!(self.len() < self.size);
        let mask = self.slots.len() - 1;
        self.slots[self.put & mask] = packet;
        self.put = self.put.wrapping_add(1);
    }

    /// The packets in the ring, in order.
    #[inline]
    fn next(&self) -> impl Iterator<Item = &Arrived> {
        let mask = self.slots.len() - 1;
        (0..self.len()).map(move |i| &self.slots[self.taken.wrapping_add(i) & mask])
    }

    /// The packet that has waited longest.
    #[inline]
    fn first(&self) -> Option<&Arrived> {
        self.next().next()
    }

    /// The packet that has waited longest. The ring must not be empty.
    #[inline]
    fn pop(&mut self) -> Arrived {
        debug_assert!(self.len() > 0);
        let packet = self.slots[self.taken & (self.slots.len() - 1)];
        self.taken = self.taken.wrapping_add(1);
        packet
    }
}

/// A queue of a [`TraceNic`].
#[derive(Debug)]
pub struct TraceQueue {
    image: Arc<Image>,
    reta: RetaView,
    /// Which queue this is; `None` if it is the only one and takes everything.
    queue: Option<u16>,
    saturate: bool,
    looped: bool,
    /// Packets that would arrive from then on do not.
    end: Nanos,
    /// The next packet of the trace, and its lap.
    next: usize,
    lap: Lap,
    exhausted: bool,
    ring: Ring,
    /// The lap of the packet taken last.
    taking: Lap,
    sender: TraceSender,
    start: Nanos,
}

/// A transmit queue of a [`TraceNic`]: packets that reach it are sent.
#[derive(Debug)]
pub struct TraceSender {
    /// Where the rest of packets is, if they come in parts.
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

impl TraceQueue {
    /// Takes packets that have arrived straight into the batch, which is what becomes of them when the
    /// ring is empty and the worker waits. Returns how many.
    ///
    /// Only for a queue that takes everything: there a run of packets is known to be its own.
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
        let (mut packets, saturate) = (due.iter(), self.saturate);
        let in_parts = self.sender.image.is_some();
        if in_parts {
            due.iter().for_each(|packet| image.prefetch(packet));
        }
        let taken = batch.fill(pool, due.len(), move |room| {
            let Some(packet) = packets.next() else {
                unreachable!("the batch fills no more than it was told");
            };
            let arrival = match saturate {
                false => lap.start + packet.arrival,
                true => now,
            };
            image.write(packet, &lap, arrival, room, in_parts)
        });
        self.next += taken;
        self.wrap();
        taken
    }

    /// Lets arrive what has arrived by `now`: into the ring, `room` packets at the most; what finds
    /// no room is lost. Returns how many arrived, and how many of them were lost, since when.
    fn admit(&mut self, now: Nanos, room: usize) -> (u64, u64, Nanos) {
        let (mut offered, mut lost, mut lost_since) = (0, 0, now);
        if now < self.start {
            return (0, 0, now);
        }
        for _ in 0..MOST_ARRIVALS {
            // Without pace nothing arrives that there is no room for.
            if self.exhausted || (self.saturate && self.ring.len() >= room) {
                break;
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
        // What was taken has passed through the ring in this very moment: it took its room.
        let mut room = self.ring.size - direct;
        if self.saturate {
            // Without pace only what the batch has room for arrives.
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
            ended: self.exhausted,
            ..Received::default()
        }
    }

    fn received_before(&self) -> Nanos {
        if let Some(first) = self.ring.first() {
            return first.arrival;
        }
        // The trace is read in order of arrival, other queues' packets too.
        match self.image.descriptors.get(self.next) {
            Some(next) if !self.exhausted => self.lap.start + next.arrival,
            _ => Nanos::MAX,
        }
    }

    fn stop(&mut self) {
        self.exhausted = true;
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) {
        while self.ring.len() > 0 {
            let Arrived { arrival, index, .. } = self.ring.pop();
            lost(arrival, self.image.descriptors[index as usize].rss_hash);
        }
        self.exhausted = true;
    }
}

#[cfg(test)]
mod tests;
