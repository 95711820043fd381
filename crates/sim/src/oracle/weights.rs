//! Minimum work of packets, and the total of the heaviest ones.

use crate::chain::Costs;
use crate::traffic::{NO_FLOW_INDEX, Packet};

/// Picoseconds that rounding can remove from each of a packet's parts: cuts and jitter round down.
const ROUNDING: u64 = 4;
/// Picoseconds that a core carries over from one batch to the next.
const CARRIED: u64 = 1_000;

/// Minimum work of a packet, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weights {
    packet: u64,
    byte: u64,
    new_flow: u64,
    /// Part of it that no two packets of a flow can have at the same time.
    serial_packet: u64,
    serial_byte: u64,
}

impl Weights {
    /// Computes lemma 1 of the [module](super).
    pub fn of(costs: &Costs) -> Weights {
        let most = costs.most as u64;
        // The parts of a cut chain may sum to less than the whole.
        let cuts = costs.splits.iter();
        let together = cuts.clone().map(|cut| cut.first + cut.last);
        let together = together.fold(1.0, f64::min);
        let first = cuts.clone().map(|cut| cut.first).fold(1.0, f64::min);
        let last = cuts.map(|cut| cut.last).fold(1.0, f64::min);
        let jitter = costs.jitter.as_ref().map_or(1.0, |jitter| jitter.least());
        let scaled = |picos: u64, share: f64| (picos as f64 * share * jitter) as u64;
        let functions = costs.packet - costs.receive_packet;
        let packet = scaled(costs.batch, 1.0) / most + scaled(costs.receive_packet, 1.0) + scaled(functions, together);
        let serial = scaled(costs.batch - costs.receive_batch, 1.0) / most + scaled(functions, first.max(last));
        Weights {
            packet: packet.saturating_sub(ROUNDING),
            byte: scaled(costs.byte, together),
            new_flow: scaled(costs.new_flow, 1.0),
            serial_packet: serial.saturating_sub(ROUNDING + CARRIED),
            serial_byte: scaled(costs.byte, first.max(last)),
        }
    }

    /// Returns a packet's work on cores.
    #[inline]
    pub fn work(&self, packet: &Packet) -> u64 {
        if packet.flow == NO_FLOW_INDEX {
            return 0;
        }
        self.of_kind(kind(packet))
    }

    fn of_kind(&self, kind: usize) -> u64 {
        let bytes = (kind % KINDS) as u64;
        self.packet + self.byte * bytes + if kind < KINDS { 0 } else { self.new_flow }
    }

    /// Returns a packet's share of its flow's time.
    #[inline]
    pub fn serial(&self, packet: &Packet) -> u64 {
        self.serial_packet + self.serial_byte * u64::from(packet.bytes)
    }
}

/// Number of different packet lengths.
const KINDS: usize = 1 << u16::BITS;

/// Returns the kind of a packet: its length, and if it opens a flow. Packets of a kind have the same work.
#[inline]
fn kind(packet: &Packet) -> usize {
    usize::from(packet.bytes) + if packet.is_first() { KINDS } else { 0 }
}

/// Number of packets by kind.
#[derive(Debug)]
pub(super) struct Tally {
    pub packets: u64,
    pub flows: u64,
    kinds: Box<[u64]>,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            packets: 0,
            flows: 0,
            kinds: vec![0; 2 * KINDS].into_boxed_slice(),
        }
    }
}

impl Tally {
    /// Counts a packet.
    #[inline]
    pub fn count(&mut self, packet: &Packet) {
        self.packets += 1;
        // A packet without a flow index takes no work.
        if packet.flow != NO_FLOW_INDEX {
            self.flows += u64::from(packet.is_first());
            self.kinds[kind(packet)] += 1;
        }
    }

    /// Returns numbers of packets with their work, heaviest first.
    pub fn heaviest(&self, weights: &Weights) -> Heaviest {
        let kinds = self.kinds.iter().enumerate();
        let kinds = kinds.filter(|(_, count)| **count > 0);
        let mut kinds: Vec<(u64, u64)> = kinds.map(|(kind, count)| (weights.of_kind(kind), *count)).collect();
        kinds.sort_unstable_by(|a, b| b.cmp(a));
        Heaviest(kinds)
    }
}

/// Work per packet and number of such packets, heaviest first.
#[derive(Debug)]
pub(super) struct Heaviest(Vec<(u64, u64)>);

impl Heaviest {
    /// Returns the total work.
    pub fn all(&self) -> u128 {
        let work = |(weight, count): &(u64, u64)| u128::from(*weight) * u128::from(*count);
        self.0.iter().map(work).sum()
    }

    /// Returns the maximum work of `packets` packets.
    pub fn of(&self, packets: u64) -> u128 {
        let mut left = packets;
        let mut sum = 0;
        for &(weight, count) in &self.0 {
            let taken = count.min(left);
            sum += u128::from(weight) * u128::from(taken);
            left -= taken;
        }
        sum
    }

    /// Returns the minimum number of packets with this total work.
    pub fn needed(&self, work: u128) -> u64 {
        let (mut left, mut packets) = (work, 0);
        for &(weight, count) in &self.0 {
            let all = u128::from(weight) * u128::from(count);
            if left <= all {
                let some = left.div_ceil(u128::from(weight.max(1)));
                return packets + some as u64;
            }
            left -= all;
            packets += count;
        }
        packets
    }
}
