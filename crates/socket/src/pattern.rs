//! Access patterns of the project's functions, recorded from their code.
//!
//! `cargo bench -p tailwater-dataplane --bench accesses` records them; `patterns/` has the files.

use crate::workload::{Order, PacketIo, Region, Workload};
use std::fmt;

/// Region of a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct PatternRegion {
    /// `hot` (touched by every batch), `flows-N` (grows with flows) or `fixed-N` (does not).
    pub name: String,
    /// Bytes without flows.
    pub fixed_bytes: f64,
    /// Bytes that each flow adds.
    pub bytes_per_flow: f64,
    /// Bytes of the table that the lines are spread over, or 0 if they are next to each other.
    pub span_bytes: f64,
    /// Lines per packet that are read and not written.
    pub reads: f64,
    /// Lines per packet that are written.
    pub writes: f64,
    /// Lines that each further line of a packet adds to `reads`.
    pub reads_per_line: f64,
    /// Mean number of misses that proceed in parallel.
    pub parallel: f64,
}

/// Recorded accesses of a function or chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern {
    /// Name of the chain, as in benchmarks.
    pub name: String,
    /// Instructions for a packet of one line, without receiving and sending.
    pub instructions: f64,
    /// Instructions for each further line of a packet.
    pub instructions_per_line: f64,
    /// Lines read of a packet of one line, and of each further line.
    pub packet_reads: [f64; 2],
    /// Lines written of a packet of one line, and of each further line.
    pub packet_writes: [f64; 2],
    /// Memory.
    pub regions: Vec<PatternRegion>,
}

/// Traffic and configuration for which a [`Pattern`] is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// Active flows, to which packets belong uniformly.
    pub flows: u64,
    /// Size of the rules or tables, as a multiple of the recorded ones.
    pub rules: f64,
    /// Length of a frame.
    pub frame_bytes: u64,
    /// Receive descriptors of the queue.
    pub descriptors: u64,
    /// Rate of arriving packets. `None`: always more than the core can process.
    pub packets_per_second: Option<f64>,
}

impl Default for Scenario {
    /// 64-byte packets of 100,000 flows, with 512 descriptors, at the core's capacity.
    fn default() -> Scenario {
        Scenario {
            flows: 100_000,
            rules: 1.0,
            frame_bytes: 64,
            descriptors: 512,
            packets_per_second: None,
        }
    }
}

/// Instructions for receiving and sending a packet, which recordings do not contain: 25 cycles, as `forward` takes in
/// the whole runtime, at 3 instructions a cycle.
const IO_INSTRUCTIONS: f64 = 75.0;

/// Instructions per cycle while everything is in the first-level cache. Assumed: light functions reach 4.3 to 4.5 in
/// the whole runtime with 10,000 flows on the reference machine, by their instructions and `docs/lab/performance.md`.
const BASE_IPC: f64 = 4.4;

impl PatternRegion {
    /// Bytes for this number of flows. Lines spread over a table at random coincide ever more often.
    fn bytes(&self, flows: u64, rules: f64) -> u64 {
        let flows = self.bytes_per_flow * flows as f64;
        let flows = match self.span_bytes {
            0.0 => flows,
            span => span * rules * (1.0 - (-flows / (span * rules)).exp()),
        };
        let fixed = match self.name.starts_with("fixed") {
            true => self.fixed_bytes * rules,
            false => self.fixed_bytes,
        };
        (flows + fixed).max(64.0) as u64
    }
}

impl Pattern {
    /// The workload in a scenario.
    pub fn workload(&self, scenario: &Scenario) -> Workload {
        let further = scenario.frame_bytes.div_ceil(64).saturating_sub(1) as f64;
        let lines = |[first, each]: [f64; 2]| first + each * further;
        let region = |region: &PatternRegion| Region {
            name: region.name.clone(),
            bytes: region.bytes(scenario.flows, scenario.rules),
            reads: region.reads + region.reads_per_line * further,
            writes: region.writes,
            order: Order::Random,
            parallel: region.parallel,
        };
        Workload {
            name: self.name.clone(),
            instructions: self.instructions + self.instructions_per_line * further + IO_INSTRUCTIONS,
            base_ipc: BASE_IPC,
            packets_per_second: scenario.packets_per_second,
            io: Some(PacketIo {
                frame_bytes: scenario.frame_bytes,
                descriptors: scenario.descriptors,
                reads: lines(self.packet_reads),
                writes: lines(self.packet_writes),
                // The worker prefetches headers of a burst; the rest is read in order.
                parallel: 8.0,
            }),
            regions: self.regions.iter().map(region).collect(),
        }
    }

    /// Reads a pattern of this crate: the inverse of its display. `None` if the text is none.
    fn parse(text: &str) -> Option<Pattern> {
        let mut pattern = Pattern {
            name: String::new(),
            instructions: 0.0,
            instructions_per_line: 0.0,
            packet_reads: [0.0; 2],
            packet_writes: [0.0; 2],
            regions: Vec::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let key = words.next()?;
            let name = words.next()?;
            let values: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
            match (key, &values[..]) {
                ("pattern", []) => pattern.name = name.to_owned(),
                ("instructions", &[first, each]) => {
                    (pattern.instructions, pattern.instructions_per_line) = (first, each);
                }
                ("packet", &[reads, read_each, writes, write_each]) => {
                    (pattern.packet_reads, pattern.packet_writes) = ([reads, read_each], [writes, write_each]);
                }
                (
                    "region",
                    &[
                        fixed_bytes,
                        bytes_per_flow,
                        span_bytes,
                        reads,
                        writes,
                        reads_per_line,
                        parallel,
                    ],
                ) => {
                    pattern.regions.push(PatternRegion {
                        name: name.to_owned(),
                        fixed_bytes,
                        bytes_per_flow,
                        span_bytes,
                        reads,
                        writes,
                        reads_per_line,
                        parallel,
                    });
                }
                _ => return None,
            }
        }
        Some(pattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pattern {}", self.name)?;
        writeln!(f, "# Instructions: packet of one line, each further line.")?;
        writeln!(
            f,
            "instructions - {:.1} {:.2}",
            self.instructions, self.instructions_per_line
        )?;
        writeln!(
            f,
            "# Lines of a packet: read of the first, of each further one; written likewise."
        )?;
        let ([reads, read_each], [writes, write_each]) = (self.packet_reads, self.packet_writes);
        writeln!(f, "packet - {reads:.2} {read_each:.3} {writes:.2} {write_each:.3}")?;
        writeln!(
            f,
            "# Region: fixed bytes, bytes per flow, span; lines of a packet: read, written, per further line;"
        )?;
        writeln!(f, "# parallel misses.")?;
        for region in &self.regions {
            write!(
                f,
                "region {} {:.0} {:.1}",
                region.name, region.fixed_bytes, region.bytes_per_flow
            )?;
            write!(f, " {:.0} {:.3} {:.3}", region.span_bytes, region.reads, region.writes)?;
            writeln!(f, " {:.3} {:.1}", region.reads_per_line, region.parallel)?;
        }
        Ok(())
    }
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// Files of `patterns/`.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../patterns/", $name, ".pattern")))),*];
    };
}

files![
    "accounting",
    "acl",
    "acl-lb-accounting",
    "acl-nat",
    "dns-guard",
    "firewall",
    "flow-stats",
    "forward",
    "load-balancer",
    "nat",
    "policer-flows",
    "url-filter",
];

/// Names of the recorded patterns.
pub fn recorded_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// Recorded pattern of this name, or `None` if there is none.
pub fn recorded(name: &str) -> Option<Pattern> {
    let (_, text) = FILES.iter().find(|(known, _)| *known == name)?;
    Pattern::parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_pattern_can_be_replayed_and_written_again() {
        assert!(recorded_names().count() > 0);
        for name in recorded_names() {
            let pattern = recorded(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(pattern.name, name);
            assert_eq!(Pattern::parse(&pattern.to_string()), Some(pattern.clone()), "{name}");
            for flows in [1, 1_000, 4_000_000] {
                let scenario = Scenario {
                    flows,
                    frame_bytes: 1518,
                    ..Scenario::default()
                };
                pattern
                    .workload(&scenario)
                    .check()
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
        assert_eq!(recorded("unknown"), None);
    }

    #[test]
    fn state_of_flows_grows_with_flows_and_tables_do_not() {
        let region = |name: &str, span_bytes| PatternRegion {
            name: name.to_owned(),
            fixed_bytes: 1000.0,
            bytes_per_flow: if name == "fixed-1" { 0.0 } else { 64.0 },
            span_bytes,
            reads: 1.0,
            writes: 0.0,
            reads_per_line: 0.0,
            parallel: 1.0,
        };
        assert_eq!(region("flows-1", 0.0).bytes(1000, 2.0), 65_000);
        assert_eq!(region("fixed-1", 0.0).bytes(1000, 2.0), 2000);
        // Lines of a table of 64 KiB, of which all are touched sooner or later.
        let table = region("flows-1", 65_536.0);
        assert!(table.bytes(100, 1.0) > 6_900 && table.bytes(100, 1.0) < 7_400);
        assert_eq!(table.bytes(1 << 20, 1.0), 66_536);
    }
}
