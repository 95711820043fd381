//! What processing a chain's packets takes.

use crate::pauses::Pauses;
use serde::Serialize;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, DetailedCosts, Pause, RECEIVE_BATCH, ServiceCosts, Wake};

/// What a chain's packets take of a core, as sums of parts. All costs are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainModel {
    /// The chain's name.
    pub name: String,
    /// A core that does everything: receives, looks up, runs the functions, sends.
    pub costs: ServiceCosts,
    /// Of a batch, what receiving takes: paid by who receives.
    pub receive_batch: f64,
    /// Of a packet, what receiving and the look-up take: paid by who receives.
    pub receive_packet: f64,
    /// What a packet takes more that goes straight through while others wait: it passes the ring.
    pub ring_packet: f64,
    /// What a packet takes more that does not go straight through, but waits in the core's own queue
    /// or goes to a helper: paid by who receives.
    pub dispatch_packet: f64,
    /// Handing a run of packets to a helper.
    pub hand_over_batch: f64,
    /// Each of its packets.
    pub hand_over_packet: f64,
    /// Each packet that is told to be done by a helper.
    pub receipt_packet: f64,
    /// A decision of the core mapper.
    pub decide: f64,
    /// Each flow that it is about.
    pub decide_flow: f64,
    /// Each packet that a decision moves.
    pub move_packet: f64,
    /// What a helper's batch takes more than one at home.
    pub helper_batch: f64,
    /// What a helper's packet takes more: another core has its lines in its cache.
    pub helper_packet: f64,
    /// What it takes beyond that on another NUMA node.
    pub numa_packet: f64,
    /// What the first packet takes more of a flow that came from another core for good.
    pub migrated_flow: f64,
    /// A packet is *cold* if so many others, or more, came since its flow's last one, and if it opens its
    /// flow: what it needs has left the caches. 0: none is.
    pub cold_after: u32,
    /// What a batch takes more that has a cold packet.
    pub cold_batch: f64,
    /// What each cold packet takes more.
    pub cold_packet: f64,
    /// What a batch takes more that has a packet that opens a flow.
    pub new_batch: f64,
    /// How long helpers take to wake up, by how long they were asleep; as the rack's
    /// [`wake`](crate::Timing::wake) says, if nothing is known.
    pub wakes: Vec<Wake>,
    /// From a packet's arrival until a core that waits for it has noticed, in the mean; the rack's
    /// [`poll`](crate::Timing::poll), if that is longer.
    pub poll: f64,
    /// What takes cores away for moments.
    pub pauses: Vec<Pause>,
    /// Whether a flow must be opened by the core that owns its bucket (NAT, for one).
    pub opens_at_home: bool,
    /// Where the chain can be cut for a flow that is too much for one core.
    pub splits: Vec<SplitCost>,
    /// Packets of a batch, at most; 32 if that is 0.
    pub batch: u16,
    /// By how much batches take longer or shorter than on average.
    pub jitter: Option<Jitter>,
}

/// A cut of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SplitCost {
    /// How many functions, counted from the chain's end, the second core has.
    pub last_functions: usize,
    /// Of the packets' costs, the first core's part, 0 to 1.
    pub first: f64,
    /// Of the packets' costs, the second core's part; both may be more than one together.
    pub last: f64,
}

/// Why there can be no such chain.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChainError {
    /// A cost is negative, not a number, or more than a second.
    #[error("{field}: expected nanoseconds from 0 to 1e9, found {value}")]
    Cost {
        /// The field.
        field: &'static str,
        /// What it is.
        value: f64,
    },
    /// Packets take no time at all.
    #[error("costs: expected a packet to take time, found neither `packet` nor `batch`")]
    Nothing,
    /// Receiving takes more than everything.
    #[error("{field}: expected at most the {whole} ns that everything takes, found {value}")]
    Part {
        /// The field.
        field: &'static str,
        /// The part.
        value: f64,
        /// The whole.
        whole: f64,
    },
    /// A part of a split is none.
    #[error("splits: expected parts from 0 to 1, found {first} and {last}")]
    Split {
        /// The first core's part.
        first: f64,
        /// The second core's.
        last: f64,
    },
    /// The profile has no service costs.
    #[error("the profile of \"{chain}\" has no costs; measure it again with `tailwater profile`")]
    NoCosts {
        /// The chain.
        chain: String,
    },
    /// Pauses that cannot be.
    #[error("pauses: expected some a second of some nanoseconds each, less than half of the time together")]
    Pauses,
    /// Too many packets in a batch.
    #[error("batch: expected at most {MOST_BATCH}, found {found}")]
    Batch {
        /// What was found.
        found: u16,
    },
}

/// The most packets of a batch.
pub const MOST_BATCH: u16 = 1024;

/// The batch of the live data plane.
pub(crate) const BATCH: u16 = 32;

/// What a profile without details is taken to say.
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
    /// A chain of these costs, of which receiving and everything between cores takes nothing more.
    pub fn new(name: &str, costs: ServiceCosts) -> ChainModel {
        ChainModel {
            name: name.to_owned(),
            costs,
            batch: BATCH,
            ..ChainModel::default()
        }
    }

    /// As measured. What a profile does not say, since it was measured by an older version or on a single
    /// core, is as on the machine that the data plane was first measured on.
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
        // An epoch of the split profile is full of first and of last parts.
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
            hand_over_packet: details.hand_over_packet,
            helper_packet: details.take_over_packet,
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

    /// What a packet of so many bytes takes in full batches, in nanoseconds.
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
            hand_over_batch: cost("hand_over_batch", self.hand_over_batch)?,
            hand_over_packet: cost("hand_over_packet", self.hand_over_packet)?,
            receipt_packet: cost("receipt_packet", self.receipt_packet)?,
            decide: cost("decide", self.decide)?,
            decide_flow: cost("decide_flow", self.decide_flow)?,
            move_packet: cost("move_packet", self.move_packet)?,
            helper_batch: cost("helper_batch", self.helper_batch)?,
            helper_packet: cost("helper_packet", self.helper_packet)?,
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
            most: usize::from(if self.batch == 0 { BATCH } else { self.batch }),
            jitter: self.jitter.clone(),
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

/// Packets that are processed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub packets: u64,
    pub bytes: u64,
    pub new: u64,
    /// Flows that came from another core, and are seen there the first time.
    pub migrated: u64,
    /// Packets that are cold.
    pub cold: u64,
}

/// A model in whole picoseconds.
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
    hand_over_batch: u64,
    hand_over_packet: u64,
    receipt_packet: u64,
    decide: u64,
    decide_flow: u64,
    move_packet: u64,
    helper_batch: u64,
    helper_packet: u64,
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
    /// Packets of a batch, at most.
    pub most: usize,
    pub jitter: Option<Jitter>,
}

impl Costs {
    /// Everything for a batch that goes straight through; `more` packets wait behind it, or none.
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

    /// How long a helper takes to wake up that slept for so long, by the draw `random`; `None` if nothing is
    /// known of that. In nanoseconds.
    pub fn wake(&self, asleep: u64, random: u64) -> Option<u64> {
        let after = self.wakes.partition_point(|wake| wake.asleep <= asleep);
        let wake = self.wakes.get(after.saturating_sub(1))?;
        // Of the fastest nothing is known but that half are as fast as the median, or faster.
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

    /// Receiving a batch, looking it up and sorting it.
    #[inline]
    pub fn receive(&self, packets: u64) -> u64 {
        if packets == 0 {
            return 0;
        }
        self.receive_batch + packets * (self.receive_packet + self.dispatch_packet)
    }

    /// The functions, for a batch that was received before.
    #[inline]
    pub fn process(&self, work: Work) -> u64 {
        self.batch - self.receive_batch + work.packets * (self.packet - self.receive_packet) + self.extra(work)
    }

    /// The functions on a helper.
    #[inline]
    pub fn help(&self, work: Work, other_node: bool) -> u64 {
        let numa = if other_node { self.numa_packet } else { 0 };
        self.process(work) + self.helper_batch + work.packets * (self.helper_packet + numa)
    }

    /// What is left out of a batch of which one flow's packets pass only a part of the functions:
    /// the rest of their costs. `last_functions` says where the chain is cut.
    pub fn left_out(&self, work: Work, last_functions: usize, last_part: bool) -> u64 {
        let split = self.splits.iter().find(|split| split.last_functions == last_functions);
        let share = match (split, last_part) {
            (Some(split), false) => split.first,
            (Some(split), true) => split.last,
            // Nobody said where the work lies: half and half.
            (None, _) => 0.5,
        };
        let all = work.packets * (self.packet - self.receive_packet) + work.bytes * self.byte;
        let done = (all as f64 * share) as u64;
        all - done.min(all)
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

/// How the time of batches varies, as a table from which each batch draws a factor. Equal seeds give
/// equal draws on any machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jitter(Box<[u32; JITTER]>);

/// Steps of a jitter's distribution.
const JITTER: usize = 256;

impl Jitter {
    /// Log-normal with mean 1 and this deviation of the logarithm; `None` unless that is from 0 to 2.
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

    /// The smallest factor.
    pub(crate) fn least(&self) -> f64 {
        f64::from(self.0[0]) / 65_536.0
    }

    /// `time` times what the draw `random` says.
    #[inline]
    pub(crate) fn apply(&self, time: u64, random: u64) -> u64 {
        let factor = u128::from(self.0[(random >> 56) as usize]);
        ((u128::from(time) * factor) >> 16) as u64
    }
}

/// The standard normal distribution's quantile, by bisection: only for making tables.
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

/// The `number`th of a stream of random numbers (SplitMix64).
#[inline]
pub(crate) fn random(seed: u64, number: u64) -> u64 {
    let mut z = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Time that is spent in picoseconds and passes in nanoseconds: what is left over comes next time.
#[inline]
pub(crate) fn spend(carry: &mut u64, picos: u64) -> u64 {
    let all = *carry + picos;
    *carry = all % 1000;
    all / 1000
}

/// The epoch that active cores are counted in (NetBlaze, section 4).
pub(crate) const COUNTED: Nanos = Nanos::from_micros(100);

#[cfg(test)]
mod tests;
