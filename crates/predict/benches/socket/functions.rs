//! Functions that share the modelled socket, and how they are measured on it.

use std::sync::Arc;
use tailwater_predict::metric::{ACCESS_RATE, Combine, OCCUPANCY, Resource, WORKING_SET};
use tailwater_predict::{Key, Metric, Schema, Source, Vector};
use tailwater_socket::{Counters, Scenario, SocketConfig, Workload, co_run, recorded};

/// Standard deviation of the measured throughput and p99, as a share: repeated runs on a quiet server.
pub const THROUGHPUT_NOISE: f64 = 0.01;
/// Standard deviation of each counter of each core, as a share.
pub const COUNTER_NOISE: f64 = 0.02;
const MIB: f64 = 1_048_576.0;

/// Deterministic pseudo-random numbers (SplitMix64).
pub struct Chance(pub u64);

impl Chance {
    /// Chance that depends on a seed and a name.
    pub fn of(seed: u64, name: &str) -> Chance {
        Chance(seed ^ fingerprint(name))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f64) as usize
    }

    /// Normally distributed (Box and Muller), with this standard deviation, as a factor around 1.
    pub fn factor(&mut self, deviation: f64) -> f64 {
        let (radius, angle) = (1.0 - self.unit(), self.unit());
        let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
        (deviation * normal).exp()
    }
}

/// FNV-1a of a text: of whatever a cached measurement depends on.
pub fn fingerprint(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Recorded functions, each with flows of its own.
const FUNCTIONS: [(&str, u64); 11] = [
    ("accounting", 1_000_000),
    ("acl", 400_000),
    ("acl-nat", 200_000),
    ("dns-guard", 100_000),
    ("firewall", 100_000),
    ("flow-stats", 400_000),
    ("forward", 400_000),
    ("load-balancer", 800_000),
    ("nat", 400_000),
    ("policer-flows", 400_000),
    ("url-filter", 200_000),
];

/// Function in its traffic.
#[derive(Clone)]
pub struct Function {
    pub name: String,
    pub scenario: Scenario,
    pub workload: Workload,
}

impl Function {
    /// Recorded function with a number of flows.
    pub fn new(name: &str, flows: u64) -> Function {
        // All cores are saturated.
        let scenario = Scenario {
            flows,
            frame_bytes: 64,
            descriptors: 256,
            ..Scenario::default()
        };
        let pattern = recorded(name).unwrap_or_else(|| panic!("{name} is not recorded"));
        Function {
            name: name.to_owned(),
            scenario,
            workload: pattern.workload(&scenario),
        }
    }

    /// Functions of the benchmark.
    pub fn all() -> Vec<Function> {
        FUNCTIONS
            .iter()
            .map(|(name, flows)| Function::new(name, *flows))
            .collect()
    }

    /// Scope of this function's measurements on a socket.
    pub fn key(&self, config: &SocketConfig, seed: u64) -> Key {
        let measured = format!(
            "{:?} {config:?} {seed} {THROUGHPUT_NOISE} {COUNTER_NOISE}",
            self.workload
        );
        Key {
            function: self.name.clone(),
            configuration: format!("{:016x}", fingerprint(&measured)),
            traffic: format!("{} B, {} flows", self.scenario.frame_bytes, self.scenario.flows),
            machine: "modelled E5-2620 v4".to_owned(),
        }
    }
}

/// Counters of competitors as metrics. Instructions, and those per cycle, are none of them: a competitor's are set by
/// its program, and the synthetic one executes fewer per cycle than any chain, so that no campaign would cover them.
pub fn schema() -> Arc<Schema> {
    let cache = |name: &str, unit: &str| Metric::new(name, unit, Resource::Cache);
    let memory = |name: &str, unit: &str| Metric::new(name, unit, Resource::MemoryBandwidth);
    let packets = |name: &str| Metric::new(name, "lines/s", Resource::PacketBuffers);
    let metrics = vec![
        cache(ACCESS_RATE, "accesses/s"),
        cache("llcMisses", "misses/s"),
        cache(OCCUPANCY, "MiB"),
        cache(WORKING_SET, "MiB"),
        Metric::ratio("llcHitRate", "ratio", Resource::Cache),
        Metric::ratio("l2HitRate", "ratio", Resource::Cache),
        Metric::ratio("missesPerInstruction", "misses/instruction", Resource::Cache),
        memory("memoryRead", "GB/s"),
        memory("memoryWrite", "GB/s"),
        Metric {
            combine: Combine::Mean,
            ..memory("llcMissLatency", "ns")
        },
        packets("deviceWrites"),
        packets("deviceWriteMisses"),
    ];
    Arc::new(Schema::new(Source::Modelled, metrics).expect("names are valid"))
}

/// Memory that a workload touches again and again.
pub fn working_set_mib(workload: &Workload) -> f64 {
    let touched = workload.regions.iter().filter(|of| of.reads + of.writes > 0.0);
    let buffers = workload.io.as_ref().map_or(0, |io| io.descriptors * io.lines() * 64);
    (touched.map(|of| of.bytes).sum::<u64>() + buffers) as f64 / MIB
}

/// Values of one core in the order of the [`schema`], as counters with noise show them.
fn values(of: &Counters, workload: &Workload, chance: &mut Chance) -> Vec<f64> {
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 1.0 };
    let mut noisy = |value: f64| value * chance.factor(COUNTER_NOISE);
    vec![
        noisy(of.l2_misses),
        noisy(of.llc_misses),
        noisy(of.llc_occupancy_bytes / MIB),
        working_set_mib(workload),
        noisy(share(of.llc_hits, of.llc_accesses)),
        noisy(share(of.l2_hits, of.l2_reads)),
        noisy(of.llc_misses / of.instructions),
        noisy(of.memory_read_bytes / 1e9),
        noisy(of.memory_write_bytes / 1e9),
        noisy(of.llc_miss_ns),
        noisy(of.dma_write_lines),
        noisy(of.dma_write_lines * (1.0 - of.dma_write_hit_share)),
    ]
}

/// One core of a co-run, as it is measured.
pub struct Measured {
    pub packets_per_second: f64,
    pub p99_us: f64,
    pub values: Vec<f64>,
}

/// Measures workloads on the cores of a socket.
pub fn measure(config: &SocketConfig, workloads: &[&Workload], chance: &mut Chance) -> Vec<Measured> {
    let counters = co_run(config, workloads, chance.bits()).unwrap_or_else(|error| panic!("{error}"));
    let cores = counters.iter().zip(workloads);
    cores
        .map(|(of, workload)| Measured {
            packets_per_second: of.packets_per_second * chance.factor(THROUGHPUT_NOISE),
            p99_us: of.p99_ns * 1e-3 * chance.factor(THROUGHPUT_NOISE),
            values: values(of, workload, chance),
        })
        .collect()
}

/// Vector of one core.
pub fn own(schema: &Arc<Schema>, of: &Measured) -> Vector {
    let values = of.values.iter().map(|value| Some(*value)).collect();
    Vector::new(schema.clone(), values).expect("a value for each metric")
}

/// Vector of several cores. Means of none are missing.
pub fn together(schema: &Arc<Schema>, cores: &[&Measured]) -> Vector {
    let combined = schema.metrics().iter().enumerate().map(|(at, metric)| {
        let sum: f64 = cores.iter().map(|of| of.values[at]).sum();
        match metric.combine {
            Combine::Sum => Some(sum),
            Combine::Mean if cores.is_empty() => None,
            Combine::Mean => Some(sum / cores.len() as f64),
        }
    });
    Vector::new(schema.clone(), combined.collect()).expect("a value for each metric")
}
