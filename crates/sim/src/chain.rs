//! Cost model of a chain's packets.

use crate::pauses::Pauses;
use serde::Serialize;
use tailwater_api::WhenOverloaded;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, DetailedCosts, Pause, RECEIVE_BATCH, ServiceCosts, Wake};
use tailwater_policy::core::Unit;

/// Core time of a chain's packets, as sums of parts. All costs are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainModel {
    /// The chain's name.
    pub name: String,
    /// Costs on a core that does everything: receives, looks up, runs the functions, sends.
    pub costs: ServiceCosts,
    /// Receiving a batch, as a part of its cost. The receiving core pays it.
    pub receive_batch: f64,
    /// Receiving a packet and looking up its flow, as a part of its cost. The receiving core pays it, or, with
    /// [bucket leases](Unit::Bucket), the processing core.
    pub receive_packet: f64,
    /// Extra cost of a packet that goes straight through while others wait, since it passes the ring.
    pub ring_packet: f64,
    /// Extra cost of a packet that waits in the core's own queue or is offloaded. The receiving core pays it.
    pub dispatch_packet: f64,
    /// The same with [bucket leases](Unit::Bucket): sorting a packet by its RSS bucket, without parsing it. Replaces
    /// `receive_packet` and `dispatch_packet` on the receiving core.
    pub lease_packet: f64,
    /// Offloading a run of packets to an auxiliary core.
    pub hand_over_batch: f64,
    /// Each of its packets.
    pub hand_over_packet: f64,
    /// Each packet that an auxiliary core reports done.
    pub receipt_packet: f64,
    /// A decision of the core mapper.
    pub decide: f64,
    /// Each flow of the decision.
    pub decide_flow: f64,
    /// Each packet that a decision moves.
    pub move_packet: f64,
    /// Extra cost of a batch on an auxiliary core.
    pub auxiliary_batch: f64,
    /// Extra cost of a packet on an auxiliary core: its cache lines are in another core's cache.
    pub auxiliary_packet: f64,
    /// Extra cost beyond that on another NUMA node.
    pub numa_packet: f64,
    /// Extra cost of the first packet of a flow after its migration to this core.
    pub migrated_flow: f64,
    /// Number of other packets that the core of a flow's last packet has processed since, from which on a packet is
    /// *cold*: its state has left the caches. A packet that opens its flow is cold, too. 0 disables this.
    pub cold_after: u32,
    /// Extra cost of a batch with a cold packet.
    pub cold_batch: f64,
    /// Extra cost of each cold packet.
    pub cold_packet: f64,
    /// Extra cost of a batch with a packet that opens a flow.
    pub new_batch: f64,
    /// Wake-up times of auxiliary cores, by the time asleep. If empty, the rack's [`wake`](crate::Timing::wake)
    /// applies.
    pub wakes: Vec<Wake>,
    /// Mean time from a packet's arrival until a polling core notices it. The rack's [`poll`](crate::Timing::poll)
    /// applies if it is longer.
    pub poll: f64,
    /// Interruptions of cores by the machine.
    pub pauses: Vec<Pause>,
    /// `true` if a flow must be opened by the core that owns its bucket (NAT, for example).
    pub opens_at_home: bool,
    /// Split points of the chain, for a flow that exceeds one core.
    pub splits: Vec<SplitCost>,
    /// Maximum packets per batch. 0 stands for 32.
    pub batch: u16,
    /// Variation of the batch time.
    pub jitter: Option<Jitter>,
    /// Treatment of packets that are too late under overload. A discarded packet costs
    /// [`receive_packet`](ChainModel::receive_packet).
    pub when_overloaded: WhenOverloaded,
    /// Packets per second that it was admitted with, or 0 if unknown. A core broker regards a chain as overloaded if
    /// more arrive.
    pub planned_rate: f64,
}

/// Split point of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SplitCost {
    /// Number of functions on the second core, counted from the chain's end.
    pub last_functions: usize,
    /// Share of the packets' costs on the first core, 0 to 1.
    pub first: f64,
    /// Share of the packets' costs on the second core. Both shares together can exceed 1.
    pub last: f64,
}

/// Reason why a chain model is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChainError {
    /// A cost is negative, not a number, or more than a second.
    #[error("{field}: expected nanoseconds from 0 to 1e9, found {value}")]
    Cost {
        /// Field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// Packets take no time.
    #[error("costs: expected `packet` or `batch` above 0, found neither")]
    Nothing,
    /// A part exceeds the whole, for example receiving.
    #[error("{field}: expected at most the total of {whole} ns, found {value}")]
    Part {
        /// Field.
        field: &'static str,
        /// Value of the part.
        value: f64,
        /// Value of the whole.
        whole: f64,
    },
    /// A split's shares are invalid.
    #[error("splits: expected parts from 0 to 1, found {first} and {last}")]
    Split {
        /// First core's share.
        first: f64,
        /// Second core's share.
        last: f64,
    },
    /// The profile has no service costs.
    #[error("the profile of \"{chain}\" has no costs; measure it again with `tailwater profile`")]
    NoCosts {
        /// Name of the chain.
        chain: String,
    },
    /// Pauses are invalid.
    #[error("pauses: expected a rate and a length above 0, less than half of the time in total")]
    Pauses,
    /// Too many packets in a batch.
    #[error("batch: expected at most {MOST_BATCH}, found {found}")]
    Batch {
        /// Batch size found.
        found: u16,
    },
}

/// Maximum batch size.
pub const MOST_BATCH: u16 = 1024;

/// Batch size of the live data plane.
pub(crate) const BATCH: u16 = 32;

/// Assumed cost of sorting a packet by its RSS bucket, in nanoseconds. Profiles do not contain it.
const LEASE_PACKET: f64 = 15.0;

/// Assumed details of a profile without any.
static ASSUMED: DetailedCosts = DetailedCosts {
    traffic_packet: 0.0,
    cold_after: 0,
    cold_batch: 0.0,
    cold_packet: 0.0,
    new_batch: 0.0,
    receive_packet: 35.0,
    ring_packet: 0.0,
    queue_packet: 85.0,
    hand_over_packet: 25.0,
    take_over_packet: 35.0,
    poll: 0.0,
    wakes: Vec::new(),
    pauses: Vec::new(),
};

impl ChainModel {
    /// Creates a chain with these costs. Receiving and all work between cores is free.
    pub fn new(name: &str, costs: ServiceCosts) -> ChainModel {
        ChainModel {
            name: name.to_owned(),
            costs,
            batch: BATCH,
            ..ChainModel::default()
        }
    }

    /// Creates a chain from a profile. Older profiles and those measured on a single core lack values. These default to
    /// the machine that the data plane was first measured on.
    ///
    /// # Errors
    /// The profile has no costs.
    pub fn from_profile(profile: &CapacityProfile) -> Result<ChainModel, ChainError> {
        let Some(costs) = profile.costs else {
            return Err(ChainError::NoCosts {
                chain: profile.chain.clone(),
            });
        };
        let packet = costs.packet + costs.batch / f64::from(BATCH);
        // An epoch of the split profile is filled by the first parts and by the last parts.
        let part = |packets: u32| {
            let nanos = profile.epoch.0 as f64 / f64::from(packets);
            (nanos / packet).clamp(0.0, 1.0)
        };
        let splits = profile.splits.points().iter().map(|point| SplitCost {
            last_functions: point.last_functions,
            first: part(point.first),
            last: part(point.last),
        });
        let details = profile.details.as_ref().unwrap_or(&ASSUMED);
        Ok(ChainModel {
            receive_packet: details.receive_packet.min(costs.packet),
            receive_batch: RECEIVE_BATCH.min(costs.batch),
            ring_packet: details.ring_packet,
            dispatch_packet: details.queue_packet,
            lease_packet: LEASE_PACKET,
            hand_over_packet: details.hand_over_packet,
            auxiliary_packet: details.take_over_packet,
            decide: 500.0,
            decide_flow: 4.0,
            move_packet: 5.0,
            cold_after: details.cold_after,
            cold_batch: details.cold_batch,
            cold_packet: details.cold_packet,
            new_batch: details.new_batch,
            wakes: details.wakes.clone(),
            poll: details.poll,
            pauses: details.pauses.clone(),
            splits: splits.collect(),
            ..ChainModel::new(&profile.chain, costs)
        })
    }

    /// Returns the time of a packet of `bytes` bytes in full batches, in nanoseconds.
    pub fn packet_nanos(&self, bytes: f64) -> f64 {
        let batch = f64::from(if self.batch == 0 { BATCH } else { self.batch });
        self.costs.packet + self.costs.byte * bytes + self.costs.batch / batch
    }

    pub(crate) fn compile(&self) -> Result<Costs, ChainError> {
        let cost = |field: &'static str, value: f64| {
            if (0.0..=1e9).contains(&value) {
                return Ok((value * 1e3).round() as u64);
            }
            Err(ChainError::Cost { field, value })
        };
        let costs = Costs {
            batch: cost("costs.batch", self.costs.batch)?,
            packet: cost("costs.packet", self.costs.packet)?,
            byte: cost("costs.byte", self.costs.byte)?,
            new_flow: cost("costs.new_flow", self.costs.new_flow)?,
            receive_batch: cost("receive_batch", self.receive_batch)?,
            receive_packet: cost("receive_packet", self.receive_packet)?,
            ring_packet: cost("ring_packet", self.ring_packet)?,
            dispatch_packet: cost("dispatch_packet", self.dispatch_packet)?,
            lease_packet: cost("lease_packet", self.lease_packet)?,
            hand_over_batch: cost("hand_over_batch", self.hand_over_batch)?,
            hand_over_packet: cost("hand_over_packet", self.hand_over_packet)?,
            receipt_packet: cost("receipt_packet", self.receipt_packet)?,
            decide: cost("decide", self.decide)?,
            decide_flow: cost("decide_flow", self.decide_flow)?,
            move_packet: cost("move_packet", self.move_packet)?,
            auxiliary_batch: cost("helper_batch", self.auxiliary_batch)?,
            auxiliary_packet: cost("helper_packet", self.auxiliary_packet)?,
            numa_packet: cost("numa_packet", self.numa_packet)?,
            migrated_flow: cost("migrated_flow", self.migrated_flow)?,
            cold_after: self.cold_after,
            cold_batch: cost("cold_batch", self.cold_batch)?,
            cold_packet: cost("cold_packet", self.cold_packet)?,
            new_batch: cost("new_batch", self.new_batch)?,
            wakes: self.wakes.clone(),
            poll: cost("poll", self.poll)? / 1000,
            pauses: match self.pauses.is_empty() {
                true => None,
                false => Some(Pauses::new(&self.pauses).ok_or(ChainError::Pauses)?),
            },
            opens_at_home: self.opens_at_home,
            splits: self.splits.clone(),
            unit: Unit::Flow,
            most: usize::from(if self.batch == 0 { BATCH } else { self.batch }),
            jitter: self.jitter.clone(),
            when_overloaded: self.when_overloaded,
            planned_rate: self.planned_rate,
        };
        if costs.batch + costs.packet == 0 {
            return Err(ChainError::Nothing);
        }
        for (field, value, whole) in [
            ("receive_batch", self.receive_batch, self.costs.batch),
            ("receive_packet", self.receive_packet, self.costs.packet),
        ] {
            if value > whole {
                return Err(ChainError::Part { field, value, whole });
            }
        }
        for SplitCost { first, last, .. } in &self.splits {
            let part = 0.0..=1.0;
            if !part.contains(first) || !part.contains(last) {
                return Err(ChainError::Split {
                    first: *first,
                    last: *last,
                });
            }
        }
        if self.batch > MOST_BATCH {
            return Err(ChainError::Batch { found: self.batch });
        }
        Ok(costs)
    }
}

/// Packets processed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub packets: u64,
    pub bytes: u64,
    pub new: u64,
    /// Flows that migrated from another core and are processed here for the first time.
    pub migrated: u64,
    /// Cold packets.
    pub cold: u64,
}

/// Cost model in whole picoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub batch: u64,
    pub packet: u64,
    pub byte: u64,
    pub new_flow: u64,
    pub receive_batch: u64,
    pub receive_packet: u64,
    ring_packet: u64,
    dispatch_packet: u64,
    lease_packet: u64,
    hand_over_batch: u64,
    hand_over_packet: u64,
    receipt_packet: u64,
    decide: u64,
    decide_flow: u64,
    move_packet: u64,
    auxiliary_batch: u64,
    auxiliary_packet: u64,
    numa_packet: u64,
    migrated_flow: u64,
    pub cold_after: u32,
    cold_batch: u64,
    cold_packet: u64,
    new_batch: u64,
    wakes: Vec<Wake>,
    /// In nanoseconds.
    pub poll: u64,
    pub pauses: Option<Pauses>,
    pub opens_at_home: bool,
    pub splits: Vec<SplitCost>,
    /// Unit in which packets are offloaded. It determines which core pays for parsing and look-up.
    pub unit: Unit,
    /// Maximum packets per batch.
    pub most: usize,
    pub jitter: Option<Jitter>,
    pub when_overloaded: WhenOverloaded,
    pub planned_rate: f64,
}

impl Costs {
    /// Sets the unit in which packets are offloaded.
    pub fn with_unit(self, unit: Unit) -> Costs {
        Costs { unit, ..self }
    }

    /// Returns the part of a packet's cost that the dispatcher pays when it receives the packet.
    #[inline]
    fn look_up_packet(&self) -> u64 {
        match self.unit {
            Unit::Flow => self.receive_packet,
            Unit::Bucket => 0,
        }
    }

    /// Returns the full cost of a batch that goes straight through. `more` is `true` if packets wait behind it.
    #[inline]
    pub fn whole(&self, work: Work, more: bool) -> u64 {
        let ring = if more { self.ring_packet } else { 0 };
        self.batch + work.packets * (self.packet + ring) + self.extra(work)
    }

    #[inline]
    fn extra(&self, work: Work) -> u64 {
        let cold = match work.cold {
            0 => 0,
            packets => self.cold_batch + packets * self.cold_packet,
        };
        let new = match work.new {
            0 => 0,
            flows => self.new_batch + flows * self.new_flow,
        };
        work.bytes * self.byte + new + work.migrated * self.migrated_flow + cold
    }

    /// Returns the wake-up time in nanoseconds of an auxiliary core after `asleep`, from the draw `random`, or `None`
    /// without wake-up data.
    pub fn wake(&self, asleep: u64, random: u64) -> Option<u64> {
        let after = self.wakes.partition_point(|wake| wake.asleep <= asleep);
        let wake = self.wakes.get(after.saturating_sub(1))?;
        // Below the median no data exists, so the lower half wakes within the median.
        let quantiles = [
            (0, wake.p50),
            (50, wake.p50),
            (90, wake.p90),
            (99, wake.p99),
            (100, wake.p99),
        ];
        let drawn = (random >> 40) * 100;
        let at = quantiles.partition_point(|(percent, _)| percent << 24 <= drawn);
        let ((from, low), (to, high)) = (quantiles[at - 1], quantiles[at.min(quantiles.len() - 1)]);
        let span = ((to - from) << 24).max(1);
        Some(low + (high - low) * (drawn - (from << 24)) / span)
    }

    /// Returns the cost of receiving a batch and sorting it, by flow or by bucket.
    #[inline]
    pub fn receive(&self, packets: u64) -> u64 {
        if packets == 0 {
            return 0;
        }
        let sorting = match self.unit {
            Unit::Flow => self.receive_packet + self.dispatch_packet,
            Unit::Bucket => self.lease_packet,
        };
        self.receive_batch + packets * sorting
    }

    /// Returns the cost of discarding packets that are too late.
    #[inline]
    pub fn discard(&self, packets: usize) -> u64 {
        packets as u64 * self.receive_packet
    }

    /// Returns the cost of the functions, for a batch that was received before. With bucket leases this includes
    /// parsing and look-up.
    #[inline]
    pub fn process(&self, work: Work) -> u64 {
        self.batch - self.receive_batch + work.packets * (self.packet - self.look_up_packet()) + self.extra(work)
    }

    /// Returns the time of a packet in a full batch, without its length, in nanoseconds.
    pub fn packet_nanos(&self) -> u64 {
        (self.batch / self.most as u64 + self.packet) / 1000
    }

    /// Returns the cost of the functions on an auxiliary core.
    #[inline]
    pub fn help(&self, work: Work, other_node: bool) -> u64 {
        let numa = if other_node { self.numa_packet } else { 0 };
        self.process(work) + self.auxiliary_batch + work.packets * (self.auxiliary_packet + numa)
    }

    /// Returns the part of a batch's cost that is not incurred on this core, if one flow's packets pass only some
    /// functions here. `last_functions` selects the split point. `behind` is the number of last functions that an
    /// auxiliary core leaves to another one, or `None` on the dispatching core, which leaves all of them.
    pub fn left_out(&self, work: Work, last_functions: usize, behind: Option<usize>) -> u64 {
        let split = |functions| self.splits.iter().find(|split| split.last_functions == functions);
        let share = match (split(last_functions), behind) {
            (Some(split), None) => split.first,
            (Some(part), Some(behind)) => match split(behind) {
                None => part.last,
                // The shares of both sides exceed 1 by the cost of the cut between them.
                Some(next) => (part.last - next.last).max(0.0) + (next.first + next.last - 1.0).max(0.0),
            },
            // The distribution of the work is unknown: half and half.
            (None, _) => 0.5,
        };
        let last_part = behind.is_some();
        let all = work.packets * (self.packet - self.receive_packet) + work.bytes * self.byte;
        let done = (all as f64 * share) as u64;
        // The first core has parsed the packets and looked up their flows.
        let looked_up = if last_part {
            self.receive_packet - self.look_up_packet()
        } else {
            0
        };
        all - done.min(all) + work.packets * looked_up
    }

    #[inline]
    pub fn hand_over(&self, packets: u64) -> u64 {
        self.hand_over_batch + packets * self.hand_over_packet
    }

    #[inline]
    pub fn receipts(&self, packets: u64) -> u64 {
        packets * self.receipt_packet
    }

    #[inline]
    pub fn decision(&self, flows: u64, moved: u64) -> u64 {
        self.decide + flows * self.decide_flow + self.moved(moved)
    }

    #[inline]
    pub fn moved(&self, packets: u64) -> u64 {
        packets * self.move_packet
    }
}

/// Variation of the batch time, as a table from which each batch draws a factor. Equal seeds give equal draws on any
/// machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jitter(Box<[u32; JITTER]>);

/// Steps of the distribution.
const JITTER: usize = 256;

impl Jitter {
    /// Returns a log-normal distribution with mean 1 and this standard deviation of the logarithm, or `None` unless it
    /// is from 0 to 2.
    pub fn log_normal(sigma: f64) -> Option<Jitter> {
        if !(0.0..=2.0).contains(&sigma) {
            return None;
        }
        let mut factors = [0.0; JITTER];
        for (step, factor) in factors.iter_mut().enumerate() {
            let quantile = (step as f64 + 0.5) / JITTER as f64;
            *factor = libm::exp(sigma * normal_quantile(quantile));
        }
        let mean = factors.iter().sum::<f64>() / JITTER as f64;
        let scaled = factors.map(|factor| (factor / mean * 65_536.0).round() as u32);
        Some(Jitter(Box::new(scaled)))
    }

    /// Returns the smallest factor.
    pub(crate) fn least(&self) -> f64 {
        f64::from(self.0[0]) / 65_536.0
    }

    /// Returns `time` multiplied by the factor for the draw `random`.
    #[inline]
    pub(crate) fn apply(&self, time: u64, random: u64) -> u64 {
        let factor = u128::from(self.0[(random >> 56) as usize]);
        ((u128::from(time) * factor) >> 16) as u64
    }
}

/// Returns a quantile of the standard normal distribution, by bisection. Used only to create tables.
fn normal_quantile(probability: f64) -> f64 {
    let below = |x: f64| 0.5 * libm::erfc(-x / std::f64::consts::SQRT_2);
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if below(middle) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Returns element `number` of a stream of random numbers (SplitMix64).
#[inline]
pub(crate) fn random(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Converts spent picoseconds into elapsed nanoseconds. The remainder stays in `carry`.
#[inline]
pub(crate) fn spend(carry: &mut u64, picos: u64) -> u64 {
    let all = *carry + picos;
    *carry = all % 1000;
    all / 1000
}

/// Length of the epochs in which active cores are counted (NetBlaze, section 4).
pub(crate) const COUNTED: Nanos = Nanos::from_micros(100);

#[cfg(test)]
mod tests;
