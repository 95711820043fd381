//! One core: replays its workload against the hierarchy.

use crate::config::{LINE_BYTES, SocketConfig};
use crate::hierarchy::{Hierarchy, Level, line, mixed};
use crate::workload::{Order, PacketIo, Region, Workload};

/// Pseudo-random numbers (splitmix64): the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(mixed(seed ^ 0x9e37_79b9_7f4a_7c15))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Packets of a burst: of a queue that keeps up, so many wait; so many later a transmitted buffer is free.
const BURST: u64 = 32;
/// Descriptors in a line.
const DESCRIPTORS_PER_LINE: u64 = 4;
/// Numbers of the regions that each workload has in addition.
const PACKETS: usize = 0;
const RECEIVE_RING: usize = 1;
const TRANSMIT_RING: usize = 2;
const FIRST_REGION: usize = 3;

/// Accesses of one kind by the level that served them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// Lines per packet.
    pub per_packet: f64,
    /// Mean number of misses that proceed in parallel.
    pub parallel: f64,
    /// Simulated accesses, by level.
    pub levels: [u64; 4],
}

struct RegionState {
    lines: u64,
    /// Reads and writes per packet, in simulated lines, and the rest that is due.
    reads: f64,
    writes: f64,
    due: [f64; 2],
    order: Order,
    at: u64,
}

/// Ring of buffers between device and core.
struct Ring {
    io: PacketIo,
    buffers: u64,
    descriptor_lines: u64,
    /// Packets that the device has written.
    written: u64,
}

/// Core that runs a workload.
pub(crate) struct Core {
    id: usize,
    sample: u64,
    instructions: f64,
    base_cycles: f64,
    packets_per_second: Option<f64>,
    ring: Option<Ring>,
    regions: Vec<RegionState>,
    random: Random,
    /// Virtual time at which the next packet begins, in nanoseconds.
    pub now: f64,
    /// Packets processed since the beginning.
    pub packets: u64,
    /// Time with a packet since the last reset, in nanoseconds.
    pub busy: f64,
    /// Levels that served packets' lines, descriptors and each region.
    pub served: Vec<Served>,
}

/// Latencies that a step applies, in nanoseconds beyond a hit in the first-level cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub cycle: f64,
    pub by_level: [f64; 4],
}

impl Latencies {
    pub fn new(config: &SocketConfig, slowdown: f64) -> Latencies {
        let cycle = 1.0 / config.clock_ghz;
        let by_level = [
            0.0,
            config.l2_cycles * cycle,
            config.llc_cycles * cycle,
            config.dram.idle_ns * slowdown,
        ];
        Latencies { cycle, by_level }
    }
}

impl Core {
    pub fn new(id: usize, workload: &Workload, config: &SocketConfig, seed: u64) -> Core {
        let sample = config.sample as f64;
        let region = |region: &Region| RegionState {
            lines: simulated(region.bytes.div_ceil(LINE_BYTES), config.sample),
            reads: region.reads / sample,
            writes: region.writes / sample,
            due: [0.0; 2],
            order: region.order,
            at: 0,
        };
        let ring = |io: &PacketIo| Ring {
            io: io.clone(),
            // Beyond the descriptors, a burst is processed and one is transmitted.
            buffers: (io.descriptors + 2 * BURST).next_multiple_of(config.sample),
            descriptor_lines: simulated(io.descriptors.div_ceil(DESCRIPTORS_PER_LINE), config.sample),
            written: 0,
        };
        let mut served = vec![Served::default(); FIRST_REGION];
        if let Some(io) = &workload.io {
            let lines = io.lines() as f64;
            served[PACKETS] = Served {
                per_packet: io.reads.max(io.writes).min(lines),
                parallel: io.parallel,
                levels: [0; 4],
            };
            for ring in [RECEIVE_RING, TRANSMIT_RING] {
                let per_packet = 1.0 / DESCRIPTORS_PER_LINE as f64;
                // Descriptors are read in order, a burst at a time.
                served[ring] = Served {
                    per_packet,
                    parallel: 4.0,
                    levels: [0; 4],
                };
            }
        }
        served.extend(workload.regions.iter().map(|region| Served {
            per_packet: region.reads + region.writes,
            parallel: region.parallel,
            levels: [0; 4],
        }));
        Core {
            id,
            sample: config.sample,
            instructions: workload.instructions,
            base_cycles: workload.instructions / workload.base_ipc,
            packets_per_second: workload.packets_per_second,
            ring: workload.io.as_ref().map(ring),
            regions: workload.regions.iter().map(region).collect(),
            random: Random::new(seed),
            now: 0.0,
            packets: 0,
            busy: 0.0,
            served,
        }
    }

    /// Cycles of a packet whose accesses all hit the first-level cache.
    pub fn base_cycles(&self) -> f64 {
        self.base_cycles
    }

    pub fn instructions(&self) -> f64 {
        self.instructions
    }

    /// Packets until each line of the workload has been touched about twice, but for at most `most` lines of a
    /// region.
    pub fn warm_up(&self, most: u64) -> u64 {
        let regions = self
            .regions
            .iter()
            .filter(|region| region.reads + region.writes > 0.0)
            .map(|region| {
                let lines = region.lines.min(most) as f64;
                (2.0 * lines / (region.reads + region.writes)) as u64
            });
        let ring = self.ring.as_ref().map_or(0, |ring| 3 * ring.buffers);
        regions.max().unwrap_or(0).max(ring)
    }

    /// Touches one line of each region that has as many, so that none is touched for the first time later.
    pub fn fill(&self, at: u64, hierarchy: &mut Hierarchy) {
        for (index, region) in self.regions.iter().enumerate() {
            if at < region.lines && region.reads + region.writes > 0.0 {
                hierarchy.access(self.id, line(self.id, FIRST_REGION + index, at), false);
            }
        }
    }

    /// Processes a packet.
    pub fn step(&mut self, hierarchy: &mut Hierarchy, latencies: &Latencies) {
        let mut stall = 0.0;
        if let Some(rate) = self.packets_per_second {
            self.now = self.now.max(self.packets as f64 * 1e9 / rate);
        }
        if let Some(mut ring) = self.ring.take() {
            stall += self.packet(&mut ring, hierarchy, latencies);
            self.ring = Some(ring);
        }
        for index in 0..self.regions.len() {
            stall += self.touch_region(index, hierarchy, latencies);
        }
        let time = self.base_cycles * latencies.cycle + stall * self.sample as f64;
        self.now += time;
        self.busy += time;
        self.packets += 1;
    }

    fn touch_region(&mut self, index: usize, hierarchy: &mut Hierarchy, latencies: &Latencies) -> f64 {
        let mut stall = 0.0;
        for kind in 0..2 {
            let region = &mut self.regions[index];
            region.due[kind] += [region.reads, region.writes][kind];
            while self.regions[index].due[kind] >= 1.0 {
                let region = &mut self.regions[index];
                region.due[kind] -= 1.0;
                let at = match region.order {
                    Order::Random => self.random.below(region.lines),
                    Order::Sequential => {
                        region.at = (region.at + 1) % region.lines;
                        region.at
                    }
                };
                let line = line(self.id, FIRST_REGION + index, at);
                let level = hierarchy.access(self.id, line, kind == 1);
                stall += self.serve(FIRST_REGION + index, level, latencies);
            }
        }
        stall
    }

    fn serve(&mut self, kind: usize, level: Level, latencies: &Latencies) -> f64 {
        self.served[kind].levels[level as usize] += 1;
        latencies.by_level[level as usize] / self.served[kind].parallel
    }

    /// Receives packets that have arrived, and reads, writes and sends one.
    fn packet(&mut self, ring: &mut Ring, hierarchy: &mut Hierarchy, latencies: &Latencies) -> f64 {
        let mut stall = 0.0;
        let n = self.packets;
        let waiting = match self.packets_per_second {
            None => ring.io.descriptors,
            Some(rate) => (self.now * rate / 1e9) as u64 - n.min((self.now * rate / 1e9) as u64),
        };
        let until = n + waiting.clamp(BURST.min(ring.io.descriptors), ring.io.descriptors);
        while ring.written < until {
            self.each_line(ring, ring.written, ring.io.lines(), |line, _| hierarchy.receive(line));
            if let Some(line) = self.descriptor(ring, RECEIVE_RING, ring.written) {
                hierarchy.receive(line);
            }
            ring.written += 1;
        }
        if let Some(line) = self.descriptor(ring, RECEIVE_RING, n) {
            let level = hierarchy.access(self.id, line, false);
            stall += self.serve(RECEIVE_RING, level, latencies);
        }
        let reads = self.whole(ring.io.reads).min(ring.io.lines());
        let writes = self.whole(ring.io.writes).min(ring.io.lines());
        let mut levels = [0_u64; 4];
        self.each_line(ring, n, reads.max(writes), |line, offset| {
            levels[hierarchy.access(self.id, line, offset < writes) as usize] += 1;
        });
        for (level, count) in levels.iter().enumerate() {
            self.served[PACKETS].levels[level] += count;
            stall += *count as f64 * latencies.by_level[level] / ring.io.parallel;
        }
        if let Some(line) = self.descriptor(ring, TRANSMIT_RING, n) {
            let level = hierarchy.access(self.id, line, true);
            stall += self.serve(TRANSMIT_RING, level, latencies);
        }
        if let Some(sent) = n.checked_sub(BURST) {
            self.each_line(ring, sent, ring.io.lines(), |line, _| hierarchy.transmit(line));
            if let Some(line) = self.descriptor(ring, TRANSMIT_RING, sent) {
                hierarchy.transmit(line);
            }
        }
        stall
    }

    /// A whole number whose mean is `lines`.
    fn whole(&mut self, lines: f64) -> u64 {
        let whole = lines as u64;
        let rest = lines - whole as f64;
        whole + u64::from(rest > 0.0 && self.random.unit() < rest)
    }

    /// Calls `each` with the simulated ones of a packet's first lines, and their offsets in lines. Each offset is
    /// simulated in one of `sample` buffers.
    fn each_line(&self, ring: &Ring, packet: u64, lines: u64, mut each: impl FnMut(u64, u64)) {
        let buffer = packet % ring.buffers;
        // Line k of buffer b is simulated if b + 5k is divisible by `sample`; 13 is the inverse of 5 modulo 64.
        let mut offset = buffer.wrapping_neg().wrapping_mul(13) % self.sample;
        while offset < lines {
            let index = offset * (ring.buffers / self.sample) + buffer / self.sample;
            each(line(self.id, PACKETS, index), offset);
            offset += self.sample;
        }
    }

    /// Line of a packet's descriptor, if it is the line's first and simulated.
    fn descriptor(&self, ring: &Ring, region: usize, packet: u64) -> Option<u64> {
        let step = DESCRIPTORS_PER_LINE * self.sample;
        packet
            .is_multiple_of(step)
            .then(|| line(self.id, region, packet / step % ring.descriptor_lines))
    }
}

/// Simulated lines of a region.
fn simulated(lines: u64, sample: u64) -> u64 {
    ((lines + sample / 2) / sample).max(1)
}
