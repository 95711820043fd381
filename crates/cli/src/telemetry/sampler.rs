//! Packets of all chains that are traced, a few in a second.

use super::queue::Queue;
use super::records::{Identifiers, packet_spans};
use crate::export_sources::TracedChains;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tailwater_chain::packet_traces::{PacketTraces, TraceStep, TraceStream};
use tailwater_dataplane::clock::Clock;
use tailwater_net::Nanos;

/// Shortest time between the beginnings of two samples of a chain.
const SHORTEST: Duration = Duration::from_millis(200);
/// A sample whose packets have all come ends once there has been no step for this time.
const REST: Duration = Duration::from_millis(100);

/// Sampler of packets.
pub(super) struct Sampler {
    /// Packets of a sample; 0 if there are none.
    packets: u32,
    interval: Duration,
    clock: Clock,
    chains: BTreeMap<String, Sampled>,
    identifiers: Identifiers,
}

/// Chain of which packets are sampled.
struct Sampled {
    traces: Arc<PacketTraces>,
    next: Instant,
    sample: Option<Sample>,
}

/// Sample that has begun.
struct Sample {
    stream: TraceStream,
    latest: Instant,
    /// Steps of packets, in the order of their first ones, and which packet is in which buffer.
    packets: Vec<Vec<TraceStep>>,
    known: HashMap<(u16, u32, Nanos), usize>,
}

impl Sampler {
    /// Sampler of so many packets of each chain in a second.
    pub(super) fn new(per_second: u32, clock: Clock) -> Sampler {
        let interval = (Duration::from_secs(1) / per_second.max(1)).max(SHORTEST);
        Sampler {
            packets: (f64::from(per_second) * interval.as_secs_f64()).round() as u32,
            interval,
            clock,
            chains: BTreeMap::new(),
            identifiers: Identifiers::default(),
        }
    }

    /// Begins and ends samples of the chains that run, and queues the spans of those that have ended.
    pub(super) fn step(&mut self, chains: TracedChains, queue: &Queue) {
        if self.packets == 0 {
            return;
        }
        let now = Instant::now();
        self.chains.retain(|name, sampled| {
            let running = chains.get(name);
            running.is_some_and(|traces| Arc::ptr_eq(traces, &sampled.traces))
        });
        for (name, traces) in chains {
            self.chains.entry(name).or_insert_with(|| Sampled {
                traces,
                next: now,
                sample: None,
            });
        }
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos() as u64;
        let origin = wall.saturating_sub(self.clock.now().0);
        for (name, chain) in &mut self.chains {
            if let Some(sample) = &mut chain.sample {
                sample.read(now);
                // Somebody else traces the chain, and some steps may be missing.
                if !sample.stream.is_current() {
                    chain.sample = None;
                }
            }
            if let Some(sample) = chain.sample.take_if(|sample| sample.is_over(now)) {
                let functions = sample.stream.traces().functions();
                for packet in &sample.packets {
                    let spans = packet_spans((name, functions), packet, origin, &self.identifiers);
                    spans.into_iter().for_each(|span| queue.push(span));
                }
            }
            if chain.sample.is_none() && now >= chain.next {
                chain.next = now + self.interval;
                chain.sample = chain.traces.sample(self.packets).ok().map(|stream| Sample {
                    stream,
                    latest: now,
                    packets: Vec::new(),
                    known: HashMap::new(),
                });
            }
        }
    }
}

impl Sample {
    fn read(&mut self, now: Instant) {
        while let Some(step) = self.stream.next_step() {
            self.latest = now;
            if step.function.is_none() {
                self.known.insert(step.packet, self.packets.len());
                self.packets.push(Vec::new());
            }
            // A packet without a first step was in the chain before.
            if let Some(packet) = self.known.get(&step.packet) {
                self.packets[*packet].push(step);
            }
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.stream.left() == 0 && now.saturating_duration_since(self.latest) >= REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_packets_in_a_second_are_a_few_samples_of_more_packets() {
        for (per_second, expected) in [
            (0, (0, 1000)),
            (1, (1, 1000)),
            (4, (1, 250)),
            (10, (2, 200)),
            (100, (20, 200)),
        ] {
            let sampler = Sampler::new(per_second, Clock::of_readings(Nanos(1)));
            assert_eq!((sampler.packets, sampler.interval.as_millis()), expected);
        }
    }
}
