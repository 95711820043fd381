//! A worker: polls its queue, runs the chain to completion, measures.

use crate::arrivals::BinClock;
use crate::attribution::{Attribution, Cause, LatePacket};
use crate::clock::Clock;
use crate::port::{PortQueue, Received};
use crate::telemetry::WindowSender;
use tailwater_net::Nanos;
use tailwater_nf::batch::Batch;
use tailwater_nf::buffer::BufferPool;
use tailwater_nf::chain::Chain;

/// What a worker needs to know besides its queue and chain.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Packets later than this are late.
    pub slo: Nanos,
    /// The length of a measurement window.
    pub window: Nanos,
    /// When the first packet arrives.
    pub start: Nanos,
    /// Most packets in a batch.
    pub batch: usize,
}

/// How long after the end queued packets are still processed: twice the SLO, but never so long that
/// a user who pressed Ctrl-C waits.
const LONGEST_DRAIN: Nanos = Nanos::from_millis(500);

/// A turn of the loop that takes this much longer than it should is a gap.
const GAP: Nanos = Nanos::from_micros(20);

/// A worker, ready to run on the thread it is moved to.
pub struct Worker {
    queue: Box<dyn PortQueue>,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    clock: Clock,
    config: WorkerConfig,
    telemetry: WindowSender,
    attribution: Attribution,
    bins: BinClock,
    pace: Pace,
    window_end: Nanos,
}

impl Worker {
    /// A worker that runs `chain` on what `queue` receives into buffers of `pool`.
    pub fn new(
        queue: Box<dyn PortQueue>,
        chain: Chain,
        pool: BufferPool,
        clock: Clock,
        config: WorkerConfig,
        mut telemetry: WindowSender,
    ) -> Worker {
        telemetry.window.reasons = chain.reason_counts().collect();
        Worker {
            batch: Batch::new(&pool, config.batch),
            attribution: Attribution::new(config.slo),
            bins: BinClock::new(config.start, config.window),
            window_end: config.start + config.window,
            pace: Pace::default(),
            queue,
            chain,
            pool,
            clock,
            config,
            telemetry,
        }
    }

    /// Runs until the port ends or `stop` says so, then drains the queue. Returns
    /// the chain, for its counters.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Chain {
        let mut now = self.clock.now();
        // How long ago the loop last knew what it was doing. A worker that got its core only after
        // the first arrival has been off it since.
        let mut last = self.config.start;
        let drain = Nanos(self.config.slo.0.saturating_mul(2)).min(LONGEST_DRAIN);
        let mut drain_until = None;
        loop {
            if drain_until.is_none() && stop() {
                self.queue.stop();
                drain_until = Some(now + drain);
            }
            let received = self.queue.receive(now, &mut self.pool, &mut self.batch);
            self.note_arrivals(received, last, now);
            let busy = !self.batch.is_empty();
            if busy {
                last = self.process(now, received.waiting > 0);
            } else {
                self.attribution.idle();
                self.chain.expire(now);
                // Before the start there is nothing to be away from.
                last = now.max(self.config.start);
                std::hint::spin_loop();
            }
            if received.ended {
                if received.waiting == 0 {
                    break;
                }
                drain_until = drain_until.or(Some(now + drain));
            }
            if drain_until.is_some_and(|until| now > until) {
                self.give_up(now);
                break;
            }
            if last >= self.window_end {
                self.roll_window(last);
            }
            // A busy loop needs one reading of the clock a turn.
            now = if busy { last } else { self.clock.now() };
        }
        self.save_reasons();
        self.telemetry.finish();
        self.chain
    }

    /// Counts what is still in the ring as lost.
    fn give_up(&mut self, now: Nanos) {
        let (window, attribution) = (&mut self.telemetry.window, &self.attribution);
        let bins = &mut self.bins;
        self.queue.discard(&mut |arrival, rss_hash| {
            let late = LatePacket {
                arrival,
                received: now,
                sent: now,
                rss_hash,
            };
            window.lost_undrained += 1;
            bins.one(&mut window.arrivals, arrival);
            window.late[attribution.cause(late) as usize] += 1;
        });
    }

    /// Counts what arrived while the loop was busy until `last` and then, perhaps, away until `now`.
    #[inline]
    fn note_arrivals(&mut self, received: Received, last: Nanos, now: Nanos) {
        let away = now.saturating_sub(last);
        if away > GAP {
            self.note_gap(away, now);
        }
        let window = &mut self.telemetry.window;
        window.offered += received.offered;
        if received.lost_ring_full > 0 {
            window.lost_ring_full += received.lost_ring_full;
            let (lost, from) = (received.lost_ring_full, received.lost_since);
            self.bins.spread(&mut window.arrivals, lost, from, now);
            window.late[self.attribution.loss(now) as usize] += received.lost_ring_full;
        }
    }

    #[cold]
    fn note_gap(&mut self, length: Nanos, now: Nanos) {
        self.attribution.gap(length, now);
        let window = &mut self.telemetry.window;
        window.gaps += 1;
        window.gap_time += length;
        window.longest_gap = window.longest_gap.max(length);
    }

    /// Runs the batch, which is not empty, through the chain, sends it and measures. Returns the time
    /// after.
    #[inline]
    fn process(&mut self, received: Nanos, backlog: bool) -> Nanos {
        let packets = self.batch.len();
        let ends = [0, packets - 1].map(|i| self.batch.packet_mut(i).0.arrival);
        let arrivals = self.batch.iter().map(|packet| packet.arrival);
        let bins = &mut self.telemetry.window.arrivals;
        self.bins.batch(bins, ends, arrivals, packets);
        if backlog {
            // Only in a backlog does it matter who is in front.
            for packet in self.batch.iter() {
                self.attribution.served(packet.rss_hash, received);
            }
        }
        let lost_before = self.chain.lost();
        self.chain.process(&mut self.batch, received);
        self.queue.transmit(&self.batch);
        let sent = self.clock.now();
        let took = sent.saturating_sub(received);
        if let Some(gap) = self.pace.gap(packets, took) {
            self.note_gap(gap, sent);
        }
        self.record(received, sent);
        let window = &mut self.telemetry.window;
        let lost = self.chain.lost() - lost_before;
        window.delivered += self.batch.len() as u64;
        window.dropped += (packets - self.batch.len()) as u64 - lost;
        window.lost_in_chain += lost;
        window.late[Cause::NoPlace as usize] += lost;
        window.busy += took;
        window.last_sent = sent;
        self.batch.release(&mut self.pool);
        self.chain.expire(sent);
        sent
    }

    /// Records every sent packet's latency.
    #[inline]
    fn record(&mut self, received: Nanos, sent: Nanos) {
        let window = &mut self.telemetry.window;
        let mut bytes = 0;
        let longest = window.latency.record_all(self.batch.iter().map(|packet| {
            bytes += packet.length() as u64;
            sent.saturating_sub(packet.arrival)
        }));
        window.delivered_bytes += bytes;
        if longest > self.config.slo {
            self.attribute(received, sent);
        }
    }

    /// Finds the cause of every late packet of the batch.
    #[cold]
    fn attribute(&mut self, received: Nanos, sent: Nanos) {
        for packet in self.batch.iter() {
            let (arrival, rss_hash) = (packet.arrival, packet.rss_hash);
            if sent.saturating_sub(arrival) > self.config.slo {
                let late = LatePacket {
                    arrival,
                    received,
                    sent,
                    rss_hash,
                };
                self.telemetry.window.late[self.attribution.cause(late) as usize] += 1;
            }
        }
    }

    #[cold]
    fn roll_window(&mut self, now: Nanos) {
        self.save_reasons();
        let index = now.saturating_sub(self.config.start).0 / self.config.window.0.max(1);
        self.telemetry.roll(index);
        self.window_end = self.config.start + Nanos((index + 1) * self.config.window.0);
    }

    fn save_reasons(&mut self) {
        let reasons = &mut self.telemetry.window.reasons;
        reasons.clear();
        reasons.extend(self.chain.reason_counts());
    }
}

/// How long batches take, so as to notice one during which the worker was off its core.
#[derive(Debug, Default)]
struct Pace {
    /// Running mean of the time for a packet, in 1/256 ns.
    per_packet: u64,
    batches: u32,
}

impl Pace {
    /// Batches after which the mean is trusted.
    const SETTLED: u32 = 64;

    /// Learns from a batch, and says by how much it took longer than it should have, if that
    /// is so much that only being descheduled explains it: more than four times the mean and
    /// [`GAP`]. A guest cannot ask whether its host took the core away, so this is a judgement.
    #[inline]
    fn gap(&mut self, packets: usize, took: Nanos) -> Option<Nanos> {
        let expected = Nanos((packets as u64 * self.per_packet) >> 8);
        let settled = self.batches >= Self::SETTLED;
        let gap = settled && took.0 > GAP.0 + 4 * expected.0;
        let mut sample = (took.0 << 8) / packets.max(1) as u64;
        if gap {
            // A gap teaches a little, too: should packets have become that slow for good, the mean
            // gets there within some tens of batches.
            sample = sample.min(2 * self.per_packet.max(1 << 8));
        }
        // A small batch costs more a packet; it says little about a full one.
        let weight = if settled { 6 } else { 2 };
        self.per_packet = self.per_packet + (sample >> weight) - (self.per_packet >> weight);
        self.batches = self.batches.saturating_add(1);
        gap.then(|| took - expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_tells_gaps_from_work() {
        let mut pace = Pace::default();
        for _ in 0..1000 {
            assert_eq!(pace.gap(32, Nanos(3_200)), None);
            assert_eq!(pace.gap(1, Nanos(300)), None);
        }
        // Thrice as slow is work; 200 us more is not.
        assert_eq!(pace.gap(32, Nanos(10_000)), None);
        let gap = pace.gap(32, Nanos(203_200)).unwrap();
        assert!((180_000..203_200).contains(&gap.0), "{gap}");
        // Slow functions have long batches, which are not gaps.
        let mut slow = Pace::default();
        for _ in 0..1000 {
            assert_eq!(slow.gap(32, Nanos(320_000)), None);
        }
        assert_eq!(slow.gap(32, Nanos(900_000)), None);
        assert!(slow.gap(32, Nanos(2_000_000)).is_some());
    }

    /// A batch taken for a gap was not learnt from, so that functions that had become slow for good
    /// were taken for gaps for ever.
    #[test]
    fn pace_gets_used_to_slower_packets() {
        let mut pace = Pace::default();
        for _ in 0..1000 {
            assert_eq!(pace.gap(32, Nanos(3_200)), None);
        }
        let gaps = (0..100_000)
            .filter(|_| pace.gap(32, Nanos(81_000)).is_some())
            .count();
        assert!(gaps < 200, "{gaps} gaps");
    }
}
