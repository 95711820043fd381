//! Measurement in a worker's loop: arrivals, latencies, gaps, causes of late and lost packets, and the windows they are
//! counted in. The cause of a full ring comes from `worker/reception.rs`.

use crate::arrivals::BinClock;
use crate::attribution::{Attribution, Cause, LatePacket};
use crate::external::marks::DETAINED;
use crate::kept_packets::PacketKeeper;
use crate::late::LateCounters;
use crate::port::{Received, Refused};
use crate::scaling::spans::BufferedSpans;
use crate::telemetry::{Window, WindowSender};
use crate::worker::config::WorkerConfig;
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::chain::{Chain, FunctionTotals};
use tailwater_net::Nanos;

/// Excess duration of a turn that counts as a gap.
const GAP: Nanos = Nanos::from_micros(20);

/// Interval at which late packets are counted for the server mapper.
const TELL_INTERVAL: Nanos = Nanos::from_millis(10);

/// Wake-up time beyond which the worker counts as preempted. A wake-up takes about 10 us, and nearly always less than
/// 50. Inspecting thousands of queued packets takes less than 50.
const PREEMPTED_AFTER: Nanos = Nanos::from_micros(150);

/// Measuring side of a worker on a dedicated or auxiliary core.
#[derive(Debug)]
pub(crate) struct Meter {
    telemetry: WindowSender,
    attribution: Attribution,
    /// Packets buffered during migration. `None` if buckets do not move.
    buffered_spans: Option<Arc<BufferedSpans>>,
    bins: BinClock,
    pace: GapDetector,
    /// Packet numbers carry marks of external functions.
    external: bool,
    slo: Nanos,
    start: Nanos,
    window: Nanos,
    window_end: Nanos,
    /// Where late packets are counted for the server mapper, the packets of this window that are counted there, offered
    /// and late, and the time of the next count.
    late: LateCounters,
    told: [u64; 2],
    tell_at: Nanos,
    /// Keeps late, lost and dropped packets, if requested.
    keeper: Option<Box<PacketKeeper>>,
    /// The worker has panicked.
    dead: bool,
}

impl Meter {
    pub(crate) fn new(config: &WorkerConfig, telemetry: WindowSender) -> Meter {
        Meter {
            telemetry,
            attribution: Attribution::new(config.slo),
            buffered_spans: None,
            external: false,
            bins: BinClock::new(config.start, config.window),
            pace: GapDetector::default(),
            slo: config.slo,
            start: config.start,
            window: config.window,
            window_end: config.start + config.window,
            late: config.late.clone(),
            told: [0; 2],
            tell_at: config.start,
            keeper: None,
            dead: false,
        }
    }

    /// Keeps late, lost and dropped packets.
    pub(crate) fn set_keeper(&mut self, keeper: PacketKeeper) {
        self.keeper = Some(Box::new(keeper));
    }

    /// Returns `true` if packets are kept.
    #[inline]
    pub(crate) fn keeps_packets(&self) -> bool {
        self.keeper.is_some()
    }

    /// Remembers the packets of a batch that the chain began with and ended with at these times, before they are sent.
    #[cold]
    pub(crate) fn remember(&mut self, batch: &Batch, times: [Nanos; 2]) {
        if let Some(keeper) = &mut self.keeper {
            keeper.note_batch(batch, times);
        }
    }

    /// Keeps the packet at index `at` of a batch, which was [lost](Meter::note_too_late) at `now`.
    #[cold]
    pub(crate) fn keep_too_late(&mut self, batch: &Batch, at: usize, cause: Cause, now: Nanos) {
        if let Some(keeper) = &mut self.keeper {
            keeper.too_late(batch, at, cause, now);
        }
    }

    /// Enables migration: sets the record of packets buffered meanwhile.
    pub(crate) fn set_buffered_spans(&mut self, kept_back: Arc<BufferedSpans>) {
        self.buffered_spans = Some(kept_back);
    }

    /// Packets pass external functions, and their numbers mark those that were held there for long.
    pub(crate) fn know_external(&mut self) {
        self.external = true;
    }

    /// Current window.
    #[inline]
    pub(crate) fn window(&mut self) -> &mut Window {
        &mut self.telemetry.window
    }

    /// Records that the worker is idle.
    #[inline]
    pub(crate) fn idle(&mut self) {
        self.attribution.idle();
    }

    /// Records a wake-up that took `took` after the signal. A much longer time than usual means that the worker was
    /// preempted.
    pub(crate) fn woke(&mut self, took: Nanos, now: Nanos) {
        self.telemetry.window.wakes.record(took);
        match took > PREEMPTED_AFTER {
            true => self.note_gap(took, now),
            false => self.attribution.woke(took),
        }
    }

    /// Counts packets that arrived while the loop was busy until `last` and then, perhaps, preempted until `now`.
    /// Packets lost to a full ring get the cause `full`, unless a gap explains them.
    #[inline]
    pub(crate) fn note_arrivals(&mut self, received: Received, [last, now]: [Nanos; 2], full: impl FnOnce() -> Cause) {
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
            window.late[self.attribution.loss(now, full()) as usize] += lost;
        }
        if received.refused != Refused::default() {
            self.note_refused(received.refused, now);
        }
    }

    /// Counts packets lost because their flow had too many.
    #[cold]
    pub(crate) fn note_flow_overload(&mut self, packets: u64) {
        let window = &mut self.telemetry.window;
        window.lost_flow_overload += packets;
        window.late[Cause::QueuedBehindOwnFlow as usize] += packets;
    }

    /// Counts a packet lost at `now`, which could not be in time any more. Returns the cause.
    #[inline]
    pub(crate) fn note_too_late(&mut self, arrival: Nanos, rss_hash: u32, now: Nanos) -> Cause {
        // Its latency would be at least this.
        let sent = now.max(arrival + self.slo + Nanos(1));
        let late = LatePacket {
            arrival,
            received: now,
            sent,
            rss_hash,
            buffered: self.buffered(rss_hash, arrival, sent),
        };
        let cause = self.attribution.cause(late);
        let window = &mut self.telemetry.window;
        window.lost_too_late += 1;
        window.late[cause as usize] += 1;
        window.late_remediable += u64::from(self.attribution.more_cores_help(cause, late));
        cause
    }

    /// Counts packets that are not delivered to the worker.
    #[cold]
    fn note_refused(&mut self, Refused { in_pieces, damaged }: Refused, now: Nanos) {
        let window = &mut self.telemetry.window;
        window.lost_in_pieces += in_pieces;
        window.late[Cause::ResourceExhausted as usize] += in_pieces;
        window.dropped += damaged;
        window.dropped_damaged += damaged;
        let arrivals = &mut window.arrivals;
        self.bins.spread(arrivals, in_pieces + damaged, now, now);
    }

    /// Checks a part of a turn without functions, which ended at `now`, for preemption. It normally takes some
    /// microseconds.
    #[inline]
    pub(crate) fn note_part(&mut self, took: Nanos, now: Nanos) {
        if took > PREEMPTED_AFTER {
            self.note_gap(took, now);
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

    /// Records the arrivals of a batch, which must not be empty.
    #[inline]
    pub(crate) fn note_batch(&mut self, batch: &Batch) {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
            return;
        };
        let ends = [first.arrival, last.arrival];
        let arrivals = batch.iter().map(|packet| packet.arrival);
        let bins = &mut self.telemetry.window.arrivals;
        self.bins.batch(bins, ends, arrivals, batch.len());
    }

    /// Records the flows a worker with a backlog is processing.
    #[inline]
    pub(crate) fn note_backlog(&mut self, batch: &Batch, now: Nanos) {
        for packet in batch.iter() {
            self.attribution.served(packet.rss_hash, now);
        }
    }

    /// Counts a batch of `packets` packets that was in the chain from `received` to `sent`. The chain lost `lost` of
    /// them and dropped others, and the port did not accept `unsent`. The rest was sent.
    #[inline]
    pub(crate) fn note_sent(&mut self, batch: &Batch, packets: usize, (lost, unsent): (u64, usize), span: [Nanos; 2]) {
        if unsent > 0 {
            self.note_unsent(unsent);
        }
        self.note_processed(packets, packets - unsent - batch.len(), lost, span);
        self.note_delivered(batch, span);
    }

    /// Counts the packets of a batch as sent, with the times of reception and transmission.
    #[inline]
    pub(crate) fn note_delivered(&mut self, batch: &Batch, [received, sent]: [Nanos; 2]) {
        self.record(batch, received, sent);
        let window = &mut self.telemetry.window;
        window.delivered += batch.len() as u64;
        window.last_sent = sent;
    }

    /// Counts packets that the port did not accept.
    #[cold]
    pub(crate) fn note_unsent(&mut self, unsent: usize) {
        let window = &mut self.telemetry.window;
        window.lost_unsent += unsent as u64;
        window.late[Cause::ResourceExhausted as usize] += unsent as u64;
    }

    /// Counts `packets` packets that functions processed between the two times. `gone` of them were dropped or lost,
    /// `lost` of these for lack of resources.
    #[inline]
    pub(crate) fn note_processed(&mut self, packets: usize, gone: usize, lost: u64, [received, sent]: [Nanos; 2]) {
        let took = sent.saturating_sub(received);
        if let Some(gap) = self.pace.gap(packets, took) {
            self.note_gap(gap, sent);
        }
        let window = &mut self.telemetry.window;
        window.dropped += gone as u64 - lost;
        window.lost_in_chain += lost;
        window.late[Cause::ResourceExhausted as usize] += lost;
        window.busy += took;
        window.batches += 1;
        window.processed += packets as u64;
    }

    /// Counts packets that an external function did not return, as lost or as dropped by it.
    pub(crate) fn note_missing(&mut self, packets: u64, lost: bool) {
        let window = &mut self.telemetry.window;
        if lost {
            window.lost_in_chain += packets;
            window.late[Cause::External as usize] += packets;
        } else {
            window.dropped += packets;
        }
    }

    /// Counts packets that an external function created, which enter the chain now, and those of them that are dropped.
    pub(crate) fn note_made(&mut self, made: u64, dropped: u64, now: Nanos) {
        (0..made).for_each(|_| self.note_arrival(now));
        let window = &mut self.telemetry.window;
        window.offered += made;
        window.dropped += dropped;
    }

    /// Records the latency of every sent packet.
    #[inline]
    fn record(&mut self, batch: &Batch, received: Nanos, sent: Nanos) {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
            return;
        };
        let window = &mut self.telemetry.window;
        // Most devices report one arrival time for all packets that a poll returns.
        let (mut bytes, mut differences) = (0, first.arrival.0 ^ last.arrival.0);
        if differences == 0 {
            for packet in batch.iter() {
                bytes += packet.length() as u64;
                differences |= packet.arrival.0 ^ first.arrival.0;
            }
        }
        let longest = if differences == 0 {
            let latency = sent.saturating_sub(first.arrival);
            window.latency.record_many(latency, batch.len() as u64);
            latency
        } else {
            bytes = 0;
            window.latency.record_all(batch.iter().map(|packet| {
                bytes += packet.length() as u64;
                sent.saturating_sub(packet.arrival)
            }))
        };
        window.delivered_bytes += bytes;
        if longest > self.slo {
            self.attribute(batch, received, sent);
        }
    }

    /// Attributes every late packet of the batch to a cause.
    #[cold]
    fn attribute(&mut self, batch: &Batch, received: Nanos, sent: Nanos) {
        for packet in batch.iter() {
            let (arrival, rss_hash) = (packet.arrival, packet.rss_hash);
            if sent.saturating_sub(arrival) > self.slo {
                let late = LatePacket {
                    arrival,
                    received,
                    sent,
                    rss_hash,
                    buffered: self.buffered(rss_hash, arrival, sent),
                };
                let cause = match self.attribution.cause(late) {
                    cause @ Cause::Preempted => cause,
                    _ if self.external && packet.number() & DETAINED != 0 => Cause::External,
                    cause => cause,
                };
                let window = &mut self.telemetry.window;
                window.late[cause as usize] += 1;
                window.late_remediable += u64::from(self.attribution.more_cores_help(cause, late));
                if let Some(keeper) = &mut self.keeper {
                    keeper.late((arrival, rss_hash), cause, sent);
                }
            }
        }
    }

    /// Time a packet was buffered while its RSS bucket migrated.
    fn buffered(&self, rss_hash: u32, arrival: Nanos, sent: Nanos) -> Nanos {
        let kept_back = self.buffered_spans.as_ref();
        kept_back.map_or(Nanos::ZERO, |kept_back| kept_back.of(rss_hash, arrival, sent))
    }

    /// Records a packet's arrival.
    pub(crate) fn note_arrival(&mut self, arrival: Nanos) {
        self.bins.one(&mut self.telemetry.window.arrivals, arrival);
    }

    /// Counts a packet that was never processed because the run ended.
    pub(crate) fn note_undrained(&mut self, arrival: Nanos, rss_hash: u32, now: Nanos) {
        let late = LatePacket {
            arrival,
            received: now,
            sent: now,
            rss_hash,
            buffered: self.buffered(rss_hash, arrival, now),
        };
        let window = &mut self.telemetry.window;
        let cause = if self.dead {
            window.lost_with_worker += 1;
            // The worker is off its core for good.
            Cause::Preempted
        } else {
            window.lost_undrained += 1;
            self.attribution.cause(late)
        };
        window.late[cause as usize] += 1;
    }

    /// Counts packets of a batch that were never processed because the run ended.
    pub(crate) fn note_undrained_batch(&mut self, batch: &Batch, now: Nanos) {
        for packet in batch.iter() {
            self.note_undrained(packet.arrival, packet.rss_hash, now);
        }
    }

    /// Marks the worker as panicked. Packets left unprocessed from now on count as lost with it.
    pub(crate) fn on_panic(&mut self) {
        self.dead = true;
    }

    /// Counts the packets of the batch in which the worker panicked. The chain had lost `lost` by then, and dropped
    /// others.
    pub(crate) fn note_unfinished(&mut self, batch: &mut Batch, lost: u64, now: Nanos) {
        batch.rejoin_bypass();
        let window = &mut self.telemetry.window;
        window.dropped += (batch.in_hand() - batch.len()) as u64 - lost;
        window.lost_in_chain += lost;
        window.late[Cause::ResourceExhausted as usize] += lost;
        self.note_undrained_batch(batch, now);
    }

    /// Ends the window if its time is over.
    #[inline]
    pub(crate) fn roll(&mut self, now: Nanos, chain: &impl Counting) {
        if now >= self.tell_at {
            self.tell(now, chain);
        }
    }

    /// Counts late packets for the server mapper, which must not wait for the window's end, and ends it if it is due.
    #[cold]
    fn tell(&mut self, now: Nanos, chain: &impl Counting) {
        let window = &self.telemetry.window;
        let counts = [window.offered, window.late_for_want_of_cores()];
        self.late.add(std::array::from_fn(|at| counts[at] - self.told[at]));
        self.told = counts;
        if now >= self.window_end {
            self.roll_window(now, chain);
            self.told = [0; 2];
        }
        self.tell_at = (now + TELL_INTERVAL).min(self.window_end);
    }

    #[cold]
    fn roll_window(&mut self, now: Nanos, chain: &impl Counting) {
        self.save_counts(chain);
        let index = now.saturating_sub(self.start).0 / self.window.0.max(1);
        self.telemetry.roll(index);
        self.window_end = self.start + Nanos((index + 1) * self.window.0);
    }

    fn save_counts(&mut self, chain: &impl Counting) {
        let window = &mut self.telemetry.window;
        window.reasons.clear();
        chain.count(&mut window.reasons);
        window.functions.clear();
        chain.count_functions(&mut window.functions);
        window.flows = chain.flows();
    }

    /// Sends the last window.
    pub(crate) fn finish(mut self, chain: &impl Counting) {
        self.save_counts(chain);
        self.telemetry.finish();
    }
}

/// Source of counts by reason and by function.
pub(crate) trait Counting {
    /// Appends the counts so far, always for the same reasons.
    fn count(&self, counts: &mut Vec<u64>);

    /// Appends the totals of the functions so far, always of the same ones.
    fn count_functions(&self, totals: &mut Vec<FunctionTotals>);

    /// Number of flows.
    fn flows(&self) -> u64;
}

impl Counting for Chain {
    fn count(&self, counts: &mut Vec<u64>) {
        counts.extend(self.reason_counts());
    }

    fn count_functions(&self, totals: &mut Vec<FunctionTotals>) {
        totals.extend(self.function_totals());
    }

    fn flows(&self) -> u64 {
        Chain::flows(self) as u64
    }
}

/// Expected duration of batches, to detect those during which the worker was preempted.
#[derive(Debug, Default)]
struct GapDetector {
    /// Running mean of the time per packet, in 1/256 ns.
    per_packet: u64,
    batches: u32,
}

impl GapDetector {
    /// Number of batches after which the mean is used.
    const SETTLED: u32 = 64;

    /// Updates the mean with a batch, and returns the excess of its duration if only preemption explains it: more than
    /// four times the mean plus [`GAP`]. A guest cannot find out if its host preempted it, so this is a heuristic.
    #[inline]
    fn gap(&mut self, packets: usize, took: Nanos) -> Option<Nanos> {
        let expected = Nanos((packets as u64 * self.per_packet) >> 8);
        let settled = self.batches >= Self::SETTLED;
        let gap = settled && took.0 > GAP.0 + 4 * expected.0;
        let mut sample = (took.0 << 8) / packets.max(1) as u64;
        if gap {
            // A gap updates the mean a little, too: if packets have become that slow for good, the mean adapts within
            // some tens of batches.
            sample = sample.min(2 * self.per_packet.max(1 << 8));
        }
        // A small batch costs more per packet, so it says little about a full one.
        let weight = if settled { 6 } else { 2 };
        self.per_packet = self.per_packet + (sample >> weight) - (self.per_packet >> weight);
        self.batches = self.batches.saturating_add(1);
        gap.then(|| took - expected)
    }
}

#[cfg(test)]
mod tests;
