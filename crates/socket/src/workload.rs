//! Accesses of a packet, in a form that can be replayed and scaled.

use crate::config::{LINE_BYTES, SocketError, check};

/// Misses of one core that can proceed in parallel: line-fill buffers of the first-level cache.
pub const MAX_PARALLEL_MISSES: f64 = 10.0;

/// Order in which a region's lines are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Uniformly at random: state of flows that packets hash to, tables looked up by address.
    Random,
    /// One after the other, again and again.
    Sequential,
}

/// Memory of a workload, apart from packets and descriptors.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Name, for people.
    pub name: String,
    /// Size. Rounded up to whole lines.
    pub bytes: u64,
    /// Lines that a packet reads and does not write. Later touches of a line by the same batch do not count: they hit
    /// the first-level cache.
    pub reads: f64,
    /// Lines that a packet writes, read before or not.
    pub writes: f64,
    /// Order of the touched lines.
    pub order: Order,
    /// Mean number of misses that proceed in parallel; 1 for a chain of dependent loads.
    pub parallel: f64,
}

/// Packets that a device writes to memory and reads from it.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketIo {
    /// Length of a frame.
    pub frame_bytes: u64,
    /// Receive descriptors of the queue, each with a buffer.
    pub descriptors: u64,
    /// Lines of a packet that the core reads, from its first one on.
    pub reads: f64,
    /// Lines of a packet that the core writes, from its first one on.
    pub writes: f64,
    /// Mean number of misses that proceed in parallel.
    pub parallel: f64,
}

/// Load of one core: what it does for each packet, endlessly.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Name, for people.
    pub name: String,
    /// Instructions per packet.
    pub instructions: f64,
    /// Instructions per cycle while all accesses hit the first-level cache.
    pub base_ipc: f64,
    /// Rate of arriving packets. `None`: always more than the core can process.
    pub packets_per_second: Option<f64>,
    /// Packets in memory. `None` for a program without packets, whose rounds count as packets.
    pub io: Option<PacketIo>,
    /// Other memory.
    pub regions: Vec<Region>,
}

impl PacketIo {
    /// Cache lines of a frame.
    pub fn lines(&self) -> u64 {
        self.frame_bytes.div_ceil(LINE_BYTES)
    }
}

impl Workload {
    /// Checks the ranges.
    ///
    /// # Errors
    /// A number is out of its range.
    pub fn check(&self) -> Result<(), SocketError> {
        let positive = |number: f64| number > 0.0 && number.is_finite();
        let count = |number: f64| (0.0..=100_000.0).contains(&number);
        let parallel = |number: f64| (1.0..=64.0).contains(&number);
        check(
            positive(self.instructions),
            "instructions",
            "a positive number",
            self.instructions,
        )?;
        check(positive(self.base_ipc), "base_ipc", "a positive number", self.base_ipc)?;
        if let Some(rate) = self.packets_per_second {
            check(positive(rate), "packets_per_second", "a positive number", rate)?;
        }
        if let Some(io) = &self.io {
            let bytes = io.frame_bytes as f64;
            check(
                (1..=65_536).contains(&io.frame_bytes),
                "frame_bytes",
                "1 to 65536",
                bytes,
            )?;
            let descriptors = io.descriptors as f64;
            check(
                (1..=65_536).contains(&io.descriptors),
                "descriptors",
                "1 to 65536",
                descriptors,
            )?;
            check(count(io.reads), "io.reads", "0 to 100000", io.reads)?;
            check(count(io.writes), "io.writes", "0 to 100000", io.writes)?;
            check(parallel(io.parallel), "io.parallel", "1 to 64", io.parallel)?;
        }
        let regions = self.regions.len();
        check(regions <= 64, "regions", "up to 64", regions as f64)?;
        for region in &self.regions {
            let bytes = region.bytes as f64;
            check((1..=1 << 36).contains(&region.bytes), "bytes", "1 to 64 GiB", bytes)?;
            check(count(region.reads), "reads", "0 to 100000", region.reads)?;
            check(count(region.writes), "writes", "0 to 100000", region.writes)?;
            check(parallel(region.parallel), "parallel", "1 to 64", region.parallel)?;
        }
        Ok(())
    }
}
