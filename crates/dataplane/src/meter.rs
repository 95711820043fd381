//! What a worker measures of its own loop: arrivals, latencies, gaps, and the windows they go to.

use crate::arrivals::BinClock;
use crate::attribution::{Attribution, Cause, LatePacket};
use crate::external::DETAINED;
use crate::port::{Received, Refused};
use crate::scaling::buckets::KeptBack;
use crate::telemetry::{Window, WindowSender};
use crate::worker::WorkerConfig;
use std::sync::Arc;
use tailwater_chain::batch::Batch;
use tailwater_chain::chain::Chain;
use tailwater_net::Nanos;

/// A turn of a loop that takes this much longer than it should is a gap.
const GAP: Nanos = Nanos::from_micros(20);

/// A sleeper wakes up in some 10 us, and within 50 nearly always; a look at thousands of queued
/// packets takes less than 50.
const KEPT_OFF: Nanos = Nanos::from_micros(150);

/// The measuring side of a worker, dedicated or auxiliary.
#[derive(Debug)]
pub(crate) struct Meter {
    telemetry: WindowSender,
    attribution: Attribution,
    /// Which packets were kept back; nothing where buckets stay.
    kept_back: Option<Arc<KeptBack>>,
    bins: BinClock,
    pace: Pace,
    /// Whether packets' numbers say where they were.
    external: bool,
    slo: Nanos,
    start: Nanos,
    window: Nanos,
    window_end: Nanos,
    /// Whether the worker has died.
    dead: bool,
}

impl Meter {
    pub(crate) fn new(config: &WorkerConfig, telemetry: WindowSender) -> Meter {
        Meter {
            telemetry,
            attribution: Attribution::new(config.slo),
            kept_back: None,
            external: false,
            bins: BinClock::new(config.start, config.window),
            pace: Pace::default(),
            slo: config.slo,
            start: config.start,
            window: config.window,
            window_end: config.start + config.window,
            dead: false,
        }
    }

    /// Buckets move: says which packets were kept back.
    pub(crate) fn know(&mut self, kept_back: Arc<KeptBack>) {
        self.kept_back = Some(kept_back);
    }

    /// Packets go to external functions, and their numbers tell which were there for long.
    pub(crate) fn know_external(&mut self) {
        self.external = true;
    }

    /// The window being filled.
    #[inline]
    pub(crate) fn window(&mut self) -> &mut Window {
        &mut self.telemetry.window
    }

    /// The worker has nothing to do.
    #[inline]
    pub(crate) fn idle(&mut self) {
        self.attribution.idle();
    }

    /// The worker has slept, and woke up so long after it was called. Much longer than it takes to wake
    /// up, and it was kept off its core by others.
    pub(crate) fn woke(&mut self, took: Nanos, now: Nanos) {
        self.telemetry.window.wakes.record(took);
        match took > KEPT_OFF {
            true => self.note_gap(took, now),
            false => self.attribution.woke(took),
        }
    }

    /// Counts what arrived while the loop was busy until `last` and then, perhaps, away until `now`.
    /// What the ring had no room for has the cause `full`, if no gap has.
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

    /// Counts packets that the worker does not get to see.
    #[cold]
    fn note_refused(&mut self, Refused { in_pieces, damaged }: Refused, now: Nanos) {
        let window = &mut self.telemetry.window;
        window.lost_in_pieces += in_pieces;
        window.late[Cause::NoPlace as usize] += in_pieces;
        window.dropped += damaged;
        window.dropped_damaged += damaged;
        let arrivals = &mut window.arrivals;
        self.bins.spread(arrivals, in_pieces + damaged, now, now);
    }

    /// Part of a turn in which no function ran lasted so long, until `now`. It takes some
    /// microseconds; much longer, and the worker was off its core.
    #[inline]
    pub(crate) fn note_part(&mut self, took: Nanos, now: Nanos) {
        if took > KEPT_OFF {
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

    /// Notes when the packets of a batch, which is not empty, arrived.
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

    /// Notes whose packets a worker with a backlog is processing.
    #[inline]
    pub(crate) fn note_backlog(&mut self, batch: &Batch, now: Nanos) {
        for packet in batch.iter() {
            self.attribution.served(packet.rss_hash, now);
        }
    }

    /// Counts a batch of `packets` that the chain had from `received` to `sent`, of which it lost
    /// `lost`, dropped others, and the port did not take `unsent`; what is left was sent.
    #[inline]
    pub(crate) fn note_sent(&mut self, batch: &Batch, packets: usize, (lost, unsent): (u64, usize), span: [Nanos; 2]) {
        if unsent > 0 {
            self.note_unsent(unsent);
        }
        self.note_processed(packets, packets - unsent - batch.len(), lost, span);
        self.note_delivered(batch, span);
    }

    /// Counts the packets of a batch as sent, which was received and sent at these times.
    #[inline]
    pub(crate) fn note_delivered(&mut self, batch: &Batch, [received, sent]: [Nanos; 2]) {
        self.record(batch, received, sent);
        let window = &mut self.telemetry.window;
        window.delivered += batch.len() as u64;
        window.last_sent = sent;
    }

    /// Counts packets that the port did not take.
    #[cold]
    pub(crate) fn note_unsent(&mut self, unsent: usize) {
        let window = &mut self.telemetry.window;
        window.lost_unsent += unsent as u64;
        window.late[Cause::NoPlace as usize] += unsent as u64;
    }

    /// Counts `packets` packets that functions had from the first time to the second, of which `gone` did not
    /// get past them, `lost` of these for want of room.
    #[inline]
    pub(crate) fn note_processed(&mut self, packets: usize, gone: usize, lost: u64, [received, sent]: [Nanos; 2]) {
        let took = sent.saturating_sub(received);
        if let Some(gap) = self.pace.gap(packets, took) {
            self.note_gap(gap, sent);
        }
        let window = &mut self.telemetry.window;
        window.dropped += gone as u64 - lost;
        window.lost_in_chain += lost;
        window.late[Cause::NoPlace as usize] += lost;
        window.busy += took;
    }

    /// Counts packets that an external function has not given back: as lost, or as dropped by it.
    pub(crate) fn note_missing(&mut self, packets: u64, lost: bool) {
        let window = &mut self.telemetry.window;
        if lost {
            window.lost_in_chain += packets;
            window.late[Cause::External as usize] += packets;
        } else {
            window.dropped += packets;
        }
    }

    /// Counts packets that an external function has made, which begin to be the chain's now, and those
    /// that come from it and go nowhere.
    pub(crate) fn note_made(&mut self, made: u64, dropped: u64, now: Nanos) {
        (0..made).for_each(|_| self.note_arrival(now));
        let window = &mut self.telemetry.window;
        window.offered += made;
        window.dropped += dropped;
    }

    /// Records every sent packet's latency.
    #[inline]
    fn record(&mut self, batch: &Batch, received: Nanos, sent: Nanos) {
        let window = &mut self.telemetry.window;
        let mut bytes = 0;
        let longest = window.latency.record_all(batch.iter().map(|packet| {
            bytes += packet.length() as u64;
            sent.saturating_sub(packet.arrival)
        }));
        window.delivered_bytes += bytes;
        if longest > self.slo {
            self.attribute(batch, received, sent);
        }
    }

    /// Finds the cause of every late packet of the batch.
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
                    kept_back: self.kept_back(rss_hash, arrival, sent),
                };
                let cause = match self.attribution.cause(late) {
                    cause @ Cause::Descheduled => cause,
                    _ if self.external && packet.number() & DETAINED != 0 => Cause::External,
                    cause => cause,
                };
                self.telemetry.window.late[cause as usize] += 1;
            }
        }
    }

    /// How long a packet was kept back for want of its RSS bucket.
    fn kept_back(&self, rss_hash: u32, arrival: Nanos, sent: Nanos) -> Nanos {
        let kept_back = self.kept_back.as_ref();
        kept_back.map_or(Nanos::ZERO, |kept_back| kept_back.of(rss_hash, arrival, sent))
    }

    /// Notes when a packet arrived.
    pub(crate) fn note_arrival(&mut self, arrival: Nanos) {
        self.bins.one(&mut self.telemetry.window.arrivals, arrival);
    }

    /// Counts a packet that was never processed, because the time was over.
    pub(crate) fn note_undrained(&mut self, arrival: Nanos, rss_hash: u32, now: Nanos) {
        let late = LatePacket {
            arrival,
            received: now,
            sent: now,
            rss_hash,
            kept_back: self.kept_back(rss_hash, arrival, now),
        };
        let window = &mut self.telemetry.window;
        let cause = if self.dead {
            window.lost_with_worker += 1;
            // It is off its core for good.
            Cause::Descheduled
        } else {
            window.lost_undrained += 1;
            self.attribution.cause(late)
        };
        window.late[cause as usize] += 1;
    }

    /// The worker has died: what it counts as never processed from now on is lost for that.
    pub(crate) fn die(&mut self) {
        self.dead = true;
    }

    /// Counts the packets of a batch at which the worker died, of which the chain had lost `lost` by
    /// then, and dropped others.
    pub(crate) fn note_unfinished(&mut self, batch: &mut Batch, lost: u64, now: Nanos) {
        batch.rejoin_bypass();
        let window = &mut self.telemetry.window;
        window.dropped += (batch.in_hand() - batch.len()) as u64 - lost;
        window.lost_in_chain += lost;
        window.late[Cause::NoPlace as usize] += lost;
        for packet in batch.iter() {
            self.note_undrained(packet.arrival, packet.rss_hash, now);
        }
    }

    /// Ends the window if it is over.
    #[inline]
    pub(crate) fn roll(&mut self, now: Nanos, chain: &impl Counting) {
        if now >= self.window_end {
            self.roll_window(now, chain);
        }
    }

    #[cold]
    fn roll_window(&mut self, now: Nanos, chain: &impl Counting) {
        self.save_reasons(chain);
        let index = now.saturating_sub(self.start).0 / self.window.0.max(1);
        self.telemetry.roll(index);
        self.window_end = self.start + Nanos((index + 1) * self.window.0);
    }

    fn save_reasons(&mut self, chain: &impl Counting) {
        let reasons = &mut self.telemetry.window.reasons;
        reasons.clear();
        chain.count(reasons);
    }

    /// Hands the last window over.
    pub(crate) fn finish(mut self, chain: &impl Counting) {
        self.save_reasons(chain);
        self.telemetry.finish();
    }
}

/// What counts packets by reason.
pub(crate) trait Counting {
    /// Adds the counts so far, always of the same reasons.
    fn count(&self, counts: &mut Vec<u64>);
}

impl Counting for Chain {
    fn count(&self, counts: &mut Vec<u64>) {
        counts.extend(self.reason_counts());
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
    use crate::telemetry::windows;
    use tailwater_api::Fate;
    use tailwater_chain::chain::InputPolicy;

    fn meter(chain: &Chain) -> Meter {
        let config = WorkerConfig {
            slo: Nanos::from_micros(200),
            window: Nanos::from_millis(100),
            start: Nanos::ZERO,
            batch: 32,
        };
        Meter::new(&config, windows(1, chain.reasons().len()).0.remove(0))
    }

    fn no_functions() -> Chain {
        let input = InputPolicy {
            malformed: Fate::Drop,
            non_ip: Fate::Drop,
        };
        Chain::new(Vec::new(), None, input)
    }

    #[test]
    fn what_a_full_ring_lost_has_a_cause() {
        let mut meter = meter(&no_functions());
        let received = Received {
            offered: 10,
            lost_ring_full: 3,
            ..Received::default()
        };
        let at = |us| [Nanos::from_micros(us); 2];
        let late = |meter: &mut Meter| {
            [Cause::RingFull, Cause::Waking, Cause::Descheduled].map(|cause| meter.window().late[cause as usize])
        };
        meter.note_arrivals(received, at(1), || Cause::RingFull);
        assert_eq!(late(&mut meter), [3, 0, 0]);
        meter.note_arrivals(received, at(2), || Cause::Waking);
        assert_eq!(late(&mut meter), [3, 3, 0]);
        // A gap longer than the objective comes first.
        let span = [Nanos::from_micros(2), Nanos::from_micros(302)];
        meter.note_arrivals(received, span, || Cause::Waking);
        assert_eq!(late(&mut meter), [3, 3, 3]);
        assert_eq!(meter.window().lost(), 9);
    }

    #[test]
    fn what_a_dead_worker_never_did_is_lost_with_it() {
        let mut meter = meter(&no_functions());
        meter.note_undrained(Nanos(1), 7, Nanos::from_millis(1));
        meter.die();
        meter.note_undrained(Nanos(1), 7, Nanos::from_millis(1));
        let window = meter.window();
        assert_eq!((window.lost_undrained, window.lost_with_worker), (1, 1));
        assert_eq!(window.late[Cause::Descheduled as usize], 1);
        assert_eq!(window.late_or_lost(), 2);
    }

    #[test]
    fn a_new_window_allocates_nothing() {
        let chain = no_functions();
        let config = WorkerConfig {
            slo: Nanos::from_micros(200),
            window: Nanos(100),
            start: Nanos::ZERO,
            batch: 32,
        };
        let (mut senders, receiver) = windows(1, chain.reasons().len());
        let mut meter = Meter::new(&config, senders.remove(0));
        // More than there are, so that every one is filled.
        let roll = || (1..10).for_each(|i| meter.roll(Nanos(100 * i), &chain));
        assert_eq!(allocation_counter::measure(roll).count_total, 0);
        meter.finish(&chain);
        let mut filled = 0;
        let reasons = chain.reasons().len();
        while receiver
            .receive(std::time::Duration::ZERO, |window| {
                filled += usize::from(window.reasons.len() == reasons);
            })
            .is_ok()
        {}
        assert!(filled > 1, "{filled}");
    }

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
        let gaps = (0..100_000).filter(|_| pace.gap(32, Nanos(81_000)).is_some()).count();
        assert!(gaps < 200, "{gaps} gaps");
    }
}
