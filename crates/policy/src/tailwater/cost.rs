//! Cost of packets, estimated from the duration of batches.

use crate::capacity::ServiceCosts;
use crate::core::{Flowlet, Load, Unit};
use tailwater_net::Nanos;

/// Estimates are stored in sixteenths of a nanosecond.
const FRACTION: u32 = 4;
/// Share of a full batch below which a batch measures batch overhead rather than the cost of packets.
const MIN_BATCH_SHARE: (u32, u32) = (1, 2);
/// Divisor of the difference that one batch moves an estimate by.
const STEADY: i64 = 8;
/// Power of two by which one flowlet's effect on the share of new flows is divided.
const SHARE_STEP: u32 = 5;
/// Divisor of a full batch's effect on it.
const BATCH_STEP: i64 = 4;
/// The share of new flows is stored in units of 1 over this power of two.
const SHARE_BITS: u32 = 16;

/// Estimated core time per packet, and the extra time of a packet that opens a flow.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    /// Sixteenths of a nanosecond.
    packet: u64,
    /// Sixteenths of a nanosecond.
    new_flow: u64,
    /// Recent share of flowlets that open a flow, or of packets if buckets are offloaded.
    new_share: u32,
    unit: Unit,
    /// Lower and upper limit of the estimate per packet, in sixteenths of a nanosecond.
    bounds: (u64, u64),
    /// Minimum number of packets of a batch that the cost per packet is learnt from.
    min_batch: u32,
    /// `true` if the cost per packet is known.
    known: bool,
    /// [`packet`](Costs::packet) in nanoseconds. If buckets are offloaded, this includes the cost of opening a flow,
    /// times the share of packets that do.
    per_packet: u64,
    /// Cost of a queued flow in addition to its packets, in nanoseconds: the cost of opening one, times the share of
    /// flowlets that do. 0 if buckets are offloaded.
    per_flow: u64,
}

impl Costs {
    /// Creates estimates from measured costs, within a factor of eight of which they stay, or from defaults.
    pub fn new(measured: Option<ServiceCosts>, unit: Unit) -> Self {
        let scaled = |nanos: f64| (nanos.max(0.0) * f64::from(1 << FRACTION)) as u64;
        let mut costs = Costs {
            packet: 500 << FRACTION,
            new_flow: 0,
            new_share: 0,
            unit,
            bounds: (10 << FRACTION, 100_000 << FRACTION),
            min_batch: 0,
            known: false,
            per_packet: 0,
            per_flow: 0,
        };
        if let Some(measured) = measured {
            costs.packet = scaled(measured.packet + measured.batch / 32.0).max(1);
            costs.new_flow = scaled(measured.new_flow);
            costs.bounds = ((costs.packet / 8).max(1), costs.packet * 8);
            costs.known = true;
        }
        costs.fit(32);
        costs.refresh();
        costs
    }

    /// Sets the maximum batch size.
    pub fn fit(&mut self, batch: u32) {
        self.min_batch = (batch * MIN_BATCH_SHARE.0 / MIN_BATCH_SHARE.1).max(1);
    }

    fn refresh(&mut self) {
        let opening = (self.new_flow * u64::from(self.new_share)) >> (SHARE_BITS + FRACTION);
        let packet = (self.packet >> FRACTION).max(1);
        (self.per_packet, self.per_flow) = match self.unit {
            Unit::Flow => (packet, opening),
            Unit::Bucket => (packet + opening, 0),
        };
    }

    /// Updates the estimates from a batch of `packets`, of which `new` opened a flow.
    pub fn learn(&mut self, packets: u32, new: u32, took: Nanos) {
        if packets == 0 {
            return;
        }
        let new = new.min(packets);
        if self.unit == Unit::Bucket {
            let share = ((u64::from(new) << SHARE_BITS) / u64::from(packets)) as i64;
            let part = i64::from(packets.min(32));
            let step = (share - i64::from(self.new_share)) * part / (32 * BATCH_STEP);
            self.new_share = self.new_share.saturating_add_signed(step as i32);
        }
        if self.known && packets < self.min_batch {
            self.refresh();
            return;
        }
        let took = took.0.min(u64::from(packets) * self.bounds.1) << FRACTION;
        if new > packets / 2 {
            // Mostly new flows: other batches measure the cost per packet better.
            let rest = took.saturating_sub(self.packet * u64::from(packets));
            let sample = (rest / u64::from(new)).min(self.bounds.1);
            self.new_flow = towards(self.new_flow, sample);
        } else {
            let rest = took.saturating_sub(self.new_flow * u64::from(new));
            let sample = (rest / u64::from(packets)).clamp(self.bounds.0, self.bounds.1);
            self.packet = match self.known {
                true => towards(self.packet, sample),
                false => sample,
            };
            self.known |= packets >= self.min_batch;
        }
        self.refresh();
    }

    /// Records a flowlet for the share of new flows.
    #[inline]
    pub fn see(&mut self, new: bool) {
        if self.unit == Unit::Bucket {
            // The batches tell.
            return;
        }
        let whole = u32::from(new) << SHARE_BITS;
        self.new_share = self.new_share - (self.new_share >> SHARE_STEP) + (whole >> SHARE_STEP);
        self.per_flow = (self.new_flow * u64::from(self.new_share)) >> (SHARE_BITS + FRACTION);
    }

    /// Returns the time of a load, in nanoseconds.
    #[inline]
    pub fn of(&self, load: Load) -> u64 {
        u64::from(load.packets) * self.per_packet + u64::from(load.flows) * self.per_flow
    }

    /// Returns the time of a flowlet, in nanoseconds. At least 1.
    #[inline]
    pub fn flowlet(&self, flowlet: Flowlet) -> u64 {
        let others = u64::from(flowlet.packets.saturating_sub(1));
        self.packet(flowlet.new) + others * self.per_packet
    }

    /// Returns the time of a packet, in nanoseconds. At least 1.
    #[inline]
    pub fn packet(&self, new: bool) -> u64 {
        self.per_packet + if new { self.new_flow >> FRACTION } else { 0 }
    }
}

/// Returns the estimate moved one step towards a sample.
fn towards(estimate: u64, sample: u64) -> u64 {
    let step = (sample as i64 - estimate as i64) / STEADY;
    estimate.saturating_add_signed(step)
}
