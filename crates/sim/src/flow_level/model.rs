//! Parameters of a chain's cores at flow level, from its cost model, its profile and its policy.

use super::error::FlowLevelError;
use super::limits::{POLICIES, STEP};
use super::meter::Calm;
use crate::chain::ChainModel;
use crate::rack::{Rack, Server};
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;
use tailwater_policy::core::QUEUES;
use tailwater_policy::tailwater::TailwaterOptions;
use tailwater_traffic::generate::TrafficStatistics;

/// NetBlaze's options: epochs beyond capacity until boost mode, and epochs without work until release.
const BOOST_AFTER: u32 = 3;
const RELEASE_AFTER: u32 = 5;

/// Steps of utilisation for which the time that a core is busy is computed.
const BUSY: usize = 32;

/// Use of auxiliary cores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sharing {
    /// None.
    Alone,
    /// Tailwater's core mapper: at once, by expected time.
    Tailwater(Limits),
    /// NetBlaze's core mapper: at the ends of epochs, by packets.
    NetBlaze {
        /// Length of an epoch, in nanoseconds.
        epoch: f64,
        /// Work that a core can do in one, in nanoseconds of the functions' time.
        capacity: f64,
        /// Epochs in a row beyond capacity until boost mode, or `None` for never.
        boost_after: Option<u32>,
        /// Epochs without work until an auxiliary core is released.
        release_after: u32,
    },
}

/// Limits of Tailwater's core mapper, in nanoseconds of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// Backlog that activates the first auxiliary core, and each further one.
    pub first: f64,
    pub further: f64,
    /// Backlog up to which the dedicated core keeps packets while auxiliary cores are active.
    pub share: f64,
    /// Backlog to which auxiliary cores are filled.
    pub fill: f64,
    /// Time without work until release.
    pub release: f64,
}

/// Costs of a chain's packets on its cores. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Model {
    pub sharing: Sharing,
    /// Time of a packet in a full batch, with the average share of new flows, and what a packet that opens a flow adds
    /// to the average.
    pub packet: f64,
    pub new: f64,
    /// Time of a packet that the dispatcher has received, as a part of `packet`.
    pub process: f64,
    /// Part of its time for which a core without a backlog is busy, by utilisation in full batches.
    busy: [f32; BUSY + 1],
    /// Dispatcher's part for each packet while auxiliary cores help, and for each packet that they get.
    pub receive: f64,
    pub hand_over: f64,
    /// Time on an auxiliary core, as a multiple of `packet`.
    pub dearer: f64,
    pub wake: f64,
    /// Mean additional time until a packet's batch ends.
    pub batch: f64,
    pub slo: f64,
    /// Work that waits at most: in the ring, and with buffers. The second and third are for one auxiliary core more
    /// each.
    pub ring: f64,
    pub most: [f64; 3],
    pub calm: Calm,
}

impl Model {
    pub fn new(
        chain: &ChainModel,
        (slo, policy): (Nanos, &str),
        profile: &CapacityProfile,
        traffic: &TrafficStatistics,
        (rack, server): (&Rack, &Server),
    ) -> Result<Model, FlowLevelError> {
        if !POLICIES.contains(&policy) {
            return Err(FlowLevelError::Policy {
                policy: policy.to_owned(),
            });
        }
        let full = f64::from(if chain.batch == 0 {
            crate::chain::BATCH
        } else {
            chain.batch
        });
        let new_share = (traffic.flows / traffic.packets).min(1.0);
        let minnows = traffic
            .minnows
            .map_or(0.0, |minnows| minnows.per_second * minnows.flows.mean());
        // New flows outside of minnow bursts.
        let usual = ((traffic.flows - minnows) / (traffic.packets - minnows)).clamp(0.0, 1.0);
        let opening = chain.costs.new_flow + if chain.cold_after > 0 { chain.cold_packet } else { 0.0 };
        let cold = match chain.cold_after {
            0 => 0.0,
            _ => chain.cold_packet / traffic.base_train.max(1.0) + chain.cold_batch / full,
        };
        let options = TailwaterOptions::measured(slo, profile);
        let one = chain.costs.packet + chain.costs.byte * traffic.bytes + cold;
        let measured = one + chain.costs.batch / full + new_share * opening;
        // Tailwater limits batches to a tenth of the objective.
        let most_batch = match policy {
            "tailwater" => libm::floor(slo.0 as f64 / 10.0 / measured)
                .clamp(12.0, full.max(12.0))
                .min(full),
            _ => full,
        };
        let in_batch =
            |batch: f64| one + chain.costs.batch / batch + chain.new_batch * (new_share * batch).min(1.0) / batch;
        let packet = in_batch(most_batch) + usual * opening;
        let receive_batch = chain.receive_batch / most_batch;
        let is_netblaze = policy.starts_with("netblaze");
        // Without bucket leases the dispatcher has received and looked up every packet.
        let (receive, queued) = match is_netblaze {
            true => (
                receive_batch + chain.receive_packet + chain.dispatch_packet,
                chain.dispatch_packet,
            ),
            false => (receive_batch + chain.lease_packet, 0.0),
        };
        let part = |percent: u32| slo.0 as f64 * f64::from(percent) / 100.0;
        let queue = f64::from(options.buffers / QUEUES) * packet;
        let first = part(options.activate_percent).min(queue);
        let share = part(options.share_percent).min(first);
        let full_batch = most_batch * packet;
        let fill = share.max(2.0 * full_batch).min(first);
        let wake = match chain.wakes.last() {
            Some(wake) => wake.p50 as f64,
            None => rack.timing.wake.0 as f64,
        };
        let epoch = slo.0 as f64 / 2.0;
        let frontier = &profile.frontier;
        let packets = |count: u32| f64::from(count.max(1));
        // An epoch's packets belong to nearly as many flows.
        let by_flows = frontier.capacity((epoch / packet) as u32);
        let capacity = match policy {
            "netblaze-core-static-safe" => frontier.smallest(),
            "netblaze-core-static-unsafe" => frontier.largest(),
            _ => by_flows,
        };
        let sharing = match policy {
            "static" | "rss++" | "metron" | "netblaze-no-core-mapper" => Sharing::Alone,
            "tailwater" => Sharing::Tailwater(Limits {
                first,
                further: (fill + full_batch).max(first * 2.0 / 3.0).min(first),
                share,
                fill,
                release: part(options.release_percent).max(wake),
            }),
            _ => Sharing::NetBlaze {
                epoch,
                capacity: packets(capacity) * (packet + queued - receive).max(packet / 10.0),
                boost_after: (policy != "netblaze-no-boost").then_some(BOOST_AFTER),
                release_after: RELEASE_AFTER,
            },
        };
        let work = packet + queued;
        let ring = f64::from(server.ring) * work;
        let buffers = match sharing {
            Sharing::Alone if !is_netblaze => 0.0,
            _ => f64::from(server.buffers / QUEUES) * work,
        };
        let poll = (rack.timing.poll.0 as f64).max(chain.poll);
        let alone = chain.costs.batch + one + queued + poll;
        Ok(Model {
            sharing,
            packet: work,
            process: ((work - receive) / work).clamp(0.1, 1.0),
            busy: busy(chain.costs.batch, work, most_batch),
            new: opening * (1.0 - usual),
            receive,
            hand_over: chain.hand_over_packet + chain.receipt_packet,
            dearer: 1.0 + (chain.auxiliary_packet + chain.auxiliary_batch / most_batch) / packet,
            wake: wake + rack.timing.hand_over.0 as f64,
            batch: full_batch / 2.0,
            slo: slo.0 as f64,
            ring,
            most: [ring + buffers, ring + 2.0 * buffers, ring + 3.0 * buffers],
            calm: Calm {
                alone,
                wait: chain.costs.batch + work / 2.0 * traffic.dispersion[0],
                dearer: alone / work,
                most: 1.0 - libm::sqrt(work * traffic.dispersion[1] / STEP).clamp(0.005, 0.1),
            },
        })
    }

    /// Returns the part of its time for which a core without a backlog is busy, at a utilisation in full batches. It is
    /// more, since batches are small.
    #[inline]
    pub fn busy(&self, utilisation: f64) -> f64 {
        let at = utilisation.clamp(0.0, 1.0) * BUSY as f64;
        let step = (at as usize).min(BUSY - 1);
        let [below, above] = [self.busy[step], self.busy[step + 1]].map(f64::from);
        below + (above - below) * (at - step as f64)
    }

    /// Returns the additional wait for the end of a packet's batch, behind this much work.
    #[inline]
    pub fn in_batch(&self, work: f64) -> f64 {
        self.calm.alone + (work / 2.0).min(self.batch)
    }
}

/// Returns [`Model::busy`] for batches of at most `most` packets, each of which takes `batch` besides its packets, and
/// for packets that take `packet` in full ones.
fn busy(batch: f64, packet: f64, most: f64) -> [f32; BUSY + 1] {
    let each = packet - batch / most;
    std::array::from_fn(|step| {
        let rate = step as f64 / BUSY as f64 / packet;
        // A batch has the packets that arrived during the last one, or else the next one alone. Its mean size is that
        // for which both are equal.
        let (mut low, mut high) = (1.0, most);
        for _ in 0..40 {
            let size = (low + high) / 2.0;
            let arrived = rate * (batch + each * size);
            match arrived + libm::exp(-arrived) > size {
                true => low = size,
                false => high = size,
            }
        }
        (rate * (each + batch / low)).min(1.0) as f32
    })
}

#[cfg(test)]
mod tests {
    use super::busy;

    #[test]
    fn a_core_is_busier_than_in_full_batches() {
        // Simulated queues with random arrivals, with batches of up to 32 packets and 320 ns for each.
        for (packet, expected) in [
            (250.0, [0.602_f64, 0.851, 0.990]),
            (840.0, [0.401, 0.642, 0.916]),
            (2000.0, [0.343, 0.563, 0.859]),
        ] {
            let table = busy(320.0, packet, 32.0);
            for (utilisation, expected) in [0.3_f64, 0.5, 0.8].into_iter().zip(expected) {
                let at = utilisation * 32.0;
                let (step, part) = (at as usize, at.fract());
                let found = f64::from(table[step]) * (1.0 - part) + f64::from(table[step + 1]) * part;
                assert!(
                    (found / expected - 1.0).abs() < 0.03,
                    "{packet}, {utilisation}: {found}"
                );
            }
            assert_eq!((table[0], table[32]), (0.0, 1.0));
        }
    }
}
