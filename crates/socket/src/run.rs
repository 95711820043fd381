//! Workloads on the cores of one socket, in virtual time.

use crate::config::{LINE_BYTES, SocketConfig, SocketError};
use crate::core::{Core, Latencies};
use crate::counters::Counters;
use crate::hierarchy::Hierarchy;
use crate::tail::p99;
use crate::workload::Workload;

/// Time over which bandwidth is measured, and for which the latency that follows from it applies.
const SLICE_NS: f64 = 10_000.0;
/// Weight of a slice in the mean utilization.
const WEIGHT: f64 = 0.1;
/// Bounds of the packets that all cores process, before and while counting.
const WARM_UP_PACKETS: u64 = 1_200_000;
const COUNTED_PACKETS: u64 = 300_000;
/// Packets of the slowest core that are counted, if the bound allows.
const PACKETS_OF_EACH: u64 = 20_000;

/// Traffic of memory and the latency that results.
struct MemoryLoad {
    latencies: Latencies,
    utilization: f64,
    slice_end: f64,
    lines: u64,
    /// Sum of the slices' latencies, and their number.
    sum: f64,
    slices: u64,
}

impl MemoryLoad {
    fn end_slice(&mut self, config: &SocketConfig, lines: u64) {
        let bytes = (lines - self.lines) as f64 * (LINE_BYTES * config.sample) as f64;
        self.lines = lines;
        let now = bytes / (SLICE_NS * 1e-9) / config.dram.bytes_per_second;
        self.utilization += WEIGHT * (now - self.utilization);
        self.latencies = Latencies::new(config, config.dram.slowdown(self.utilization));
        self.sum += self.latencies.by_level[3];
        self.slices += 1;
        self.slice_end += SLICE_NS;
    }
}

/// Runs workloads beside each other, one per core from core 0 on, until their counters are steady. Returns the
/// counters of each core. Equal arguments give equal counters.
///
/// # Errors
/// The socket or a workload is invalid, or there are more workloads than cores.
pub fn co_run(config: &SocketConfig, workloads: &[&Workload], seed: u64) -> Result<Vec<Counters>, SocketError> {
    config.check()?;
    if workloads.is_empty() || workloads.len() > config.cores {
        let (cores, found) = (config.cores, workloads.len());
        return Err(SocketError::Workloads { cores, found });
    }
    workloads.iter().try_for_each(|workload| workload.check())?;
    let mut hierarchy = Hierarchy::new(config, workloads.len());
    let core = |(id, workload): (usize, &&Workload)| Core::new(id, workload, config, seed ^ (id as u64) << 32);
    let mut cores: Vec<Core> = workloads.iter().enumerate().map(core).collect();
    let mut load = MemoryLoad {
        latencies: Latencies::new(config, 1.0),
        utilization: 0.0,
        slice_end: SLICE_NS,
        lines: 0,
        sum: 0.0,
        slices: 0,
    };
    let llc_lines = hierarchy.llc_lines(config.llc.ways);
    for at in 0..llc_lines {
        cores.iter().for_each(|core| core.fill(at, &mut hierarchy));
    }
    hierarchy.reset();
    let warm_up: Vec<u64> = cores
        .iter()
        .map(|core| core.warm_up(4 * llc_lines / cores.len() as u64))
        .collect();
    run_until(config, &mut cores, &mut hierarchy, &mut load, |cores, total| {
        let is_warm = cores
            .iter()
            .zip(&warm_up)
            .all(|(core, &packets)| core.packets >= packets);
        is_warm && total >= 100_000 || total >= WARM_UP_PACKETS
    });

    hierarchy.reset();
    (load.sum, load.slices, load.lines) = (0.0, 0, 0);
    let begin: Vec<(f64, u64)> = cores.iter().map(|core| (core.now, core.packets)).collect();
    for core in &mut cores {
        core.busy = 0.0;
        core.served.iter_mut().for_each(|served| served.levels = [0; 4]);
    }
    let mut occupancy = vec![0_u64; cores.len()];
    let mut samples = 0;
    // Each core at least as often as it takes to touch every simulated line.
    let enough: Vec<u64> = begin
        .iter()
        .zip(&warm_up)
        .map(|(begin, warm_up)| begin.1 + PACKETS_OF_EACH.max(warm_up / 3))
        .collect();
    const PART: u64 = 2_000;
    for _ in 0..COUNTED_PACKETS / PART {
        run_until(config, &mut cores, &mut hierarchy, &mut load, |_, total| total >= PART);
        occupancy
            .iter_mut()
            .zip(&hierarchy.occupancy)
            .for_each(|(sum, lines)| *sum += lines);
        samples += 1;
        if cores
            .iter()
            .zip(&enough)
            .all(|(core, &packets)| core.packets >= packets)
        {
            break;
        }
    }

    let loaded_ns = if load.slices == 0 {
        load.latencies.by_level[3]
    } else {
        load.sum / load.slices as f64
    };
    let mut loaded = load.latencies;
    loaded.by_level[3] = loaded_ns;
    let idle = Latencies::new(config, 1.0);
    let count = |core: usize| {
        let (traffic, this) = (&hierarchy.traffic[core], &cores[core]);
        let seconds = (this.now - begin[core].0) * 1e-9;
        let packets = (this.packets - begin[core].1) as f64;
        let rate = |lines: u64| (lines * config.sample) as f64 / seconds;
        let bytes = |lines: u64| rate(lines) * LINE_BYTES as f64;
        let share = |part: u64, whole: u64| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        Counters {
            packets_per_second: packets / seconds,
            p99_ns: p99(this, &idle, &loaded, seed ^ core as u64),
            mean_ns: this.busy / packets,
            ipc: this.instructions() * packets / (this.busy * config.clock_ghz),
            instructions: this.instructions() * packets / seconds,
            l2_reads: rate(traffic.l2_reads),
            l2_hits: rate(traffic.l2_hits),
            l2_misses: rate(traffic.l2_reads - traffic.l2_hits),
            llc_accesses: rate(traffic.llc_accesses),
            llc_hits: rate(traffic.llc_hits),
            llc_misses: rate(traffic.llc_accesses - traffic.llc_hits),
            llc_occupancy_bytes: (occupancy[core] * config.sample * LINE_BYTES) as f64 / samples as f64,
            memory_read_bytes: bytes(traffic.memory_reads),
            memory_write_bytes: bytes(traffic.memory_writes),
            llc_miss_ns: loaded_ns,
            dma_write_lines: rate(traffic.dma_writes),
            dma_write_hit_share: share(traffic.dma_write_hits, traffic.dma_writes),
            dma_read_hit_share: share(traffic.dma_read_hits, traffic.dma_reads),
            unread_evictions: rate(traffic.unread_evictions),
            evicted_by_devices: rate(traffic.evicted_by_devices),
        }
    };
    Ok((0..cores.len()).map(count).collect())
}

/// Lets the core that is furthest behind process a packet, until `is_done` of the cores and the packets since the
/// beginning; that is checked every 500 packets.
fn run_until(
    config: &SocketConfig,
    cores: &mut [Core],
    hierarchy: &mut Hierarchy,
    load: &mut MemoryLoad,
    mut is_done: impl FnMut(&[Core], u64) -> bool,
) {
    let mut total = 0;
    loop {
        let mut next = 0;
        for core in 1..cores.len() {
            if cores[core].now < cores[next].now {
                next = core;
            }
        }
        while cores[next].now >= load.slice_end {
            let traffic = hierarchy.traffic.iter();
            let lines = traffic
                .map(|traffic| traffic.memory_reads + traffic.memory_writes)
                .sum();
            load.end_slice(config, lines);
        }
        cores[next].step(hierarchy, &load.latencies);
        total += 1;
        if total % 500 == 0 && is_done(cores, total) {
            return;
        }
    }
}
