//! External function as a stage of its chain: sending, receiving, counting.

use super::attachment::{Attachment, Direction};
use super::fingerprint::{Fingerprint, Fingerprints};
use super::marks::{BACKWARD, DETAINED, goes_backward};
use super::matcher::{Back, Matcher, Outside};
use super::own_buckets::OwnBuckets;
use crate::histogram::LatencyHistogram;
use crate::report::{ExternalReport, LatencyReport};
use tailwater_api::PacketAction;
use tailwater_chain::batch::{Batch, MAX_BATCH, Verdict};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Outcome, Reason};
use tailwater_functions::external::{ExternalConfig, Missing};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;

/// Drop reasons, as numbers of verdicts.
const TOO_MANY: u8 = 0;
const TOO_LONG: u8 = 1;
const LATE: u8 = 2;
const OWN: u8 = 3;
const NO_WAY_BACK: u8 = 4;

/// Packets on the same path, with their buffers.
pub(super) struct Lane {
    pub(super) pool: BufferPool,
    pub(super) batch: Batch,
    /// Backward packets of the batch, during transmission.
    pub(super) aside: Batch,
}

impl Lane {
    /// Creates a lane for batches of any size. [`limit`](Lane::limit) sets the size before each reception.
    pub(super) fn new(pool: BufferPool) -> Lane {
        let capacity = MAX_BATCH;
        Lane {
            batch: Batch::new(&pool, capacity),
            aside: Batch::new(&pool, capacity),
            pool,
        }
    }

    /// Limits the next batch to the size the chain requires, or else to `usual`.
    #[inline]
    pub(super) fn limit(&mut self, chain: &Chain, usual: usize) {
        self.batch.limit(chain.wanted_batch().unwrap_or(usual));
    }

    /// Moves backward packets aside.
    #[inline]
    pub(super) fn divide(&mut self) {
        self.batch.divide(&mut self.aside, goes_backward);
    }

    /// Returns all buffers to the pool.
    #[inline]
    pub(super) fn release(&mut self) {
        self.batch.release(&mut self.pool);
        self.aside.release(&mut self.pool);
    }
}

/// Packet counts of a function, at one worker or at several.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExternalCounts {
    name: String,
    counters: Counters,
}

impl ExternalCounts {
    /// Adds another worker's counts of the same function.
    pub(crate) fn add(&mut self, other: &ExternalCounts) {
        let (counters, other) = (&mut self.counters, &other.counters);
        counters.sent += other.sent;
        counters.returned += other.returned;
        counters.missing += other.missing;
        counters.late += other.late;
        counters.own += other.own;
        counters.too_many += other.too_many;
        counters.too_long += other.too_long;
        counters.not_taken += other.not_taken;
        counters.no_way_back += other.no_way_back;
        counters.most_outside = counters.most_outside.max(other.most_outside);
        counters.delay.merge(&other.delay);
    }

    /// Report of the function.
    pub(crate) fn report(&self) -> ExternalReport {
        let counters = &self.counters;
        ExternalReport {
            function: self.name.clone(),
            sent: counters.sent,
            returned: counters.returned,
            not_returned: counters.missing,
            late: counters.late,
            own: counters.own,
            refused: counters.too_many + counters.too_long + counters.not_taken,
            no_way_back: counters.no_way_back,
            most_outside: counters.most_outside,
            delay_us: LatencyReport::of(&counters.delay),
        }
    }
}

/// Counters of [`ExternalCounts`].
#[derive(Clone, Debug, Default)]
struct Counters {
    sent: u64,
    returned: u64,
    missing: u64,
    late: u64,
    own: u64,
    too_many: u64,
    too_long: u64,
    not_taken: u64,
    no_way_back: u64,
    most_outside: u64,
    delay: LatencyHistogram,
}

/// Result of classifying a received batch, in which the packets that continue are left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Came {
    /// Packets created by the function, including those that are dropped.
    pub(super) own: u64,
    /// Packets dropped here.
    pub(super) dropped: u64,
}

/// Time up to which all arrived packets have been received.
#[derive(Clone, Copy, Debug, Default)]
struct Horizon {
    seen: Nanos,
    /// Next such time, until confirmed, and packets received since then.
    since: Option<(Nanos, usize)>,
}

impl Horizon {
    /// Records a poll at `now` that received `packets` packets: all that had arrived, or as many as there was room for.
    /// At most `ring` can have waited.
    #[inline]
    fn polled(&mut self, now: Nanos, packets: usize, all: bool, ring: usize) {
        let (since, before) = self.since.take().unwrap_or((now, 0));
        let received = before + packets;
        if all || received >= ring {
            self.seen = since;
        } else {
            self.since = Some((since, received));
        }
    }
}

/// External function of a chain.
pub(crate) struct ExternalStage {
    name: String,
    attachment: Box<dyn Attachment>,
    matcher: Matcher,
    prints: Fingerprints,
    rss: RssHasher,
    buckets: OwnBuckets,
    own: PacketAction,
    missing: Missing,
    /// Time outside beyond which a packet counts as detained.
    long: Nanos,
    /// Horizon of each direction from which packets come.
    horizons: [Horizon; 2],
    counters: Counters,
    /// Fingerprints of packets that are being sent.
    going: Vec<Fingerprint>,
}

impl ExternalStage {
    /// Number of reasons for which packets are counted.
    pub(crate) const REASONS: usize = 6;

    pub(super) fn new(
        (name, config): (&str, &ExternalConfig),
        attachment: Box<dyn Attachment>,
        (rss, buckets, seed): (RssHasher, OwnBuckets, u64),
        slo: Nanos,
    ) -> ExternalStage {
        ExternalStage {
            name: name.to_owned(),
            attachment,
            matcher: Matcher::new(config.outside, config.timeout),
            prints: Fingerprints::new(seed, config.changes),
            rss,
            buckets,
            own: config.own,
            missing: config.missing,
            long: Nanos(slo.0 / 2),
            horizons: Default::default(),
            counters: Counters::default(),
            going: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Directions from which packets come: one per port.
    pub(super) fn ways(&self) -> &'static [Direction] {
        match self.attachment.has_two_ports() {
            true => &[Direction::Forward, Direction::Backward],
            false => &[Direction::Forward],
        }
    }

    /// Sends the lane's packets. Returns the number that could not be sent and are lost.
    #[inline]
    pub(super) fn send(&mut self, lane: &mut Lane, now: Nanos) -> u64 {
        let longest = self.attachment.longest();
        let (prints, going, matcher) = (&self.prints, &mut self.going, &self.matcher);
        going.clear();
        lane.batch.for_each(|packet, frame| {
            packet.verdict = if frame.len() > longest {
                Verdict::Drop(TOO_LONG)
            } else if matcher.has_room_for(going.len() + 1) {
                // The hash is not needed any more. From here on the field holds the index of the fingerprint.
                packet.rss_hash = going.len() as u32;
                going.push(prints.of(frame, &packet.headers));
                Verdict::Forward
            } else {
                Verdict::Drop(TOO_MANY)
            };
        });
        let counters = &mut self.counters;
        let before = lane.batch.len();
        lane.batch.compact(|_, reason| match reason {
            TOO_LONG => counters.too_long += 1,
            _ => counters.too_many += 1,
        });
        let refused = before - lane.batch.len();
        let mut not_taken = 0;
        if self.attachment.has_two_ports() {
            lane.divide();
            if !lane.aside.is_empty() {
                not_taken += self.attachment.send(Direction::Backward, &mut lane.aside);
            }
        }
        if !lane.batch.is_empty() {
            not_taken += self.attachment.send(Direction::Forward, &mut lane.batch);
        }
        for packet in lane.batch.iter().chain(lane.aside.iter()) {
            let outside = Outside {
                arrival: packet.arrival,
                sent: now,
                number: packet.number(),
            };
            let print = self.going[packet.rss_hash as usize];
            self.matcher.send(print, outside);
            counters.sent += 1;
        }
        counters.not_taken += not_taken as u64;
        counters.most_outside = counters.most_outside.max(self.matcher.outside() as u64);
        (refused + not_taken) as u64
    }

    /// Receives packets that have arrived in this direction. Returns their number.
    #[inline]
    pub(super) fn receive(&mut self, way: Direction, now: Nanos, lane: &mut Lane) -> usize {
        let Lane { pool, batch, .. } = lane;
        let most = batch.room().min(pool.available());
        let count = self.attachment.receive(way, now, pool, batch);
        let ring = self.attachment.ring();
        self.horizons[way as usize].polled(now, count, count < most, ring);
        count
    }

    /// Classifies packets received in this direction. Returned packets get their original metadata back. The function's
    /// own continue as new ones, if there is a path for them. The others leave the batch.
    #[inline]
    pub(super) fn recognise(&mut self, way: Direction, goes_back: bool, now: Nanos, batch: &mut Batch) -> Came {
        let two_ports = self.attachment.has_two_ports();
        let (matcher, prints, counters) = (&mut self.matcher, &self.prints, &mut self.counters);
        let (rss, buckets, own, long) = (&self.rss, &self.buckets, self.own, self.long);
        let mut came = Came::default();
        batch.for_each(|packet, frame| {
            let headers = parse(frame);
            packet.rss_hash = buckets.hash(headers.map_or(0, |headers| rss.hash_headers(&headers)));
            let headers = headers.unwrap_or_default();
            let mut number = match way {
                Direction::Forward => 0,
                Direction::Backward => BACKWARD,
            };
            match matcher.back(prints.of(frame, &headers)) {
                Back::Known(outside) => {
                    let delay = now.saturating_sub(outside.sent);
                    counters.returned += 1;
                    counters.delay.record(delay);
                    packet.arrival = outside.arrival;
                    // With two ports, the port of arrival determines the direction.
                    number |= match two_ports {
                        true => outside.number & DETAINED,
                        false => outside.number,
                    };
                    if delay > long {
                        number |= DETAINED;
                    }
                }
                Back::Late => {
                    counters.late += 1;
                    packet.verdict = Verdict::Drop(LATE);
                    return;
                }
                Back::Own => {
                    counters.own += 1;
                    came.own += 1;
                    if own == PacketAction::Drop {
                        packet.verdict = Verdict::Drop(OWN);
                        return;
                    }
                }
            }
            packet.set_number(number);
            if number & BACKWARD != 0 && !goes_back {
                packet.verdict = Verdict::Drop(NO_WAY_BACK);
            }
        });
        batch.compact(|_, reason| {
            counters.no_way_back += u64::from(reason == NO_WAY_BACK);
            // Late packets were counted as lost before.
            came.dropped += u64::from(reason != LATE);
        });
        came
    }

    /// Times out packets that have been outside for too long, or all of them at the end. Returns their number. Arrived
    /// packets that wait for reception are not too late, however long that takes.
    #[inline]
    pub(super) fn give_up(&mut self, all: bool) -> u64 {
        let ways = &self.horizons[..self.ways().len()];
        let seen = ways.iter().map(|horizon| horizon.seen).min();
        let seen = seen.unwrap_or(Nanos::ZERO);
        let missing = match all {
            true => self.matcher.give_up_all(seen),
            false => self.matcher.give_up(seen),
        };
        self.counters.missing += missing;
        missing
    }

    /// Maximum time a packet may be outside.
    pub(super) fn timeout(&self) -> Nanos {
        self.matcher.timeout()
    }

    /// Number of packets outside.
    #[inline]
    pub(super) fn outside(&self) -> usize {
        self.matcher.outside()
    }

    /// Returns `true` if a packet that does not come back counts as lost rather than dropped.
    pub(super) fn loses(&self) -> bool {
        self.missing == Missing::Lost
    }

    /// Reasons for which packets are counted here.
    pub(super) fn reasons((name, config): (&str, &ExternalConfig)) -> [Reason; ExternalStage::REASONS] {
        let missing = match config.missing {
            Missing::Lost => Outcome::Lost,
            Missing::Dropped => Outcome::Dropped,
        };
        let own = match config.own {
            PacketAction::Pass => Outcome::Passed,
            PacketAction::Drop => Outcome::Dropped,
        };
        let reasons = [
            ("not-returned", missing),
            ("too-many-outside", Outcome::Lost),
            ("too-long", Outcome::Lost),
            ("not-taken", Outcome::Lost),
            ("own", own),
            ("no-way-back", Outcome::Dropped),
        ];
        reasons.map(|(reason, outcome)| Reason {
            function: Some(name.to_owned()),
            name: format!("{name}/{reason}"),
            outcome,
        })
    }

    /// Packets counted so far for each of the reasons.
    pub(super) fn reason_counts(&self) -> [u64; ExternalStage::REASONS] {
        let Counters {
            missing,
            too_many,
            too_long,
            not_taken,
            own,
            no_way_back,
            ..
        } = self.counters;
        [missing, too_many, too_long, not_taken, own, no_way_back]
    }

    /// Packet counts of this function.
    pub(super) fn counts(&self) -> ExternalCounts {
        ExternalCounts {
            name: self.name.clone(),
            counters: self.counters.clone(),
        }
    }
}
