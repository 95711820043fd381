//! The trace NIC: a trace in memory behind the face of a NIC.
//!
//! It costs no core of its own. Each queue's worker, when it polls, is given what has arrived by
//! now: the trace is read up to the present, each packet is sorted to a queue by RSS and the bucket
//! table, and what finds the queue's descriptor ring full is lost, just as if it had happened
//! while the worker was busy. Only when a worker takes a packet from the ring is it copied into a
//! fresh buffer.

use crate::capture::CaptureTap;
use crate::clock::Clock;
use crate::port::{PortQueue, Received, Reta, RetaError};
use crate::reta::{RetaHistory, RetaView};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::{RssHasher, bucket_of};
use tailwater_nf::batch::{Batch, Incoming};
use tailwater_nf::buffer::BufferPool;
use tailwater_traffic::Trace;
use tailwater_traffic::renumber::Renumbering;

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
}

impl Default for TraceNicConfig {
    fn default() -> Self {
        TraceNicConfig {
            pacing: Pacing::Arrivals,
            ring: 1024,
            reta_delay: Nanos::from_millis(2),
            duration: None,
            renumber: true,
        }
    }
}

/// What a NIC would find out about a packet on its way in: 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    arrival: Nanos,
    rss_hash: u32,
    renumbering: Renumbering,
}

/// A trace, ready to be received.
#[derive(Debug)]
struct Image {
    trace: Trace,
    descriptors: Vec<Descriptor>,
    rss: RssHasher,
    /// From a lap's first packet to the next lap's.
    lap: Nanos,
    renumber: bool,
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
        let descriptors = (0..trace.len())
            .map(|i| {
                let headers = parse(trace.packet(i)).ok();
                Descriptor {
                    arrival: trace.arrival(i),
                    rss_hash: headers
                        .as_ref()
                        .map_or(0, |headers| rss.hash_headers(headers)),
                    renumbering: headers.as_ref().map_or(Renumbering::NONE, Renumbering::of),
                }
            })
            .collect();
        let lap = trace.duration() + trace.mean_gap();
        Ok(TraceNic {
            image: Arc::new(Image {
                trace,
                descriptors,
                rss,
                lap,
                renumber: config.renumber,
            }),
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
        let end = self.config.duration.map_or(Nanos::MAX, |duration| {
            Nanos(start.0.saturating_add(duration.0))
        });
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
                capture: None,
                clock: self.clock.clone(),
                start,
            })
            .collect()
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

fn check(reta: &Reta, queues: u16) -> Result<(), RetaError> {
    match reta.iter().position(|&queue| queue >= queues) {
        None => Ok(()),
        Some(bucket) => Err(RetaError::NoQueue {
            bucket,
            queue: reta[bucket],
            queues,
        }),
    }
}

/// A pass through the trace. After 65,536 passes the same flows come again.
#[derive(Clone, Copy, Debug)]
struct Lap {
    number: u32,
    start: Nanos,
    /// What renumbering XORs onto the low 16 bits of every address.
    mask: u16,
    /// What that does to RSS hashes, IPv4 and IPv6.
    hash_change: [u32; 2],
}

impl Lap {
    fn new(image: &Image, number: u32, start: Nanos) -> Lap {
        // The lap's number with its low bits on top: neighbouring hosts stay neighbours.
        let mask = if image.renumber {
            (number as u16).reverse_bits()
        } else {
            0
        };
        Lap {
            number,
            start,
            mask,
            hash_change: Renumbering::hash_change(&image.rss, mask),
        }
    }

    fn next(&self, image: &Image) -> Lap {
        Lap::new(image, self.number.wrapping_add(1), self.start + image.lap)
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

    #[inline]
    fn push(&mut self, packet: Arrived) -> bool {
        let room = self.len() < self.size;
        if room {
            let mask = self.slots.len() - 1;
            self.slots[self.put & mask] = packet;
            self.put = self.put.wrapping_add(1);
        }
        room
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
    capture: Option<CaptureTap>,
    clock: Clock,
    start: Nanos,
}

impl TraceQueue {
    /// Also records what is sent.
    pub fn capture(&mut self, tap: CaptureTap) {
        self.capture = Some(tap);
    }

    /// Lets arrive what has arrived by `now`, at most `limit` packets. Returns how many did, and
    /// how many of them found the ring full, since when.
    fn admit(&mut self, now: Nanos, limit: usize) -> (u64, u64, Nanos) {
        let (mut offered, mut lost, mut lost_since) = (0, 0, now);
        self.reta.refresh();
        if now < self.start {
            return (0, 0, now);
        }
        for _ in 0..MOST_ARRIVALS {
            if self.exhausted || offered >= limit as u64 {
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
            if self.is_mine(descriptor, arrival) {
                offered += 1;
                let packet = Arrived {
                    arrival,
                    index: self.next as u32,
                    lap: self.lap.number,
                };
                if !self.ring.push(packet) {
                    lost += 1;
                    lost_since = lost_since.min(arrival);
                }
            }
            self.advance();
        }
        (offered, lost, lost_since)
    }

    #[inline]
    fn is_mine(&mut self, descriptor: Descriptor, arrival: Nanos) -> bool {
        let Some(queue) = self.queue else { return true };
        let hash = descriptor
            .renumbering
            .hash(descriptor.rss_hash, self.lap.hash_change);
        self.reta.queue_of(bucket_of(hash), arrival) == queue
    }

    #[inline]
    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.image.descriptors.len() {
            self.next = 0;
            self.exhausted = !self.looped;
            self.lap = self.lap.next(&self.image);
        }
    }
}

/// Copies whole cache lines. The first, often the only one, by moves of a fixed size rather than a
/// call to a copy routine.
#[inline]
fn copy_lines(lines: &[[u8; 64]], room: &mut [u8]) {
    let Some((first, rest)) = lines.split_first() else {
        return;
    };
    if let Some(to) = room.first_chunk_mut::<64>() {
        *to = *first;
    }
    if !rest.is_empty() {
        let rest = rest.as_flattened();
        if let Some(to) = room.get_mut(64..64 + rest.len()) {
            to.copy_from_slice(rest);
        }
    }
}

impl PortQueue for TraceQueue {
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received {
        let room = batch.room();
        let limit = match self.saturate {
            true => room.min(self.ring.size) - self.ring.len().min(room),
            false => MOST_ARRIVALS,
        };
        let (offered, lost_ring_full, lost_since) = self.admit(now, limit);
        let TraceQueue {
            image,
            ring,
            taking,
            ..
        } = self;
        // A packet is copied into a fresh buffer, as a NIC does by DMA.
        let taken = batch.fill(pool, ring.len(), |room| {
            let Arrived {
                arrival,
                index,
                lap,
            } = ring.pop();
            let index = index as usize;
            if lap != taking.number {
                *taking = Lap::new(image, lap, Nanos::ZERO);
            }
            let Descriptor {
                rss_hash,
                renumbering,
                ..
            } = image.descriptors[index];
            let length = image.trace.length(index);
            copy_lines(image.trace.lines(index), room);
            if taking.mask != 0
                && let Some(frame) = room.get_mut(..length)
            {
                renumbering.apply(frame, taking.mask);
            }
            let rss_hash = renumbering.hash(rss_hash, taking.hash_change);
            Incoming {
                length,
                arrival,
                rss_hash,
            }
        });
        debug_assert!(taken <= room);
        let waiting = self.ring.len();
        Received {
            offered,
            lost_ring_full,
            lost_since,
            waiting,
            ended: self.exhausted,
        }
    }

    fn transmit(&mut self, batch: &Batch) {
        if let Some(capture) = &mut self.capture {
            let now = self.clock.now();
            (0..batch.len()).for_each(|i| capture.record(now, batch.frame(i)));
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
