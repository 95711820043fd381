//! Samples of the flows that a shared port's packets belong to: which addresses the load of each chain comes from.
//!
//! A poller samples one packet of a number that varies around a mean, so that traffic with a period has no influence.
//! It costs a comparison for each batch, and a parse for each sample. Samples that find their ring full are left out.
//! The reader sets the mean: about as many packets as the ring has room for between two readings are sampled, all of
//! them where they are few.

use super::rules::NOBODY;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::parse::{Network, parse};

/// Samples of a poller between two readings, at most.
const RING: usize = 2048;
/// Mean number of packets for a sample: at the start, and at most.
const FIRST_MEAN: u32 = 16;
const MOST_MEAN: u32 = 1 << 16;

/// Packet that stands for others of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowSample {
    /// Slot of the chain on the port.
    pub slot: usize,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Number of packets that it stands for.
    pub packets: u32,
}

/// Poller's end.
#[derive(Debug)]
pub(crate) struct FlowSampler {
    to: Producer<FlowSample>,
    mean: Arc<AtomicU32>,
    /// Packets until the next sample.
    skip: usize,
    /// State of the generator of intervals, never 0.
    state: u32,
}

/// Reader's end.
#[derive(Debug)]
pub(super) struct FlowSamples {
    from: Consumer<FlowSample>,
    mean: Arc<AtomicU32>,
}

/// Creates both ends.
pub(super) fn flow_samples() -> (FlowSampler, FlowSamples) {
    let (to, from) = ring(RING);
    let mean = Arc::new(AtomicU32::new(FIRST_MEAN));
    let sampler = FlowSampler {
        to,
        mean: Arc::clone(&mean),
        skip: 0,
        state: 0x9e37_79b9,
    };
    (sampler, FlowSamples { from, mean })
}

impl FlowSampler {
    /// Takes note of a batch, with the slot of each packet's chain.
    #[inline]
    pub(super) fn note(&mut self, batch: &Batch, chosen: &[u8; MAX_BATCH]) {
        let packets = batch.len();
        if self.skip >= packets {
            self.skip -= packets;
        } else {
            self.sample(batch, chosen);
        }
    }

    #[cold]
    #[inline(never)]
    fn sample(&mut self, batch: &Batch, chosen: &[u8; MAX_BATCH]) {
        let mean = self.mean.load(Ordering::Relaxed).max(1);
        let mut place = self.skip;
        while place < batch.len() {
            let slot = chosen[place];
            if slot != NOBODY {
                self.push(usize::from(slot), batch.frame(place), mean);
            }
            place += self.interval(mean);
        }
        self.skip = place - batch.len();
    }

    fn push(&mut self, slot: usize, frame: &[u8], packets: u32) {
        if self.to.room(1) == 0 {
            return;
        }
        let Some(headers) = parse(frame).ok().filter(|headers| headers.network != Network::NotIp) else {
            return;
        };
        // There is room.
        let _ = self.to.push(FlowSample {
            slot,
            source: headers.key.source(),
            destination: headers.key.destination(),
            packets,
        });
    }

    /// Packets to the next sample: 1 to twice the mean, which it is on average.
    fn interval(&mut self, mean: u32) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        1 + (self.state % (2 * mean - 1)) as usize
    }
}

impl FlowSamples {
    /// Passes the samples since the last call to `each`, and adapts their number.
    pub(super) fn read(&mut self, each: impl FnMut(FlowSample)) {
        let count = self.from.pop_each(RING, each);
        let mean = self.mean.load(Ordering::Relaxed);
        let mean = match count {
            RING.. => (2 * mean).min(MOST_MEAN),
            _ if count < RING / 4 => (mean / 2).max(1),
            _ => mean,
        };
        self.mean.store(mean, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::buffer::BufferPool;
    use tailwater_net::Nanos;

    /// Batch of packets to these last bytes of the destination 10.0.0.x, all of one chain.
    fn batch_of(pool: &mut BufferPool, destinations: &[u8]) -> Batch {
        let mut batch = Batch::new(pool, MAX_BATCH);
        for last in destinations {
            let mut frame = [0; 60];
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
            frame[26..34].copy_from_slice(&[192, 0, 2, 1, 10, 0, 0, *last]);
            frame[38..40].copy_from_slice(&[0, 26]);
            assert!(batch.push(pool, &frame, Nanos::ZERO, 0));
        }
        batch
    }

    #[test]
    fn samples_stand_for_all_packets_though_their_traffic_has_a_period() {
        let mut pool = BufferPool::new(MAX_BATCH as u32, 128).unwrap();
        let (mut sampler, mut samples) = flow_samples();
        // Every fourth packet goes to 10.0.0.1; the period is that of the mean interval.
        let turn: Vec<u8> = (0..32).map(|number| if number % 4 == 0 { 1 } else { 2 }).collect();
        let mut batch = batch_of(&mut pool, &turn);
        let (mut packets, mut sampled) = ([0_u64; 2], 0);
        for _ in 0..8_000 {
            sampler.note(&batch, &[3; MAX_BATCH]);
            // Two thirds of the ring for each reading: the mean stays.
            if samples.from.ready(RING) >= RING * 2 / 3 {
                samples.read(|sample| {
                    assert_eq!(sample.slot, 3);
                    assert_eq!(sample.source, IpAddr::from([192, 0, 2, 1]));
                    let IpAddr::V4(to) = sample.destination else { panic!() };
                    packets[usize::from(to.octets()[3]) - 1] += u64::from(sample.packets);
                    sampled += 1;
                });
            }
        }
        let all = (packets[0] + packets[1]) as f64;
        assert!((all / 256_000.0 - 1.0).abs() < 0.15, "{packets:?}");
        assert!((packets[0] as f64 / all - 0.25).abs() < 0.02, "{packets:?}");
        assert!(sampled > 10_000, "{sampled}");
        batch.release(&mut pool);
    }

    #[test]
    fn few_packets_are_all_sampled_and_many_as_far_as_there_is_room() {
        let mut pool = BufferPool::new(MAX_BATCH as u32, 128).unwrap();
        let (mut sampler, mut samples) = flow_samples();
        let mut few = batch_of(&mut pool, &[1]);
        for _ in 0..10 {
            samples.read(|_| {});
        }
        // The packets that were to be skipped are over.
        for _ in 0..64 {
            sampler.note(&few, &[0; MAX_BATCH]);
        }
        samples.read(|_| {});
        for _ in 0..100 {
            sampler.note(&few, &[0; MAX_BATCH]);
        }
        let mut seen = 0;
        samples.read(|sample| seen += sample.packets);
        assert_eq!(seen, 100);
        // Nobody's packets are none of a chain's.
        sampler.note(&few, &[NOBODY; MAX_BATCH]);
        samples.read(|sample| panic!("{sample:?}"));
        few.release(&mut pool);
        let mut many = batch_of(&mut pool, &[1; 32]);
        let mut last = 0;
        for _ in 0..12 {
            for _ in 0..10_000 {
                sampler.note(&many, &[0; MAX_BATCH]);
            }
            last = 0;
            samples.read(|sample| last += sample.packets);
        }
        // 320,000 packets for each reading: the ring's room suffices for one of 157 or fewer.
        assert!((0.8..1.2).contains(&(f64::from(last) / 320_000.0)), "{last}");
        many.release(&mut pool);
    }
}
