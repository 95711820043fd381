//! Sizes, latencies and partitions of a socket.

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// Maximum number of cores of a socket.
pub const MAX_CORES: usize = 64;

/// Cache of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateCache {
    /// Capacity.
    pub bytes: u64,
    /// Associativity.
    pub ways: usize,
}

/// Last-level cache, shared by all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastLevelCache {
    /// Capacity.
    pub bytes: u64,
    /// Associativity: the unit of partitions (Intel CAT).
    pub ways: usize,
    /// Ways into which devices allocate (Intel DDIO): the highest-numbered ones.
    pub ddio_ways: usize,
    /// `true`: contains all lines of the private caches, as up to Broadwell. `false`: receives lines that the
    /// second-level caches evict, as since Skylake-SP.
    pub is_inclusive: bool,
}

/// Main memory of a socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Dram {
    /// Latency of a load without other traffic, in nanoseconds, from the core.
    pub idle_ns: f64,
    /// Bandwidth at utilization 1, in bytes per second.
    pub bytes_per_second: f64,
    /// Points (utilization, latency as a multiple of `idle_ns`), both increasing. The last slope continues above, so
    /// that demand beyond the bandwidth slows its cores down.
    pub curve: Vec<(f64, f64)>,
}

impl Dram {
    /// Latency grows linearly up to 90 % utilization, then to 2.5 times the idle latency (ResQ §4.1, Figure 3).
    pub const LOAD_CURVE: [(f64, f64); 4] = [(0.0, 1.0), (0.9, 1.4), (0.95, 1.8), (1.0, 2.5)];

    /// Multiple of the idle latency at a utilization.
    pub fn slowdown(&self, utilization: f64) -> f64 {
        let Some(pair) = self
            .curve
            .windows(2)
            .find(|pair| utilization <= pair[1].0)
            .or_else(|| self.curve.windows(2).last())
        else {
            return 1.0;
        };
        let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
        (y0 + (utilization - x0) / (x1 - x0) * (y1 - y0)).max(1.0)
    }
}

/// Socket of a modelled server.
#[derive(Clone, Debug, PartialEq)]
pub struct SocketConfig {
    /// Number of cores.
    pub cores: usize,
    /// Clock of the cores.
    pub clock_ghz: f64,
    /// First-level data cache of each core.
    pub l1: PrivateCache,
    /// Second-level cache of each core.
    pub l2: PrivateCache,
    /// Last-level cache.
    pub llc: LastLevelCache,
    /// Cycles that a hit in the second-level cache costs beyond a hit in the first.
    pub l2_cycles: f64,
    /// Cycles that a hit in the last-level cache costs beyond a hit in the first.
    pub llc_cycles: f64,
    /// Main memory.
    pub dram: Dram,
    /// Ways of the last-level cache into which each core may allocate, a bit per way. Cores without a mask use all.
    pub masks: Vec<u64>,
    /// One of this many cache sets is simulated: a power of two up to 64; 1 simulates all.
    pub sample: u64,
}

/// Reason why a socket or a workload cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SocketError {
    /// A number is out of its range.
    #[error("{field}: expected {expected}, found {found}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Allowed values.
        expected: &'static str,
        /// Value that was given.
        found: f64,
    },
    /// More workloads than cores, or none.
    #[error("expected 1 to {cores} workloads, found {found}")]
    Workloads {
        /// Cores of the socket.
        cores: usize,
        /// Number of workloads.
        found: usize,
    },
}

pub(crate) fn check(
    is_valid: bool,
    field: &'static str,
    expected: &'static str,
    found: f64,
) -> Result<(), SocketError> {
    match is_valid {
        true => Ok(()),
        false => Err(SocketError::Range { field, expected, found }),
    }
}

impl SocketConfig {
    /// Intel Xeon E5-2620 v4 (Broadwell) at 2.1 GHz, 20 MiB: SLOMO's first machine (§2.3), with 11 cores instead of 8,
    /// for co-runs with ten competitors.
    pub fn broadwell_e5_2620_v4() -> SocketConfig {
        SocketConfig {
            cores: 11,
            clock_ghz: 2.1,
            l1: PrivateCache {
                bytes: 32 << 10,
                ways: 8,
            },
            l2: PrivateCache {
                bytes: 256 << 10,
                ways: 8,
            },
            llc: LastLevelCache {
                bytes: 20 << 20,
                ways: 20,
                ddio_ways: 2,
                is_inclusive: true,
            },
            l2_cycles: 8.0,
            llc_cycles: 40.0,
            dram: Dram {
                idle_ns: 85.0,
                bytes_per_second: 60e9,
                curve: Dram::LOAD_CURVE.to_vec(),
            },
            masks: Vec::new(),
            sample: 16,
        }
    }

    /// Intel Xeon E5-2695 v4 (Broadwell): 18 cores at 2.1 GHz, 45 MiB. ResQ's machine (§4).
    pub fn broadwell_e5_2695_v4() -> SocketConfig {
        let mut config = SocketConfig::broadwell_e5_2620_v4();
        config.cores = 18;
        config.llc.bytes = 45 << 20;
        config
    }

    /// Intel Xeon Silver 4110 (Skylake-SP): 11 MiB, 1 MiB of second-level cache per core, not inclusive. SLOMO's second
    /// machine.
    pub fn skylake_silver_4110() -> SocketConfig {
        let mut config = SocketConfig::broadwell_e5_2620_v4();
        config.l2 = PrivateCache {
            bytes: 1 << 20,
            ways: 16,
        };
        config.llc = LastLevelCache {
            bytes: 11 << 20,
            ways: 11,
            ddio_ways: 2,
            is_inclusive: false,
        };
        config.l2_cycles = 10.0;
        config.llc_cycles = 50.0;
        config
    }

    /// The project's reference machine: two cores of a virtual machine (AMD EPYC), which get about 14 of the 32 MiB of
    /// last-level cache that they share with other guests. Latencies are measured, the bandwidth is set so that a
    /// streaming writer slows random reads about as much as measured.
    pub fn reference_machine() -> SocketConfig {
        SocketConfig {
            cores: 2,
            clock_ghz: 3.0,
            l1: PrivateCache {
                bytes: 32 << 10,
                ways: 8,
            },
            l2: PrivateCache {
                bytes: 1 << 20,
                ways: 8,
            },
            llc: LastLevelCache {
                bytes: 14 << 20,
                ways: 16,
                ddio_ways: 2,
                is_inclusive: false,
            },
            l2_cycles: 8.0,
            llc_cycles: 45.0,
            dram: Dram {
                idle_ns: 160.0,
                bytes_per_second: 45e9,
                curve: Dram::LOAD_CURVE.to_vec(),
            },
            masks: Vec::new(),
            sample: 16,
        }
    }

    /// Mask of the `count` ways from way `first` on.
    pub fn ways(first: usize, count: usize) -> u64 {
        ((1 << count) - 1) << first
    }

    /// Ways into which a core may allocate.
    pub(crate) fn mask(&self, core: usize) -> u64 {
        let all = SocketConfig::ways(0, self.llc.ways);
        self.masks.get(core).map_or(all, |mask| mask & all)
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// A number is out of its range.
    pub fn check(&self) -> Result<(), SocketError> {
        let cores = (1..=MAX_CORES).contains(&self.cores);
        check(cores, "cores", "1 to 64", self.cores as f64)?;
        check(self.clock_ghz > 0.0, "clock_ghz", "a positive number", self.clock_ghz)?;
        let sample = self.sample.is_power_of_two() && self.sample <= 64;
        check(sample, "sample", "a power of two up to 64", self.sample as f64)?;
        for (field, bytes, ways) in [
            ("l1", self.l1.bytes, self.l1.ways),
            ("l2", self.l2.bytes, self.l2.ways),
            ("llc", self.llc.bytes, self.llc.ways),
        ] {
            let ways_fit = (1..=32).contains(&ways);
            check(ways_fit, field, "1 to 32 ways", ways as f64)?;
            let is_large = bytes / LINE_BYTES / ways as u64 / self.sample >= 1 && bytes <= 1 << 30;
            check(
                is_large,
                field,
                "bytes for one simulated set, up to 1 GiB",
                bytes as f64,
            )?;
        }
        let ddio = (1..=self.llc.ways).contains(&self.llc.ddio_ways);
        check(ddio, "llc.ddio_ways", "1 to all ways", self.llc.ddio_ways as f64)?;
        for core in 0..self.cores {
            check(
                self.mask(core) != 0,
                "masks",
                "at least one way for each core",
                core as f64,
            )?;
        }
        let Dram {
            idle_ns,
            bytes_per_second,
            curve,
        } = &self.dram;
        check(*idle_ns > 0.0, "dram.idle_ns", "a positive number", *idle_ns)?;
        check(
            *bytes_per_second > 0.0,
            "dram.bytes_per_second",
            "a positive number",
            *bytes_per_second,
        )?;
        let grows = curve
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        check(
            curve.len() >= 2 && grows,
            "dram.curve",
            "two or more increasing points",
            curve.len() as f64,
        )
    }
}
