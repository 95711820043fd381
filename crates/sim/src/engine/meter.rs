//! Counters of packets by outcome.

use crate::report::{Cause, Loss, WindowReport};
use crate::traffic::Packet;
use tailwater_measure::attribution::{Attribution, LatePacket};
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::Nanos;

/// Packet counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub offered: u64,
    pub delivered: u64,
    pub bytes: u64,
    pub lost: [u64; Loss::ALL.len()],
    pub late: [u64; Cause::COUNT],
    /// Packets that opened a flow.
    pub new: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.offered += other.offered;
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.new += other.new;
        add_all(&mut self.lost, &other.lost);
        add_all(&mut self.late, &other.late);
    }

    pub fn total_lost(&self) -> u64 {
        self.lost.iter().sum()
    }
}

fn add_all(to: &mut [u64], from: &[u64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// Counts one tenant's packets: those of the current window, and all.
#[derive(Debug)]
pub(crate) struct Meter {
    pub slo: Nanos,
    pub window: Counts,
    pub total: Counts,
    latency: LatencyHistogram,
    pub all: LatencyHistogram,
    pub windows: Vec<WindowReport>,
    /// Time at which the last packet left.
    pub last_sent: u64,
}

/// Sent packet: its arrival at the core, and `true` if it was buffered before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent<'a> {
    pub packet: &'a Packet,
    pub at: u64,
    pub buffered: bool,
}

/// Returns a flow's hash for the attribution of lateness. All bits differ between neighbours.
#[inline]
pub(crate) fn flow_hash(flow: u32) -> u32 {
    flow.wrapping_mul(0x9e37_79b1)
}

impl Meter {
    pub fn new(slo: Nanos) -> Meter {
        Meter {
            slo,
            window: Counts::default(),
            total: Counts::default(),
            latency: LatencyHistogram::default(),
            all: LatencyHistogram::default(),
            windows: Vec::new(),
            last_sent: 0,
        }
    }

    /// Counts packets that a core had from `received` to `sent`. Returns the number of those that were late for a cause
    /// that more cores can remedy.
    #[inline]
    pub fn sent<'a>(
        &mut self,
        attribution: &Attribution,
        packets: impl Iterator<Item = Sent<'a>> + Clone,
        received: u64,
        sent: u64,
    ) -> u64 {
        let (mut bytes, mut count) = (0, 0);
        let longest = self.latency.record_all(packets.clone().map(|entry| {
            bytes += u64::from(entry.packet.bytes);
            count += 1;
            Nanos(sent - entry.packet.arrival)
        }));
        self.window.delivered += count;
        self.window.bytes += bytes;
        self.last_sent = self.last_sent.max(sent);
        match longest > self.slo {
            true => self.attribute(attribution, packets, received, sent),
            false => 0,
        }
    }

    #[cold]
    fn attribute<'a>(
        &mut self,
        attribution: &Attribution,
        packets: impl Iterator<Item = Sent<'a>>,
        received: u64,
        sent: u64,
    ) -> u64 {
        let slo = self.slo.0;
        let late = packets.filter(|entry| sent - entry.packet.arrival > slo);
        let remediable = late.map(|entry| u64::from(self.late(attribution, entry, received, sent)));
        remediable.sum()
    }

    /// Counts a late packet that a core had from `received` to `sent` by its cause. Returns `true` if more cores can
    /// remedy that.
    fn late(&mut self, attribution: &Attribution, entry: Sent<'_>, received: u64, sent: u64) -> bool {
        let Sent { packet, at, buffered } = entry;
        // The packet may have arrived at the core too late for its processing time there.
        let before = at.saturating_sub(packet.arrival);
        let in_time = before > 0 && (sent - packet.arrival).saturating_sub(before) <= self.slo.0;
        let late = LatePacket {
            arrival: Nanos(packet.arrival),
            received: Nanos(received),
            sent: Nanos(sent),
            rss_hash: flow_hash(packet.flow),
            buffered: Nanos(if buffered { before } else { 0 }),
        };
        let cause = match in_time && !buffered {
            true => Cause::Network,
            false => Cause::Live(attribution.cause(late)),
        };
        self.window.late[cause.number()] += 1;
        matches!(cause, Cause::Live(cause) if attribution.more_cores_help(cause, late))
    }

    /// Counts packets lost at `now` since they could not be in time any more. Returns the number of those for a cause
    /// that more cores can remedy.
    #[cold]
    pub fn too_late<'a>(
        &mut self,
        attribution: &Attribution,
        packets: impl Iterator<Item = Sent<'a>>,
        now: u64,
    ) -> u64 {
        let remediable = packets.map(|entry| {
            self.window.lost[Loss::TooLate as usize] += 1;
            // Its latency would be at least this.
            let sent = now.max(entry.packet.arrival + self.slo.0 + 1);
            u64::from(self.late(attribution, entry, now, sent))
        });
        remediable.sum()
    }

    /// Restarts the counters with the window that begins now, and `offered` packets in the system.
    pub fn restart(&mut self, offered: u64) {
        self.window.offered = offered;
        self.total = Counts::default();
        self.all.clear();
        self.windows.clear();
    }

    /// Returns the number of packets lost in this window because their flows had too many.
    pub fn flow_overload(&self) -> u64 {
        self.window.lost[Loss::FlowOverload as usize]
    }

    /// Counts a lost packet.
    pub fn lost(&mut self, loss: Loss) {
        self.window.lost[loss as usize] += 1;
        self.window.late[loss.cause().number()] += 1;
    }

    /// Ends the window that began at `start`.
    pub fn roll(&mut self, start: u64) {
        let percentile = |p| self.latency.percentile(p).as_micros_f64();
        let counts = &self.window;
        self.windows.push(WindowReport {
            start_s: Nanos(start).as_secs_f64(),
            offered: counts.offered,
            delivered: counts.delivered,
            lost: counts.total_lost(),
            late: counts.late.iter().sum(),
            new_flows: counts.new,
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            p999_us: percentile(99.9),
            max_us: self.latency.max().as_micros_f64(),
            cores: 0.0,
            dedicated: 0,
        });
        self.total.add(counts);
        self.all.merge(&self.latency);
        self.window = Counts::default();
        self.latency.clear();
    }

    /// Packets of a chain that have arrived, and neither left nor got lost.
    pub fn inside(&self) -> u64 {
        let (window, total) = (&self.window, &self.total);
        let out = |counts: &Counts| counts.delivered + counts.total_lost();
        (window.offered + total.offered) - out(window) - out(total)
    }
}
