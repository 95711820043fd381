//! Attribution of late packets: one cause for every packet beyond its SLO.
//!
//! `crates/dataplane/src/meter.rs` applies it live, and `crates/sim/src/engine/meter.rs` in virtual time. The causes
//! [`ResourceExhausted`](Cause::ResourceExhausted) and [`External`](Cause::External) are set there.

use tailwater_net::Nanos;

/// Cause that a late or lost packet is attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Cause {
    /// Processing alone took that long, with hardly any queueing.
    Service,
    /// The packet waited mostly behind packets of its own flow (NetBlaze §2: a whale).
    QueuedBehindOwnFlow,
    /// The packet waited mostly behind packets of other flows (NetBlaze §2: minnows).
    QueuedBehindOthers,
    /// The worker was preempted, and the packet would have been in time otherwise.
    Preempted,
    /// The packet's auxiliary core was asleep, and the packet would have been in time otherwise.
    Waking,
    /// The packet's RSS bucket was migrating from another core, and the packet would have been in time otherwise. Or
    /// the NIC's descriptor ring was full because packets of such buckets held all buffers.
    Migration,
    /// The NIC's descriptor ring was full and the packet was lost.
    RingFull,
    /// The chain lost the packet for lack of a resource: room in the flow table, a NAT port, the state store, a
    /// function's process.
    ResourceExhausted,
    /// An external function held the packet for more than half of the objective, or never returned it.
    External,
}

impl Cause {
    /// Every cause, in order of discriminants.
    pub const ALL: [Cause; 9] = [
        Cause::Service,
        Cause::QueuedBehindOwnFlow,
        Cause::QueuedBehindOthers,
        Cause::Preempted,
        Cause::Waking,
        Cause::Migration,
        Cause::RingFull,
        Cause::ResourceExhausted,
        Cause::External,
    ];

    /// Stable name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Service => "service",
            Cause::QueuedBehindOwnFlow => "queued-behind-own-flow",
            Cause::QueuedBehindOthers => "queued-behind-others",
            Cause::Preempted => "descheduled",
            Cause::Waking => "waiting-for-helper",
            Cause::Migration => "migration",
            Cause::RingFull => "nic-ring-full",
            Cause::ResourceExhausted => "no-resources",
            Cause::External => "external",
        }
    }
}

/// Observations of a late packet.
#[derive(Clone, Copy, Debug)]
pub struct LatePacket {
    /// Arrival at the NIC.
    pub arrival: Nanos,
    /// Time the worker received its batch.
    pub received: Nanos,
    /// Time it had been sent.
    pub sent: Nanos,
    /// RSS hash.
    pub rss_hash: u32,
    /// Time it was buffered while its RSS bucket migrated.
    pub buffered: Nanos,
}

/// Attributes late packets to causes.
///
/// Pure: batches and gaps are its inputs, and it has no clock. Per packet it costs one update of a small table, and
/// that only while the worker has a backlog.
#[derive(Debug)]
pub struct Attribution {
    slo: Nanos,
    shares: FlowShares,
    /// Time lost to gaps since the worker was last idle. A gap that ended before a packet arrived still delays it: the
    /// packets it held up are queued in front.
    gaps: Nanos,
    /// End of the time in which the gaps count. Under lasting overload the worker is never idle, and a packet that is
    /// late long after a gap is late because of the overload.
    gaps_until: Nanos,
    /// End of the time in which packets are lost for the last gap.
    losses_until: Nanos,
    /// Wake-up time of the worker since it was last idle.
    waking: Nanos,
}

impl Attribution {
    /// Attribution for a chain with the given latency objective.
    pub fn new(slo: Nanos) -> Attribution {
        Attribution {
            slo,
            shares: FlowShares::new(slo),
            gaps: Nanos::ZERO,
            gaps_until: Nanos::ZERO,
            losses_until: Nanos::ZERO,
            waking: Nanos::ZERO,
        }
    }

    /// Records a wake-up: the worker slept, and took this long to wake up after it was signalled.
    #[inline]
    pub fn woke(&mut self, took: Nanos) {
        self.waking = took;
    }

    /// Records that the worker is idle: the next packets wait behind none.
    #[inline]
    pub fn idle(&mut self) {
        self.gaps = Nanos::ZERO;
        self.waking = Nanos::ZERO;
    }

    /// Records a gap that ended at `now`, in which the worker was off its core.
    pub fn gap(&mut self, length: Nanos, now: Nanos) {
        /// Time in which a gap counts, as a multiple of its length. A worker with 5 % spare capacity needs 19 times a
        /// gap's length to work off its backlog.
        const EFFECT_FACTOR: u64 = 20;
        self.gaps = self.active_gaps(now) + length;
        self.gaps_until = now + Nanos(self.gaps.0.saturating_mul(EFFECT_FACTOR));
        self.losses_until = now + length;
    }

    /// Time lost to gaps that still count.
    fn active_gaps(&self, now: Nanos) -> Nanos {
        if now <= self.gaps_until { self.gaps } else { Nanos::ZERO }
    }

    /// Records a packet processed while the worker had a backlog.
    #[inline]
    pub fn served(&mut self, rss_hash: u32, now: Nanos) {
        self.shares.served(rss_hash, now);
    }

    /// Cause of packets that found the ring full just now: a gap, if the worker lost more than the SLO to gaps since it
    /// was last idle, and the last one ended no longer ago than it took. Otherwise `full`.
    ///
    /// A ring that filled in a gap has room as soon as the worker is back, unless the load is too high for it. Then a
    /// gap costs as many packets as the worker would have processed in it, and all others would have been lost anyway.
    pub fn loss(&self, now: Nanos, full: Cause) -> Cause {
        match now <= self.losses_until && self.active_gaps(now) > self.slo {
            true => Cause::Preempted,
            false => full,
        }
    }

    /// Returns `true` if more cores can remedy that a packet is late for this cause: it waited for others, or mostly
    /// behind its own flow, but would have been in time without the packets of others.
    pub fn more_cores_help(&self, cause: Cause, packet: LatePacket) -> bool {
        match cause {
            Cause::QueuedBehindOthers | Cause::Waking => true,
            Cause::QueuedBehindOwnFlow => {
                let service = packet.sent.saturating_sub(packet.received);
                let waiting = packet.received.saturating_sub(packet.arrival);
                let (own, all) = self.shares.of(packet.rss_hash, packet.received);
                let behind_own = waiting.0.saturating_mul(own.into()) / u64::from(all.max(1));
                behind_own + service.0 <= self.slo.0
            }
            _ => false,
        }
    }

    /// Cause of a packet that took longer than the SLO.
    pub fn cause(&self, packet: LatePacket) -> Cause {
        let latency = packet.sent.saturating_sub(packet.arrival);
        let service = packet.sent.saturating_sub(packet.received);
        let waiting = packet.received.saturating_sub(packet.arrival);
        let gaps = self.active_gaps(packet.sent);
        if gaps > Nanos::ZERO && latency.saturating_sub(gaps) <= self.slo {
            Cause::Preempted
        } else if self.waking > Nanos::ZERO && latency.saturating_sub(self.waking) <= self.slo {
            Cause::Waking
        } else if packet.buffered > Nanos::ZERO && latency.saturating_sub(packet.buffered) <= self.slo {
            Cause::Migration
        } else if service >= waiting {
            Cause::Service
        } else if self.shares.mostly_own(packet.rss_hash, packet.received) {
            Cause::QueuedBehindOwnFlow
        } else {
            Cause::QueuedBehindOthers
        }
    }
}

/// Shares of flows in the worker's recent work, over the current and the previous epoch of half an SLO each. Flows are
/// identified by RSS hash in a direct-mapped table. A flow that shares a cell with another evicts it, which matters
/// only for flows with a large share.
#[derive(Debug)]
struct FlowShares {
    epoch: Nanos,
    cells: Box<[Share; FlowShares::CELLS]>,
    all: Share,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    rss_hash: u32,
    epoch: u32,
    packets: u32,
    before: u32,
}

impl Share {
    /// Advances to `epoch`.
    #[inline]
    fn advance(&mut self, epoch: u32) {
        if self.epoch != epoch {
            self.before = if self.epoch.wrapping_add(1) == epoch {
                self.packets
            } else {
                0
            };
            (self.packets, self.epoch) = (0, epoch);
        }
    }

    fn at(mut self, epoch: u32) -> u32 {
        self.advance(epoch);
        self.packets + self.before
    }
}

impl FlowShares {
    const CELLS: usize = 1024;

    fn new(slo: Nanos) -> FlowShares {
        FlowShares {
            epoch: Nanos((slo.0 / 2).max(1)),
            cells: Box::new([Share::default(); Self::CELLS]),
            all: Share::default(),
        }
    }

    #[inline]
    fn cell(rss_hash: u32) -> usize {
        // Not the low bits, which select the bucket and hence the worker.
        (rss_hash >> 9) as usize % Self::CELLS
    }

    #[inline]
    fn epoch_of(&self, now: Nanos) -> u32 {
        (now.0 / self.epoch.0) as u32
    }

    #[inline]
    fn served(&mut self, rss_hash: u32, now: Nanos) {
        let epoch = self.epoch_of(now);
        self.all.advance(epoch);
        self.all.packets += 1;
        let cell = &mut self.cells[Self::cell(rss_hash)];
        cell.advance(epoch);
        if cell.rss_hash == rss_hash {
            cell.packets += 1;
        } else if cell.packets <= 1 {
            // The cell holds another flow, which is not the heavy one.
            *cell = Share {
                rss_hash,
                epoch,
                packets: 1,
                before: 0,
            };
        } else {
            cell.packets -= 1;
        }
    }

    /// Returns the packets of a flow and of all flows in the worker's recent work.
    fn of(&self, rss_hash: u32, now: Nanos) -> (u32, u32) {
        let epoch = self.epoch_of(now);
        let cell = self.cells[Self::cell(rss_hash)];
        let own = if cell.rss_hash == rss_hash { cell.at(epoch) } else { 0 };
        (own, self.all.at(epoch))
    }

    /// Returns `true` if this flow made up at least half of the worker's recent work.
    fn mostly_own(&self, rss_hash: u32, now: Nanos) -> bool {
        let (own, all) = self.of(rss_hash, now);
        self.cells[Self::cell(rss_hash)].rss_hash == rss_hash && 2 * own >= all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLO: Nanos = Nanos::from_micros(200);

    fn late(arrival_us: u64, received_us: u64, sent_us: u64) -> LatePacket {
        LatePacket {
            arrival: Nanos::from_micros(arrival_us),
            received: Nanos::from_micros(received_us),
            sent: Nanos::from_micros(sent_us),
            rss_hash: 7 << 9,
            buffered: Nanos::ZERO,
        }
    }

    /// `own` packets of the late packet's flow, then `others` of one each.
    fn busy(own: u32, others: u32) -> Attribution {
        let mut attribution = Attribution::new(SLO);
        let now = Nanos::from_micros(950);
        (0..own).for_each(|_| attribution.served(7 << 9, now));
        (0..others).for_each(|flow| attribution.served((100 + flow) << 9, now));
        attribution
    }

    #[test]
    fn a_long_service_is_service() {
        assert_eq!(busy(10, 10).cause(late(1000, 1010, 1300)), Cause::Service);
    }

    #[test]
    fn queueing_behind_the_own_flow_is_a_whale() {
        assert_eq!(busy(60, 40).cause(late(700, 990, 1000)), Cause::QueuedBehindOwnFlow);
    }

    #[test]
    fn more_cores_help_a_flow_that_would_be_in_time_alone() {
        let packet = late(700, 990, 1000);
        // 290 µs of queueing, 60 % of it behind the own flow.
        let attribution = busy(60, 40);
        assert!(attribution.more_cores_help(attribution.cause(packet), packet));
        let attribution = busy(90, 10);
        assert!(!attribution.more_cores_help(attribution.cause(packet), packet));
        assert!(busy(0, 60).more_cores_help(Cause::QueuedBehindOthers, packet));
        assert!(!busy(0, 60).more_cores_help(Cause::Service, packet));
    }

    #[test]
    fn queueing_behind_others_is_minnows() {
        assert_eq!(busy(40, 60).cause(late(700, 990, 1000)), Cause::QueuedBehindOthers);
        assert_eq!(busy(0, 60).cause(late(700, 990, 1000)), Cause::QueuedBehindOthers);
    }

    #[test]
    fn what_a_sleeper_was_too_late_for_waited_for_it() {
        let mut attribution = busy(0, 60);
        attribution.woke(Nanos::from_micros(120));
        assert_eq!(attribution.cause(late(700, 990, 1000)), Cause::Waking);
        // Late without the gap, too.
        assert_eq!(attribution.cause(late(600, 990, 1000)), Cause::QueuedBehindOthers);
        attribution.idle();
        assert_eq!(attribution.cause(late(700, 990, 1000)), Cause::QueuedBehindOthers);
    }

    #[test]
    fn what_was_kept_back_waited_for_its_bucket() {
        let kept_back = |us| LatePacket {
            buffered: Nanos::from_micros(us),
            ..late(700, 990, 1000)
        };
        let mut attribution = busy(0, 60);
        assert_eq!(attribution.cause(kept_back(100)), Cause::Migration);
        // Late without the migration, too.
        assert_eq!(attribution.cause(kept_back(99)), Cause::QueuedBehindOthers);
        let now = Nanos::from_micros(950);
        assert_eq!(attribution.loss(now, Cause::Migration), Cause::Migration);
        // A preemption takes precedence.
        attribution.gap(Nanos::from_micros(210), now);
        assert_eq!(attribution.cause(kept_back(100)), Cause::Preempted);
        assert_eq!(attribution.loss(now, Cause::Migration), Cause::Preempted);
    }

    #[test]
    fn shares_older_than_two_epochs_do_not_count() {
        let mut attribution = busy(1000, 0);
        let now = Nanos::from_micros(950 + 300);
        (0..10).for_each(|flow| attribution.served((100 + flow) << 9, now));
        assert_eq!(attribution.cause(late(1000, 1290, 1300)), Cause::QueuedBehindOthers);
    }

    #[test]
    fn a_gap_explains_what_it_delayed() {
        let mut attribution = busy(60, 0);
        attribution.gap(Nanos::from_micros(200), Nanos::from_micros(700));
        // 210 us late in all, 200 of them due to the gap: in time without it.
        assert_eq!(attribution.cause(late(690, 890, 900)), Cause::Preempted);
        // 600 us: late without the gap, too.
        assert_eq!(attribution.cause(late(350, 940, 950)), Cause::QueuedBehindOwnFlow);
        let now = Nanos::from_micros(950);
        assert_eq!(attribution.loss(now, Cause::RingFull), Cause::RingFull);
        attribution.gap(Nanos::from_micros(200), now);
        assert_eq!(attribution.loss(now, Cause::RingFull), Cause::Preempted);
        attribution.idle();
        assert_eq!(attribution.cause(late(690, 890, 900)), Cause::QueuedBehindOwnFlow);
        assert_eq!(attribution.loss(now, Cause::RingFull), Cause::RingFull);
    }

    /// Regression: gaps used to add up while the worker was busy, so all late packets were attributed to them under
    /// overload.
    #[test]
    fn old_gaps_do_not_explain_lasting_overload() {
        let mut attribution = busy(0, 60);
        for second in 0..60 {
            attribution.gap(Nanos::from_micros(30), Nanos::from_secs(second));
        }
        let packet = late(60_000_000, 60_001_490, 60_001_500);
        assert_eq!(attribution.cause(packet), Cause::QueuedBehindOthers);
        assert_eq!(attribution.loss(packet.sent, Cause::RingFull), Cause::RingFull);
    }
    /// Regression: one gap explained all packets that a full ring lost later, as long as the worker was never idle.
    #[test]
    fn a_gap_explains_losses_for_as_long_as_it_took() {
        let mut attribution = busy(0, 60);
        let gap = Nanos::from_millis(34);
        attribution.gap(gap, Nanos::from_millis(100));
        let loss = |at| attribution.loss(Nanos::from_millis(at), Cause::RingFull);
        assert_eq!(
            [100, 134, 135].map(loss),
            [Cause::Preempted, Cause::Preempted, Cause::RingFull]
        );
    }
}
