//! Counters of a core, as hardware has them.

/// Counters of one core over the measured time. Rates are per second of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Throughput.
    pub packets_per_second: f64,
    /// 99th percentile of a packet's time on the core.
    pub p99_ns: f64,
    /// Mean time of a packet on the core.
    pub mean_ns: f64,
    /// Instructions per cycle, while packets are processed.
    pub ipc: f64,
    /// Instructions per second.
    pub instructions: f64,
    /// Reads of the second-level cache.
    pub l2_reads: f64,
    /// Reads that hit the second-level cache.
    pub l2_hits: f64,
    /// Reads that missed it: the access rate of the last-level cache.
    pub l2_misses: f64,
    /// Accesses of the core to the last-level cache.
    pub llc_accesses: f64,
    /// Accesses that hit.
    pub llc_hits: f64,
    /// Accesses that missed.
    pub llc_misses: f64,
    /// Bytes of the last-level cache that hold the core's lines, packets included; the mean over time.
    pub llc_occupancy_bytes: f64,
    /// Bytes read from memory, by the core and its transmitting device.
    pub memory_read_bytes: f64,
    /// Bytes of the core and its packets that were written back to memory.
    pub memory_write_bytes: f64,
    /// Mean latency of a load from memory.
    pub llc_miss_ns: f64,
    /// Lines that the core's receiving device wrote.
    pub dma_write_lines: f64,
    /// Share of these lines that were in the last-level cache.
    pub dma_write_hit_share: f64,
    /// Share of the lines read by the transmitting device that were in a cache.
    pub dma_read_hit_share: f64,
    /// Received lines that were evicted before the core read them.
    pub unread_evictions: f64,
    /// Other lines of the core that receiving devices evicted.
    pub evicted_by_devices: f64,
}

impl Counters {
    /// Bytes of memory traffic per packet.
    pub fn memory_bytes_per_packet(&self) -> f64 {
        (self.memory_read_bytes + self.memory_write_bytes) / self.packets_per_second
    }
}
